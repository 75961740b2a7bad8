//! Valid files, passed to flags for other files.

use std::path::PathBuf;

use flux::files::Role;

use super::{Place, link, models, work};
use crate::expect::Prints;
use crate::rng::Rng;
use crate::run::Case;
use crate::sources::adapter_of;

/// The flags for input files.
const FLAGS: &str = "-d -i --mask --lora --noise --latents --embeddings --text-encoder --vae --tokenizer --variant";

/// One file for one flag or command.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, _) = models::linked(place, rng);
    let source = file(place, rng);
    // Its extension may be wrong, or missing.
    let endings = ["safetensors", "gguf", "png", "json", "pt", "bin", "SAFETENSORS", "sft", "zip", "txt"];
    let own = source.extension().and_then(|ending| ending.to_str()).unwrap_or("json");
    let path = place.at("given").with_extension(if rng.one_of(3) { *rng.pick(&endings) } else { own });
    link(&source, &path);
    let flag = rng.word(FLAGS);
    case.expected.of_a_file = false;
    case.expected.blames = vec!["given.".to_string(), flag.to_string()];
    match rng.below(6) {
        0 => work::info(&mut case, &path, rng),
        1 => work::convert(&mut case, place, &path, rng),
        2 => {
            case.command.arg("compare").arg(&place.sources.images[0]).arg(&path);
            case.expected.prints = Prints::OnSuccess;
            case.expected.blames.push("image.png".to_string()); // of another size
        }
        _ => {
            work::draw_in_own_size(&mut case, place, &model);
            case.command.arg(flag).arg(&path);
            case.expected.blames.extend(["--prompt", "there are several prompts", "--input"].map(String::from));
        }
    }
    case.what = format!("{source:?} as {path:?} for {flag}");
    case
}

fn file(place: &Place<'_>, rng: &mut Rng) -> PathBuf {
    let sources = place.sources;
    match rng.below(10) {
        0 => rng.pick(&sources.images).clone(),
        1 => adapter_of(&sources.small),
        2 => sources.noise.clone(),
        3 => sources.embeddings.clone(),
        4 => sources.weights(*rng.pick(&[Role::Transformer, Role::TextEncoder, Role::Vae])),
        5 => sources.small.join("tokenizer/tokenizer.json"),
        6 => sources.small.join("model_index.json"),
        7 => sources.small.clone(),
        _ => rng.pick(&sources.quantized).path.clone(),
    }
}
