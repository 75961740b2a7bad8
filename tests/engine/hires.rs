//! The second pass of an image: events, batches, previews, and cancellation.

use std::io;

use flux::engine::{Engine, Event, Job, Recipe};
use flux::error::ErrorKind;
use flux::model::OpenModel;
use flux::pipeline::Hires;
use flux::rgb::Rgb;
use flux::stage::{CancelFlag, Progress, Stage};

use super::previews::Preview;
use super::{cpus, preset};

fn engine() -> Engine {
    Engine::on(vec![cpus(&["a"])], OpenModel::open(&preset("tiny")).unwrap()).unwrap()
}

fn recipe(seed: u64, hires: Hires) -> Recipe {
    let size = Recipe { width: Some(64), height: Some(32), steps: Some(3), ..Recipe::new("a cat", seed) };
    Recipe { hires: Some(hires), ..size }
}

fn doubled() -> Hires {
    Hires { by: Some(2.0), ..Hires::default() }
}

fn job(engine: &Engine, recipe: &Recipe, count: usize) -> Job {
    engine.job(recipe, count, &mut io::empty()).unwrap()
}

#[test]
fn its_images_come_once_and_its_steps_count_on() {
    let engine = engine();
    let unseen = engine.submit(job(&engine, &recipe(5, doubled()), 2)).unwrap().wait().unwrap();
    let job = Job { previews: true, latents: true, ..job(&engine, &recipe(5, doubled()), 2) };
    let (mut images, mut steps, mut previews, mut finished): (Vec<_>, Vec<_>, Vec<Preview>, _) = Default::default();
    for event in engine.submit(job).unwrap().in_order() {
        match event.unwrap() {
            Event::Progress(Progress { stage: Stage::Denoise, done, total }) => steps.push((done, total)),
            Event::Preview { place, steps, image } => previews.push((place, steps, image)),
            Event::Image { place, image, latents } => images.push((place, image, latents.unwrap().shape())),
            Event::Finished { timings, images, .. } => finished = Some((timings.steps_s.len(), images)),
            _ => {}
        }
    }
    // Three steps for both images, and then two for each.
    assert!(
        steps.iter().all(|(_, total)| *total == 7) && steps.is_sorted() && steps.last() == Some(&(7, 7)),
        "{steps:?}"
    );
    assert_eq!(finished, Some((7, 0..2)));
    let shown: Vec<_> = previews.iter().map(|(place, steps, image)| (*place, *steps, image.width)).collect();
    let first = [(0, [1, 5], 8), (1, [1, 5], 8), (0, [2, 5], 8), (1, [2, 5], 8)];
    let second = [(0, [3, 5], 64), (0, [4, 5], 16), (1, [3, 5], 64), (1, [4, 5], 16)];
    assert_eq!(shown, [first, second].concat());
    for (place, image, latents) in images {
        let Rgb { width, height, .. } = image.rgb;
        assert_eq!((width, height, image.plan.width, image.plan.output_size()), (128, 64, 64, [128, 64]));
        assert_eq!((image.plan.seed, latents[1..].to_vec()), (5 + place as u64, vec![4, 8]));
        assert!(unseen[place].rgb == image.rgb, "previews change nothing: {place}");
        let made = image.recipe().unwrap().recipe;
        assert_eq!((made.width, made.height), (Some(64), Some(32)));
        assert_eq!(made.hires.unwrap(), Hires { strength: Some(0.5), ..doubled() });
    }
}

#[test]
fn several_devices_and_a_shared_batch_change_nothing() {
    let expected: Vec<_> =
        (1..4).map(|seed| engine().generate_recipe(recipe(seed, doubled())).run().unwrap().rgb).collect();
    let several = Engine::on(vec![cpus(&["a"]), cpus(&["b"])], OpenModel::open(&preset("tiny")).unwrap()).unwrap();
    let images = several.submit(job(&several, &recipe(1, doubled()), 3)).unwrap().wait().unwrap();
    assert!(images.iter().map(|image| &image.rgb).eq(&expected));
    // A waiting job with a prompt of its own joins the batch of another one.
    let (engine, prompt) = (engine(), Some("a dog".to_string()));
    let other = recipe(9, Hires { prompt, ..doubled() });
    let alone = engine.generate_recipe(other.clone()).run().unwrap();
    let tickets: Vec<_> = [recipe(1, doubled()), recipe(2, doubled()), other]
        .iter()
        .map(|recipe| engine.submit(job(&engine, recipe, 1)).unwrap())
        .collect();
    let images: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait().unwrap().remove(0).rgb).collect();
    assert!(images == [expected[0].clone(), expected[1].clone(), alone.rgb]);
}

#[test]
fn it_can_be_cancelled_in_each_pass() {
    let engine = engine();
    for passed in [1, 200] {
        let cancel = CancelFlag::default();
        let steps = Recipe { steps: Some(150), ..recipe(1, Hires { strength: Some(1.0), ..doubled() }) };
        let job = Job { cancel: cancel.clone(), ..job(&engine, &steps, 1) };
        let mut last = (0, Ok(()));
        for event in engine.submit(job).unwrap() {
            match event {
                Ok(Event::Progress(Progress { stage: Stage::Denoise, done, .. })) => {
                    last.0 = done;
                    if done >= passed {
                        cancel.cancel();
                    }
                }
                Ok(Event::Image { .. }) => panic!("it was cancelled"),
                Ok(_) => {}
                Err(error) => last.1 = Err(error.kind()),
            }
        }
        assert!(last.1 == Err(ErrorKind::Cancelled) && (passed..passed + 50).contains(&last.0), "{last:?}");
    }
    assert!(engine.generate_recipe(recipe(1, doubled())).run().is_ok());
}

#[test]
fn what_it_cannot_do_is_an_error_when_it_is_submitted() {
    let engine = engine();
    let request = |hires| job(&engine, &recipe(1, Hires { upscaler: None, ..hires }), 1).request;
    let named = Hires { upscaler: Some("u.pth".into()), ..doubled() };
    let unopened = flux::pipeline::Request { hires: Some(named), ..request(doubled()) };
    let error = engine.submit(Job::new(unopened, 1)).err().unwrap();
    assert!(error.to_string().contains("not open"), "{error}");
    let plan = engine.plan(&request(doubled())).unwrap();
    let [one, both] = [None, Some(doubled())].map(|hires| flux::pipeline::Request { hires, ..request(doubled()) });
    let memory = |request| engine.memory_plans(&engine.plan(request).unwrap(), 1).remove(0).1.is_ok();
    assert!(plan.second_pass().is_some() && memory(&one) && memory(&both));
}
