//! `--show-steps`: previews by a tiny decoder if there is one, else by a linear map.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flux::input::read;
use flux::pipeline::Request;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;
use safetensors::tensor::Dtype;

use super::folder;
use crate::program::{Run, flux, project};
use crate::support::{assert_near, built_in, load};
use crate::tiny_decoder::{TinyDecoder, diffusers_name};

/// The flags of the image.
const DRAWN: [&str; 14] =
    ["-p", "a cat", "-S", "1", "-W", "48", "-H", "32", "-s", "2", "--device", "cpu", "--precision", "f32"];

fn drawn(folder: &Path, variables: &[(&str, &str)], flags: &[&str]) -> Run {
    let model = project("models/tiny");
    let mut command = flux();
    command.current_dir(folder).arg("-d").arg(model).args(DRAWN).args(["-q", "-o", "x.png"]).args(flags);
    Run::new(command.envs(variables.iter().copied()))
}

/// Returns the images that were sent by kitty's protocol.
fn sent(folder: &Path, stdout: &str) -> Vec<Rgb> {
    let mut images: Vec<String> = Vec::new();
    for command in stdout.split("\x1b_G").skip(1) {
        let (keys, rest) = command.split_once(';').unwrap_or((command, ""));
        if keys.contains("a=T") {
            images.push(String::new());
        }
        if let Some(image) = images.last_mut() {
            image.push_str(rest.split('\x1b').next().unwrap_or_default());
        }
    }
    let decoded = |image: &String| {
        let path = folder.join("sent.png");
        fs::write(&path, BASE64_STANDARD.decode(image).expect("base64")).unwrap();
        read(&path).expect("a PNG")
    };
    images.iter().map(decoded).collect()
}

#[test]
fn steps_are_shown_as_the_decoder_draws_them() {
    let folder = folder();
    let decoder = TinyDecoder::random(8, 8);
    decoder.write(&folder.join("taef2.safetensors"), Dtype::F16, diffusers_name);
    let steps = ["--show-steps", "--show=kitty"];
    let shown = |variables: &[(&str, &str)], flags: &[&str]| {
        let run = drawn(&folder, variables, &[&steps[..], flags].concat()).succeeds();
        let images = sent(&folder, &run.stdout);
        assert_eq!(images.len(), 2, "a step and the image");
        (images[0].clone(), images[1].clone(), fs::read(folder.join("x.png")).unwrap())
    };
    let (map, image, file) = shown(&[], &[]);
    let (tiny, same, same_file) = shown(&[], &["--preview-decoder", "taef2.safetensors"]);
    assert!(image == same && file == same_file, "the image is the VAE's");
    assert_eq!([(map.width, map.height), (tiny.width, tiny.height)], [(6, 4), (48, 32)]);
    let (by_variable, ..) = shown(&[("FLUX_PREVIEW_DECODER", "taef2.safetensors")], &[]);
    assert!(by_variable == tiny);

    let model = load(&built_in());
    let request = Request { width: Some(48), height: Some(32), steps: Some(2), ..Request::new("a cat", 1) };
    let mut session = model.session_of(&[request], &CancelFlag::default()).unwrap();
    session.watch(&mut |_| {}).unwrap();
    session.step(&mut |_| {}).unwrap();
    let expected = decoder.image(&session.predicted().unwrap().unwrap(), [2, 3]);
    assert_near("a preview", &tiny.bytes, &expected.bytes);
}

#[test]
fn a_decoder_is_for_steps_that_are_shown_and_is_no_vae() {
    let folder = folder();
    let path = folder.join("taef2.safetensors");
    TinyDecoder::random(8, 4).write(&path, Dtype::F16, diffusers_name);
    let alone = ["--preview-decoder", "taef2.safetensors"];
    drawn(&folder, &[], &alone).fails(2, &["--show-steps"]);
    drawn(&folder, &[("FLUX_PREVIEW_DECODER", "none")], &[]).succeeds();
    let steps = ["--show-steps", "--show=kitty", "--preview-decoder"];
    drawn(&folder, &[], &[&steps[..], &["none"]].concat()).fails(1, &["none"]);
    let saved = ["--save-latents", "taef2.safetensors"];
    let over = [&steps[..], &["taef2.safetensors"], &saved].concat();
    drawn(&folder, &[], &over).fails(2, &["(TAEF2) and is never overwritten"]);
    let told = ["the tiny autoencoder of FLUX.2 (TAEF2)", "--preview-decoder"];
    // A decoder of another model shows no steps if it is set, and is an error if it is requested.
    let other = folder.join("other.safetensors");
    TinyDecoder::random(32, 4).write(&other, Dtype::F16, diffusers_name);
    let set = [("FLUX_PREVIEW_DECODER", "other.safetensors")];
    let by_map = drawn(&folder, &set, &[&steps[..2], &["--log", "log"]].concat()).succeeds();
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert!(log.contains("instead of other.safetensors"), "{log}");
    assert_eq!(sent(&folder, &by_map.stdout).len(), 2, "a step and the image");
    drawn(&folder, &[], &[&steps[..], &["other.safetensors"]].concat()).fails(1, &["another model"]);
    drawn(&folder, &[], &["--vae", "taef2.safetensors"]).fails(1, &told);
    Run::new(flux().current_dir(&folder).args(["info", "taef2.safetensors"])).fails(1, &told);
    drawn(&folder, &[], &["--taesd", "taef2.safetensors"]).fails(2, &["`--taesd`", "--preview-decoder"]);
}
