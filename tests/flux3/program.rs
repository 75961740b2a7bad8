//! The program from outside: references that keep their size, and converted files.

use std::fs;
use std::path::Path;

use flux::input;
use flux::rgb::Rgb;

use super::assert_near;
use crate::golden::flux3::{model_folder, picture};
use crate::program::{Run, flux, folder};
use crate::support;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn png(path: &Path, image: &Rgb) {
    let file = fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, image.width as u32, image.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&image.bytes).unwrap();
}

#[test]
fn a_result_has_the_size_of_its_only_reference_and_is_made_again() {
    let folder = folder();
    png(&folder.join("picture.png"), &picture(100, 70));
    let model = model_folder();
    let draw = |flags: &[&str], to: &str| {
        let mut command = flux();
        command.args(["-p", "make it night", "-d", text(&model), "-s", "4", "-S", "0", "--device", "cpu"]).args(flags);
        Run::new(command.args(["-i", text(&folder.join("picture.png")), "-o", text(&folder.join(to))])).succeeds();
        input::read(&folder.join(to)).unwrap()
    };
    let image = draw(&[], "night.png");
    let expected = input::read(&support::root().join("tests/golden/flux3/distilled-ref.png")).unwrap();
    assert_eq!((image.width, image.height), (100, 70));
    assert_near("the golden image", &image.bytes, &expected.bytes);
    let mut again = flux();
    Run::new(again.args([
        "again",
        text(&folder.join("night.png")),
        "-d",
        text(&model),
        "--device",
        "cpu",
        "-o",
        text(&folder.join("again.png")),
    ]))
    .succeeds();
    assert!(input::read(&folder.join("again.png")).unwrap() == image, "made again");
    let sized = draw(&["--width", "112"], "sized.png");
    assert_eq!((sized.width, sized.height), (112, 80), "a side that is not said is that of the canvas");
    let strength = draw(&["--strength", "0.5"], "strength.png");
    assert_eq!((strength.width, strength.height), (96, 64), "an image to change is changed as with FLUX.2");
}

#[test]
fn boxes_are_a_table_behind_the_prompt_and_other_models_refuse_them() {
    let folder = folder();
    let draw = |model: &Path, flags: &[&str], to: &str| {
        let mut command = flux();
        command.args(["-d", text(model), "-s", "2", "-S", "0", "--size", "64x64", "--device", "cpu"]);
        Run::new(command.args(flags).args(["-o", text(&folder.join(to))]))
    };
    let words = ["-p", "A cat <cat_1>", "--box", "cat_1=0,10%,500,900:a \"black\" cat"];
    let prompt = r#"A cat <cat_1> [{"id": "cat_1", "bbox": [0, 100, 500, 900], "desc": "a \"black\" cat"}]"#;
    draw(&model_folder(), &words, "boxes.png").succeeds();
    draw(&model_folder(), &["-p", prompt], "text.png").succeeds();
    let [boxes, expected] = ["boxes.png", "text.png"].map(|name| fs::read(folder.join(name)).unwrap());
    assert!(boxes == expected, "the pixels and the recipe of the same prompt");
    draw(&support::root().join("models/tiny"), &words, "none.png").fails(2, &["boxes", "FLUX.3"]);
    let twice = [&words[..], &["--box", "cat_1=0,0,9,9"]].concat();
    draw(&model_folder(), &twice, "none.png").fails(2, &["`cat_1` occurs twice"]);
}

#[test]
fn several_references_may_be_smaller_than_those_of_flux2() {
    let folder = folder();
    png(&folder.join("first.png"), &picture(100, 70));
    png(&folder.join("second.png"), &picture(45, 70));
    let draw = |model: &Path| {
        let mut command = flux();
        command.args(["-p", "the first in the light of the second", "-d", text(model), "-s", "4", "-S", "0"]);
        command.args([
            "-i",
            text(&folder.join("first.png")),
            "-i",
            text(&folder.join("second.png")),
            "--device",
            "cpu",
        ]);
        Run::new(command.args(["-o", text(&folder.join("both.png"))]))
    };
    draw(&model_folder()).succeeds();
    let expected = input::read(&support::root().join("tests/golden/flux3/distilled-two-refs.png")).unwrap();
    assert_near("the golden image", &input::read(&folder.join("both.png")).unwrap().bytes, &expected.bytes);
    draw(&support::root().join("models/tiny")).fails(1, &["45x70, expected sides of at least 64", "second.png"]);
}

#[test]
fn converted_files_draw_the_same_and_quantized_ones_alike() {
    let folder = folder();
    let model = model_folder();
    let draw = |flags: &[&str]| {
        let mut command = flux();
        command.args(["-p", "a cat", "-S", "3", "--size", "64", "-s", "2", "--device", "cpu"]).args(flags);
        Run::new(command.args(["-o", text(&folder.join("image.png"))])).succeeds();
        input::read(&folder.join("image.png")).unwrap().bytes
    };
    let convert = |from: &str, to: &Path, format: &str, part: &str| {
        let args = ["convert", from, text(to), "--format", format, "--component", part];
        Run::new(flux().args(args)).succeeds();
    };
    let expected = draw(&["-d", text(&model)]);
    for (format, ending) in [("bf16", "safetensors"), ("bf16", "gguf"), ("q8_0", "gguf"), ("fp8", "safetensors")] {
        let [transformer, encoder] = ["t", "qwen3vl"].map(|name| folder.join(format!("{name}-{format}.{ending}")));
        convert(text(&model), &transformer, format, "transformer");
        convert(text(&model), &encoder, format, "text");
        let quantized = |what: &str| match format {
            "bf16" => expected.clone(),
            _ => draw(&["-d", text(&model), "--quantize", &format!("{what}{format}")]),
        };
        let parts = ["-d", text(&transformer), "--text-encoder", text(&model), "--vae", text(&model)];
        assert!(draw(&parts) == quantized("transformer="), "the transformer in {format}");
        assert!(
            draw(&["-d", text(&model), "--text-encoder", text(&encoder), "--tokenizer", text(&model)])
                == quantized("text="),
            "the text encoder in {format}"
        );
    }
    let said = Run::new(flux().args(["info", text(&model)])).succeeds().stdout;
    for words in ["distilled model", "16 steps", "up to 8192 tokens", "FLUX.3, 2 blocks each", "clause for outputs"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn times_are_rounded_where_the_environment_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.png");
    let draw = |times: &str| {
        let mut command = flux();
        command.args([
            "-d",
            text(&model_folder()),
            "-p",
            "a cat",
            "-S",
            "3",
            "--size",
            "64",
            "-s",
            "2",
            "--device",
            "cpu",
        ]);
        Run::new(command.args(["-o", text(&path)]).env("FLUX_TIMES", times))
    };
    let image = |times: &str| {
        draw(times).succeeds();
        input::read(&path).unwrap().bytes
    };
    let exact = image("");
    assert!(image("f32") == exact && image("bf16") != exact);
    draw("fp16").fails(2, &["`fp16` is neither f32 nor bf16", "FLUX_TIMES"]);
}
