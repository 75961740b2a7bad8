//! Components of a model with any prefix of their names, alone and all in one file: their weights are those of the
//! plain files.

use std::path::{Path, PathBuf};

use flux::files::{Component, Format, ModelFiles, ModelPaths, Role, TensorFiles};
use flux::model::{Conversion, OpenModel, Quantization};
use flux::pipeline::Summary;
use flux::rgb::Rgb;
use flux::stage::CancelFlag;

use super::renamed::{
    CONFIG, Tensors, bfl, decoder_only, ldm, llama, prefixed, read, read_with_metadata, write, write_gguf,
    write_gguf_with, write_with,
};
use super::{EXPECTED, FILES, image, load, open, request};
use crate::gguf::Value;

/// Prefixes of names in files of this program and of others.
const PREFIXES: [&str; 14] = [
    "",
    "model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "pipe.dit.",
    "model.language_model.",
    "language_model.",
    "text_encoders.qwen3_4b.transformer.model.",
    "qwen3_4b.transformer.",
    "text_encoder.",
    "vae.",
    "first_stage_model.",
    "what.nobody.wrote.yet.",
];

/// The metadata key with the formats of layers.
const LAYERS: &str = "_quantization_metadata";

fn original(component: &str, stem: &str) -> Tensors {
    read(&FILES.at(&format!("folder/{component}/{stem}.safetensors")))
}

fn transformer() -> Tensors {
    original("transformer", "diffusion_pytorch_model")
}

fn vae() -> Tensors {
    original("vae", "diffusion_pytorch_model")
}

/// Returns the text encoder without the prefix `model.` of all of its names.
fn qwen() -> Tensors {
    let names = original("text_encoder", "model").into_iter();
    names.map(|(name, tensor)| (name.strip_prefix("model.").unwrap_or(&name).to_string(), tensor)).collect()
}

/// Returns all names and values.
fn values(files: &TensorFiles) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut names: Vec<&str> = files.names().collect();
    names.sort_unstable();
    let value = |name: &&str| {
        let shape = files.shape(name).unwrap();
        let parts = files.parts(name, &shape).unwrap_or_default();
        (name.to_string(), shape, parts.iter().flat_map(|part| part.to_f32()).collect())
    };
    // A counter has no format.
    names.iter().filter(|name| !name.ends_with("num_batches_tracked")).map(value).collect()
}

/// Checks for the same tensors by name, with equivalent shapes.
#[track_caller]
fn same(found: &TensorFiles, expected: &TensorFiles, what: &str) {
    let (found, expected) = (values(found), values(expected));
    let names = |all: &[(String, Vec<usize>, Vec<f32>)]| all.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}");
    for ((name, shape, values), (_, of, expected)) in found.iter().zip(&expected) {
        assert!(
            values == expected && shape.iter().product::<usize>() == of.iter().product::<usize>(),
            "{what}: {name}"
        );
    }
}

fn component(path: &Path, role: Role) -> TensorFiles {
    Component::at(path, Some(role)).unwrap().tensors().unwrap()
}

#[test]
fn every_part_in_every_style_is_read_under_every_prefix() {
    let (transformer, qwen, vae) = (transformer(), qwen(), vae());
    let fused = bfl(&transformer, "", ".scale");
    let llama = llama(&prefixed(&qwen, "model."));
    let ldm = ldm(&vae);
    let (bare, bare_ldm) = (decoder_only(&vae), decoder_only(&ldm));
    let strip = |tensors: &Tensors| -> Tensors {
        let strip = |name: &String| name.strip_prefix("decoder.").unwrap_or(name).to_string();
        tensors.iter().map(|(name, tensor)| (strip(name), tensor.clone())).collect()
    };
    let expected = |role: Role| component(&FILES.at("folder"), role);
    write(&FILES.at("bare/expected.safetensors"), &bare);
    let decoder = component(&FILES.at("bare/expected.safetensors"), Role::Vae);
    for (style, role, tensors, expected) in [
        ("diffusers", Role::Transformer, &transformer, &expected(Role::Transformer)),
        ("bfl", Role::Transformer, &fused, &expected(Role::Transformer)),
        ("transformers", Role::TextEncoder, &qwen, &expected(Role::TextEncoder)),
        ("llama", Role::TextEncoder, &llama, &expected(Role::TextEncoder)),
        ("diffusers", Role::Vae, &vae, &expected(Role::Vae)),
        ("ldm", Role::Vae, &ldm, &expected(Role::Vae)),
        ("decoder", Role::Vae, &bare, &decoder),
        ("decoder-ldm", Role::Vae, &bare_ldm, &decoder),
        ("inside", Role::Vae, &strip(&bare), &decoder),
        ("inside-ldm", Role::Vae, &strip(&bare_ldm), &decoder),
    ] {
        for prefix in PREFIXES {
            let tensors = prefixed(tensors, prefix);
            let path = FILES.at(&format!("prefixes/{style}-{prefix}x.safetensors"));
            write(&path, &tensors);
            same(&component(&path, role), expected, &path.display().to_string());
            let path = path.with_extension("gguf");
            write_gguf(&path, &tensors);
            same(&component(&path, role), expected, &path.display().to_string());
            let _ = std::fs::remove_file(path);
        }
    }
}

