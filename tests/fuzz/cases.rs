//! What is tried: model folders, tokenizers, caches, images, prompts and arguments.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::rng::Rng;
use super::run::{Case, Prints, quiet};
use super::{folder, model_copy, mutate};

/// What cases are made from.
pub struct Sources {
    /// The program.
    pub program: PathBuf,
    /// Folders of small models that work, one of them with a cache of quantised weights.
    pub models: Vec<PathBuf>,
    /// Images that can be read.
    pub images: Vec<PathBuf>,
}

/// The kinds of cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Json,
    Tokenizer,
    Weights,
    NotAFile,
    Cache,
    Adapter,
    Image,
    Input,
    Prompt,
    Arguments,
    Sound,
}

/// Of a hundred runs, how many are of each kind.
const SHARES: [(Kind, usize); 11] = [
    (Kind::Json, 18),
    (Kind::Tokenizer, 10),
    (Kind::Weights, 14),
    (Kind::NotAFile, 10),
    (Kind::Cache, 5),
    (Kind::Adapter, 10),
    (Kind::Image, 8),
    (Kind::Input, 8),
    (Kind::Prompt, 8),
    (Kind::Arguments, 8),
    (Kind::Sound, 1),
];

impl Kind {
    /// The kind of a run.
    pub fn draw(rng: &mut Rng) -> Self {
        let mut number = rng.below(SHARES.iter().map(|(_, share)| share).sum());
        for (kind, share) in SHARES {
            if number < share {
                return kind;
            }
            number -= share;
        }
        unreachable!("the number is below the sum")
    }
}

impl Sources {
    /// A case in `own`, a folder of the run's own.
    pub fn case(&self, kind: Kind, own: &Path, rng: &mut Rng) -> Case {
        let out = own.join("out");
        fs::create_dir(&out).expect("a temporary folder is writable");
        let (model, source) = (own.join("model"), rng.pick(&self.models));
        fs::create_dir(&model).expect("a temporary folder is writable");
        model_copy::link_all(source, &model);
        let mut case = Case {
            what: String::new(),
            command: quiet(&self.program),
            stdin: Vec::new(),
            out,
            prints: Prints::Nothing,
            of_a_file: true,
        };
        let all = folder::files(&model);
        let one = |rng: &mut Rng, fits: &dyn Fn(&str) -> bool| {
            let fitting: Vec<&PathBuf> =
                all.iter().filter(|path| path.to_str().is_some_and(fits) && !is_cache(path)).collect();
            (*rng.pick(&fitting)).clone()
        };
        let is_tokenizer = |path: &str| path.ends_with("/tokenizer.json");
        let damaged = match kind {
            Kind::Json => Some(one(rng, &|path| path.ends_with(".json") && !is_tokenizer(path))),
            Kind::Tokenizer => Some(one(rng, &is_tokenizer)),
            Kind::Weights => Some(one(rng, &|path| path.ends_with(".safetensors"))),
            Kind::Cache => all.iter().find(|path| is_cache(path)).cloned(),
            _ => None,
        };
        if let Some(path) = &damaged {
            folder::damage(path, rng);
            case.what = format!("{path:?} of {source:?}");
        }
        match kind {
            Kind::Json | Kind::Tokenizer | Kind::Weights => draw(&mut case.command, &model, rng),
            Kind::NotAFile => {
                let path = one(rng, &|_| true);
                case.what = format!("{path:?} is {}", folder::replace(&path, rng));
                draw(&mut case.command, &model, rng);
            }
            Kind::Cache => {
                case.command = attach(&model);
                case.prints = Prints::Always;
                case.of_a_file = damaged.is_some();
            }
            Kind::Adapter => {
                adapter(&mut case, source, own, rng);
                draw(&mut case.command, &model, rng);
            }
            Kind::Image => self.compare(&mut case, own, rng),
            Kind::Input => self.edit(&mut case, own, &model, rng),
            Kind::Prompt => prompt(&mut case, &model, rng),
            Kind::Arguments => {
                let image = rng.pick(&self.images);
                link(image, &own.join("input.png"));
                arguments(&mut case, &model, rng);
            }
            Kind::Sound => {
                case.what = format!("nothing is wrong with {source:?}");
                draw(&mut case.command, &model, rng);
            }
        }
        case
    }

    /// `flux compare` of an image and a damaged one.
    fn compare(&self, case: &mut Case, own: &Path, rng: &mut Rng) {
        let (source, damaged) = self.damaged_image(case, own, rng);
        case.prints = Prints::OnSuccess;
        case.command.arg("compare").arg(damaged).arg(source);
    }

