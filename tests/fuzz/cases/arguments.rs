//! Arbitrary arguments.

use std::fs;

use super::{Place, models};
use crate::expect::Prints;
use crate::rng::Rng;
use crate::run::Case;

/// The existing image.
const INPUT: &str = "../input.png";
/// Values of options; none needs much work.
const VALUES: [&str; 47] = [
    "", "0", "1", "2", "16", "17", "32", "48", "-1", "-0", "1.5", "nan", "inf", "1e9", "100000", "999999999999999999",
    "18446744073709551616", "auto", "cpu", "cuda:99", "cuda:-1", "f32", "bf16", "fp8", "text", "json", "x.png",
    "x.jpg", "x.webp", "x.gif", "none/x.png", ".", "/dev/null", "-", "\u{1b}[31m.png", "\u{202e}gnp.png", INPUT, INPUT,
    INPUT, INPUT, "0.5", "0,16,3,0", "0,0,99999,1", "power:2", "sigmas:1,0.5", "q4_k", "text=fp8",
];
/// Options, the more likely ones twice.
const OPTIONS: &str = "\
    -p -p --prompt -o -o --output -W -W -H -H --width --height -s --steps -S --seed -n -g --guidance --precision \
    --device --gpu-memory --timings --fp8-cache -q -v --print-path --size --threads --no-clobber --lora -i -i -i \
    --input --mask --mask --strength --strength --extend --feather --mask-padding --no-composite --no-self-reference \
    --hires --hires-size --hires-upscaler --kv --negative --max-sequence-length --schedule --rng --noise --latents --embeddings --save-latents \
    --save-embeddings --quantize --text-encoder --vae --tokenizer --variant --parallel --force --negative-prompt \
    --model --sampler";

/// Options in any order, with any values.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let (model, _) = models::linked(place, rng);
    fs::copy(rng.pick(&place.sources.images), place.at("input.png")).expect("a temporary folder is writable");
    case.expected.of_a_file = false;
    case.expected.prints = Prints::OnSuccess;
    if !rng.one_of(4) {
        case.command.arg("-d").arg(model);
    }
    let mut given = vec!["-W", "32", "-H", "32", "-s", "1", "--device", "cpu"];
    if rng.one_of(2) {
        given.extend(["-p", "a red circle"]);
    }
    for _ in 0..rng.below(6) {
        let option = rng.word(OPTIONS);
        // Repeating an option would always be the same error.
        if let Some(at) = given.iter().position(|known| *known == option) {
            given.drain(at..given.len().min(at + 2));
        }
        given.push(option);
        if !rng.one_of(5) {
            given.push(*rng.pick(&VALUES));
        }
        if rng.one_of(12) {
            given.push(*rng.pick(&["--", "bench", "compare", "--help", "--version", "--unknown", "-"]));
        }
    }
    // A bench rightly takes long.
    given.retain(|argument| *argument != "bench");
    if rng.one_of(10) {
        let at = rng.below(given.len());
        given.remove(at);
    }
    let writes = ["-o", "--output", "--save-latents", "--save-embeddings"];
    let is_read = |pair: &[&str]| pair[1] == INPUT && !writes.contains(&pair[0]);
    if !given.windows(2).any(is_read) {
        case.expected.may_change.push(place.at("input.png"));
    }
    case.what = format!("{given:?}");
    case.command.args(given);
    case
}
