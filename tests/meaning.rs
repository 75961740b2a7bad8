//! The default model draws what the prompt says, and changes what the instruction names: images of prompts and of
//! instructions that it was not trained on are read back and compared with them.

#[path = "meaning/score.rs"]
mod score;

use std::path::Path;
use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::compare::difference;
use flux::files::{Format, ModelFiles};
use flux::model::OpenModel;
use flux::output::Rgb;
use flux::pipeline::Model;
use flux::stage::CancelFlag;
use score::edits::{Edits, expect_edits, expect_nothing};
use score::{BOUNDS, Meaning, SIZES, expect_meaning, expect_meaning_at_sizes, expect_most};

use crate::program::takes_long_form;

/// Formats of few bits in which the default model is asked.
fn formats() -> &'static [&'static str] {
    if takes_long_form() { &["q8_0", "q4_k"] } else { &["q4_k"] }
}

fn open() -> OpenModel {
    let dir = ModelFiles::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny")).unwrap();
    OpenModel::open(&dir).unwrap()
}

fn default_model() -> Arc<Model<Cpu>> {
    Model::new(Cpu::new(Precision::F32), open())
}

/// The default model with its weights in a format of fewer bits.
fn in_format(name: &str) -> Arc<Model<Cpu>> {
    let mut model = open();
    model.quantise(&name.parse().unwrap(), &CancelFlag::default(), &mut |_| {}).unwrap();
    Model::new(Cpu::new(Precision::F32), model)
}

/// The default model with its large products in 8-bit integers, from weights in as many bits or in 4.
fn in_integers(precision: Precision) -> Arc<Model<Cpu>> {
    Model::new(Cpu::new(precision), open())
}

/// Asks a model: of all prompts, or of a few in the short form.
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

/// What the instruction of another edit makes of a reference is wrong.
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

/// Prints, for each format that weights are brought to, how near images stand to those of the weights as they are, and
/// how much of what was asked for they show: the numbers of the README's table.
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

/// The same of products in int8, with weights in 4 bits, too, beside weights alone in 8 bits.
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

/// So what is read wrongly in an image of the model is wrong in the image.
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
    // To the byte, but for where shapes reach beyond the boxes that say what is touched.
    assert!(edits.kept_db(&drawn)[0] > 60.0, "{:?}", edits.kept_db(&drawn));
}

/// Left half redder than the background, right half less red: the median is the background's color, which no pixel is
/// nearer to.
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
    // Noise in blocks of 1, 4 and 32 pixels: the first is even to the eye of the reader, the second is specks, the
    // third is many objects.
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
