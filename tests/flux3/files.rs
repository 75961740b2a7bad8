//! Files with the names of other programs, in their folders, and in several repositories.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::{ModelFiles, ModelPaths};
use flux::model::{ModelInfo, OpenModel};
use safetensors::tensor::Dtype;

use super::{TRANSFORMER, distilled, load, pixels, small};
use crate::flux3_base::write_base;
use crate::gguf;
use crate::golden::flux3::model_folder;
use crate::opening::renamed::{Tensors, prefixed, read, read_with_metadata, write_gguf_with, write_with};
use crate::program::{Run, flux, folder};

/// Returns the transformer with the names of Black Forest Labs; norms end with `norm`.
fn bfl(tensors: &Tensors, prefix: &str, norm: &str) -> Tensors {
    let named = |name: &str| {
        let mut name = name.to_string();
        for (own, bfl) in [
            ("target_timestep_embedder.linear_1.", "ref_time_in.in_layer."),
            ("target_timestep_embedder.linear_2.", "ref_time_in.out_layer."),
            ("timestep_embedder.linear_1.", "time_in.in_layer."),
            ("timestep_embedder.linear_2.", "time_in.out_layer."),
            ("single_transformer_blocks.", "single_blocks."),
            ("x_embedders.", "emb_in."),
            ("context_embedder.", "txt_in."),
            ("norm_out.linear.", "final_layer.image.adaLN_modulation.1."),
            ("proj_out.", "final_layer.image.linear."),
            (".linear.weight", ".lin.weight"),
            ("attn.to_q.", "q_proj."),
            ("attn.to_k.", "k_proj."),
            ("attn.to_v.", "v_proj."),
            ("attn.to_out.0.", "attn_out."),
            ("attn.norm_q.weight", &format!("norm.query_norm{norm}")),
            ("attn.norm_k.weight", &format!("norm.key_norm{norm}")),
            ("ff.linear_in.", "mlp_in."),
            ("ff.linear_out.", "mlp_out."),
        ] {
            name = name.replace(own, bfl);
        }
        // Only the last layer's own name contains `linear`.
        name = name.replace("final_layer.image.lin.", "final_layer.image.linear.");
        let is_stream = name.starts_with("mode_blocks.");
        format!("{prefix}{}{name}", if is_stream { "content_" } else { "" })
    };
    let tensor = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        let mut bytes = bytes.clone();
        if name == "norm_out.linear.weight" {
            let half = bytes.len() / 2;
            bytes.rotate_left(half);
        }
        (named(name), (*dtype, shape.clone(), bytes))
    };
    tensors.iter().map(tensor).collect()
}

/// Returns the tensors with q, k and v as one matrix, whose rows keep their scales.
fn fused(tensors: &Tensors) -> Tensors {
    let mut fused = Tensors::new();
    for (name, (dtype, shape, bytes)) in tensors {
        let Some((front, end)) = name.split_once("q_proj.") else {
            if !name.contains("k_proj.") && !name.contains("v_proj.") {
                fused.insert(name.clone(), (*dtype, shape.clone(), bytes.clone()));
            }
            continue;
        };
        let part = |part: &str| tensors[&format!("{front}{part}_proj.{end}")].2.clone();
        let (mut shape, mut all) = (shape.clone(), bytes.clone());
        if end != "comfy_quant" {
            shape[0] *= 3;
            all = [all, part("k"), part("v")].concat();
        }
        fused.insert(format!("{front}qkv_proj.{end}"), (*dtype, shape, all));
    }
    fused
}

/// Returns the config of a component.
fn config(folder: &Path, part: &str) -> String {
    fs::read_to_string(folder.join(part).join("config.json")).unwrap()
}

/// Opens a model with `transformer` as its transformer, and the other components of the golden model.
fn with_transformer(transformer: PathBuf) -> ModelFiles {
    let parts = Some(model_folder());
    let paths = ModelPaths {
        model: Some(transformer),
        text_encoder: parts.clone(),
        vae: parts.clone(),
        tokenizer: parts,
        variant: None,
    };
    paths.open(|| unreachable!("a model is named")).unwrap()
}