    /// An image from a damaged one, or one with a damaged mask.
    fn edit(&self, case: &mut Case, own: &Path, model: &Path, rng: &mut Rng) {
        let (source, damaged) = self.damaged_image(case, own, rng);
        case.command.arg("-d").arg(model).args(["-p", "a red circle", "-S", "1", "-s", "1", "--device", "cpu"]);
        case.command.args(["-o", "x.png", "-i"]);
        let flags: &[&str] = match rng.below(6) {
            0 => &["--strength", "1"],
            1 => &["--extend", "16,0,5,0", "--feather", "3"],
            2 => &["--mask"],
            3 => &["--mask-padding", "3", "--mask"],
            4 => &["-i"],
            _ => &[],
        };
        // Behind a flag that takes a file comes the damaged one.
        match flags.last() {
            Some(&"--mask" | &"-i") => case.command.arg(source).args(flags).arg(damaged),
            _ => case.command.arg(damaged).args(flags),
        };
        case.what += &format!(", with {flags:?}");
    }

    /// An image, and a damaged one like it in `own`.
    fn damaged_image(&self, case: &mut Case, own: &Path, rng: &mut Rng) -> (&Path, PathBuf) {
        let source = rng.pick(&self.images);
        let damaged = own.join("image.png");
        link(source, &damaged);
        case.what = format!("an image like {source:?}");
        match rng.below(4) {
            0 => case.what = format!("an image is {}", folder::replace(&damaged, rng)),
            1 => folder::change(&damaged, |bytes| with_another_header(bytes, rng)),
            _ => folder::damage(&damaged, rng),
        }
        (source, damaged)
    }
}

fn link(file: &Path, name: &Path) {
    std::os::unix::fs::symlink(file, name).expect("a temporary folder takes links");
}

fn is_cache(path: &Path) -> bool {
    path.ends_with("flux-fp8.safetensors")
}

/// An image whose header says another size or kind of pixels; that of a PNG has the right checksum.
fn with_another_header(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // The frame of a JPEG, with the sizes and the sampling of its colours; the sizes of a lossless WebP.
    let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).map(|at| (at + 4, 15));
    let header = if bytes.starts_with(b"RIFF") { Some((20, 5)) } else { frame };
    if !bytes.starts_with(b"\x89PNG") {
        let Some((at, length)) = header.filter(|(at, length)| at + length <= bytes.len()) else {
            return mutate::damaged(&bytes, rng);
        };
        bytes[at + rng.below(length)] = rng.any() as u8;
        return bytes;
    }
    if bytes.len() < 33 {
        return mutate::damaged(&bytes, rng);
    }
    let side = |rng: &mut Rng| (1u32 << rng.below(32)).wrapping_add(rng.below(3) as u32).wrapping_sub(1);
    match rng.below(3) {
        0 => bytes[16..20].copy_from_slice(&side(rng).to_be_bytes()),
        1 => bytes[20..24].copy_from_slice(&side(rng).to_be_bytes()),
        _ => bytes[24 + rng.below(5)] = rng.below(20) as u8,
    }
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    bytes
}

/// Draws the smallest image of a model.
fn draw(command: &mut Command, model: &Path, rng: &mut Rng) {
    command.arg("-d").arg(model).args(["-p", "a red circle", "-S", "1", "-s", "1", "--device", "cpu", "-o", "x.png"]);
    if !rng.one_of(4) {
        command.args(["-W", "32", "-H", "32"]);
    }
}

/// The adapter that belongs to the folder of a model.
pub fn adapter_of(model: &Path) -> PathBuf {
    model.with_extension("adapter.safetensors")
}

/// A damaged adapter of the model `source`.
fn adapter(case: &mut Case, source: &Path, own: &Path, rng: &mut Rng) {
    let path = own.join("adapter.safetensors");
    std::os::unix::fs::symlink(adapter_of(source), &path).expect("a temporary folder takes links");
    case.what = format!("the adapter of {source:?}");
    if rng.one_of(5) {
        case.what = format!("the adapter is {}", folder::replace(&path, rng));
    } else {
        folder::damage(&path, rng);
    }
    let strength = rng.pick(&["", ":0.5", ":-1", ":0", ":1e38", ":x"]);
    let mut argument = path.into_os_string();
    argument.push(strength);
    case.command.arg("--lora").arg(argument);
}

/// The name of the test that [`attach`] runs.
pub const ATTACH: &str = "a_cache_is_attached";
/// The variable that names its model folder.
pub const ATTACH_TO: &str = "FLUX_FUZZ_ATTACH_TO";

