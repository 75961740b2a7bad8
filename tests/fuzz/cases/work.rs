//! Commands that run on the files of a case.

use std::path::Path;

use super::Place;
use crate::expect::{Content, Prints};
use crate::rng::Rng;
use crate::run::Case;

/// The flags of the smallest image.
pub const SMALL: [&str; 14] =
    ["-p", "a red circle", "-S", "1", "-s", "1", "--device", "cpu", "-o", "x.png", "-W", "32", "-H", "32"];

/// The number of flags apart from the size.
const WITHOUT_SIZE: usize = SMALL.len() - 4;

/// Generates an image in the default size of a model or an input.
pub fn draw_in_own_size(case: &mut Case, place: &Place<'_>, model: &Path) {
    case.command.arg("-d").arg(model).args(&SMALL[..WITHOUT_SIZE]);
    case.expected.writes.push((place.out.join("x.png"), Content::Image));
}

/// Generates the smallest image of a model.
pub fn draw(case: &mut Case, place: &Place<'_>, model: &Path) {
    case.command.arg("-d").arg(model).args(SMALL);
    case.expected.writes.push((place.out.join("x.png"), Content::Image));
}

/// Runs `flux info` on a model.
pub fn info(case: &mut Case, model: &Path, rng: &mut Rng) {
    case.expected.prints = Prints::OnSuccess;
    case.command.arg("info").arg(model);
    if rng.one_of(3) {
        // Errors are printed as JSON objects, too.
        case.expected.prints = Prints::Always;
        case.command.arg("--json");
    }
}

/// Converts a component to a format, which may not suit the extension.
pub fn convert(case: &mut Case, place: &Place<'_>, from: &Path, rng: &mut Rng) {
    let formats = ["bf16", "q8_0", "q4_0", "q4_k", "fp8", "int8", "nvfp4", "mxfp8", "q5_1"];
    let format = *rng.pick(&formats);
    let is_gguf = format.starts_with('q') || format == "bf16" && rng.one_of(2);
    let name = if is_gguf != rng.one_of(40) { "converted.gguf" } else { "converted.safetensors" };
    if !case.expected.blames.is_empty() {
        // Errors may also blame the format, the output file or a tokenizer.
        case.expected.blames.extend(["--format", "converted.", "--tokenizer"].map(String::from));
    }
    case.command.arg("convert").arg(from).arg(name).args(["--format", format]);
    case.expected.writes.push((place.out.join(name), Content::Tensors));
}