#[test]
fn single_files_by_every_name_draw_the_image_of_the_folder() {
    let folder = folder();
    let own = read(&model_folder().join(TRANSFORMER));
    let config = config(&model_folder(), "transformer");
    let expected = pixels(&distilled(), &small("a cat", 1));
    let plain = bfl(&own, "", ".scale");
    for (name, tensors) in [
        ("bfl", plain.clone()),
        ("comfy", bfl(&own, "model.diffusion_model.", ".weight")),
        ("fused", fused(&plain)),
        ("diffusers", own.clone()),
        ("prefixed", prefixed(&own, "model.diffusion_model.")),
        // Tensors that only training needs.
        (
            "more",
            plain
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.clone()))
                .chain([("repa_projectors.0.weight".to_string(), own["proj_out.weight"].clone())])
                .collect(),
        ),
    ] {
        let file = folder.join(format!("{name}-base.safetensors"));
        write_with(&file, &tensors, &[("config", &config)]);
        let files = with_transformer(file);
        let info = ModelInfo::read(&files).unwrap();
        assert!(info.is_distilled && info.default_steps == 16, "{name}: weights tell it, whatever the file is called");
        assert!(pixels(&load(&files), &small("a cat", 1)) == expected, "{name}");
    }
    let file = folder.join("flux3.gguf");
    write_gguf_with(&file, &plain, &[("config", gguf::Value::Text(&config))]);
    assert!(pixels(&load(&with_transformer(file)), &small("a cat", 1)) == expected, "GGUF");

    // Its config is that of a distilled model.
    let base: Tensors = plain.into_iter().filter(|(name, _)| !name.starts_with("ref_time_in")).collect();
    let file = folder.join("no-next-time.safetensors");
    write_with(&file, &base, &[("config", &config.replace("true", "false"))]);
    let files = with_transformer(file.clone());
    let info = ModelInfo::read(&files).unwrap();
    assert!(!info.is_distilled && (info.default_steps, info.default_guidance()) == (50, 3.5));
    write_with(&file, &base, &[("config", &config)]);
    let error = ModelInfo::read(&with_transformer(file)).unwrap_err().to_string();
    assert!(error.contains("flow_map"), "{error}");
}

#[test]
fn fused_projections_in_int8_are_those_that_stand_apart() {
    let folder = folder();
    let apart = folder.join("apart.safetensors");
    let mut convert = flux();
    convert.arg("convert").args([&model_folder(), &apart]);
    Run::new(convert.args(["--format", "int8", "--component", "transformer"])).succeeds();
    let (tensors, metadata) = read_with_metadata(&apart);
    let expected = pixels(&load(&with_transformer(apart)), &small("a cat", 1));
    let draw = |name: &str, tensors: &Tensors| {
        let metadata: Vec<_> = metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        write_with(&folder.join(name), tensors, &metadata);
        let model = OpenModel::open(&with_transformer(folder.join(name)))?;
        Ok::<_, flux::Error>((
            pixels(&load(&with_transformer(folder.join(name))), &small("a cat", 1)),
            model.notes().to_vec(),
        ))
    };
    let mut fused = fused(&tensors);
    assert!(fused.contains_key("single_blocks.0.qkv_proj.weight_scale") && fused.len() < tensors.len());
    assert!(draw("fused.safetensors", &fused).unwrap() == (expected.clone(), Vec::new()));
    // Settings of attention's computation are noted and left out; other tensors next to weights may belong to them.
    let setting = (Dtype::U8, vec![2], b"{}".to_vec());
    fused.insert("single_blocks.0.attn.comfy_quant".to_string(), setting.clone());
    let (image, notes) = draw("setting.safetensors", &fused).unwrap();
    assert!(image == expected && notes[0].contains("`single_blocks.0.attn.comfy_quant`"), "{notes:?}");
    fused.insert("single_blocks.0.qkv_proj.attention".to_string(), setting);
    let error = draw("beside.safetensors", &fused).unwrap_err().to_string();
    assert!(error.contains("`single_blocks.0.qkv_proj.attention`") && error.contains("hint: "), "{error}");
}