/// Reads the cache of quantised weights, in a process of this test, because the program does so with a GPU only.
fn attach(model: &Path) -> Command {
    let mut command = quiet(&std::env::current_exe().expect("this program"));
    command.args(["--exact", ATTACH, "--ignored", "--nocapture", "--quiet"]).env(ATTACH_TO, model);
    command
}

/// A prompt as an argument, or from standard input.
fn prompt(case: &mut Case, model: &Path, rng: &mut Rng) {
    let mut text = Vec::new();
    for _ in 0..1 + rng.below(4) {
        match rng.below(5) {
            0 => text.extend((0..1 << rng.below(12)).map(|_| rng.any() as u8)),
            1 => text.extend("a red circle ".repeat(1 << rng.below(14)).bytes()),
            2 => text.extend(rng.pick(&["<|im_end|>", "<|endoftext|>", "<|im_start|>system\n", "</think>"]).bytes()),
            _ => text.extend(mutate::hostile_text(rng).bytes()),
        }
    }
    text.truncate(100_000);
    case.what = format!("a prompt of {} bytes", text.len());
    case.of_a_file = false;
    case.command.arg("-d").arg(model).args(["-S", "1", "-s", "1", "-W", "32", "-H", "32", "--device", "cpu"]);
    case.command.args(["-o", "x.png"]);
    if rng.one_of(2) {
        case.stdin = text;
        case.command.args(["-p", "-"]);
    } else {
        text.retain(|byte| *byte != 0); // an argument cannot have it
        let mut argument = OsString::from("--prompt=");
        argument.push(OsString::from_vec(text));
        case.command.arg(argument);
    }
}

/// Values of options, none of which asks for much work.
const VALUES: [&str; 45] = [
    "",
    "0",
    "1",
    "2",
    "16",
    "17",
    "32",
    "48",
    "-1",
    "-0",
    "1.5",
    "nan",
    "inf",
    "1e9",
    "100000",
    "999999999999999999",
    "18446744073709551616",
    "auto",
    "cpu",
    "cuda:99",
    "cuda:-1",
    "f32",
    "bf16",
    "fp8",
    "text",
    "json",
    "x.png",
    "x.jpg",
    "x.webp",
    "x.gif",
    "none/x.png",
    ".",
    "/dev/null",
    "-",
    "\u{1b}[31m.png",
    "\u{202e}gnp.png",
    "../input.png",
    "../input.png",
    "../input.png",
    "../input.png",
    "0.5",
    "0,16,3,0",
    "0,0,99999,1",
    "power:2",
    "sigmas:1,0.5",
];
/// Options, the more likely ones twice.
const OPTIONS: [&str; 53] = [
    "-p",
    "-p",
    "--prompt",
    "-o",
    "-o",
    "--output",
    "-W",
    "-W",
    "-H",
    "-H",
    "--width",
    "--height",
    "-s",
    "--steps",
    "-S",
    "--seed",
    "-n",
    "-g",
    "--guidance",
    "--precision",
    "--device",
    "--gpu-memory",
    "--timings",
    "--fp8-cache",
    "-q",
    "-v",
    "--print-path",
    "--size",
    "--threads",
    "--no-clobber",
    "--lora",
    "-i",
    "-i",
    "-i",
    "--input",
    "--mask",
    "--mask",
    "--strength",
    "--strength",
    "--extend",
    "--feather",
    "--mask-padding",
    "--no-composite",
    "--no-self-reference",
    "--kv",
    "--negative",
    "--max-sequence-length",
    "--schedule",
    "--rng",
    "--noise",
    "--latents",
    "--embeddings",
    "--save-latents",
];

fn arguments(case: &mut Case, model: &Path, rng: &mut Rng) {
    case.of_a_file = false;
    case.prints = Prints::OnSuccess;
    if !rng.one_of(4) {
        case.command.arg("-d").arg(model);
    }
    let mut given = vec!["-W", "32", "-H", "32", "-s", "1", "--device", "cpu"];
    if rng.one_of(2) {
        given.extend(["-p", "a red circle"]);
    }
    for _ in 0..rng.below(6) {
        let option = *rng.pick(&OPTIONS);
        // What was given already would only be an option that is given twice.
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
    // A bench takes its time, rightly.
    given.retain(|argument| *argument != "bench");
    if rng.one_of(10) {
        let at = rng.below(given.len());
        given.remove(at);
    }
    case.what = format!("{given:?}");
    case.command.args(given);
}
