//! Models that cannot be opened are refused in the user's words: the kind of file, its place, and the right option.

use std::fs;

use flux::files::{ModelFiles, ModelPaths};
use flux::model::OpenModel;
use flux::model::registry::FLUX2_KLEIN;
use flux::text_encoder::Tokenizer;
use safetensors::tensor::Dtype;

use super::renamed::{Tensors, read, write};
use super::{FILES, copy, open, sizes};

#[track_caller]
fn refused(files: flux::Result<ModelFiles>, words: &[&str]) {
    let error = files.and_then(|files| OpenModel::open(&files)).err().expect("refused").to_string();
    for word in words.iter().chain(&["hint: "]) {
        assert!(error.contains(word), "{word}: {error}");
    }
}

fn float_tensors(names: &[&str]) -> Tensors {
    names.iter().map(|name| (name.to_string(), (Dtype::F32, vec![1], vec![1; 4]))).collect()
}

#[test]
fn a_file_in_the_wrong_place_is_told_with_the_field_that_is_for_it() {
    let [klein, qwen, vae] = ["files/klein.safetensors", "files/qwen.safetensors", "files/vae.safetensors"];
    refused(open([qwen, "", "", ""]), &["a text encoder, expected a transformer", qwen, "`text_encoder`"]);
    refused(open([vae, "", "", ""]), &["a VAE, expected a transformer", vae, "`vae`"]);
    refused(open(["folder", vae, "", ""]), &["a VAE, expected a text encoder", vae, "`vae`"]);
    refused(open(["folder", klein, "", ""]), &["a transformer, expected a text encoder", "`model`"]);
    refused(open(["folder", "", qwen, ""]), &["a text encoder, expected a VAE", "`text_encoder`"]);
    let files = open(["folder", "", "", vae]).unwrap();
    let error = Tokenizer::load(files.tokenizer(), FLUX2_KLEIN.template, 64).map(drop).unwrap_err().to_string();
    assert!(error.contains("not a tokenizer") && error.contains(vae), "{error}");
    for (name, keys, words) in [
        ("lora", &["diffusion_model.img_in.lora_A.weight"][..], &["an adapter", "`adapters`"][..]),
        ("flux1", &["double_blocks.0.img_mod.lin.weight"], &["a transformer of FLUX.1", "FLUX.2-klein"]),
        ("sdxl-vae", &["decoder.mid.block_1.conv1.weight"], &["a VAE, but not the FLUX.2 VAE"]),
        ("llama", &["model.layers.0.mlp.up_proj.weight"], &["a language model, but not Qwen3"]),
        ("other", &["x"], &["not a part of a klein model"]),
    ] {
        let file = format!("wrong/{name}.safetensors");
        write(&FILES.at(&file), &float_tensors(keys));
        for place in [[&*file, "", "", ""], ["folder", &file, "", ""], ["folder", "", &file, ""]] {
            refused(open(place), words);
        }
    }
    fs::write(FILES.at("wrong/text.safetensors"), "what is this").unwrap();
    let cut = fs::read(FILES.at(klein)).unwrap();
    fs::write(FILES.at("wrong/cut.safetensors"), &cut[..cut.len() / 2]).unwrap();
    for name in ["wrong/text.safetensors", "wrong/cut.safetensors"] {
        refused(open([name, "", "", ""]), &[name]);
        refused(open(["folder", name, "", ""]), &[name]);
        refused(open(["folder", "", name, ""]), &[name]);
    }
    for place in
        [["none", "", "", ""], ["folder", "none", "", ""], ["folder", "", "none", ""], ["folder", "", "", "none"]]
    {
        refused(open(place), &["no such", "none"]);
    }
}

#[test]
fn what_is_missing_is_told_with_its_name_and_where_to_put_it() {
    copy(&FILES.at("files/klein.safetensors"), &FILES.at("alone/klein.safetensors"));
    let alone = ["alone/klein.safetensors", "", "", ""];
    refused(open(alone), &["without a text encoder", "a Qwen3 with 64 features", "`text_encoder`", "text_encoders"]);
    refused(open(["alone/klein.safetensors", "folder", "", ""]), &["without a VAE", "flux2-vae.safetensors", "`vae`"]);
    refused(open(["alone", "", "", ""]), &["without a text encoder"]);
    refused(open(["folder/tokenizer", "", "", ""]), &["model_index.json"]);
    fs::create_dir_all(FILES.at("empty/diffusion_models")).unwrap();
    refused(open(["empty", "", "", ""]), &["no FLUX.2-klein or FLUX.3-klein transformer"]);
    // An encoder without a tokenizer gets the program's, which has more tokens than this text encoder.
    refused(open(["files", "", "", ""]), &["vocabulary of 512", "`tokenizer`"]);
}

#[test]
fn files_that_fit_equally_are_listed() {
    for name in ["one", "two"] {
        copy(&FILES.at("files/vae.safetensors"), &FILES.at(&format!("double/vae/{name}.safetensors")));
    }
    copy(&FILES.at("files/qwen.safetensors"), &FILES.at("double/clip/qwen.safetensors"));
    copy(&FILES.at("files/klein.safetensors"), &FILES.at("double/unet/klein.safetensors"));
    refused(
        open(["double", "", "", "folder"]),
        &["2 matching files for the VAE", "one.safetensors`, ", "two.safetensors", "`vae`"],
    );
    assert!(open(["double", "", "double/vae/one.safetensors", "folder"]).is_ok());
    copy(&FILES.at("files/klein.safetensors"), &FILES.at("double/unet/other.safetensors"));
    refused(
        open(["double", "", "", "folder"]),
        &["2 matching files for the transformer", "double/unet/other.safetensors", "`model`"],
    );
}

