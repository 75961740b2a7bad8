//! Previews by a tiny decoder, against its definition, and invalid decoder files.

use std::fs;
use std::path::{Path, PathBuf};

use flux::backend::cpu::{Cpu, Precision};
use flux::engine::Engine;
use flux::files::ModelFiles;
use flux::model::OpenModel;
use flux::pipeline::{Model, Request};
use flux::stage::CancelFlag;
use safetensors::tensor::Dtype;

use super::cpus;
use super::previews::previews_of;
use crate::program::project;
use crate::support::assert_near;
use crate::tiny_decoder::{TinyDecoder, diffusers_name};

/// Channels of the latents of models/tiny.
const LATENTS: usize = 8;

fn model() -> OpenModel {
    OpenModel::open(&ModelFiles::open(&project("models/tiny")).unwrap()).unwrap()
}

/// Returns the error for a file as the decoder of models/tiny.
#[track_caller]
fn refused(path: &Path) -> String {
    let mut model = model();
    let attached = model.preview_decoder(path).and_then(|decoder| model.attach_preview_decoder(decoder));
    attached.expect_err("it is wrong").to_string()
}

/// Writes a file of `decoder`, with the names of diffusers.
fn written(folder: &tempfile::TempDir, decoder: &TinyDecoder) -> PathBuf {
    let path = folder.path().join("taef2.safetensors");
    decoder.write(&path, Dtype::F16, diffusers_name);
    path
}

#[test]
fn previews_are_what_the_decoder_makes_of_what_steps_lead_to() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = TinyDecoder::random(LATENTS, 12);
    let mut open = model();
    open.attach_preview_decoder(open.preview_decoder(&written(&folder, &decoder)).unwrap()).unwrap();
    let engine = Engine::on(vec![cpus(&["a"])], open).unwrap();
    engine.check_previews().unwrap();
    let request = Request { width: Some(48), height: Some(32), steps: Some(3), ..Request::new("a red heart", 3) };
    let (previews, images) = previews_of(&engine, request.clone(), 2);
    let told: Vec<_> = previews.iter().map(|(place, steps, _)| (*place, *steps)).collect();
    assert_eq!(told, [(0, [1, 3]), (1, [1, 3]), (0, [2, 3]), (1, [2, 3])]);

    let alone = Model::new(Cpu::new(Precision::F32), model());
    let same = engine.generate_images(&request, 2, &CancelFlag::default(), &mut |_| {}).unwrap();
    assert!(same.iter().zip(&images).all(|(image, shown)| image.rgb == shown.bytes), "looking on changes nothing");
    let items = [request.clone(), Request { seed: 4, ..request }];
    let mut session = alone.session_of(&items, &CancelFlag::default()).unwrap();
    session.watch(&mut |_| {}).unwrap();
    for step in previews.chunks(2) {
        session.step(&mut |_| {}).unwrap();
        let latents = session.predicted().unwrap().unwrap();
        for (latents, (_, _, got)) in latents.chunks_exact(2 * 3 * 4 * LATENTS).zip(step) {
            let expected = decoder.image(latents, [2, 3]);
            assert_eq!((got.width, got.height), (48, 32));
            assert_eq!((expected.width, expected.height), (48, 32));
            // Float32 against float64, rounded to bytes.
            assert_near("a preview", &got.bytes, &expected.bytes);
            let [least, most] = [got.bytes.iter().min(), got.bytes.iter().max()];
            assert!(least < most.map(|most| most / 2).as_ref(), "there is something to see: {least:?} to {most:?}");
        }
    }
}

