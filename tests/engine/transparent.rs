//! The two images of a transparent result, on one device and on several.

use std::sync::Arc;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::engine::{Engine, Event, Image, Job, Recipe};
use flux::error::{ErrorKind, Field};
use flux::files::ModelFiles;
use flux::input::read_alpha;
use flux::model::OpenModel;
use flux::pipeline::{Request, Transparency};
use flux::stage::{Progress, Stage};
use flux::{Error, ImageFormat};

fn engine(world: usize) -> Engine {
    let files = ModelFiles::open(&crate::support::root().join("models/tiny")).unwrap();
    let ranks = Cpu::group(Precision::F32, world, Duration::from_secs(60)).unwrap().into_iter().enumerate();
    let ranks = ranks.map(|(rank, cpu)| (format!("cpu:{rank}"), cpu)).collect();
    Engine::on(vec![ranks], OpenModel::open(&files).unwrap()).unwrap()
}

/// Returns a job for a heart of 128 x 128 pixels, whose background one or two images show.
fn heart(transparent: Transparency, steps: usize) -> Job {
    let (width, height) = (Some(128), Some(128));
    let recipe = Recipe { transparent, width, height, steps: Some(steps), ..Recipe::new("a red heart", 3) };
    Job { recipe: Some(Arc::new(recipe.clone())), ..Job::new(recipe.request().unwrap(), 1) }
}

fn alpha(image: &Image) -> Vec<u8> {
    let (_, alpha) = read_alpha(&image.encode(ImageFormat::Png).unwrap()).unwrap();
    alpha.expect("alpha that differs between pixels")
}

fn made(engine: &Engine, job: Job) -> Image {
    engine.submit(job).unwrap().wait().unwrap().pop().unwrap()
}

#[test]
fn a_group_of_devices_gives_the_alpha_of_one() {
    let [one, two] = [1, 2].map(|world| alpha(&made(&engine(world), heart(Transparency::Edit, 4))));
    let worst = one.iter().zip(&two).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(worst <= Some(8), "{worst:?}");
}

#[test]
fn the_opaque_image_is_there_too_and_a_jpeg_of_the_other_is_refused() {
    let engine = engine(1);
    let job = |transparent| Job { recipe: None, ..heart(transparent, 4) };
    let image = made(&engine, job(Transparency::Edit));
    let prompt = "a red heart, plain white background";
    let plain = Job {
        request: Request { prompt: prompt.to_string(), ..job(Transparency::No).request },
        ..job(Transparency::No)
    };
    assert!(image.rgb == made(&engine, plain).rgb, "the first image is that of the prompt");
    assert_eq!(image.encode(ImageFormat::Jpeg).unwrap_err().kind(), ErrorKind::Usage);
    let changed = Request { change: Some(whole()), transparent: Transparency::Edit, ..Request::new("x", 1) };
    assert_eq!(engine.plan(&changed).unwrap_err().field(), Some(Field::Transparent));
}

/// Returns an edit of a whole image.
fn whole() -> flux::pipeline::Change {
    let image = Arc::new(flux::rgb::Rgb { width: 32, height: 32, bytes: vec![9; 3072] });
    flux::pipeline::Change { image, cells: None, strength: 0.5, is_reference: false }
}

#[test]
fn a_job_is_cancelled_during_its_second_image() {
    let engine = engine(1);
    let ticket = engine.submit(heart(Transparency::Edit, 8)).unwrap();
    let (mut events, mut passes, mut last) = (ticket.in_order(), 0, u64::MAX);
    let end = loop {
        match events.next() {
            Some(Ok(Event::Progress(Progress { stage: Stage::Denoise, done, .. }))) => {
                passes += usize::from(done < last);
                last = done;
                if passes == 2 && done > 0 {
                    events.cancel();
                }
            }
            Some(Ok(Event::Image { .. })) | None => break Ok::<(), Error>(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => break Err(error),
        }
    };
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(passes, 2);
}

#[test]
fn two_images_are_estimated_to_take_longer_than_one() {
    let engine = engine(1);
    for _ in 0..3 {
        made(&engine, Job { recipe: None, ..heart(Transparency::No, 2) });
    }
    let [one, two] = [Transparency::No, Transparency::Edit]
        .map(|transparent| engine.seconds_with(&heart(transparent, 2)).unwrap().unwrap());
    assert!(two > 1.5 * one, "{one} {two}");
}
