//! Steps of large images in overlapping tiles, on all kinds of models.

use std::sync::Arc;
use std::time::Duration;

use flux::backend::cpu::{Cpu, Precision};
use flux::error::Field;
use flux::files::{Array, ModelFiles};
use flux::pipeline::{Change, Latents, Model, Parallel, Request};
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use crate::flux3_base::write_base;
use crate::golden::flux3::model_folder;
use crate::support::{assert_near, built_in, load, preset};

/// Returns a request with two steps for an image of three tiles in a column.
fn tall(seed: u64) -> Request {
    let (tile, tile_overlap) = (Some(64), Some(32));
    let sized = Request { width: Some(64), height: Some(128), steps: Some(2), ..Request::new("a cat", seed) };
    Request { tile, tile_overlap, ..sized }
}

/// Returns an image with colours that change slowly from place to place.
fn picture(width: usize, height: usize) -> Arc<Rgb> {
    let pixel = |i: usize| [i % width * 255 / width, i / width * 255 / height, 90].map(|value| value as u8);
    Arc::new(Rgb { width, height, bytes: (0..width * height).flat_map(pixel).collect() })
}

/// Returns a request that edits a picture of three tiles.
fn edit(strength: f64, is_reference: bool) -> Request {
    let change = Some(Change { image: picture(64, 128), cells: None, strength, is_reference });
    Request { width: None, height: None, change, ..tall(3) }
}

/// Presets that do not cache keys of references.
const CACHELESS: [&str; 2] = ["tiny", "base"];

/// Calls `check` with these presets, and with models of FLUX.3.
pub fn for_each_model(presets: &[&str], check: impl Fn(&str, &ModelFiles)) {
    let base = tempfile::tempdir().unwrap();
    write_base(base.path());
    for name in presets {
        check(name, &preset(name));
    }
    check("FLUX.3", &ModelFiles::open(&model_folder()).unwrap());
    check("FLUX.3 base", &ModelFiles::open(base.path()).unwrap());
}

/// Returns rows of latents [1, channels, height, width].
fn cut(latents: &Latents, rows: std::ops::Range<usize>) -> Latents {
    let Array { shape, values } = latents.to_array();
    let (height, width) = (shape[2], shape[3]);
    let kept = values.chunks_exact(height * width).flat_map(|plane| &plane[rows.start * width..rows.end * width]);
    Latents::new(Array { shape: vec![1, shape[1], rows.len(), width], values: kept.copied().collect() }).unwrap()
}

fn final_latents(model: &Arc<Model<Cpu>>, request: &Request) -> Latents {
    let mut session = model.session(request, 1, &CancelFlag::default()).unwrap();
    session.final_latents(&mut |_| {}).unwrap().remove(0)
}

#[test]
fn an_image_within_a_tile_is_the_plain_image() {
    for_each_model(&CACHELESS, |what, files| {
        let model = load(files);
        let made = |tile, request: Request| model.generate(&Request { tile, tile_overlap: None, ..request }).unwrap();
        for request in [tall(1), edit(0.5, true), edit(0.5, false)] {
            let plain = made(None, request.clone());
            for tile in [0, 128, 4096] {
                let tiled = made(Some(tile), request.clone());
                assert!(tiled.plan.tiles.is_none() && tiled.rgb == plain.rgb, "{what}, {tile}");
            }
            assert!(made(Some(64), request).rgb != plain.rgb, "{what}");
        }
    });
}

/// Tiles without an overlap meet in no step.
#[test]
fn tiles_are_images_of_their_part_of_the_noise() {
    for_each_model(&CACHELESS, |what, files| {
        let model = load(files);
        let references = vec![picture(48, 32)];
        let whole = Request { tile_overlap: Some(0), references, ..tall(5) };
        let noise = final_latents(&model, &Request { steps: Some(1), ..whole.clone() });
        let whole = Request { noise: Some(noise.clone()), ..whole };
        let tiled = final_latents(&model, &whole);
        for rows in [0..4, 4..8] {
            let noise = Some(cut(&noise, rows.clone()));
            let part = final_latents(&model, &Request { height: Some(64), noise, ..whole.clone() });
            assert!(cut(&tiled, rows.clone()) == part, "{what}, {rows:?}");
        }
    });
}

