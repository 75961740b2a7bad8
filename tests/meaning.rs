//! The default model follows prompts and instructions. Images of prompts and of instructions outside its training set
//! are read back and compared with them.

#[path = "meaning/score.rs"]
mod score;

use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::compare::difference;
use flux::files::{Format, ModelFiles};
use flux::model::OpenModel;
use flux::output::Rgb;
use flux::pipeline::{Area, Change, Model, RegionPrompt, Request};
use flux::stage::CancelFlag;
use score::edits::{Edits, expect_edits, expect_nothing};
use score::{BOUNDS, Meaning, SIZES, expect_meaning, expect_meaning_at_sizes, expect_most};

use crate::program::takes_long_form;

/// Quantized formats in which the default model is tested.
fn formats() -> &'static [&'static str] {
    if takes_long_form() { &["q8_0", "q4_k"] } else { &["q4_k"] }
}

fn open() -> OpenModel {
    let dir = ModelFiles::open(&crate::program::project("models/tiny")).unwrap();
    OpenModel::open(&dir).unwrap()
}

fn default_model() -> Arc<Model<Cpu>> {
    Model::new(Cpu::new(Precision::F32), open())
}

/// The default model with quantized weights.
fn in_format(name: &str) -> Arc<Model<Cpu>> {
    let mut model = open();
    model.quantize(&name.parse().unwrap(), &CancelFlag::default(), &mut |_| {}).unwrap();
    Model::new(Cpu::new(Precision::F32), model)
}

/// The default model with its large matrix multiplications in 8-bit integers, from weights in 8 or 4 bits.
fn in_integers(precision: Precision) -> Arc<Model<Cpu>> {
    Model::new(Cpu::new(precision), open())
}

/// Tests a model with all prompts, or with a few in the short form.
fn expect(model: &Arc<Model<Cpu>>) {
    if takes_long_form() {
        let meaning = Meaning::load();
        expect_meaning(&meaning, &meaning.generate(model));
    } else {
        let meaning = Meaning::load().few(9);
        expect_most(&meaning, &meaning.generate(model));
    }
}

#[test]
fn images_show_what_was_asked_for() {
    expect(&default_model());
}

#[test]
fn images_of_other_sizes_show_it_too() {
    expect_meaning_at_sizes(&default_model(), if takes_long_form() { &SIZES } else { &SIZES[3..4] });
}

/// The left half has one text and the right half another; the whole image sees the background.
#[test]
fn regions_show_their_texts_in_their_places() {
    let reader = Meaning::load();
    let region = |prompt: &str, sides| RegionPrompt { prompt: prompt.to_string(), area: Area::Box(sides) };
    let regions = vec![
        region("a red circle on the left, light green background", [0, 0, 1000, 500]),
        region("a blue star on the right, light green background", [0, 500, 1000, 1000]),
    ];
    let model = default_model();
    for seed in if takes_long_form() { 1..5 } else { 1..2 } {
        let request = Request { regions: regions.clone(), ..Request::new("light green background", seed) };
        let image = model.generate(&request).unwrap();
        let seen = reader.seen(&Rgb { width: image.plan.width, height: image.plan.height, bytes: image.rgb });
        println!("seed {seed}: {seen:?}");
        let expected = [("red", "circle", true), ("blue", "star", false)];
        let expected = expected.map(|(color, shape, left)| (color.to_string(), shape.to_string(), left));
        assert_eq!(seen, ("light green".to_string(), expected.to_vec()), "seed {seed}");
    }
}

/// A second pass from 128 to 256 pixels, in four tiles of 192. Its prompt fits in each tile.
#[test]
fn a_second_pass_in_tiles_shows_what_its_image_shows() {
    let (model, meaning) = (default_model(), Meaning::load().every(if takes_long_form() { 3 } else { 12 }));
    let first = meaning.generate_at(&model, [128, 128]);
    let edit = |(prompt, image): (&score::Prompt, &Rgb)| {
        let image = Arc::new(flux::input::resized(image, [256, 256]));
        let change = Some(Change { image, cells: None, strength: 0.25, is_reference: true });
        let (tile, text) = (Some(192), format!("{} background", prompt.background));
        let request = Request { change, tile, steps: Some(4), ..Request::new(text, prompt.seed) };
        let made = model.generate(&request).unwrap();
        assert_eq!(made.plan.tiles.map(|tiles| tiles.count([256, 256])), Some(4));
        Rgb { width: 256, height: 256, bytes: made.rgb }
    };
    let second: Vec<_> = meaning.prompts.iter().zip(&first).map(edit).collect();
    let [first, second] = [first, second].map(|images| meaning.scores(&images));
    println!("first:  {first}\nsecond: {second}");
    assert!(first.total() > 0.8 && second.total() >= first.total() - 0.1, "{first}; {second}");
}

