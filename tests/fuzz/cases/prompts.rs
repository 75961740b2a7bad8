//! Prompts of arbitrary bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::{Place, models, work};
use crate::mutate;
use crate::rng::Rng;
use crate::run::Case;

/// A prompt as an argument, or from standard input.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, _) = models::linked(place, rng);
    let mut text = text(rng, 100_000);
    case.what = format!("a prompt of {} bytes", text.len());
    case.expected.of_a_file = false;
    case.command.arg("-d").arg(model).args(&work::SMALL[2..]);
    if rng.one_of(2) {
        case.stdin = text;
        case.command.args(["-p", "-"]);
    } else {
        text.retain(|byte| *byte != 0); // arguments cannot contain it
        let mut argument = OsString::from("--prompt=");
        argument.push(OsString::from_vec(text));
        case.command.arg(argument);
    }
    case
}

/// Returns up to `most` arbitrary bytes.
pub fn text(rng: &mut Rng, most: usize) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..1 + rng.below(4) {
        match rng.below(5) {
            0 => text.extend((0..1 << rng.below(12)).map(|_| rng.any() as u8)),
            1 => text.extend("a red circle ".repeat(1 << rng.below(14)).bytes()),
            2 => text.extend(rng.pick(&["<|im_end|>", "<|endoftext|>", "<|im_start|>system\n", "</think>"]).bytes()),
            _ => text.extend(mutate::hostile_text(rng).bytes()),
        }
    }
    text.truncate(most);
    text
}