/// With one step, no tile reads the result of another.
#[test]
fn tiles_that_overlap_are_averaged() {
    let model = load(&preset("tiny"));
    let whole = Request { steps: Some(1), ..tall(5) };
    let noise = final_latents(&model, &whole);
    let whole = Request { noise: Some(noise.clone()), ..whole };
    let part = |rows: std::ops::Range<usize>| {
        let noise = Some(cut(&noise, rows));
        final_latents(&model, &Request { height: Some(64), noise, ..whole.clone() }).to_array().values
    };
    let (tiled, parts) = (final_latents(&model, &whole).to_array(), [part(0..4), part(2..6), part(4..8)]);
    let (channels, width) = (tiled.shape[1], 4);
    for (row, shares) in
        (0..8).zip([[4, 0, 0], [4, 0, 0], [3, 1, 0], [1, 3, 0], [0, 3, 1], [0, 1, 3], [0, 0, 4], [0, 0, 4]])
    {
        for (channel, column) in (0..channels).flat_map(|channel| (0..width).map(move |column| (channel, column))) {
            let of_part = |(i, share): (usize, u8)| match share {
                0 => 0.0,
                _ => f32::from(share) / 4.0 * parts[i][(channel * 4 + row - 2 * i) * width + column],
            };
            let expected: f32 = shares.into_iter().enumerate().map(of_part).sum();
            let got = tiled.values[(channel * 8 + row) * width + column];
            assert!((got - expected).abs() < 1e-4, "row {row}: {got} instead of {expected}");
        }
    }
}

#[test]
fn a_batch_and_two_devices_give_the_image_of_one() {
    for_each_model(&CACHELESS, |what, files| {
        let model = load(files);
        let batch = model.generate_batch(&tall(1), 2).unwrap();
        assert_eq!((batch.len(), batch[0].timings.images), (1, 1), "{what}: an image with tiles is alone");
        let limit = Duration::from_secs(60);
        let ranks = Cpu::group(Precision::F32, 2, limit).unwrap();
        let parallel = Parallel::load(ranks, files).unwrap().with_grace(limit);
        for request in [tall(1), edit(0.5, true)] {
            let expected = model.generate(&request).unwrap().rgb;
            let made = parallel.generate_batch(&request, 1, &CancelFlag::default(), &mut |_| {}).unwrap();
            assert_near(what, &made[0].rgb, &expected);
        }
    });
}

#[test]
fn masks_variety_and_previews_work_with_tiles() {
    let model = load(&built_in());
    let plain = model.generate(&edit(1.0, true)).unwrap().rgb;
    // The upper half is kept.
    let cells: Arc<[f32]> = (0..32).map(|cell| if cell < 16 { 0.0 } else { 1.0 }).collect();
    let mut masked = edit(1.0, true);
    masked.change = masked.change.map(|change| Change { cells: Some(cells), ..change });
    let kept = model.generate(&masked).unwrap().rgb;
    let original = &masked.change.as_ref().unwrap().image.bytes;
    let distance = |image: &[u8]| {
        image.iter().zip(original).take(3 * 64 * 48).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>()
    };
    assert!(2 * distance(&kept) < distance(&plain), "{} of {}", distance(&kept), distance(&plain));
    let varied = Request { variety: "1:100:0.5".parse().ok(), ..edit(1.0, true) };
    assert!(model.generate(&varied).unwrap().rgb != plain);
    let mut session = model.session(&edit(1.0, true), 1, &CancelFlag::default()).unwrap();
    assert!(session.watch(&mut |_| {}).unwrap() && session.step(&mut |_| {}).unwrap());
    let predicted = session.predicted().unwrap().unwrap();
    assert_eq!(predicted.len(), session.latents().unwrap().len());
    assert!(session.decode(&mut |_| {}).unwrap().unwrap().rgb == plain, "previews change nothing");
}

