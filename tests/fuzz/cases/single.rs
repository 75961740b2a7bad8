//! Components in single files: with prefixes of tensor names, several in one file, and with wrong metadata.

use std::fs;
use std::path::PathBuf;

use flux::files::Role;
use serde_json::{Map, Value, json};

use super::{Place, quantized, work};
use crate::expect::End;
use crate::gguf::{Entry, Gguf};
use crate::mutate;
use crate::rng::Rng;
use crate::run::Case;
use crate::tensors::{Tensor, TensorFile};

/// Prefixes of tensor names in programs.
const PREFIXES: [&str; 22] = [
    "",
    "model.",
    "transformer.",
    "model.diffusion_model.",
    "diffusion_model.",
    "pipe.dit.",
    "dit.",
    "net.",
    "module.",
    "vae.",
    "first_stage_model.",
    "text_encoder.",
    "text_encoders.qwen3_4b.transformer.",
    "qwen3_4b.transformer.",
    "model.language_model.",
    "language_model.",
    "cond_stage_model.",
    "encoder.",
    "decoder.",
    "a.",
    ".",
    "_orig_mod.",
];
/// Metadata keys that some program reads.
const KEYS: &str = "\
    config format modelspec.architecture _quantization_metadata quantization axes_dims_rope rope_theta \
    transformer_config text_encoder_config modelspec.title flux.config model_type";

/// The description if [`disturb`] changes nothing.
const WHOLE: &str = "all are there";

/// A file of one component or of several.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    match rng.below(6) {
        0..=1 => with_prefixes(place, rng),
        2 => all_in_one(place, rng),
        3 => with_metadata(place, rng),
        4 => with_config_beside(place, rng),
        _ => with_keys(place, rng),
    }
}

/// The config of a component.
fn config(place: &Place<'_>, role: Role) -> Value {
    let bytes = fs::read(place.sources.small.join(role.folder()).join("config.json")).expect("a file of ours");
    serde_json::from_slice(&bytes).expect("JSON of ours")
}

/// Uses a file of a component in any way.
fn use_it(case: &mut Case, place: &Place<'_>, path: PathBuf, role: Role, rng: &mut Rng) {
    case.expected.blames = ["single.", "model", "--tokenizer"].map(String::from).into();
    match rng.below(5) {
        0..=1 => work::info(case, &path, rng),
        2 => work::convert(case, place, &path, rng),
        _ => quantized::draw(case, place, &path, role),
    }
}

/// The tensors of a component, as in its folder or in a file of another program.
fn component(place: &Place<'_>, role: Role, rng: &mut Rng) -> TensorFile {
    let of_role = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "safetensors");
    let single: Vec<&PathBuf> = place
        .sources
        .quantized
        .iter()
        .filter(|file| file.role == role)
        .map(|file| &file.path)
        .filter(of_role)
        .collect();
    match rng.below(2) {
        0 if !single.is_empty() => TensorFile::read(rng.pick::<&PathBuf>(&single)),
        _ => TensorFile::read(&place.sources.weights(role)),
    }
}

fn role(rng: &mut Rng) -> Role {
    *rng.pick(&[Role::Transformer, Role::Transformer, Role::TextEncoder, Role::Vae])
}

/// Prefixes names: all with one prefix, in order with several, or only some of them. Returns the prefix, and `true` if
/// all names have it.
fn prefix(tensors: &mut [Tensor], rng: &mut Rng) -> (String, bool) {
    let mut front = rng.pick(&PREFIXES).to_string();
    if rng.one_of(3) {
        front += *rng.pick(&PREFIXES);
    }
    if rng.one_of(10) {
        front = mutate::hostile_text(rng) + ".";
    }
    let skipped = if rng.one_of(3) { 1 + rng.below(4) } else { 0 };
    for tensor in tensors.iter_mut() {
        if skipped == 0 || rng.below(8) >= skipped {
            tensor.name.insert_str(0, &front);
        }
    }
    let shown: String = front.chars().take(60).collect();
    (format!("{shown:?} in front, of some only: {}", skipped > 0), skipped == 0)
}