#[test]
fn parts_of_different_models_are_told_by_the_names_of_both() {
    let mut other = sizes();
    other.text_encoder.hidden = 96;
    other.vae.latent_channels = 8;
    other.write(&FILES.at("other")).unwrap();
    let [qwen, vae] = ["other/text_encoder/model.safetensors", "other/vae/diffusion_pytorch_model.safetensors"];
    refused(open(["folder", qwen, "", ""]), &[qwen, "3 x 96 = 288", "folder/transformer", "reads 192"]);
    refused(open(["folder", "", vae, ""]), &[vae, "folder/transformer", "128 channels", "8 latent"]);
    refused(open(["other", "", "", ""]).and_then(|_| open(["other/transformer", "folder", "", ""])), &["reads 288"]);
    copy(&FILES.at(qwen), &FILES.at("misfit/text_encoders/qwen.safetensors"));
    copy(&FILES.at("files/klein.safetensors"), &FILES.at("misfit/unet/klein.safetensors"));
    refused(open(["misfit", "", "", ""]), &["text_encoders/qwen.safetensors`, with 96, does not fit"]);
}

#[test]
fn weights_that_are_quantized_in_ways_that_are_not_read_are_refused_by_the_method() {
    for (folder, component) in [("torchao", "transformer"), ("quanto", "text_encoder")] {
        sizes().write(&FILES.at(folder)).unwrap();
        let path = FILES.at(folder).join(component).join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["quantization_config"] = serde_json::json!({ "quant_method": folder });
        fs::write(&path, config.to_string()).unwrap();
        let words = [&*format!("quantized with `{folder}`"), &*format!("{component}/config.json"), "GGUF"];
        refused(open([folder, "", "", ""]), &words);
    }
}

/// Opens a transformer file with one change.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> flux::Result<ModelFiles> {
    let mut tensors = read(&FILES.at("files/klein.safetensors"));
    change(&mut tensors);
    let path = FILES.at(&format!("changed/{name}.safetensors"));
    write(&path, &tensors);
    let paths = ModelPaths {
        model: Some(path),
        text_encoder: Some(FILES.at("folder")),
        vae: Some(FILES.at("folder")),
        ..ModelPaths::default()
    };
    paths.open(|| unreachable!("a model is named"))
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    const QKV: &str = "double_blocks.0.img_attn.qkv.weight";
    let tensor = |shape: &[usize]| {
        let len = 2 * shape.iter().product::<usize>();
        (Dtype::BF16, shape.to_vec(), vec![1; len])
    };
    refused(
        changed("qkv", |t| drop(t.insert(QKV.into(), tensor(&[383, 128])))),
        &[QKV, "[383, 128], expected [384, 128]"],
    );
    refused(changed("no-qkv", |t| drop(t.remove(QKV))), &["transformer_blocks.0.attn.to_", "is missing"]);
    refused(changed("final", |t| drop(t.remove("final_layer.adaLN_modulation.1.weight"))), &["norm_out.linear.weight"]);
    let norm = "double_blocks.0.img_attn.norm.query_norm";
    refused(
        changed("twice", |t| drop(t.insert(format!("{norm}.weight"), tensor(&[32])))),
        &["are the same tensor", norm],
    );
    refused(changed("heads", |t| drop(t.insert(format!("{norm}.scale"), tensor(&[24])))), &["heads of 24"]);
    refused(changed("no-heads", |t| drop(t.insert(format!("{norm}.scale"), tensor(&[0])))), &["heads of 0"]);
    refused(changed("scalar", |t| drop(t.insert("img_in.weight".into(), tensor(&[])))), &["x_embedder.weight", "axes"]);
    let far = format!("double_blocks.{}.img_mlp.0.weight", usize::MAX);
    refused(changed("far", |t| drop(t.insert(far, tensor(&[1])))), &["num_layers is"]);
    refused(
        changed("guided", |t| drop(t.insert("guidance_in.in_layer.weight".into(), tensor(&[1])))),
        &["a transformer of FLUX.2-dev"],
    );
}

#[test]
fn a_vae_or_text_encoder_of_strange_shapes_is_refused() {
    let strange = |file: &str, name: &str, shape: &[usize]| {
        let mut tensors = read(&FILES.at(file));
        let len = 2 * shape.iter().product::<usize>();
        tensors.insert(name.to_string(), (Dtype::BF16, shape.to_vec(), vec![1; len]));
        let path = format!("strange/{}.safetensors", name.replace('.', "-"));
        write(&FILES.at(&path), &tensors);
        path
    };
    let vae = |name: &str, shape: &[usize]| open(["folder", "", &strange("files/vae.safetensors", name, shape), ""]);
    let qwen = |name: &str, shape: &[usize]| open(["folder", &strange("files/qwen.safetensors", name, shape), "", ""]);
    refused(vae("decoder.up.2.block.0.conv1.weight", &[48, 1, 1, 1]), &["does not divide 48"]);
    refused(vae("decoder.up.99.block.0.conv1.weight", &[64, 1, 1, 1]), &["strange"]);
    refused(vae("decoder.conv_in.weight", &[64]), &["decoder.conv_in.weight", "axes"]);
    refused(qwen("model.layers.0.self_attn.q_norm.weight", &[7]), &["not heads of 7"]);
    refused(qwen("model.layers.0.self_attn.q_norm.weight", &[0]), &["not heads of 0"]);
    refused(qwen("model.layers.99999.self_attn.q_norm.weight", &[16]), &["num_hidden_layers"]);
}
