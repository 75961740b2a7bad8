//! Impossible conversions are refused with the reason, and leave no file.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use flux::files::Container;
use safetensors::tensor::{Dtype, TensorView};

use super::{FORMATS, TRANSFORMER, convert, model, text};
use crate::program::{Run, flux, folder, names};

#[test]
fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (model, at) = (text(model()), |name: &str| folder.path().join(name));
    let file = at("q4_0.gguf");
    convert(&[model, text(&file), "--format", "q4_0"]).succeeds();
    let out = |name: &str| text(&at(name)).to_string();
    for (args, words) in [
        (vec![text(&file), &out("a.gguf"), "-f", "q8_0"], ["is already in Q4_0", "q8_0"]),
        (vec![model, &out("a.gguf"), "-f", "fp8"], ["GGUF files cannot store weights in fp8", ".safetensors"]),
        (vec![model, &out("a.safetensors"), "-f", "q4_k"], ["safetensors files cannot store weights in q4_k", ".gguf"]),
        (vec![model, &out("a.bin"), "-f", "q4_k"], ["cannot tell the output format", ".gguf or .safetensors"]),
        (vec![model, &out("a.gguf"), "-f", "q3"], ["`q3` is not a supported weight format", "q4_k"]),
        (vec![text(&file), text(&file), "-f", "q4_0"], ["is also an input file", "name another file"]),
        (vec![text(&file), &out("a.gguf"), "-f", "q4_0", "--component", "text"], ["expected a text encoder", "hint"]),
        (vec![model, &out("a.gguf"), "-f", "q8_0", "--tokenizer", model], ["of a text encoder", "--tokenizer"]),
    ] {
        let code = if words[0].contains("expected a text") { 1 } else { 2 };
        convert(&args).fails(code, &words);
    }
    convert(&[model, text(&file), "-f", "q8_0", "--no-clobber"]).fails(1, &["already exists", "--no-clobber"]);
    let vae = format!("{model}/vae/diffusion_pytorch_model.safetensors");
    convert(&[&vae, &out("a.gguf"), "-f", "q8_0"]).fails(2, &["is a VAE"]);
    assert_eq!(names(folder.path()), ["q4_0.gguf"]);
    let draw = |flags: &[&str]| Run::new(flux().args(["-p", "a cat", "--device", "cpu"]).args(flags));
    draw(&["-d", model, "--quantize", "q4"])
        .fails(2, &["`q4` is not a supported weight format", "the nearest is q4_k; expected one of bf16, fp8"]);
    draw(&["-d", text(&file), "--text-encoder", model, "--vae", model, "--quantize", "q8_0"])
        .fails(2, &["the transformer is already in Q4_0, and q8_0", "--quantize"]);
    draw(&["-d", model, "--quantize", "bf16"]).fails(2, &["the transformer is already in bf16"]);
    draw(&["-d", model, "--quantize", "fp8", "--fp8-cache", "--precision", "fp8"]).fails(2, &["--fp8-cache"]);
}

/// Copies the transformer with a changed tensor `name`.
fn changed(folder: &Path, name: &str, change: impl Fn(&mut Vec<usize>, &mut Vec<u8>)) -> PathBuf {
    let bytes = fs::read(model().join(TRANSFORMER)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let copy: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .tensors()
        .into_iter()
        .map(|(key, view)| {
            let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
            if key == name {
                change(&mut shape, &mut data);
            }
            (key, shape, data)
        })
        .collect();
    let views = copy.iter().map(|(key, shape, data)| (key, TensorView::new(Dtype::BF16, shape.clone(), data).unwrap()));
    let path = folder.join("changed.safetensors");
    let config = fs::read_to_string(model().join("transformer/config.json")).unwrap();
    safetensors::serialize_to_file(views, Some(HashMap::from([("config".to_string(), config)])), &path).unwrap();
    path
}

#[test]
fn values_that_a_format_does_not_hold_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let name = "single_transformer_blocks.0.attn.to_out.weight";
    let out = folder.path().join("out.gguf");
    let nan = changed(folder.path(), name, |_, bytes| bytes[10..12].copy_from_slice(&[0xc0, 0x7f]));
    convert(&[text(&nan), text(&out), "-f", "q4_k"]).fails(1, &[name, "NaN", "in: "]);
    let large = changed(folder.path(), name, |_, bytes| bytes[10..12].copy_from_slice(&[0x00, 0x60]));
    convert(&[text(&large), text(&out), "-f", "q4_k"]).fails(1, &[name, "limited to magnitudes up to 6.5504e4"]);
    convert(&[text(&large), text(&out.with_extension("safetensors")), "-f", "int8"]).succeeds();
    assert_eq!(names(folder.path()), ["changed.safetensors", "out.safetensors"]);
}