/// Removes tensors, duplicates them, or adds those of another file.
fn disturb(file: &mut TensorFile, rng: &mut Rng) -> &'static str {
    let at = rng.below(file.tensors.len());
    match rng.below(8) {
        0 => {
            file.tensors.remove(at);
            "one is missing"
        }
        1 => {
            let mut copy = file.tensors[at].clone();
            let front = *rng.pick::<&str>(&PREFIXES);
            copy.name.insert_str(0, front);
            file.tensors.push(copy);
            "one is twice"
        }
        2 => {
            let name = if rng.one_of(2) { "x".repeat(1 << rng.below(21)) } else { mutate::hostile_text(rng) };
            file.tensors.push(Tensor::f32(name, &[2, 2], &[1.0; 4]));
            "one is unknown"
        }
        3 => {
            file.tensors[at].shape.reverse();
            "one is turned"
        }
        _ => WHOLE,
    }
}

fn with_prefixes(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let role = role(rng);
    let mut file = component(place, role, rng);
    let says_its_config = file.metadata.contains_key("config");
    let ((what, is_of_all), disturbed) = (prefix(&mut file.tensors, rng), disturb(&mut file, rng));
    case.what = format!("{}: {what}; {disturbed}", role.folder());
    let path = place.at("single.safetensors");
    file.write(&path);
    if is_of_all && disturbed == WHOLE && says_its_config {
        case.expected.end = End::Success;
        quantized::draw(&mut case, place, &path, role);
    } else {
        use_it(&mut case, place, path, role, rng);
    }
    case
}

fn all_in_one(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let mut file = TensorFile::default();
    let usual = ["model.diffusion_model.", "text_encoders.qwen3_4b.transformer.", "vae."];
    let is_usual = rng.one_of(2);
    let (mut is_whole, mut configs) = (is_usual, Map::new());
    for (role, front) in [Role::Transformer, Role::TextEncoder, Role::Vae].into_iter().zip(usual) {
        if rng.one_of(8) {
            is_whole = false;
            case.what += &format!("no {}; ", role.folder());
            continue;
        }
        let TensorFile { metadata, mut tensors } = component(place, role, rng);
        file.metadata.extend(metadata);
        if is_usual {
            tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, front));
        } else {
            case.what += &format!("{}: {}; ", role.folder(), prefix(&mut tensors, rng).0);
        }
        file.tensors.extend(tensors);
        configs.insert(role.folder().to_string(), config(place, role));
    }
    if rng.one_of(4) {
        is_whole = false;
    } else {
        file.metadata.insert("config".to_string(), Value::Object(configs).to_string().into());
    }
    let disturbed = if file.tensors.is_empty() { "nothing" } else { disturb(&mut file, rng) };
    case.what += disturbed;
    let path = place.at("single.safetensors");
    file.write(&path);
    if is_whole && disturbed == WHOLE || rng.one_of(3) {
        case.expected.end = if is_whole && disturbed == WHOLE { End::Success } else { End::Any };
        case.expected.blames = vec!["single.".to_string()];
        work::draw(&mut case, place, &path);
        case.command.arg("--tokenizer").arg(place.sources.small.join("tokenizer"));
    } else {
        use_it(&mut case, place, path, role(rng), rng);
    }
    case
}

/// A file without metadata, and a config next to it.
fn with_config_beside(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let role = role(rng);
    let mut file = component(place, role, rng);
    file.metadata = Map::new();
    let mut said = config(place, role);
    if rng.one_of(3) {
        said = json!({ role.folder(): said });
    }
    let name = match rng.below(3) {
        0 => "single.json".to_string(),
        1 => "config.json".to_string(),
        _ => format!("{}/config.json", role.folder()),
    };
    let mut bytes = said.to_string().into_bytes();
    let is_damaged = !rng.one_of(4);
    if is_damaged {
        bytes = mutate::json(&bytes, rng);
    }
    let beside = place.at(&name);
    fs::create_dir_all(beside.parent().expect("it is in a folder")).expect("a temporary folder is writable");
    fs::write(&beside, bytes).expect("a temporary folder is writable");
    case.what = format!("{} beside {name}, damaged: {is_damaged}", role.folder());
    let path = place.at("single.safetensors");
    file.write(&path);
    use_it(&mut case, place, path, role, rng);
    case.expected.blames.push(name);
    case
}

