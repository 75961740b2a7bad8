//! Previews: small images of the results of steps.

use flux::engine::{Engine, Event, Job};
use flux::files::ModelFiles;
use flux::model::OpenModel;
use flux::pipeline::Request;
use flux::rgb::Rgb;

use super::{cpus, preset, tiny};
use crate::program::project;

/// The image's index, the step and the number of steps, and the preview.
pub type Preview = (usize, [usize; 2], Rgb);

pub fn previews_of(engine: &Engine, request: Request, count: usize) -> (Vec<Preview>, Vec<Rgb>) {
    let job = Job { previews: true, ..Job::new(request, count) };
    let (mut previews, mut images) = (Vec::new(), Vec::new());
    for event in engine.submit(job).unwrap().in_order() {
        match event.unwrap() {
            Event::Preview { place, steps, image } => previews.push((place, steps, image)),
            Event::Image { image, .. } => images.push(image.rgb),
            _ => {}
        }
    }
    (previews, images)
}

/// Returns the mean difference of an image and one of an eighth of its width and height, whose pixels are means.
fn apart(image: &Rgb, small: &Rgb) -> f64 {
    assert_eq!([image.width / 8, image.height / 8], [small.width, small.height]);
    let mean = |at: usize| {
        let (pixel, colour) = (at / 3, at % 3);
        let (top, left) = (pixel / small.width * 8, pixel % small.width * 8);
        let values = (0..64).map(|i| image.bytes[3 * ((top + i / 8) * image.width + left + i % 8) + colour]);
        values.map(f64::from).sum::<f64>() / 64.0
    };
    let sum: f64 = small.bytes.iter().enumerate().map(|(at, value)| (f64::from(*value) - mean(at)).abs()).sum();
    sum / small.bytes.len() as f64
}

#[test]
fn each_step_but_the_last_is_shown_and_looks_like_the_image() {
    let model = OpenModel::open(&ModelFiles::open(&project("models/tiny")).unwrap()).unwrap();
    let engine = Engine::on(vec![cpus(&["a"])], model).unwrap();
    let prompt = "a red heart on a light blue background";
    let request = Request { width: Some(128), height: Some(160), ..Request::new(prompt, 3) };
    let (previews, images) = previews_of(&engine, request.clone(), 2);
    let steps = engine.plan(&request).unwrap().steps;
    let told: Vec<_> = previews.iter().map(|(place, steps, _)| (*place, steps[0])).collect();
    let expected: Vec<_> = (1..steps).flat_map(|step| [(0, step), (1, step)]).collect();
    assert_eq!(told, expected);
    let distance = |step: usize| {
        let of_step = previews.iter().filter(|(_, steps, _)| steps[0] == step);
        of_step.map(|(place, _, preview)| apart(&images[*place], preview)).sum::<f64>() / images.len() as f64
    };
    let distances: Vec<_> = (1..steps).map(distance).collect();
    // Observed: 15 to 18 levels, the accuracy of a linear map.
    let small = &previews[0].2;
    let grey = apart(&images[0], &Rgb { bytes: vec![128; small.bytes.len()], ..small.clone() });
    assert!(distances.iter().all(|distance| *distance < grey / 2.0 && *distance < 25.0), "{distances:?}, grey {grey}");
    let same = engine.generate_images(&request, 2, &Default::default(), &mut |_| {}).unwrap();
    assert!(same.iter().zip(&images).all(|(image, shown)| image.rgb == shown.bytes), "looking on changes nothing");
}

#[test]
fn jobs_that_share_a_batch_are_shown_their_own_images() {
    let model = OpenModel::open(&preset("tiny")).unwrap();
    let engine = Engine::on(vec![cpus(&["a"])], model).unwrap();
    engine.check_previews().unwrap();
    let request = Request { steps: Some(3), ..tiny("a cat", 1) };
    let (previews, _) = previews_of(&engine, request, 3);
    let told: Vec<_> = previews.iter().map(|(place, steps, _)| (*place, *steps)).collect();
    assert_eq!(told, [(0, [1, 3]), (1, [1, 3]), (2, [1, 3]), (0, [2, 3]), (1, [2, 3]), (2, [2, 3])]);
}
