//! Users' models: single files with the names of other programs, ComfyUI's folders, components of several models. Each
//! must generate the image of the folder that it was made from, byte for byte.

mod damage;
mod encoders;
mod errors;
mod left_out;
mod places;
mod prefixes;
pub mod renamed;
mod said;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::support::random_model::RandomModel;
use crate::support::{copy_folder, load};
use flux::files::adapter::AdapterUse;
use flux::files::{ModelFiles, ModelPaths, Variant};
use flux::pipeline::Request;
use safetensors::tensor::{Dtype, TensorView};

use renamed::{Tensors, bfl, ldm, llama, read, write, write_gguf};

/// A model with the sizes that no shape determines: 32 groups in norms, equal axes, the default text layers.
fn sizes() -> RandomModel {
    let mut model = RandomModel::tiny();
    model.vae.norm_num_groups = 32;
    model.vae.block_out_channels = [32, 64, 64, 64];
    model
}

/// Folders with all kinds of files of one model.
pub struct Files {
    folder: tempfile::TempDir,
}

/// The files of the model, made once.
pub static FILES: LazyLock<Files> = LazyLock::new(|| {
    let files = Files { folder: tempfile::tempdir().unwrap() };
    sizes().write(&files.at("folder")).unwrap();
    let transformer = read(&files.at("folder/transformer/diffusion_pytorch_model.safetensors"));
    let vae = read(&files.at("folder/vae/diffusion_pytorch_model.safetensors"));
    write(&files.at("files/klein.safetensors"), &bfl(&transformer, "", ".scale"));
    write(&files.at("prefix/klein.safetensors"), &bfl(&transformer, "model.diffusion_model.", ".weight"));
    write(&files.at("own/klein.safetensors"), &renamed::prefixed(&transformer, "diffusion_model."));
    write(&files.at("files/vae.safetensors"), &ldm(&vae));
    let qwen = read(&files.at("folder/text_encoder/model.safetensors"));
    write_gguf(&files.at("gguf/klein-Q8_0.gguf"), &bfl(&transformer, "", ".weight"));
    write_gguf(&files.at("gguf/qwen.gguf"), &llama(&qwen));
    write(&files.at("files/qwen.safetensors"), &qwen);
    for (from, to) in [
        ("klein", "models/diffusion_models/flux2/a-klein"),
        ("qwen", "models/text_encoders/qwen"),
        ("vae", "models/vae/flux2"),
    ] {
        copy(&files.at(&format!("files/{from}.safetensors")), &files.at(&format!("{to}.safetensors")));
    }
    files
});