#[test]
fn weights_that_a_format_does_not_tell_from_zeros_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let name = "single_transformer_blocks.0.attn.to_out.weight";
    // Multiplies all nonzero values by a power of two, in the bits of the exponent.
    let scaled = |exponent: i32| {
        changed(folder.path(), name, |_, bytes| {
            for value in bytes.as_chunks_mut::<2>().0 {
                let bits = u16::from_le_bytes(*value);
                let new = i32::from(bits >> 7 & 0xff) + exponent;
                *value = if new > 0 { (bits & 0x807f | (new as u16) << 7).to_le_bytes() } else { [0, 0] };
            }
        })
    };
    let out = |name: &str, ending: &str| folder.path().join(format!("{name}.{ending}"));
    let tiny = scaled(-60);
    for (format, ending, _) in FORMATS.into_iter().filter(|(format, ..)| *format != "bf16") {
        let run = convert(&[text(&tiny), text(&out(format, ending)), "-f", format]);
        // Scales of 32 bits reach further.
        match ending {
            "gguf" => run.fails(1, &[name, "distinguish from zero", "in: ", "changed", "hint: "]),
            _ => run.succeeds(),
        };
    }
    assert!(names(folder.path()).iter().all(|name| !name.ends_with(".gguf") && !name.ends_with(".part")));
    let small = scaled(-4);
    for (format, ending, _) in FORMATS {
        convert(&[text(&small), text(&out(format, ending)), "-f", format]).succeeds();
    }
}

#[test]
fn weights_that_are_zeros_by_their_scales_are_named_as_zeros() {
    let folder = folder();
    for (format, ending, _) in FORMATS {
        let file = folder.join(format!("{format}.{ending}"));
        convert(&[text(model()), text(&file), "-f", format]).succeeds();
        let name = "single_blocks.0.linear2.weight";
        let mut bytes = fs::read(&file).unwrap();
        let range = |name: &str| {
            let Container::Safetensors(file) = Container::open(&file, "").unwrap() else { unreachable!("it is one") };
            let view = file.tensor(name).unwrap();
            view.start()..view.start() + view.bytes().len()
        };
        if ending == "gguf" {
            let Container::Gguf(opened) = Container::open(&file, "").unwrap() else { unreachable!("it is one") };
            let view = opened.tensor(name).unwrap();
            let (start, block) = (view.start(), view.format().block());
            // The float16 scales of each block.
            let scales: &[usize] = match format {
                "q6_k" => &[208],
                "q8_0" | "q5_0" | "q4_0" => &[0],
                _ => &[0, 2],
            };
            for first in (start..start + view.bytes().len()).step_by(block.bytes) {
                scales.iter().for_each(|place| bytes[first + place..first + place + 2].fill(0));
            }
        } else if format == "bf16" {
            // Negative zeros.
            bytes[range(name)].as_chunks_mut::<2>().0.iter_mut().for_each(|value| *value = [0, 0x80]);
        } else {
            let header: serde_json::Value = {
                let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                serde_json::from_slice(&bytes[8..8 + len]).unwrap()
            };
            let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let scale = if format == "nvfp4" { "weight_scale_2" } else { "weight_scale" };
            let place = &header[format!("single_blocks.0.linear2.{scale}")]["data_offsets"];
            let [first, end] = [0, 1].map(|i| start + place[i].as_u64().unwrap() as usize);
            bytes[first..end].fill(0);
        }
        fs::write(&file, bytes).unwrap();
        let parts = ["-d", text(&file), "--text-encoder", text(model()), "--vae", text(model())];
        let draw =
            Run::new(flux().args(["-p", "a cat", "--device", "cpu", "-o"]).arg(folder.join("out.png")).args(parts));
        draw.fails(1, &[name, "is all zeros", "in: ", "hint: "]);
    }
}