/// A picture that repeats each 16 pixels downwards. So do both tiles, which begin at rows 0 and 96.
#[test]
fn two_tiles_of_a_periodic_picture_have_no_seam() {
    let model = load(&built_in());
    let (width, height) = (256, 224);
    let pixel = |i: usize| [i / width % 16 * 15, i / width % 16 * 9, 120].map(|value| value as u8);
    let image = Arc::new(Rgb { width, height, bytes: (0..width * height).flat_map(pixel).collect() });
    let change = Some(Change { image, cells: None, strength: 0.5, is_reference: false });
    let sizes = Request { width: None, height: None, tile: Some(128), max_sequence_length: Some(64), ..tall(0) };
    // The largest difference of two rows at the border of a tile, and elsewhere, in the mean of some images.
    let steps = |overlap| {
        let mut steps = vec![0.0; height];
        for seed in 1..5 {
            let request = Request { change: change.clone(), tile_overlap: Some(overlap), seed, ..sizes.clone() };
            let rgb = model.generate(&request).unwrap().rgb;
            let row = |y: usize| rgb[3 * width * y..3 * width * (y + 1)].iter();
            let step = |y: usize| row(y).zip(row(y - 1)).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>();
            (1..height).for_each(|y| steps[y] += step(y) / (4 * 3 * width) as f64);
        }
        let largest = |rows: &mut dyn Iterator<Item = usize>| rows.map(|y| steps[y]).fold(0.0, f64::max);
        [largest(&mut [96, 128].into_iter()), largest(&mut (1..height).filter(|y| ![96, 128].contains(y)))]
    };
    let ([border, elsewhere], [hard, soft]) = (steps(32), steps(0));
    println!("{border:.1} of {elsewhere:.1}, without a ramp {hard:.1} of {soft:.1}");
    assert!(border <= elsewhere && border < hard, "{border} of {elsewhere}, {hard} of {soft}");
}

/// A projection with more values than the device supports is computed in pieces of rows: to the same bytes in int8,
/// whose sums are exact. In float32 the order of a sum depends on the number of rows, unless tiles multiply.
#[test]
fn long_sequences_are_projected_in_pieces_to_the_same_image() {
    for_each_model(&CACHELESS, |what, files| {
        for precision in [Precision::Int8, Precision::F32] {
            let whole = Model::load(Cpu::new(precision), files).unwrap();
            let (dim, mlp) = (whole.info().transformer.dim(), whole.info().transformer.mlp());
            let plain = Request { tile: None, tile_overlap: None, ..tall(1) };
            let edit = Request { tile: None, tile_overlap: None, ..edit(0.5, true) };
            for request in [plain, edit] {
                let plan = whole.plan(&request).unwrap();
                let references = plan.references.iter().map(|size| size[0] * size[1] / 256).sum::<usize>();
                let tokens = plan.text_tokens.max(plan.negative_tokens) + references + plan.width * plan.height / 256;
                // The least limit that the plan accepts.
                let limit = (tokens * (3 * dim).max(dim + mlp)) as u64;
                let limited = |limit: u64| {
                    let cpu = Cpu::new(precision).with_max_tensor_values(limit);
                    Model::load(cpu, files).unwrap().generate(&request)
                };
                let (pieces, whole) = (limited(limit).unwrap().rgb, whole.generate(&request).unwrap().rgb);
                assert_near(what, &pieces, &whole);
                assert!(precision == Precision::F32 || pieces == whole, "{what}");
                assert!(limited(limit - 1).is_err(), "{what}");
            }
        }
    });
}

#[test]
fn models_that_cache_references_have_tiles_without_them() {
    let model = load(&preset("kv"));
    let plain = model.generate(&Request { tile: None, tile_overlap: None, ..tall(1) }).unwrap().rgb;
    assert!(model.generate(&tall(1)).unwrap().rgb != plain);
    for request in [edit(0.5, true), edit(0.5, false), Request { references: vec![picture(32, 32)], ..tall(1) }] {
        assert_eq!(model.generate(&request).unwrap_err().field(), Some(Field::Tile));
    }
}