impl Files {
    /// Returns a path in the folder.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Copies a file into a folder that is created for it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// Returns the paths of the model, a text encoder, a VAE and a tokenizer; an empty name is `None`.
fn paths(names: [&str; 4]) -> ModelPaths {
    let [model, text_encoder, vae, tokenizer] = names.map(|name| (!name.is_empty()).then(|| FILES.at(name)));
    ModelPaths { model, text_encoder, vae, tokenizer, variant: None }
}

/// Opens the model of these paths.
pub fn open(names: [&str; 4]) -> flux::Result<ModelFiles> {
    paths(names).open(|| ModelFiles::open(&crate::support::root().join("models/tiny")))
}

/// Returns the request for a small image.
pub fn request() -> Request {
    Request {
        width: Some(32),
        height: Some(32),
        steps: Some(2),
        max_sequence_length: Some(64),
        ..Request::new("a red cat", 3)
    }
}

/// Returns the pixels of the request.
pub fn image(files: &ModelFiles) -> Vec<u8> {
    load(files).generate(&request()).unwrap().rgb
}

/// The pixels of the model's own folder.
pub static EXPECTED: LazyLock<Vec<u8>> = LazyLock::new(|| image(&open(["folder", "", "", ""]).unwrap()));

#[test]
fn every_way_to_name_the_same_files_draws_the_same_image() {
    for names in [
        ["files/klein.safetensors", "files/qwen.safetensors", "files/vae.safetensors", "folder"],
        ["files/klein.safetensors", "", "", "folder/tokenizer"],
        ["prefix/klein.safetensors", "folder", "folder", ""],
        ["own/klein.safetensors", "folder/text_encoder", "folder/vae", "folder/tokenizer/tokenizer.json"],
        ["folder/transformer", "", "", ""],
        ["gguf/klein-Q8_0.gguf", "", "folder", "folder"],
        ["files/klein.safetensors", "gguf/qwen.gguf", "", "folder"],
        ["folder", "files/qwen.safetensors", "files/vae.safetensors", ""],
        ["files", "", "", "folder"],
        ["models", "", "", "folder"],
        ["", "", "", ""],
        ["models/diffusion_models/flux2/a-klein.safetensors", "", "", "folder"],
        ["models/diffusion_models/flux2/a-klein.safetensors", "", "models/vae", "folder"],
    ] {
        let named = if names[0].is_empty() { ["", "folder", "folder", ""] } else { names };
        let files = if names[0].is_empty() {
            // The root of ComfyUI, above its models.
            let root = ModelPaths { model: Some(FILES.at("models").parent().unwrap().to_path_buf()), ..paths(named) };
            root.open(|| unreachable!("a model is named"))
        } else {
            open(names)
        };
        assert!(image(&files.unwrap()) == *EXPECTED, "{names:?}");
    }
}

#[test]
fn what_was_found_and_the_variant_are_told() {
    let notes = |names| open(names).unwrap().notes().join("\n");
    let found = notes(["models", "", "", "folder"]);
    for word in
        ["found the transformer `", "a-klein.safetensors", "the text encoder `", "the VAE `", "as a distilled model"]
    {
        assert!(found.contains(word), "{word}: {found}");
    }
    assert_eq!(notes(["folder", "", "", ""]), "");
    for (name, variant) in [("klein-base-4b", Variant::Base), ("klein-9b-KV", Variant::Kv)] {
        let file = FILES.at(&format!("variants/{name}.safetensors"));
        copy(&FILES.at("files/klein.safetensors"), &file);
        let named = ["", "folder", "folder", ""];
        let files = ModelPaths { model: Some(file.clone()), ..paths(named) }.open(|| unreachable!()).unwrap();
        let model = load(&files);
        assert_eq!((files.variant(), model.info().variant()), (Some(variant), variant));
        assert!(files.notes()[0].contains(&format!("runs as a {variant} model")), "{:?}", files.notes());
        let other = ModelPaths { model: Some(file), variant: Some(Variant::Distilled), ..paths(named) };
        let other = other.open(|| unreachable!()).unwrap();
        assert!(other.variant() == Some(Variant::Distilled) && other.notes().is_empty(), "{:?}", other.notes());
        assert!(image(&other) == *EXPECTED);
    }
    let strange = FILES.at("strange/Qwen3-4B-Instruct-2507.safetensors");
    copy(&FILES.at("files/qwen.safetensors"), &strange);
    let files = ModelPaths { text_encoder: Some(strange), ..paths(["folder", "", "", ""]) };
    let notes = files.open(|| unreachable!()).unwrap().notes().join("\n");
    assert!(notes.contains("instruct-2507") && notes.contains("images will differ"), "{notes}");
}

#[test]
fn a_folder_may_have_the_names_of_other_programs_beside_its_configs() {
    let tiny = ModelFiles::open(&crate::support::root().join("models/tiny")).unwrap();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&crate::support::root().join("models/tiny"), copy.path());
    for (component, rename) in
        [("transformer", (|tensors| bfl(tensors, "", ".scale")) as fn(&Tensors) -> Tensors), ("vae", ldm)]
    {
        let path = copy.path().join(component).join("diffusion_pytorch_model.safetensors");
        let renamed = rename(&read(&path));
        fs::remove_file(&path).unwrap();
        write(&path, &renamed);
    }
    let request = Request { max_sequence_length: None, ..request() };
    let drawn = |files: &ModelFiles| load(files).generate(&request).unwrap().rgb;
    assert!(drawn(&ModelFiles::open(copy.path()).unwrap()) == drawn(&tiny));
}

#[test]
fn the_small_decoder_has_channels_of_its_own() {
    let mut model = sizes();
    model.vae.decoder_block_out_channels = Some([32, 32, 64, 96]);
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path()).unwrap();
    let expected = image(&ModelFiles::open(folder.path()).unwrap());
    let file = folder.path().join("small.safetensors");
    write(&file, &ldm(&read(&folder.path().join("vae/diffusion_pytorch_model.safetensors"))));
    let small = ModelPaths { vae: Some(file), ..paths(["folder", "", "", ""]) };
    let small = small.open(|| unreachable!()).unwrap();
    assert_eq!(load(&small).info().vae.decoder_channels(), [32, 32, 64, 96]);
    assert!(image(&small) == expected && expected != *EXPECTED);
}

#[test]
fn an_adapter_changes_fused_matrices_as_it_changes_their_parts() {
    let dim = 128;
    let values: Vec<u8> = (0..2 * dim).flat_map(|i| (0.3 - i as f32 / 300.0).to_le_bytes()).collect();
    let tensor =
        |shape: [usize; 2]| TensorView::new(Dtype::F32, shape.to_vec(), &values[..4 * shape[0] * shape[1]]).unwrap();
    let keys = ["transformer_blocks.1.attn.to_k", "transformer_blocks.0.attn.add_q_proj", "norm_out.linear"];
    let pairs = keys.iter().flat_map(|key| {
        let rows = if *key == "norm_out.linear" { 2 * dim } else { dim };
        [("A", tensor([1, dim])), ("B", tensor([rows, 1]))]
            .map(|(half, view)| (format!("{key}.lora_{half}.weight"), view))
    });
    let path = FILES.at("adapter.safetensors");
    safetensors::serialize_to_file(pairs, None, &path).unwrap();
    let adapted = |names| {
        let model = load(&open(names).unwrap());
        let adapters = vec![AdapterUse::new(model.adapter(&path).unwrap(), 1.0)];
        model.generate(&Request { adapters, ..request() }).unwrap().rgb
    };
    let of_folder = adapted(["folder", "", "", ""]);
    assert!(of_folder == adapted(["files", "", "", "folder"]) && of_folder != *EXPECTED);
}