/// Values of any type under keys of a safetensors header.
fn with_metadata(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let role = role(rng);
    let mut file = component(place, role, rng);
    for _ in 0..1 + rng.below(3) {
        let known: Vec<String> = file.metadata.keys().cloned().collect();
        let key = if known.is_empty() || rng.one_of(2) { rng.word(KEYS).to_string() } else { rng.pick(&known).clone() };
        let old = file.metadata.get(&key).and_then(Value::as_str).unwrap_or_default().to_string();
        let value = match rng.below(4) {
            // A value that is changed JSON.
            0 if !old.is_empty() => String::from_utf8_lossy(&mutate::json(old.as_bytes(), rng)).into_owned().into(),
            1 => mutate::hostile_value(rng),
            2 => json!({ rng.word(KEYS): mutate::hostile_value(rng) }).to_string().into(),
            _ => mutate::hostile_value(rng).to_string().into(),
        };
        case.what += &format!("metadata {key:?}; ");
        file.metadata.insert(key, value);
    }
    if rng.one_of(10) {
        file.metadata = Map::new();
    }
    let path = place.at("single.safetensors");
    file.write(&path);
    use_it(&mut case, place, path, role, rng);
    case
}

/// Values of any type under keys of a GGUF file.
fn with_keys(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gguf");
    let files: Vec<_> = place.sources.quantized.iter().filter(|file| is_gguf(&file.path)).collect();
    let source = *rng.pick(&files);
    let mut file = Gguf::read(&source.path);
    case.what = format!("{:?}: ", source.path);
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(file.entries.len().max(1));
        let Some(key) = file.entries.get(at).map(|entry| entry.key.clone()) else { break };
        let change = rng.below(5);
        match change {
            0 => drop(file.entries.remove(at)),
            1 => file.entries[at].key = mutate::hostile_text(rng),
            2 => {
                let copy = file.entries[at].clone();
                file.entries.push(copy);
            }
            3 => {
                let architecture = mutate::hostile_text(rng);
                let value = [&(architecture.len() as u64).to_le_bytes()[..], architecture.as_bytes()].concat();
                file.entries.push(Entry { key: "general.architecture".to_string(), kind: 8, value });
            }
            _ => (file.entries[at].kind, file.entries[at].value) = any_value(rng),
        }
        case.what += &format!("key {key:?} {change}; ");
    }
    if rng.one_of(4) {
        let at = rng.below(file.tensors.len());
        file.tensors[at].name = mutate::hostile_text(rng);
        case.what += "a tensor of another name";
    }
    let path = place.at("single.gguf");
    file.write(&path);
    use_it(&mut case, place, path, source.role, rng);
    case
}

/// A type of GGUF and a value. Most of the values match their type.
fn any_value(rng: &mut Rng) -> (u32, Vec<u8>) {
    let text = |rng: &mut Rng| {
        let text = mutate::hostile_text(rng);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    };
    match rng.below(7) {
        0 => (4, (rng.any() as u32 >> rng.below(32)).to_le_bytes().to_vec()),
        1 => (5, (-1i32).to_le_bytes().to_vec()),
        2 => (6, rng.pick(&[0f32, -1.0, f32::NAN, f32::INFINITY, 1e-38, 1e38]).to_le_bytes().to_vec()),
        3 => (8, text(rng)),
        4 => {
            let count = 1 << rng.below(8);
            let mut value = [5u32.to_le_bytes().as_slice(), &(count as u64).to_le_bytes()].concat();
            value.extend((0..count).flat_map(|_| (rng.any() as i32 >> rng.below(32)).to_le_bytes()));
            (9, value)
        }
        5 => (9, [8u32.to_le_bytes().as_slice(), &1u64.to_le_bytes(), &text(rng)].concat()),
        _ => (rng.below(16) as u32, rng.any().to_le_bytes().to_vec()),
    }
}
