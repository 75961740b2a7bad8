//! Lists of prompts for `scripts/generate_batch.sh`, with a program that writes down what it was given.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use super::{Place, prompts};
use crate::expect::Said;
use crate::folder;
use crate::mutate;
use crate::rng::Rng;
use crate::run::{Case, quiet};

/// Stands in for the program: it writes its prompt to its output, and refuses prompts that say so.
const STAND_IN: &str = r#"#!/bin/sh
for argument; do
    case $argument in
        --prompt=*) prompt=${argument#--prompt=} ;;
        --output=*) output=${argument#--output=} ;;
    esac
done
case $prompt in
    *refused*) printf 'error: refused\n  in: --prompt\n' >&2; exit 2 ;;
    *failing*) echo 'error: failed' >&2; exit 1 ;;
esac
printf %s "$prompt" >"$output"
"#;
/// Flags for the program, and whether the script refuses them.
const FLAGS: [(&[&str], bool); 14] = [
    (&[], false),
    (&[], false),
    (&[], false),
    (&["-S", "5"], false),
    (&["-S7"], false),
    (&["--seed=3"], false),
    (&["-q"], false),
    (&["-qS5"], false),
    (&["-W", "64"], false),
    (&["-qn2"], true),
    (&["-qvo", "x.png"], true),
    (&["-o", "x.png"], true),
    (&["-S", "x"], true),
    (&["--save-latents", "l"], true),
];
const SHELL: [&str; 10] = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "'; touch pwned; '",
    "\"; touch pwned; \"",
    "| touch pwned",
    "${IFS}",
    "$((1+1))",
    "* ? [a-z] ~",
    "\\",
];
/// The longest line that a script takes.
const MOST: usize = 1 << 16;

/// A list of lines of any kind.
pub fn any(place: &Place<'_>, rng: &mut Rng) -> Case {
    let mut case = place.case();
    let program = place.at("stand-in");
    fs::write(&program, STAND_IN).expect("a temporary folder is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    let lines: Vec<Vec<u8>> = (0..rng.below(6)).map(|_| line(rng)).collect();
    let mut bytes = lines.join(&b"\n"[..]);
    if !rng.one_of(3) {
        bytes.push(b'\n');
    }
    if rng.one_of(6) {
        bytes.splice(0..0, *b"\xef\xbb\xbf");
    }
    let (flags, is_refused) = *rng.pick(&FLAGS);
    let list = place.at("prompts.txt");
    case.command = quiet(Path::new("bash"));
    case.command.env("FLUX_BIN", &program).arg(place.sources.scripts.join("generate_batch.sh"));
    if rng.one_of(5) {
        case.stdin = bytes.clone();
        case.command.arg("-");
    } else {
        fs::write(&list, &bytes).expect("a temporary folder is writable");
        case.command.arg(&list);
    }
    case.command.arg("images").args(flags);
    case.what = format!("{flags:?}, {:?}", String::from_utf8_lossy(&bytes).chars().take(400).collect::<String>());
    case.expected.of_a_file = false;
    let images = place.out.join("images");
    if rng.one_of(4) {
        // Once more: what is there is not made again.
        case.what += ", for the second time";
        run_before(&case);
    } else {
        case.expected.may_change.push(images.clone()); // what was made stays after a line that failed
    }
    // A list without prompts makes nothing, whatever the flags.
    let prompts = prompts_of(&bytes).filter(|prompts| !is_refused || prompts.is_empty());
    case.expected.check = Some(Box::new(move |said| wrong_images(prompts.as_deref(), &images, said)));
    case
}

/// Runs what is to be run, and does not look at it.
fn run_before(case: &Case) {
    let mut command = quiet(Path::new(case.command.get_program()));
    for (variable, value) in case.command.get_envs() {
        value.map(|value| command.env(variable, value));
    }
    command.args(case.command.get_args()).current_dir(&case.out).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bash starts");
    // A script that refuses its flags does not read.
    let _ = child.stdin.take().expect("asked for").write_all(&case.stdin);
    child.wait().expect("it is our child");
}

fn line(rng: &mut Rng) -> Vec<u8> {
    let mut line = match rng.below(14) {
        0..=1 => b"a red circle".to_vec(),
        2 => b"A red, circle!".to_vec(),
        3 => format!("{}a{}", " ".repeat(rng.below(4)), " ".repeat(rng.below(4))).into_bytes(),
        4 => rng.pick(&SHELL).as_bytes().to_vec(),
        5 => rng.pick(&["-", "--help", "-o/tmp/x.png", "--", "-n 5", "-e\\n"]).as_bytes().to_vec(),
        6 => rng.pick(&["# a comment", "   # one", "#", "", "  ", "\t"]).as_bytes().to_vec(),
        7 => b"refused".to_vec(),
        8 => b"failing".to_vec(),
        9 => "\u{1b}[2J\u{7}\u{202e}\u{9b}31m\u{b}\u{c}".as_bytes().to_vec(),
        10 => "long ".repeat(rng.below(2 * MOST / 5)).into_bytes(),
        11 => prompts::text(rng, 300),
        _ => mutate::hostile_text(rng).into_bytes(),
    };
    line.retain(|byte| *byte != b'\n');
    if rng.one_of(6) {
        line.push(b'\r');
    }
    line
}

/// The prompts of a list; none where it is refused as a whole.
fn prompts_of(bytes: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)).ok()?;
    if text.contains('\0') {
        return None;
    }
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\u{b}' | '\u{c}' | '\r');
    let lines: Vec<&str> = lines.collect();
    if lines.iter().any(|line| line.len() > MOST) {
        return None;
    }
    let is_prompt = |line: &&&str| {
        let text = line.trim_start_matches(is_space);
        !text.is_empty() && !text.starts_with('#')
    };
    Some(lines.iter().filter(is_prompt).map(|line| line.to_string()).collect())
}

/// What is wrong with what the script made: an image of each prompt, and of nothing else; none at all where the list or
/// the flags are refused.
fn wrong_images(prompts: Option<&[String]>, folder: &Path, said: &Said<'_>) -> Vec<String> {
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for path in folder.is_dir().then(|| folder::files(folder)).into_iter().flatten() {
        *made.entry(fs::read_to_string(&path).unwrap_or_default()).or_default() += 1;
    }
    if prompts.is_some_and(<[String]>::is_empty) && made.is_empty() {
        return Vec::new();
    }
    let Some(prompts) = prompts else {
        let is_right = !said.succeeded && made.is_empty();
        return if is_right { Vec::new() } else { vec!["a list or flags that are wrong were taken".to_string()] };
    };
    let fails = |prompt: &str| prompt.contains("refused") || prompt.contains("failing");
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for prompt in prompts.iter().filter(|prompt| !fails(prompt)) {
        *expected.entry(prompt.clone()).or_default() += 1;
    }
    let mut findings = Vec::new();
    if made != expected {
        findings.push(format!("of {expected:?} were made {made:?}").chars().take(600).collect());
    }
    if said.succeeded == prompts.iter().any(|prompt| fails(prompt)) {
        findings.push(format!("success is {} though it is {} that prompts fail", said.succeeded, !said.succeeded));
    }
    findings
}