#[test]
fn every_error_says_where_and_what_to_do_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_string();
    let tiny = text(model()).to_string();
    fs::write(at("text.safetensors"), "what is this").unwrap();
    fs::write(at("pickle.pth"), b"PK\x03\x04").unwrap();
    fs::write(at("empty.gguf"), "").unwrap();
    let whole = fs::read(model().join(TRANSFORMER)).unwrap();
    fs::write(at("cut.safetensors"), &whole[..whole.len() / 2]).unwrap();
    fs::write(at("silent.safetensors"), &whole).unwrap();
    fs::create_dir(at("nothing")).unwrap();
    fs::create_dir(at("folder.gguf")).unwrap();
    let before = names(folder.path());
    let out = at("out.gguf");
    let missing = at("no-such/out.gguf");
    let cases: Vec<Vec<&str>> =
        vec![vec![&tiny, &missing], vec![&tiny, "out"], vec!["no-such", &out], vec!["/dev/null", &out]];
    let named = ["text.safetensors", "pickle.pth", "empty.gguf", "cut.safetensors", "silent.safetensors", "nothing"]
        .map(|name| [at(name), out.clone()]);
    let to_folder = [tiny.clone(), at("folder.gguf")];
    let more = named.iter().chain([&to_folder]).map(|pair| pair.iter().map(String::as_str).collect::<Vec<_>>());
    for pair in cases.into_iter().chain(more) {
        for flags in [&["-f", "q8_0"][..], &["-f", "q8_0", "--component", "text"], &["-f", "nvfp4"]] {
            let run = Run::new(flux().current_dir(folder.path()).arg("convert").args(&pair).args(flags));
            let message = run.stderr.clone();
            assert!(run.code != Some(0), "{pair:?} {flags:?}: {message}");
            assert!(message.contains("\n  in: ") && message.contains("\n  hint: "), "{pair:?} {flags:?}: {message}");
            assert!(!message.contains("in: \n"), "{pair:?} {flags:?}: {message}");
        }
    }
    for (pair, argument) in [([tiny.as_str(), "-"], "OUT"), (["-", &out], "IN")] {
        let run = Run::new(flux().current_dir(folder.path()).arg("convert").args(pair).args(["-f", "q8_0"]));
        run.fails(2, &[argument, "standard input and output", "name a file"]);
    }
    assert_eq!(names(folder.path()), before);
}

#[test]
fn shapes_that_no_model_has_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let refused = |name: &str, shape: fn(&[usize]) -> Vec<usize>, words: &[&str]| {
        let file = changed(folder.path(), name, |old, bytes| {
            *old = shape(old);
            bytes.truncate(2 * old.iter().product::<usize>());
        });
        for format in ["bf16", "q4_k"] {
            convert(&[text(&file), text(&out), "-f", format]).fails(1, &[words, &["in: ", "changed", "hint"]].concat());
        }
    };
    let to_k = "transformer_blocks.0.attn.to_k.weight";
    refused(to_k, |old| vec![2 * old[0], old[1] / 2], &["differ in columns", to_k]);
    refused("norm_out.linear.weight", |old| vec![old[0] * old[1]], &["expected 2 axes"]);
    refused("proj_out.weight", |old| vec![0, old[1]], &["`proj_out.weight` has shape [0, ", "has no values"]);
    let norm = "transformer_blocks.0.attn.norm_q.weight";
    refused(norm, |old| vec![1, old[0]], &[norm, "expected 1 axes"]);
    assert_eq!(names(folder.path()), ["changed.safetensors"]);
}

#[test]
fn a_text_encoder_that_lacks_a_tensor_or_has_one_too_many_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let encoder = model().join("text_encoder/model.safetensors");
    let bytes = fs::read(&encoder).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let copy = folder.path().join("model/text_encoder");
    fs::create_dir_all(&copy).unwrap();
    fs::copy(model().join("text_encoder/config.json"), copy.join("config.json")).unwrap();
    fs::copy(model().join("model_index.json"), folder.path().join("model/model_index.json")).unwrap();
    let refused = |tensors: Vec<(String, TensorView<'_>)>, words: &[&str]| {
        safetensors::serialize_to_file(tensors, None, &copy.join("model.safetensors")).unwrap();
        for to in ["to.safetensors", "to.gguf"] {
            let to = folder.path().join(to);
            let from = folder.path().join("model");
            let tokenizer = model().join("tokenizer");
            let mut args = vec![text(&from), text(&to), "--format", "bf16", "--component", "text"];
            if to.extension().is_some_and(|ending| ending == "gguf") {
                args.extend(["--tokenizer", text(&tokenizer)]);
            }
            convert(&args).fails(1, &[words, &["in: ", "hint: "]].concat());
            assert!(!to.exists());
        }
    };
    refused(Vec::new(), &["is missing"]);
    let lacking = "model.layers.1.mlp.up_proj.weight";
    let mut tensors = whole.tensors();
    tensors.retain(|(name, _)| name != lacking);
    refused(tensors, &[&format!("tensor `{lacking}` is missing")]);
    let mut tensors = whole.tensors();
    let bias = TensorView::new(Dtype::F32, vec![1], &[0, 0, 128, 63]).unwrap();
    tensors.push(("model.layers.0.self_attn.q_proj.bias".to_string(), bias));
    refused(tensors, &["`model.layers.0.self_attn.q_proj.bias` belongs to a layer"]);
}
