//! Places of users' files: any extension, nested folders, the cache of Hugging Face; and unusual names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flux::files::{Component, ModelFiles, ModelPaths, Role};

use super::{EXPECTED, FILES, copy, image};
use crate::support::copy_folder;

/// Opens the model at `path`, with the tokenizer of the folder.
fn at(path: &Path) -> flux::Result<ModelFiles> {
    let folder = Some(FILES.at("folder"));
    ModelPaths { model: Some(path.to_path_buf()), tokenizer: folder, ..ModelPaths::default() }.open(|| unreachable!())
}

#[track_caller]
fn draws(path: &Path) {
    let files = at(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(image(&files) == *EXPECTED, "{}", path.display());
}

#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let error = at(path).expect_err("refused").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
}

#[test]
fn endings_have_any_case_and_folders_any_depth_that_comfyui_has() {
    for (place, ending) in [("upper", "SAFETENSORS"), ("sft", "sft"), ("short", "SFT"), ("mixed", "Safetensors")] {
        let root = FILES.at(&format!("endings/{place}"));
        for (from, to) in [
            ("klein", "models/diffusion_models/flux2/klein/a"),
            ("qwen", "models/text_encoders/qwen/3/4b/q"),
            ("vae", "models/vae/flux2/v"),
        ] {
            copy(&FILES.at(&format!("files/{from}.safetensors")), &root.join(format!("{to}.{ending}")));
        }
        let file = root.join(format!("models/diffusion_models/flux2/klein/a.{ending}"));
        for path in [root.clone(), root.join("models"), file] {
            draws(&path);
        }
    }
    let root = FILES.at("endings/gguf");
    copy(&FILES.at("gguf/klein-Q8_0.gguf"), &root.join("unet/KLEIN.GGUF"));
    copy(&FILES.at("gguf/qwen.gguf"), &root.join("clip/QWEN.GGUF"));
    copy(&FILES.at("files/vae.safetensors"), &root.join("vae/vae.sft"));
    draws(&root);
    // A folder with configs.
    let folder = FILES.at("endings/folder");
    copy_folder(&FILES.at("folder"), &folder);
    let transformer = folder.join("transformer");
    fs::rename(transformer.join("diffusion_pytorch_model.safetensors"), transformer.join("KLEIN.SFT")).unwrap();
    draws(&folder);
}

/// Writes the folder of a repository as in the cache of Hugging Face: links into a folder of nameless blobs.
fn cached(repository: &Path, snapshot: &str, from: &Path) {
    let root = repository.join("snapshots").join(snapshot);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        fs::create_dir_all(root.join(&folder)).unwrap();
        for entry in fs::read_dir(from.join(&folder)).unwrap().map(Result::unwrap) {
            let name = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(name);
                continue;
            }
            let blob = format!("{snapshot}-{}", name.to_string_lossy().replace(['/', '.'], "-"));
            copy(&entry.path(), &repository.join("blobs").join(&blob));
            let up = "../".repeat(name.components().count() + 1);
            symlink(format!("{up}blobs/{blob}"), root.join(&name)).unwrap();
        }
    }
}

#[test]
fn the_cache_of_hugging_face_is_read_by_its_folders() {
    let hub = FILES.at("huggingface/hub");
    let repository = hub.join("models--black-forest-labs--FLUX.2-klein-4B");
    cached(&repository, "aaaa", &FILES.at("folder"));
    draws(&repository);
    draws(&hub);
    draws(hub.parent().unwrap());
    // Another repository in the cache is not used.
    fs::create_dir_all(hub.join("models--other--sdxl/snapshots/x")).unwrap();
    fs::write(hub.join("models--other--sdxl/snapshots/x/model_index.json"), r#"{"_class_name": "Other"}"#).unwrap();
    draws(&hub);
    let other = repository.join("snapshots/bbbb");
    fs::create_dir_all(&other).unwrap();
    refused(&repository, &["2 snapshots", "aaaa", "bbbb", "refs/main", "hint: name one of them"]);
    draws(&repository.join("snapshots/aaaa"));
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), "aaaa\n").unwrap();
    draws(&repository);
    for hostile in ["../../..", "", "/", "cccc"] {
        fs::write(repository.join("refs/main"), hostile).unwrap();
        refused(&repository, &["2 snapshots"]);
    }
    fs::remove_dir(other).unwrap();
    draws(&repository);
    // Components of it, too.
    let part =
        ModelPaths { text_encoder: Some(repository.clone()), vae: Some(repository.clone()), ..ModelPaths::default() };
    let part = ModelPaths { model: Some(FILES.at("folder")), ..part }.open(|| unreachable!()).unwrap();
    assert!(image(&part) == *EXPECTED);
    assert_eq!(Component::at(&repository, None).unwrap().role(), Role::Transformer);
    cached(&hub.join("models--a--b"), "cccc", &FILES.at("folder"));
    refused(&hub, &["2 models", "models--a--b", "FLUX.2-klein-4B", "hint: "]);
    fs::create_dir_all(FILES.at("begun/models--a--b/snapshots")).unwrap();
    refused(&FILES.at("begun/models--a--b"), &["no snapshot", "its download is incomplete", "models--a--b"]);
}