#[test]
fn layers_are_found_by_the_names_of_all_writers() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = TinyDecoder::random(LATENTS, 4);
    let path = folder.path().join("x.safetensors");
    let lower = |name: &str| diffusers_name(name).replace("decoder.layers.", "");
    let names: [&dyn Fn(&str) -> String; 4] =
        [&diffusers_name, &|name| format!("decoder.{name}"), &|name| name.to_string(), &lower];
    for (name, dtype) in names.iter().zip([Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F16]) {
        decoder.write(&path, dtype, name);
        let mut model = model();
        let attached = model.preview_decoder(&path).and_then(|decoder| model.attach_preview_decoder(decoder));
        attached.unwrap_or_else(|e| panic!("{}: {e}", name("1.weight")));
    }
}

#[test]
fn files_that_are_no_decoder_of_the_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = || TinyDecoder::random(LATENTS, 4);
    let expect = |error: String, words: &[&str]| {
        assert!(words.iter().all(|word| error.contains(word)) && error.contains("hint: "), "{words:?}: {error}");
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    };
    let of = |change: &dyn Fn(&mut TinyDecoder)| {
        let mut decoder = decoder();
        change(&mut decoder);
        refused(&written(&folder, &decoder))
    };
    let missing = of(&|decoder| drop(decoder.tensors.remove("9.conv.2.bias")));
    expect(missing, &["tensor `decoder.layers.8.conv.2.bias` is missing"]);
    let shape = of(&|decoder| {
        let tensor = decoder.tensors["17.weight"].clone();
        decoder.tensors.insert("12.weight".into(), (vec![4, 4, 1, 9], tensor.1));
    });
    expect(shape, &["decoder.layers.11.weight", "[4, 4, 1, 9]", "[4, 4, 3, 3]"]);
    let unknown = of(&|decoder| drop(decoder.tensors.insert("9.skip.weight".into(), (vec![1], vec![1.0]))));
    expect(unknown, &["`decoder.layers.8.skip.weight` does not belong"]);
    let infinite = of(&|decoder| decoder.tensors.get_mut("19.bias").unwrap().1[0] = f64::INFINITY);
    expect(infinite, &["decoder.layers.18.bias", "infinite"]);
    let groups = of(&|decoder| {
        for (name, shape) in [
            ("pool.0.weight", vec![6, 4, 1, 1]),
            ("pool.1.weight", vec![6]),
            ("pool.1.bias", vec![6]),
            ("pool.3.weight", vec![4, 6, 1, 1]),
        ] {
            for block in [3, 4, 5] {
                let values = vec![0.5; shape.iter().product()];
                decoder.tensors.insert(format!("{block}.{name}"), (shape.clone(), values));
            }
        }
    });
    expect(groups, &["6 channels", "4 groups"]);
    expect(refused(&written(&folder, &TinyDecoder::random(LATENTS, 0))), &["decoder.layers.0.weight` has 0 rows"]);
    let no_pools = of(&|decoder| decoder.tensors.retain(|name, _| !name.contains("pool")));
    expect(no_pools, &["decoder.layers.2.pool.0.weight` is missing", "another model"]);
    let path = written(&folder, &TinyDecoder::random(16, 4));
    expect(refused(&path), &["`decoder.layers.0.weight` reads latents of 16 channels, but this model has 8"]);
    decoder().write(&path, Dtype::F16, |name| format!("encoder.layers.1{name}"));
    expect(refused(&path), &["not a tiny autoencoder"]);
    fs::write(&path, fs::read(project("models/tiny/vae/diffusion_pytorch_model.safetensors")).unwrap()).unwrap();
    expect(refused(&path), &["not a tiny autoencoder"]);
    let whole = fs::read(written(&folder, &decoder())).unwrap();
    for length in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        refused(&path);
    }
    let pickle = folder.path().join("taef2_decoder.pth");
    fs::write(&pickle, b"PK\x03\x04\x00\x00archive/data.pkl").unwrap();
    expect(refused(&pickle), &["a PyTorch pickle", "weights_only=True", "save_file"]);
    expect(refused(&folder.path().join("none.safetensors")), &["none.safetensors"]);
    expect(refused(folder.path()), &[]);
}