#[test]
fn a_bare_decoder_draws_and_an_image_input_says_what_is_missing() {
    let path = FILES.at("bare/decoder.safetensors");
    write(&path, &prefixed(&decoder_only(&ldm(&vae())), "first_stage_model."));
    let files = ModelPaths { model: Some(FILES.at("folder")), vae: Some(path), ..ModelPaths::default() };
    let files = files.open(|| unreachable!()).unwrap();
    assert!(image(&files) == *EXPECTED);
    let mut request = request();
    request.references = vec![Rgb { width: 32, height: 32, bytes: vec![90; 3 * 32 * 32] }.into()];
    let error = load(&files).generate(&request).map(drop).unwrap_err().to_string();
    for words in ["tensor `encoder.", "is missing", "decoder.safetensors", "only generate from prompts"] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// Writes files with a whole model, each in other styles and with other prefixes.
fn whole_models() -> Vec<PathBuf> {
    let (transformer, qwen, vae) = (transformer(), qwen(), vae());
    let joined = |parts: [(&Tensors, &str); 3]| -> Tensors {
        parts.into_iter().flat_map(|(tensors, prefix)| prefixed(tensors, prefix)).collect()
    };
    let (fused, ldm) = (bfl(&transformer, "", ".scale"), ldm(&vae));
    let llama = llama(&prefixed(&qwen, "model."));
    let comfy = joined([
        (&fused, "model.diffusion_model."),
        (&qwen, "text_encoders.qwen3_4b.transformer.model."),
        (&ldm, "first_stage_model."),
    ]);
    let folders = joined([(&transformer, "transformer."), (&qwen, "text_encoder.model."), (&vae, "vae.")]);
    let bare = joined([(&fused, ""), (&qwen, "model."), (&vae, "")]);
    let mixed = joined([(&transformer, "pipe.dit."), (&llama, "model."), (&ldm, "model.vae.")]);
    let mut paths = Vec::new();
    for (name, mut tensors) in [("comfy", comfy), ("folders", folders), ("bare", bare), ("mixed", mixed)] {
        // Checkpoints have tensors of no component.
        let (dtype, shape, bytes) = &transformer["x_embedder.weight"];
        tensors.insert("text_encoders.clip_l.logit_scale".into(), (*dtype, shape.clone(), bytes.clone()));
        for ending in ["safetensors", "gguf"] {
            let path = FILES.at(&format!("whole/{name}.{ending}"));
            if ending == "gguf" {
                // The name of the transformer is that of the whole file.
                let values =
                    [("config", CONFIG), ("general.architecture", "flux")].map(|(key, text)| (key, Value::Text(text)));
                write_gguf_with(&path, &tensors, &values)
            } else {
                write(&path, &tensors)
            }
            paths.push(path);
        }
    }
    paths
}

#[test]
fn a_model_in_one_file_is_that_of_the_three_files() {
    for path in whole_models() {
        let (name, folder) = (path.display().to_string(), FILES.at("folder"));
        let paths = ModelPaths { tokenizer: Some(folder.clone()), ..ModelPaths::default() };
        let whole = ModelPaths { model: Some(path.clone()), ..paths.clone() }.open(|| unreachable!()).unwrap();
        assert!(image(&whole) == *EXPECTED, "{name}");
        let found = whole.notes().iter().any(|note| note.contains("found the"));
        assert!(!found, "all of it was named: {:?}", whole.notes());
        let left_out = whole.notes().iter().filter(|note| note.contains("`text_encoders.clip_l.logit_scale`"));
        assert_eq!(left_out.count(), 1, "{name}: {:?}", whole.notes());
        assert_eq!(OpenModel::open(&whole).unwrap().notes(), [""; 0], "{name}");
        let part = ModelPaths { text_encoder: Some(path.clone()), vae: Some(path.clone()), ..paths.clone() };
        let parts = ModelPaths { model: Some(folder.clone()), ..part }.open(|| unreachable!()).unwrap();
        assert!(image(&parts) == *EXPECTED, "{name}");
        let summary = |files: &ModelFiles| Summary::read(files, &Quantization::default()).unwrap();
        let expected = summary(&ModelFiles::open(&folder).unwrap());
        for (found, expected) in summary(&whole).components.iter().zip(&expected.components) {
            assert_eq!((found.role, found.tensors > 0), (expected.role, true));
            assert_eq!(found.formats, expected.formats, "{name}");
            assert!(found.bytes <= expected.bytes, "{name}: the bytes of a part are not those of the file");
        }
        for role in [Role::Transformer, Role::TextEncoder] {
            let converted = |from: &Path, to: &str| {
                let target = FILES.at(to);
                let _ = std::fs::remove_file(&target);
                let conversion = Conversion::new(from, Some(role), None, Format::Bf16, &target, false).unwrap();
                let notes = conversion.write(&CancelFlag::default(), &mut |_| {}).unwrap().notes;
                assert_eq!(notes, [""; 0], "{name}");
                component(&target, role)
            };
            let [one, other] = ["whole/one.safetensors", "whole/other.safetensors"];
            same(&converted(&path, one), &converted(&folder, other), &format!("{name}: {}", role.title()));
        }
    }
}

#[test]
fn a_part_that_a_whole_file_lacks_is_looked_for_beside_it() {
    let (transformer, vae) = (transformer(), vae());
    let tensors: Tensors = prefixed(&transformer, "a.").into_iter().chain(prefixed(&vae, "b.")).collect();
    write(&FILES.at("two/model.safetensors"), &tensors);
    write(&FILES.at("two/qwen.safetensors"), &prefixed(&qwen(), "language_model."));
    write(&FILES.at("two/other-vae.safetensors"), &ldm(&vae));
    let files = open(["two/model.safetensors", "", "", "folder"]).unwrap();
    assert!(image(&files) == *EXPECTED);
    assert!(files.notes().iter().any(|note| note.contains("found the text encoder") && !note.contains("VAE")));
    let error = open(["two/qwen.safetensors", "", "", ""]).and_then(|files| OpenModel::open(&files)).err().unwrap();
    assert!(error.to_string().contains("a text encoder, expected a transformer"), "{error}");
    let text = open(["folder", "two/model.safetensors", "", ""]).err().unwrap().to_string();
    assert!(text.contains("the file is a transformer and a VAE, expected a text encoder"), "{text}");
}

#[test]
fn formats_are_those_of_the_header_whatever_is_in_front_of_the_names_there_and_here() {
    let fp4 = FILES.at("few/nvfp4.safetensors");
    std::fs::create_dir_all(fp4.parent().unwrap()).unwrap();
    let source = FILES.at("folder");
    let conversion = Conversion::new(&source, Some(Role::Transformer), None, Format::Nvfp4, &fp4, false).unwrap();
    conversion.write(&CancelFlag::default(), &mut |_| {}).unwrap();
    let expected = component(&fp4, Role::Transformer);
    let (tensors, metadata) = read_with_metadata(&fp4);
    let declared = metadata[LAYERS].clone();
    let header = |prefix: &str| {
        declared
            .replace("double_blocks.", &format!("{prefix}double_blocks."))
            .replace("single_blocks.", &format!("{prefix}single_blocks."))
    };
    let front = "model.diffusion_model.";
    for (here, there) in [("", front), (front, ""), (front, front), ("a.b.", ""), ("a.b.", "b."), ("", "a.b.c.")] {
        let path = FILES.at("few/renamed.safetensors");
        let told = |key: &str, text: &str| if key == LAYERS { header(there) } else { text.to_string() };
        let metadata: Vec<(&str, String)> =
            metadata.iter().map(|(key, text)| (key.as_str(), told(key, text))).collect();
        let metadata: Vec<(&str, &str)> = metadata.iter().map(|(key, text)| (*key, text.as_str())).collect();
        write_with(&path, &prefixed(&tensors, here), &metadata);
        same(&component(&path, Role::Transformer), &expected, &format!("`{here}` here, `{there}` there"));
    }
    // The declarations of the format next to each layer.
    let int8 = FILES.at("few/int8.safetensors");
    let conversion = Conversion::new(&source, Some(Role::TextEncoder), None, Format::Int8, &int8, false).unwrap();
    conversion.write(&CancelFlag::default(), &mut |_| {}).unwrap();
    let path = FILES.at("few/beside.safetensors");
    write(&path, &prefixed(&read(&int8), "text_encoders.qwen3_4b.transformer."));
    same(&component(&path, Role::TextEncoder), &component(&int8, Role::TextEncoder), "int8");
}