#[test]
fn a_single_file_in_the_cache_is_beside_its_folders() {
    let repository = FILES.at("single/models--black-forest-labs--FLUX.2-klein-4B");
    cached(&repository, "aaaa", &FILES.at("folder"));
    copy(&FILES.at("files/klein.safetensors"), &repository.join("blobs/klein"));
    let file = repository.join("snapshots/aaaa/flux-2-klein-4b.safetensors");
    symlink("../../blobs/klein", &file).unwrap();
    draws(&file);
    // A link out of ComfyUI's folders finds the other components there.
    let comfy = FILES.at("linked");
    copy(&FILES.at("files/qwen.safetensors"), &comfy.join("text_encoders/q.safetensors"));
    copy(&FILES.at("files/vae.safetensors"), &comfy.join("vae/v.safetensors"));
    fs::create_dir_all(comfy.join("unet")).unwrap();
    symlink(repository.join("blobs/klein"), comfy.join("unet/klein.safetensors")).unwrap();
    draws(&comfy.join("unet/klein.safetensors"));
    draws(&comfy);
}

#[test]
fn whole_models_of_comfyui_are_found_where_there_is_no_other() {
    let root = FILES.at("checkpoints-only");
    let mut tensors = super::renamed::bfl(
        &super::renamed::read(&FILES.at("folder/transformer/diffusion_pytorch_model.safetensors")),
        "model.diffusion_model.",
        ".scale",
    );
    let vae = super::renamed::read(&FILES.at("files/vae.safetensors"));
    let qwen = super::renamed::read(&FILES.at("files/qwen.safetensors"));
    tensors.extend(super::renamed::prefixed(&vae, "first_stage_model."));
    tensors.extend(super::renamed::prefixed(&qwen, "text_encoders.qwen3_4b.transformer."));
    super::renamed::write(&root.join("models/checkpoints/all.safetensors"), &tensors);
    draws(&root);
    fs::create_dir_all(root.join("models/diffusion_models")).unwrap();
    draws(&root);
    copy(&FILES.at("files/klein.safetensors"), &root.join("models/diffusion_models/klein.safetensors"));
    let files = at(&root).unwrap();
    let transformer = files.component(Role::Transformer).path();
    assert!(transformer.ends_with("diffusion_models/klein.safetensors"), "{}", transformer.display());
    assert!(image(&files) == *EXPECTED, "the other parts are those of the whole model");
}

#[test]
fn bytes_behind_a_safetensors_file_are_told_and_left_out() {
    for (component, count) in [("transformer", 1), ("vae", 4096)] {
        let folder = FILES.at(&format!("trailing/{component}"));
        copy_folder(&FILES.at("folder"), &folder);
        let path = folder.join(component).join("diffusion_pytorch_model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(vec![b'x'; count]);
        fs::write(&path, bytes).unwrap();
        let files = at(&folder).unwrap();
        let notes = files.notes().join("\n");
        let words = format!("has {count} bytes after its tensors, which are ignored");
        assert!(notes.contains(&words) && notes.contains(component), "{notes}");
        assert!(image(&files) == *EXPECTED);
    }
}
