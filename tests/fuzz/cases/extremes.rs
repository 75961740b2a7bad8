//! Finite values that overflow, vanish, or are all zero, in every kind of input.

use flux::files::Role;

use super::{Place, models, work};
use crate::expect::End;
use crate::folder;
use crate::rng::Rng;
use crate::run::Case;
use crate::sources::{adapter_of, weights};
use crate::tensors::TensorFile;

/// The smallest image from inputs with some extreme values. An error must name their file.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    match rng.below(5) {
        0 => in_weights(place, rng),
        1 => in_adapter(place, rng),
        2 => in_tensors(place, "--noise", rng),
        3 => in_tensors(place, "--latents", rng),
        _ => in_tensors(place, "--embeddings", rng),
    }
}

/// Changes values of one or two tensors. Returns their names, and `true` if one of them is now a matrix of zeros.
fn change(file: &mut TensorFile, rng: &mut Rng) -> (String, bool) {
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(2) {
        if let Some(tensor) = file.pick(rng, |tensor| tensor.is_float() && !tensor.bytes.is_empty()) {
            let (value, bytes) = tensor.extreme(rng);
            what.push(format!("{} values of `{}` are {value:e}", tensor.fill(&bytes, rng), tensor.name));
        }
    }
    (what.join(", "), file.tensors.iter().any(|tensor| tensor.shape.len() > 1 && tensor.is_zero()))
}

fn in_weights(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = models::linked(place, rng);
    let role = *rng.pick(&[Role::Transformer, Role::TextEncoder, Role::Vae]);
    let path = weights(&model, role);
    // One of the models has its weights in several files.
    if !path.exists() {
        case.what = format!("nothing is wrong with {source:?}");
        work::info(&mut case, &model, rng);
        return case;
    }
    let mut file = TensorFile::read(&path);
    let (what, is_zero) = change(&mut file, rng);
    case.what = format!("{} of {source:?}: {what}", role.folder());
    // In other components, some parts are not read.
    if is_zero && role == Role::Transformer {
        case.expected.end = End::Error;
    }
    folder::change(&path, |_| file.bytes());
    case.expected.blames = vec![model.display().to_string()];
    match rng.below(3) {
        0 => work::convert(&mut case, place, &model, rng),
        _ => work::draw(&mut case, place, &model),
    }
    case
}

fn in_adapter(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = (&place.sources.small, place.at("adapter.safetensors"));
    let mut file = TensorFile::read(&adapter_of(model));
    if rng.one_of(2) {
        // Tensors of a single kind, so that no other kind in the file is computed first.
        let end = *rng.pick(&[".to_q.", ".to_k.", ".to_v.", ".to_out."]);
        file.tensors.retain(|tensor| tensor.name.contains(end));
    }
    if rng.one_of(4) {
        let alpha = *rng.pick(&["1e39", "1e38", "-1e39", "1e-46", "0", "1e308", "3.5e38", "-0"]);
        let text = format!(r#"{{"transformer.r": 2, "transformer.lora_alpha": {alpha}}}"#);
        file.metadata.insert("lora_adapter_metadata".to_string(), text.into());
        file.tensors.retain(|tensor| !tensor.name.ends_with(".alpha"));
        case.what = format!("the metadata of an adapter: alpha {alpha}");
    } else {
        if let Some(alpha) = file.pick(rng, |tensor| tensor.name.ends_with(".alpha"))
            && rng.one_of(2)
        {
            alpha.dtype = "F64".to_string();
            alpha.bytes = 1f64.to_le_bytes().to_vec();
        }
        case.what = format!("an adapter: {}", change(&mut file, rng).0);
    }
    file.write(&source);
    let strength = *rng.pick(&["", "", ":1e38", ":1e-38", ":-3e38", ":0"]);
    let mut argument = source.into_os_string();
    argument.push(strength);
    case.what += &format!(", with strength `{strength}`");
    case.command.arg("--lora").arg(argument);
    case.expected.blames = vec!["--lora".to_string(), "adapter.safetensors".to_string()];
    work::draw(&mut case, place, model);
    case
}

fn in_tensors(place: &Place<'_>, flag: &str, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let is_text = flag == "--embeddings";
    let (name, source) = match is_text {
        true => ("text.safetensors", &place.sources.embeddings),
        false => ("latents.safetensors", &place.sources.noise),
    };
    let mut file = TensorFile::read(source);
    let dtype = *rng.pick(&["F32", "F32", "F16", "BF16"]);
    for tensor in &mut file.tensors {
        // Half of the bits of these are 16-bit values with any exponent, so they are regenerated.
        let count: usize = tensor.shape.iter().product();
        tensor.dtype = dtype.to_string();
        tensor.bytes = (0..count).flat_map(|i| tensor.encode((i * 7919 % 1013) as f64 / 506.0 - 1.0)).collect();
    }
    case.what = format!("{flag} in {dtype}: {}", change(&mut file, rng).0);
    let path = place.at(name);
    file.write(&path);
    case.command.arg(flag).arg(path);
    if rng.one_of(4) {
        case.command.args(["--save-latents", "l.safetensors"]);
    }
    case.expected.blames = vec![flag.to_string(), name.to_string()];
    work::draw(&mut case, place, &place.sources.small);
    if is_text {
        // They replace the prompt.
        let arguments: Vec<_> = case.command.get_args().map(ToOwned::to_owned).collect();
        let prompt = arguments.iter().position(|argument| argument == "-p").expect("drawn with a prompt");
        let mut command = crate::run::quiet(&place.sources.program);
        command.args(arguments[..prompt].iter().chain(&arguments[prompt + 2..]));
        case.command = command;
    }
    case
}
