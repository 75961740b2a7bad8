//! Errors for damaged files describe the damage, whether the file is named, in a model's folder, or next to a
//! transformer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use flux::files::{Component, ModelFiles, ModelPaths, Role};
use flux::model::OpenModel;
use flux::model::registry::FLUX2_KLEIN;
use flux::text_encoder::Tokenizer;
use safetensors::tensor::Dtype;

use super::renamed::{Tensors, write};
use super::{FILES, copy};
use crate::support::copy_folder;

/// Ways to damage a file, and the words in the error for each.
type Damage = (&'static str, fn(&Path, &[u8]), &'static [&'static str]);

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x40\0\0\0\x30\x08\x02\0\0\0";
const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 336213556\n";

const DAMAGES: [Damage; 9] = [
    (
        "cut",
        |path, bytes| fs::write(path, &bytes[..bytes.len() - 9]).unwrap(),
        &["not a valid safetensors file", "cut off"],
    ),
    ("html", |path, _| fs::write(path, "<!DOCTYPE html>\n<html>Login").unwrap(), &["a web page (HTML)", "login"]),
    ("link", |path, _| symlink("/none/of/these", path).unwrap(), &["a link to `/none/of/these`, which does not exist"]),
    ("lfs", |path, _| fs::write(path, LFS).unwrap(), &["a Git LFS pointer", "336213556", "git lfs pull"]),
    ("empty", |path, _| fs::write(path, "").unwrap(), &["the file is empty", "fetch it again"]),
    ("zeros", |path, _| fs::write(path, [0; 4096]).unwrap(), &["filled with zeros", "incomplete"]),
    ("png", |path, _| fs::write(path, PNG).unwrap(), &["a PNG image of 64x48 pixels", "name a model"]),
    ("pickle", |path, _| fs::write(path, b"\x80\x02}q\0.").unwrap(), &["a PyTorch pickle", "or convert them"]),
    (
        "pipe",
        |path, _| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        &["not a regular file", "put the file itself there"],
    ),
];

#[track_caller]
fn refused(files: flux::Result<ModelFiles>, words: &[&str], place: &Path) {
    let opened = files.and_then(|files| {
        OpenModel::open(&files).and(Tokenizer::load(files.tokenizer(), FLUX2_KLEIN.template, 64).map(drop))
    });
    let error = opened.expect_err("refused").to_string();
    let place = format!("\n  in: {}\n  hint: ", place.display());
    for word in words.iter().chain(&[&*place]) {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(!error.contains("resume"), "{error}");
}

/// Replaces a file by a damaged one.
fn damage(path: &Path, damage: fn(&Path, &[u8])) {
    let bytes = fs::read(path).unwrap();
    fs::remove_file(path).unwrap();
    damage(path, &bytes);
}

#[test]
fn a_damaged_part_beside_a_transformer_is_named_with_its_damage() {
    for (name, how, words) in DAMAGES {
        for (part, folder, file) in [("vae", "vae", "vae"), ("text encoder", "text_encoders", "qwen")] {
            let root = FILES.at(&format!("damaged/{name}-{file}"));
            for (from, to) in [("klein", "diffusion_models"), ("qwen", "text_encoders"), ("vae", "vae")] {
                copy(
                    &FILES.at(&format!("files/{from}.safetensors")),
                    &root.join(to).join(format!("{from}.safetensors")),
                );
            }
            let broken = root.join(folder).join(format!("{file}.safetensors"));
            damage(&broken, how);
            let without = format!("this transformer comes without a {}", part.replace("vae", "VAE"));
            let named = [words, &[&*without]].concat();
            for model in [root.clone(), root.join("diffusion_models/klein.safetensors")] {
                let tokenizer = Some(FILES.at("folder"));
                let paths = ModelPaths { model: Some(model), tokenizer, ..ModelPaths::default() };
                refused(paths.open(|| unreachable!()), &named, &broken);
            }
        }
    }
}

#[test]
fn a_damaged_transformer_or_file_that_was_named_is_told_with_its_damage() {
    for (name, how, words) in DAMAGES {
        let root = FILES.at(&format!("damaged/{name}-klein"));
        copy(&FILES.at("files/klein.safetensors"), &root.join("unet/klein.safetensors"));
        let broken = root.join("unet/klein.safetensors");
        damage(&broken, how);
        refused(ModelFiles::open(&root), words, &broken);
        refused(ModelFiles::open(&root.join("unet")), words, &broken);
        let named = |role: Role| {
            let path = Some(broken.clone());
            let folder = ModelPaths { model: Some(FILES.at("folder")), ..ModelPaths::default() };
            let paths = match role {
                Role::Transformer => ModelPaths { model: path, ..folder },
                Role::TextEncoder => ModelPaths { text_encoder: path, ..folder },
                Role::Vae => ModelPaths { vae: path, ..folder },
            };
            paths.open(|| unreachable!())
        };
        for role in [Role::Transformer, Role::TextEncoder, Role::Vae] {
            refused(named(role), words, &broken);
        }
        let error = Component::at(&broken, None).map(drop).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn a_damaged_file_in_a_folder_with_configs_is_told_with_its_damage() {
    for (name, how, words) in DAMAGES {
        for file in ["vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"] {
            let root = FILES.at(&format!("damaged/{name}-folder-{}", file.split('/').next().unwrap()));
            copy_folder(&FILES.at("folder"), &root);
            damage(&root.join(file), how);
            refused(ModelFiles::open(&root), words, &root.join(file));
        }
    }
    for (name, how, words) in DAMAGES.iter().filter(|(name, ..)| ["html", "link", "lfs", "empty"].contains(name)) {
        for file in ["model_index.json", "transformer/config.json", "tokenizer/tokenizer.json"] {
            let root = FILES.at(&format!("damaged/{name}-config-{}", file.len()));
            copy_folder(&FILES.at("folder"), &root);
            damage(&root.join(file), *how);
            refused(ModelFiles::open(&root), words, &root.join(file));
        }
    }
}

/// Returns tensors of these names, weights in int8.
fn int8_tensors(names: &[&str]) -> Tensors {
    let tensor = |name: &&str| {
        let int8 = name.ends_with(".weight") && !name.ends_with("norm.weight");
        let (dtype, bytes) = if int8 { (Dtype::I8, 16) } else { (Dtype::F32, 64) };
        (name.to_string(), (dtype, vec![4, 4], vec![1; bytes]))
    };
    names.iter().map(tensor).collect()
}

#[test]
fn weights_of_other_methods_are_named_before_sizes_are_computed() {
    const LAYER: &str = "model.layers.0.self_attn.q_proj";
    for (method, ends) in [
        ("AWQ or GPTQ", &[".qweight", ".qzeros", ".scales"][..]),
        ("GPTQ", &[".qweight", ".g_idx", ".scales"]),
        ("quanto", &[".weight._data", ".weight._scale"]),
        ("MLX", &[".weight", ".scales", ".biases"]),
        ("SVDQuant", &[".qweight", ".wscales", ".lora_down"]),
        ("SDNQ", &[".weight", ".scale", ".zero_point"]),
        ("torchao", &["._weight_qdata", "._weight_scale"]),
        ("compressed-tensors", &[".weight_packed", ".weight_scale"]),
        ("HQQ", &[".W_q", ".meta"]),
    ] {
        let folder = method.split(' ').next().unwrap().to_lowercase();
        let names: Vec<String> = ends.iter().map(|end| format!("{LAYER}{end}")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.extend(["model.layers.0.self_attn.q_norm.weight", "model.embed_tokens.weight"]);
        let path = FILES.at(&format!("methods/{folder}/text_encoders/qwen.safetensors"));
        write(&path, &int8_tensors(&names));
        copy(&FILES.at("files/klein.safetensors"), &FILES.at(&format!("methods/{folder}/unet/klein.safetensors")));
        let words = [method, "which is not supported", "GGUF"];
        let named =
            ModelPaths { model: Some(FILES.at("folder")), text_encoder: Some(path.clone()), ..ModelPaths::default() };
        refused(named.open(|| unreachable!()), &words, &path);
        refused(ModelFiles::open(&FILES.at(&format!("methods/{folder}"))), &words, &path);
        let error = Component::at(&path, None).map(drop).unwrap_err().to_string();
        assert!(error.contains(method), "{error}");
    }
}

#[test]
fn what_belongs_to_a_weight_and_is_not_understood_is_refused() {
    let path = FILES.at("methods/unknown.safetensors");
    let mut tensors = super::renamed::read(&FILES.at("files/klein.safetensors"));
    let (_, shape, bytes) = tensors["img_in.weight"].clone();
    tensors.insert("img_in.weight".into(), (Dtype::F8_E4M3, shape, bytes[..bytes.len() / 2].to_vec()));
    tensors.insert("img_in.weight_shift".into(), (Dtype::F32, vec![1], vec![0; 4]));
    write(&path, &tensors);
    let folder = Some(FILES.at("folder"));
    let paths =
        ModelPaths { model: Some(path.clone()), text_encoder: folder.clone(), vae: folder, ..ModelPaths::default() };
    let error = paths.open(|| unreachable!()).and_then(|files| OpenModel::open(&files)).err().unwrap().to_string();
    for word in ["`img_in.weight_shift` belongs to tensor `img_in.weight`", "its meaning is unknown", "hint: "] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn files_of_other_models_are_named_as_what_they_are() {
    for (names, title) in [
        (&["model.diffusion_model.noise_refiner.0.attention.qkv.weight"][..], "a transformer of Lumina 2"),
        (&["all_x_embedder.2-1.weight"], "a transformer of Z-Image"),
        (&["transformer_blocks.0.img_mod.1.weight"], "a transformer of Qwen-Image"),
        (&["early_stream_modulations.video.lin.weight"], "a transformer of FLUX.3"),
        (&["joint_blocks.0.context_block.attn.qkv.weight"], "a transformer of Stable Diffusion 3"),
        (&["model.diffusion_model.input_blocks.0.0.weight", "model.diffusion_model.label_emb.0.0.weight"], "SDXL"),
        (&["guidance_in.in_layer.weight", "single_stream_modulation.lin.weight"], "a transformer of FLUX.2-dev"),
        (&["encoder.block.0.layer.0.SelfAttention.q.weight"], "a text encoder (T5)"),
        (&["model.layers.0.self_attn.q_norm.weight", "model.visual.blocks.0.attn.qkv.weight"], "a text encoder"),
    ] {
        let path = FILES.at("foreign/model.safetensors");
        let tensors: Tensors =
            names.iter().map(|name| (name.to_string(), (Dtype::F32, vec![2, 2], vec![1; 16]))).collect();
        write(&path, &tensors);
        for (role, paths) in [
            (Role::Transformer, ModelPaths { model: Some(path.clone()), ..ModelPaths::default() }),
            (Role::Vae, ModelPaths { vae: Some(path.clone()), ..ModelPaths::default() }),
        ] {
            let opened = paths.open(|| ModelFiles::open(&FILES.at("folder")));
            refused(opened, &["the file is ", title, "expected a", role.title()], &path);
        }
    }
}
