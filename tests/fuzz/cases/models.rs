//! Model folders with one wrong file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kind, Place, work};
use crate::expect::Prints;
use crate::rng::Rng;
use crate::run::{Case, quiet};
use crate::{folder, model_copy};

/// The name of the test that [`attach`] runs.
const ATTACH: &str = "a_cache_is_attached";
/// The variable with its model folder.
pub const ATTACH_TO: &str = "FLUX_FUZZ_ATTACH_TO";

/// Links to the files of a model, and their source; mostly of the smallest model.
pub fn linked<'a>(place: &Place<'a>, rng: &mut Rng) -> (PathBuf, &'a Path) {
    let sources = place.sources;
    let source = if rng.one_of(4) { rng.pick(&sources.models) } else { &sources.small };
    let model = place.at("model");
    fs::create_dir(&model).expect("a temporary folder is writable");
    model_copy::link_all(source, &model);
    (model, source)
}

/// A model with one damaged file, used in any way.
pub fn damaged(place: &Place<'_>, kind: Kind, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = linked(place, rng);
    let all = folder::files(&model);
    let one = |rng: &mut Rng, fits: &dyn Fn(&str) -> bool| {
        let fitting: Vec<&PathBuf> =
            all.iter().filter(|path| path.to_str().is_some_and(fits) && !is_cache(path)).collect();
        (*rng.pick(&fitting)).clone()
    };
    let is_tokenizer = |path: &str| path.ends_with("/tokenizer.json");
    let path = match kind {
        Kind::Json => one(rng, &|path| path.ends_with(".json") && !is_tokenizer(path)),
        Kind::Tokenizer => one(rng, &is_tokenizer),
        Kind::Weights => one(rng, &|path| path.ends_with(".safetensors")),
        _ => one(rng, &|_| true),
    };
    if kind == Kind::NotAFile {
        case.what = format!("{path:?} is {}", folder::replace(&path, rng));
    } else {
        folder::damage(&path, rng);
        case.what = format!("{path:?} of {source:?}");
    }
    case.expected.blames = ["--component", "--tokenizer"].map(String::from).into();
    case.expected.blames.push(model.display().to_string());
    match rng.below(8) {
        0..=1 => work::info(&mut case, &model, rng),
        2 => {
            work::convert(&mut case, place, &model, rng);
            if path.starts_with(model.join("text_encoder")) || path.starts_with(model.join("tokenizer")) {
                case.command.args(["--component", "text"]);
            }
        }
        3 => work::draw_in_own_size(&mut case, place, &model),
        _ => work::draw(&mut case, place, &model),
    }
    case
}

/// A valid model.
pub fn sound(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = linked(place, rng);
    case.what = format!("nothing is wrong with {source:?}");
    work::draw(&mut case, place, &model);
    case
}

/// A damaged quantized cache.
pub fn cache(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, source) = linked(place, rng);
    let path = folder::files(&model).into_iter().find(|path| is_cache(path)).expect("written with the model");
    folder::damage(&path, rng);
    case.what = format!("{path:?} of {source:?}");
    case.command = attach(&model);
    case.expected.prints = Prints::Always;
    case.expected.may_change.push(path); // it is rewritten
    case
}

fn is_cache(path: &Path) -> bool {
    path.ends_with("flux-fp8.safetensors")
}

/// Reads the quantized cache, in a process of this test, because the program does so only with a GPU.
fn attach(model: &Path) -> Command {
    let mut command = quiet(&std::env::current_exe().expect("this program"));
    command.args(["--exact", ATTACH, "--ignored", "--nocapture", "--quiet"]).env(ATTACH_TO, model);
    command
}
