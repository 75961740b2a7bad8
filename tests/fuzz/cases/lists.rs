//! Lists of images for `flux batch`: text, JSON and tables of any kind. Every second list is made, the others are only
//! checked.

use std::fs;

use super::{Place, prompts, work};
use crate::expect::Prints;
use crate::mutate;
use crate::rng::Rng;
use crate::run::Case;

const ENDINGS: [&str; 3] = ["txt", "jsonl", "csv"];
const FLAGS: [&[&str]; 12] = [
    &[],
    &[],
    &["-S", "5"],
    &["-n2"],
    &["--shard", "1/2"],
    &["--shard=2/1"],
    &["--name", "{prompt}.webp"],
    &["--name", "../{index}.png"],
    &["--name", "{"],
    &["--force"],
    &["--json"],
    &["--mask", "none.png"],
];
const FIELDS: &str = "\
    prompt negative width height steps seed guidance schedule rng max_sequence_length inputs mask strength extend \
    mask_padding feather no_composite full_size resize no_self_reference sparse noise latents embeddings adapters \
    hires output n";
const VALUES: [&str; 22] = [
    "1",
    "0",
    "-1",
    "32",
    "1e3",
    "18446744073709551615",
    "null",
    "true",
    "\"x\"",
    "\"\"",
    "\"/dev/zero\"",
    "\"..\"",
    "\"a.png\"",
    "\"../a.png\"",
    "\"a/b/c.png\"",
    "\"flow\"",
    "\"sigmas:1,0\"",
    "[\"none.png\"]",
    "[]",
    "{\"left\": 16}",
    "[{\"file\": \"none\", \"strength\": 1}]",
    "\"{seed}\"",
];

/// A list of arbitrary lines.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let ending = *rng.pick(&ENDINGS);
    let mut lines: Vec<Vec<u8>> = if ending == "csv" { vec![names(rng)] } else { Vec::new() };
    lines.extend((0..rng.below(5)).map(|_| match ending {
        "txt" => text(rng),
        "jsonl" => object(rng),
        _ => row(rng),
    }));
    let mut bytes = lines.join(&b"\n"[..]);
    if rng.one_of(6) {
        bytes.splice(0..0, *b"\xef\xbb\xbf");
    }
    case.command.arg("batch");
    if rng.one_of(5) {
        case.stdin = bytes.clone();
        case.command.args(["-", "--format", ending]);
    } else {
        let list = place.at("list").with_extension(ending);
        fs::write(&list, &bytes).expect("a temporary folder is writable");
        case.command.arg(&list);
    }
    let flags = *rng.pick(&FLAGS);
    // They have no `-o`, and seeds of their own.
    case.command.arg("images").args(&work::SMALL[4..8]).args(&work::SMALL[10..]).args(flags);
    if flags.contains(&"--json") {
        case.expected.prints = Prints::Always;
    }
    if rng.one_of(2) {
        case.command.arg("--dry-run");
    } else {
        // Earlier images stay after a failed line, and the manifest has the reason.
        case.expected.may_change.push(place.out.join("images"));
    }
    case.expected.of_a_file = false;
    case.what = format!("{flags:?}, {:?}", String::from_utf8_lossy(&bytes).chars().take(400).collect::<String>());
    case
}

fn text(rng: &mut Rng) -> Vec<u8> {
    let mut line = match rng.below(6) {
        0..=1 => b"a red circle".to_vec(),
        2 => rng.pick(&["-", "--help", "# a note", "", "  ", "../../x", "a/b"]).as_bytes().to_vec(),
        3 => "long ".repeat(rng.below(30_000)).into_bytes(),
        4 => prompts::text(rng, 300),
        _ => mutate::hostile_text(rng).into_bytes(),
    };
    line.retain(|byte| *byte != b'\n');
    if rng.one_of(6) {
        line.push(b'\r');
    }
    line
}

fn object(rng: &mut Rng) -> Vec<u8> {
    if rng.one_of(6) {
        return text(rng);
    }
    let mut fields = vec![r#""prompt": "a circle""#.to_string()];
    fields.extend((0..rng.below(4)).map(|_| format!("\"{}\": {}", rng.word(FIELDS), rng.pick(&VALUES))));
    let mut line = format!("{{{}}}", fields.join(", ")).into_bytes();
    if rng.one_of(8) {
        line.truncate(rng.below(line.len()));
    }
    line
}

fn names(rng: &mut Rng) -> Vec<u8> {
    (0..1 + rng.below(5)).map(|_| rng.word(FIELDS)).collect::<Vec<_>>().join(",").into_bytes()
}

fn row(rng: &mut Rng) -> Vec<u8> {
    let cell = |rng: &mut Rng| match rng.below(4) {
        0 => String::new(),
        1 => rng.pick(&VALUES).trim_matches('"').to_string(),
        2 => "\"a, b".to_string(),
        _ => String::from_utf8_lossy(&text(rng)).chars().take(40).collect(),
    };
    (0..1 + rng.below(6)).map(|_| cell(rng)).collect::<Vec<_>>().join(",").into_bytes()
}