#[test]
fn a_file_of_the_text_encoder_may_have_any_front_and_the_half_that_sees() {
    let folder = tempfile::tempdir().unwrap();
    let own = read(&model_folder().join("text_encoder/model.safetensors"));
    let expected = pixels(&distilled(), &small("a cat", 1));
    let text = serde_json::from_str::<serde_json::Value>(&config(&model_folder(), "text_encoder")).unwrap();
    let text = text["text_config"].to_string();
    let renamed = |front: &str| -> Tensors {
        let of = |(name, tensor): (&String, &_)| (name.replace("model.language_model.", front), Clone::clone(tensor));
        own.iter().map(of).collect()
    };
    let without_sight: Tensors = renamed("model.").into_iter().filter(|(name, _)| !name.contains("visual")).collect();
    for (name, tensors) in [
        ("sees", own.clone()),
        ("comfy", renamed("language_model.model.")),
        ("plain", renamed("model.")),
        ("qwen3vl_4b", without_sight),
    ] {
        let file = folder.path().join(format!("{name}.safetensors"));
        write_with(&file, &tensors, &[("config", &text)]);
        let paths = ModelPaths {
            model: Some(model_folder()),
            text_encoder: Some(file),
            tokenizer: Some(model_folder()),
            ..ModelPaths::default()
        };
        let files = paths.open(|| unreachable!("a model is named")).unwrap();
        assert_eq!(files.notes(), [""; 0], "{name}");
        assert!(pixels(&load(&files), &small("a cat", 1)) == expected, "{name}");
    }
}

#[test]
fn parts_are_found_in_the_folders_of_comfyui() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("models").join(name);
    let transformer = bfl(&read(&model_folder().join(TRANSFORMER)), "", ".scale");
    write_with(
        &at("diffusion_models/flux3.safetensors"),
        &transformer,
        &[("config", &config(&model_folder(), "transformer"))],
    );
    let encoder = read(&model_folder().join("text_encoder/model.safetensors"));
    let text: serde_json::Value = serde_json::from_str(&config(&model_folder(), "text_encoder")).unwrap();
    let text = text["text_config"].to_string();
    write_with(&at("text_encoders/some.safetensors"), &encoder, &[("config", &text)]);
    // The text encoder of FLUX.2 has the same width, and no vision part.
    let reads: Tensors = encoder.into_iter().filter(|(name, _)| !name.contains("visual")).collect();
    write_with(&at("text_encoders/qwen_3_4b.safetensors"), &reads, &[("config", &text)]);
    let vae = read(&model_folder().join("vae/diffusion_pytorch_model.safetensors"));
    write_with(&at("vae/flux2-vae.safetensors"), &vae, &[("config", &config(&model_folder(), "vae"))]);
    let open = |tokenizer| {
        let paths = ModelPaths { model: Some(folder.path().to_path_buf()), tokenizer, ..ModelPaths::default() };
        paths.open(|| unreachable!("a model is named"))
    };
    let files = open(Some(model_folder())).unwrap();
    assert!(files.notes()[0].contains("some.safetensors"), "{:?}", files.notes());
    assert!(pixels(&load(&files), &small("a cat", 1)) == pixels(&distilled(), &small("a cat", 1)));
    fs::remove_file(at("text_encoders/some.safetensors")).unwrap();
    let error = open(None).map(drop).unwrap_err().to_string();
    assert!(error.contains("without a text encoder") && error.contains("Qwen3-VL"), "{error}");
}

#[test]
fn a_part_that_is_in_another_repository_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write_base(folder.path());
    let index = folder.path().join("modular_model_index.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    json["vae"][2]["pretrained_model_name_or_path"] = "someone/a-vae".into();
    fs::write(&index, json.to_string()).unwrap();
    assert!(ModelFiles::open(folder.path()).is_ok(), "what is in the folder wins");
    fs::remove_dir_all(folder.path().join("vae")).unwrap();
    let error = ModelFiles::open(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("`someone/a-vae`") && error.contains("hint: "), "{error}");
    let paths =
        ModelPaths { model: Some(folder.path().to_path_buf()), vae: Some(model_folder()), ..ModelPaths::default() };
    assert!(paths.open(|| unreachable!("a model is named")).is_ok());
}