#[test]
fn edits_change_what_was_named_and_nothing_else() {
    let edits = Edits::load().few(if takes_long_form() { 2 } else { 1 });
    expect_edits(&edits, &edits.generate(&default_model(), true));
}

#[test]
fn edits_with_weights_in_few_bits_do_so_too() {
    let edits = Edits::load().few(1);
    for name in formats() {
        println!("{name}");
        expect_edits(&edits, &edits.generate(&in_format(name), true));
    }
}

/// Edits by another edit's instruction must be wrong.
#[test]
fn edits_by_shuffled_instructions_are_wrong() {
    let edits = Edits::load().few(1).shuffled();
    expect_nothing(&edits, &edits.generate(&default_model(), true));
}

#[test]
fn images_of_weights_in_few_bits_show_it_too() {
    for name in formats() {
        println!("{name}");
        expect(&in_format(name));
    }
}

#[test]
fn images_of_products_in_int8_show_it_too() {
    expect(&in_integers(Precision::Int8));
    expect(&in_integers(Precision::W4a8));
}

/// Prints, for each format of quantized weights, the distance of images from those of unquantized weights, and the
/// share of right answers: the numbers of the README's table.
#[test]
#[ignore = "takes minutes"]
fn images_in_every_format() {
    let meaning = Meaning::load();
    let originals = meaning.generate(&default_model());
    println!("original: {:.3} right", meaning.scores(&originals).total());
    for (name, _) in Format::made().filter(|(name, _)| *name != "bf16") {
        tell(name, &meaning, &meaning.generate(&in_format(name)), &originals);
    }
}

/// As above for int8 multiplications, with weights in 4 bits too, compared with only weights in 8 bits.
#[test]
#[ignore = "takes minutes"]
fn images_in_int8() {
    let meaning = Meaning::load();
    let originals = meaning.generate(&default_model());
    for (name, precision) in [("products in int8", Precision::Int8), ("w4a8", Precision::W4a8)] {
        tell(name, &meaning, &meaning.generate(&in_integers(precision)), &originals);
    }
    tell("q8_0", &meaning, &meaning.generate(&in_format("q8_0")), &originals);
}

fn tell(name: &str, meaning: &Meaning, images: &[Rgb], originals: &[Rgb]) {
    let pairs = images.iter().zip(originals);
    let mut psnr: Vec<f64> = pairs.map(|(image, original)| difference(image, original).unwrap().psnr_db).collect();
    psnr.sort_by(f64::total_cmp);
    println!("{name}: {:.1} dB in median, {:.3} right", psnr[psnr.len() / 2], meaning.scores(images).total());
}

/// So reading errors in images of the model are errors of the images.
#[test]
fn drawn_images_are_read_without_an_error() {
    let meaning = Meaning::load();
    let scores = meaning.scores(&meaning.drawn());
    println!("{scores}");
    for (name, _) in BOUNDS {
        assert_eq!(scores.share(name), 1.0, "{name}");
    }
    let edits = Edits::load();
    let drawn = edits.drawn();
    assert_eq!(edits.scores(&drawn).total(), 1.0);
    // To the byte, except if shapes extend beyond the boxes of the edited area.
    assert!(edits.kept_db(&drawn)[0] > 60.0, "{:?}", edits.kept_db(&drawn));
}

/// Left half redder than the background, right half less red: the median is the background's color, so no pixel is
/// nearer to it.
#[test]
fn an_object_of_many_colors_is_read() {
    let mut image = Rgb { width: 256, height: 256, bytes: vec![128; 3 * 256 * 256] };
    for (x, y) in (64..192).flat_map(|y| (64..192).map(move |x| (x, y))) {
        image.bytes[3 * (y * 256 + x)] = if x < 128 { 178 } else { 78 };
    }
    assert!(Meaning::load().is_clean(&image));
}

#[test]
fn an_empty_image_and_noise_are_not_clean() {
    let meaning = Meaning::load();
    let even = |level: u8| Rgb { width: 256, height: 256, bytes: vec![level; 3 * 256 * 256] };
    assert!(!meaning.is_clean(&even(90)));
    // Noise in blocks of 1, 4 and 32 pixels: the reader sees the first as even, the second as specks, and the third as
    // many objects.
    for block in [1, 4, 32] {
        let mut state = 1u32;
        let mut levels = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); // Numerical Recipes
            (state >> 24) as u8
        });
        let blocks: Vec<u8> = levels.by_ref().take(3 * 256 * 256).collect();
        let mut image = even(0);
        for (i, value) in image.bytes.iter_mut().enumerate() {
            let (x, y) = (i / 3 % 256 / block, i / 3 / 256 / block);
            *value = blocks[3 * (y * 256 + x) + i % 3];
        }
        assert!(!meaning.is_clean(&image), "noise in blocks of {block}");
    }
}
