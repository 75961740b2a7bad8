//! Every command in README.md and in the documents beside it is run, or leads to something that is; the list of
//! variables is whole, and the messages that are explained are those of the program.
#![cfg(unix)]

#[path = "opening/renamed.rs"]
mod renamed;
pub mod text;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{self, Run, project};
use crate::support::random_model::RandomModel;
use flux::compare::difference;
use flux::files::ModelFiles;
use flux::input::{read, resized};
use flux::model::ModelInfo;
use flux::output::Rgb;
use safetensors::tensor::{Dtype, TensorView};

/// Files that tell someone what to run.
pub const DOCUMENTS: [&str; 35] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/SUMMARY.md",
    "docs/adapters.md",
    "docs/architecture.md",
    "docs/batch.md",
    "docs/changelog.md",
    "docs/chat.md",
    "docs/config.md",
    "docs/editing.md",
    "docs/environment.md",
    "docs/files.md",
    "docs/flux3.md",
    "docs/gpus.md",
    "docs/installing.md",
    "docs/kernels.md",
    "docs/library.md",
    "docs/looking.md",
    "docs/measured.md",
    "docs/models.md",
    "docs/options.md",
    "docs/quick-start.md",
    "docs/recipes.md",
    "docs/sampling.md",
    "docs/serving.md",
    "docs/several-gpus.md",
    "docs/troubleshooting.md",
    "models/README.md",
    "scripts/train_tiny/README.md",
    "tests/bench/runs/README.md",
    "tests/formats/README.md",
    "tests/golden/README.md",
    "tests/input/README.md",
    "tests/meaning/README.md",
];

/// Images of a row of the gallery, and pixels of their sides, as the Makefile has them.
const COLUMNS: usize = 4;
const SIDE: usize = 192;

pub fn text_of(document: &str) -> String {
    fs::read_to_string(project(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// Lines of a document's blocks in `sh`, without comments.
pub fn commands_in(document: &str) -> Vec<String> {
    let text = text_of(document);
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_string());
    blocks
        .flat_map(|block| {
            block.lines().map(|line| line.split('#').next().unwrap_or_default().trim().to_string()).collect::<Vec<_>>()
        })
        .collect()
}

/// Those of the README.
fn commands() -> Vec<String> {
    commands_in("README.md")
}

/// A folder in which the README's commands find what they name; the built-in model stands for the one that is
/// downloaded.
fn checkout() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = |from: &Path, to: &str| {
        std::os::unix::fs::symlink(from, folder.path().join(to)).expect("a temporary folder takes links")
    };
    fs::create_dir(folder.path().join("models")).expect("a temporary folder is writable");
    link(&project("models/tiny"), "models/klein-4b");
    link(&project("models/tiny"), "models/klein-base-4b");
    link(&project("models/tiny"), "models/klein-9b-kv");
    link(&project("scripts"), "scripts");
    link(&project("docs"), "docs");
    link(Path::new(env!("CARGO_BIN_EXE_flux")), "flux");
    write_adapter(&folder.path().join("style.safetensors"));
    write_noise(&folder.path().join("noise.safetensors"));
    fs::write(folder.path().join("prompts.txt"), "a red circle\n").expect("a temporary folder is writable");
    folder
}

/// An adapter of the built-in model.
fn write_adapter(path: &Path) {
    let dir = ModelFiles::open(&project("models/tiny")).expect("the built-in model");
    let dim = ModelInfo::read(&dir).expect("the built-in model").transformer.dim();
    let values: Vec<u8> = (0..dim).flat_map(|i| (i as f32 / dim as f32).to_le_bytes()).collect();
    let half = |name: &str, shape| {
        let tensor = TensorView::new(Dtype::F32, shape, &values).expect("as many values as the shape has");
        (format!("transformer.transformer_blocks.0.attn.to_out.0.lora_{name}.weight"), tensor)
    };
    let pair = [half("A", vec![1, dim]), half("B", vec![dim, 1])];
    safetensors::serialize_to_file(pair, None, path).expect("a temporary folder is writable");
}

/// Noise for an image of 256 x 256 by the built-in model, of variance 1.
fn write_noise(path: &Path) {
    let dir = ModelFiles::open(&project("models/tiny")).expect("the built-in model");
    let shape = vec![1, ModelInfo::read(&dir).expect("the built-in model").transformer.in_channels, 16, 16];
    let values: Vec<u8> = (0..shape.iter().product::<usize>() as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32)
        .flat_map(|value| ((value - 0.5) * 12_f32.sqrt()).to_le_bytes())
        .collect();
    let noise = TensorView::new(Dtype::F32, shape, &values).expect("as many values as the shape has");
    safetensors::serialize_to_file([("latents", noise)], None, path).expect("a temporary folder is writable");
}

fn run(line: &str, folder: &Path) -> Run {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    Run::of(
        Command::new("sh")
            .args(["-c", line])
            .current_dir(folder)
            .env("PATH", path)
            .env_remove("FLUX_MODEL")
            .env_remove("FLUX_BIN"),
    )
}

#[test]
fn every_command_is_of_a_kind_that_is_tested() {
    let makefile = text_of("Makefile");
    let found: Vec<_> = DOCUMENTS.iter().flat_map(|document| commands_in(document)).collect();
    assert!(found.len() >= 12, "{found:?}");
    for line in found {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["make", target, ..] => assert!(makefile.contains(&format!("\n{target}:")), "no target: {line}"),
            ["flux", "download" | "list" | "rm", ..] => {} // run in tests/download/pages.rs
            ["flux", "serve" | "key" | "mcp", ..] | ["curl", ..] | ["flux", .., "--server", _] | ["chmod", ..] => {} // run in tests/serve/book.rs
            ["flux", ..] | ["printf", .., "|", "flux", _] => {} // run below
            ["scripts/generate_batch.sh" | "scripts/compare_cpu_gpu.sh", ..] => {} // run below
            // `make test-training` does the same in an environment of its own, with `--toy`.
            ["python3", "-m", "venv", ".venv", "&&", ".venv/bin/pip", "install", "-r", requirements] => {
                assert!(makefile.contains(&format!("/bin/python: {requirements}\n")), "{line}");
            }
            [".venv/bin/python", script, "all", "--work", _] => {
                assert!(makefile.contains(&format!("$(TRAIN_PYTHON) {script} all --toy --work")), "{line}");
            }
            // `make golden` is this block.
            ["for", ..] | ["done"] => assert!(makefile.contains(&line), "{line}"),
            ["cargo", "run", "--example", example, ..] => {
                assert!(makefile.contains(&format!("--example {example} --")), "{line}");
            }
            ["python3", "scripts/gpu_check", ..] => text::has_sections(&line),
            ["python3", script, ..] => assert!(makefile.contains(&format!("$(PYTHON) {script} ")), "{line}"),
            _ => panic!("nothing tests this command: {line}"),
        }
    }
}

#[test]
fn every_target_of_make_and_every_file_that_a_text_names_is_there() {
    let makefile = text_of("Makefile");
    for document in DOCUMENTS {
        let text = text_of(document);
        for rest in text.split("`make ").skip(1) {
            let target: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            assert!(makefile.contains(&format!("\n{target}:")), "{document}: no target `{target}`");
        }
        for path in text.split('`').skip(1).step_by(2) {
            let is_path =
                ["src/", "tests/", "scripts/", "cuda/", "docs/", "models/"].iter().any(|top| path.starts_with(top));
            let stands_for_others =
                path.contains(|c: char| c.is_whitespace() || c.is_ascii_uppercase() || "<*".contains(c));
            // Models are downloaded.
            if is_path && !stands_for_others && !path.starts_with("models/klein") {
                assert!(project(path.trim_end_matches('/')).exists(), "{document}: {path}");
            }
        }
    }
}

#[test]
fn the_gallery_at_the_top_is_what_its_prompts_draw() {
    let list = fs::read_to_string(project("docs/gallery.txt")).expect("the prompts of the gallery are there");
    let prompts: Vec<&str> = list.lines().collect();
    let text = fs::read_to_string(project("README.md")).expect("the README is there");
    let rows = text.lines().filter(|line| line.starts_with("| ")).take(prompts.len().div_ceil(COLUMNS));
    let cells: Vec<&str> = rows.flat_map(cells_of).collect();
    assert_eq!(cells, prompts, "the table under the gallery says what is in docs/gallery.txt");

    // The command under the gallery draws its first image.
    let folder = checkout();
    let line = commands().into_iter().find(|line| line.starts_with("flux ")).expect("a command under the gallery");
    assert!(line.contains(prompts[0]) && line.ends_with("-o image.png"), "{line}");
    run(&format!("{line} --device cpu"), folder.path()).succeeds();
    let gallery = read(&project("docs/gallery.png")).unwrap();
    assert_eq!((gallery.width, gallery.height), (COLUMNS * SIDE, prompts.len() / COLUMNS * SIDE));
    expect_tile(&gallery, 0, &folder.path().join("image.png"));

    // `make image` draws the same.
    let makefile = fs::read_to_string(project("Makefile")).unwrap();
    for (variable, flag) in [("PROMPT", "-p"), ("SEED", "-S"), ("IMAGE", "-o")] {
        let value = makefile.lines().find_map(|l| l.strip_prefix(&format!("{variable} ?= "))).expect("a default");
        assert!(
            line.contains(&format!("{flag} {value}")) || line.contains(&format!("{flag} \"{value}\"")),
            "{variable}"
        );
    }
}

/// The cells of a row of a table.
fn cells_of(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

/// Fails when the first tile in a row of a contact sheet is not the image of a file.
fn expect_tile(sheet: &Rgb, row: usize, path: &Path) {
    let drawn = resized(&read(path).unwrap(), [SIDE, SIDE]);
    let rows = sheet.bytes.chunks_exact(3 * sheet.width).skip(row * SIDE).take(SIDE);
    let tile = Rgb { width: SIDE, height: SIDE, bytes: rows.flat_map(|row| &row[..3 * SIDE]).copied().collect() };
    let apart = difference(&tile, &drawn).unwrap();
    // Observed: equal, on the machine that drew it. Processors round in other places: below a level in the mean.
    assert!(apart.psnr_db > 50.0, "{}: {apart:?}: draw it anew with `make gallery`", path.display());
}

#[test]
fn the_edits_at_the_top_are_what_their_instructions_make() {
    let list = fs::read_to_string(project("docs/edits.txt")).expect("the edits of the gallery are there");
    let edits: Vec<(&str, &str)> = list.lines().map(|line| line.split_once(" | ").expect("two parts")).collect();
    let text = text_of("README.md");
    let row = text.split("(docs/edits.png)").nth(1).and_then(|rest| rest.lines().find(|line| line.starts_with("| ")));
    let cells: Vec<&str> = row.into_iter().flat_map(cells_of).collect();
    assert_eq!(cells, edits.iter().map(|edit| edit.0).collect::<Vec<_>>(), "the table says what is in docs/edits.txt");

    // The second and the third command draw the first of them.
    let (instruction, prompt) = edits[0];
    let lines: Vec<_> = commands().into_iter().filter(|line| line.starts_with("flux ")).skip(1).take(2).collect();
    assert_eq!(lines[0], format!("flux -p \"{prompt}\" -S 1 -o star.png"));
    assert_eq!(lines[1], format!("flux -p \"{instruction}\" -i star.png -S 1 -o blue.png"));
    let folder = checkout();
    let sheet = read(&project("docs/edits.png")).unwrap();
    assert_eq!((sheet.width, sheet.height), (COLUMNS * SIDE, 2 * SIDE));
    for (row, (line, image)) in (0..).zip(lines.iter().zip(["star.png", "blue.png"])) {
        run(&format!("{line} --device cpu"), folder.path()).succeeds();
        expect_tile(&sheet, row, &folder.path().join(image));
    }
}

#[test]
fn the_commands_for_a_full_size_model_draw() {
    let folder = checkout();
    let lines: Vec<_> = commands().into_iter().filter(|line| line.starts_with("flux -d")).collect();
    assert!(!lines.is_empty());
    for line in lines {
        run(&line, folder.path()).succeeds();
        assert!(folder.path().join("lighthouse.png").exists(), "{line}");
    }
}

/// The commands of the first block of a document.
fn commands_of(document: &str) -> Vec<String> {
    let text = text_of(document);
    let block = text.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has commands");
    block.lines().map(String::from).collect()
}

/// Runs a command on the CPU. Returns the image that it names last.
fn image_of(line: &str, folder: &Path) -> Rgb {
    // Flags stand in front of where the shell sends the image.
    let (flags, pipes) = line.split_at(line.find(" < ").unwrap_or(line.len()));
    run(&format!("{flags} --device cpu{pipes}"), folder).succeeds();
    let name = line.rsplit(' ').next().expect("the image comes last");
    read(&folder.join(name)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// What the commands show is what the text around them says.
#[test]
fn the_commands_of_images_from_images_draw() {
    let folder = checkout();
    let lines = commands_of("docs/editing.md");
    let names = ["square", "edited", "star", "small-star", "near", "wide", "heart", "both", "piped", "cached"];
    assert_eq!(lines.len(), names.len());
    let [square, edited, star, small_star, near, wide, heart, both, piped, cached] = std::array::from_fn(|i| {
        assert!(lines[i].ends_with(&format!(" {}.png", names[i])), "{}", lines[i]);
        image_of(&lines[i], folder.path())
    });
    let apart = |image: &Rgb| difference(image, &square).unwrap().mean;
    let share = |image: &Rgb, is: fn(&[u8; 3]) -> bool| {
        let (pixels, _) = image.bytes.as_chunks::<3>();
        pixels.iter().filter(|pixel| is(pixel)).count() as f64 / pixels.len() as f64
    };
    let red = |image: &Rgb| share(image, |[r, g, b]| *r > 150 && *g < 90 && *b < 90);
    let blue = |image: &Rgb| share(image, |[r, _, b]| *b > 150 && *r < 90);
    let yellow = |image: &Rgb| share(image, |[r, g, b]| *r > 200 && *g > 170 && *b < 90);
    assert!(blue(&square) > 0.08 && red(&square) == 0.0, "{} {}", blue(&square), red(&square));
    assert!((red(&edited) - blue(&square)).abs() < 0.01 && blue(&edited) < 0.005, "{}", red(&edited));
    assert!((yellow(&edited) - yellow(&square)).abs() < 0.01, "all else is as it was: {}", yellow(&edited));
    assert!((red(&both) - red(&heart)).abs() < 0.02 && yellow(&both) > 0.6, "{} {}", red(&both), yellow(&both));
    assert!(blue(&piped) < 0.005 && yellow(&piped) > 0.6, "{} {}", blue(&piped), yellow(&piped));
    // A star where the square was, and nothing else: observed are 0.49 of the square's blue, and 11 levels.
    assert!((0.4..0.8).contains(&(blue(&near) / blue(&square))), "{} {}", blue(&near), blue(&square));
    assert!(apart(&near) < 20.0, "{}", apart(&near));
    assert_ne!(edited, cached, "the flag is for models that were trained so");
    assert_eq!((wide.width, wide.height), (256 + 128, 256));
    let mut rows = wide.bytes.chunks_exact(3 * wide.width).zip(square.bytes.chunks_exact(3 * 256));
    let kept = 3 * (256 - 16);
    assert!(rows.all(|(wide, square)| wide[..kept] == square[..kept]), "all but 16 columns is as it was");
    for (image, feather) in [(&star, 0), (&small_star, 8)] {
        let (pixels, _) = image.bytes.as_chunks::<3>();
        let (before, _) = square.bytes.as_chunks::<3>();
        let far = |at: usize| at % 256 + feather < 128 || at / 256 >= 128 + feather;
        assert!((0..pixels.len()).filter(|at| far(*at)).all(|at| pixels[at] == before[at]), "byte for byte");
        assert!(red(image) > 0.008, "a star is there: {}", red(image));
    }
}

#[test]
fn the_commands_of_the_quick_start_draw() {
    let folder = checkout();
    let draws = |line: &String| line.starts_with("flux ") && !line.starts_with("flux batch") && !text::is_of_hub(line);
    let lines: Vec<_> = commands_in("docs/quick-start.md").into_iter().filter(draws).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in lines {
        image_of(&line, folder.path());
    }
}

#[test]
fn the_commands_of_installing_write_completions() {
    let folder = checkout();
    let lines: Vec<_> = commands_in("docs/installing.md").into_iter().filter(|l| l.starts_with("flux ")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in lines {
        run(&line, folder.path()).succeeds();
        let file = line.rsplit(' ').next().expect("the file comes last");
        assert!(fs::read_to_string(folder.path().join(file)).is_ok_and(|text| text.contains("selftest")), "{line}");
    }
}

#[test]
fn the_commands_of_sampling_and_conditioning_draw() {
    let folder = checkout();
    let lines = commands_of("docs/sampling.md");
    assert_eq!(lines.len(), 8, "{lines:?}");
    for line in lines {
        image_of(&line, folder.path());
    }
}

#[test]
fn the_commands_of_recipes_and_of_many_images_run() {
    let folder = checkout();
    let folder = folder.path();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a temporary folder is writable");
    write("list.jsonl", "{\"prompt\": \"a cat\", \"seed\": 7, \"size\": \"160x128\", \"output\": \"cat.webp\"}\n");
    write("list.csv", "prompt,seed,n\n\"a cat, sitting\",5,2\n");
    let cpu = |line: &str| run(&format!("{line} --device cpu -s 1"), folder).succeeds();
    cpu("flux cat -o image.png");
    let lists: Vec<_> = commands()
        .into_iter()
        .filter(|line| line.starts_with("flux batch") || line.starts_with("flux again"))
        .chain(commands_in("docs/recipes.md"))
        .chain(commands_in("docs/batch.md"))
        .chain(commands_in("docs/config.md"))
        .chain(commands_in("docs/chat.md"))
        .collect();
    assert_eq!(lists.len(), 2 + 8 + 6 + 2 + 1, "{lists:?}");
    for line in lists {
        match line.split(' ').nth(1) {
            Some("info" | "config") => run(&line, folder).succeeds(),
            // It has the steps itself.
            _ if line.contains(" -s ") => run(&format!("{line} --device cpu"), folder).succeeds(),
            _ => cpu(&line),
        };
    }
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(bytes("circle.png") == bytes("same.png") && bytes("circle.png") == bytes("third.png"));
    for name in ["more", "owls", "images/cat.webp", "images/001-5.webp", "many/0001-a-red-circle-2.png", "slower.png"] {
        assert!(folder.join(name).exists(), "{name}");
    }
}

#[test]
fn the_commands_to_look_at_images_work() {
    let folder = checkout();
    let lines = commands_of("docs/looking.md");
    assert_eq!(lines.len(), 7, "{lines:?}");
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let more = match words[1] {
            "sheet" | "compare" => "",
            // There is no terminal here.
            "show" => " --protocol blocks",
            _ => " --device cpu -s 1",
        };
        let ran = run(&format!("{line}{more}"), folder.path()).succeeds();
        let writes = words.iter().position(|word| ["-o", "--diff"].contains(word)).filter(|_| more.is_empty());
        if let Some(place) = writes {
            assert!(read(&folder.path().join(words[place + 1])).is_ok(), "{line}");
        }
        assert!(words[1] != "show" || ran.stdout.contains('▀'), "{line}");
    }
}

/// The files that the table of models names, made from one random model with the vocabulary of Qwen3.
fn write_files(folder: &Path) {
    let mut model = RandomModel::tiny();
    model.text_encoder.vocab = 151_936;
    model.vae.norm_num_groups = 32;
    model.vae.block_out_channels = [32, 64, 64, 64];
    let whole = folder.join("whole");
    model.write(&whole).expect("a temporary folder is writable");
    let transformer = renamed::read(&whole.join("transformer/diffusion_pytorch_model.safetensors"));
    let vae = renamed::ldm(&renamed::read(&whole.join("vae/diffusion_pytorch_model.safetensors")));
    let qwen = renamed::read(&whole.join("text_encoder/model.safetensors"));
    let klein = renamed::bfl(&transformer, "", ".scale");
    let comfy = folder.join("ComfyUI/models");
    for name in ["flux-2-klein-4b", "finetune", "ComfyUI/models/diffusion_models/flux-2-klein-4b"] {
        renamed::write(&folder.join(format!("{name}.safetensors")), &klein);
    }
    for root in [folder, &comfy.join("text_encoders")] {
        renamed::write(&root.join("qwen_3_4b.safetensors"), &qwen);
    }
    for path in ["flux2-vae", "full_encoder_small_decoder", "ComfyUI/models/vae/flux2-vae"] {
        renamed::write(&folder.join(format!("{path}.safetensors")), &vae);
    }
    renamed::write_gguf(&folder.join("flux-2-klein-4b-Q4_K_M.gguf"), &klein);
    renamed::write_gguf(&folder.join("Qwen3-4B-Q4_K_M.gguf"), &renamed::llama(&qwen));
    fs::remove_file(folder.join("models/klein-4b")).expect("a link of ours");
    fs::rename(whole, folder.join("models/klein-4b")).expect("a temporary folder is writable");
}

/// The commands in the table of models that someone has.
fn lines_of_models() -> Vec<String> {
    let text = text_of("docs/files.md");
    // The first table.
    let cells = text.lines().skip_while(|line| !line.starts_with("|")).take_while(|line| line.starts_with("|"));
    cells.filter_map(|line| line.split("| `").nth(1)?.split('`').next()).map(String::from).collect()
}

#[test]
fn the_commands_for_models_that_one_has_work() {
    let folder = checkout();
    write_files(folder.path());
    let lines = lines_of_models();
    assert_eq!(lines.len(), 11, "{lines:?}");
    for line in &lines {
        if line.starts_with("flux convert") {
            run(line, folder.path()).succeeds();
            let file = line.split(' ').nth(3).expect("the command names the file behind the model");
            assert!(folder.path().join(file).exists(), "{line}");
            continue;
        }
        let found = if line.starts_with("flux info") {
            run(&format!("{line} && {line} --json"), folder.path()).succeeds()
        } else {
            run(&format!("{line} --size 32 -s 1 --max-sequence-length 32 --device cpu"), folder.path()).succeeds()
        };
        if line.starts_with("flux info") {
            for word in ["distilled model", "in bf16", "2 double and 4 single blocks", "\"joint_attention_dim\":192"] {
                assert!(found.stdout.contains(word), "{word}: {}", found.stdout);
            }
        } else {
            let image = line.rsplit(' ').next().expect("the command names an image last");
            assert!(folder.path().join(image).exists(), "{line}");
        }
    }
}

#[test]
fn the_command_with_an_adapter_draws_another_image_than_without() {
    let folder = checkout();
    let line = commands().into_iter().find(|line| line.contains("--lora")).expect("the README shows it");
    let adapted = |line: &str| {
        run(&format!("{line} -s 1 --device cpu"), folder.path()).succeeds();
        read(&folder.path().join("styled.png")).unwrap().bytes
    };
    let with = adapted(&line);
    assert!(with != adapted(&line.replace("--lora style.safetensors:0.8", "")));
}

#[test]
fn the_examples_of_the_help_draw() {
    let folder = checkout();
    let help = Run::of(program::flux().arg("--help").env_remove("COLUMNS")).succeeds().stdout;
    let examples: Vec<_> = help.lines().skip_while(|line| *line != "Examples:").skip(1).collect();
    assert_eq!(examples.len(), 5, "{help}");
    for line in examples {
        run(&format!("{} -s 1 --device cpu", line.trim()), folder.path()).succeeds();
    }
}

#[test]
fn the_command_for_two_devices_works() {
    let folder = checkout();
    let line = commands().into_iter().find(|line| line.starts_with("scripts/compare_cpu_gpu.sh"));
    // Where there is no GPU, the CPU stands for it.
    run(&format!("{} --against cpu", line.expect("the README shows it")), folder.path()).succeeds();
}

#[test]
fn every_file_and_every_heading_that_is_linked_is_there() {
    for document in DOCUMENTS {
        let (text, path) = (text_of(document), project(document));
        let folder = path.parent().expect("a file is in a folder");
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let linked = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(linked.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let text = fs::read_to_string(&linked).expect("a heading is in a text");
                assert!(headings_of(&text).contains(heading), "{document}: {link}");
            }
        }
    }
}

/// The headings of a document, as links name them.
fn headings_of(text: &str) -> BTreeSet<String> {
    let letter = |c: char| match c {
        ' ' | '-' => Some('-'),
        c if c.is_alphanumeric() || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| heading.chars().filter_map(letter).collect()).collect()
}

/// Messages in the tables of docs/troubleshooting.md: what stands between their gaps is in the sources.
#[test]
fn every_message_that_is_explained_is_one_of_the_program() {
    const GAP: char = '…';
    let sources = text::sources_below(&project("src"));
    // Texts of several lines are one.
    let mut joined = String::with_capacity(sources.len());
    for part in sources.split("\\\n") {
        joined.push_str(if joined.is_empty() { part } else { part.trim_start() });
    }
    let text = text_of("docs/troubleshooting.md");
    let mut count = 0;
    let mut is_message = false;
    for line in text.lines() {
        let cell = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
        let Some(cell) = cell else {
            is_message &= line.starts_with('|');
            continue;
        };
        if ["message", "note"].contains(&cell) {
            is_message = true;
        } else if is_message {
            count += 1;
            for piece in cell.split(GAP).map(|piece| piece.trim_matches([' ', ','])) {
                // What is shorter says nothing.
                assert!(piece.len() < 4 || joined.contains(piece), "`{piece}` of: {cell}");
            }
        }
    }
    assert!(count > 40, "{count}");
}

/// The names that begin with `FLUX_`.
fn variables(text: &str) -> BTreeSet<String> {
    const PREFIX: &str = "FLUX_";
    let name = |rest: &str| {
        rest.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect::<String>()
    };
    text.split(PREFIX).skip(1).map(name).filter(|name| !name.is_empty()).map(|name| format!("{PREFIX}{name}")).collect()
}

/// Those in a file, or in the files of a folder and of the folders in it. What benches have printed is no source.
fn variables_below(path: &Path) -> BTreeSet<String> {
    if !path.is_dir() {
        return fs::read_to_string(path).map(|text| variables(&text)).unwrap_or_default();
    }
    let entries = fs::read_dir(path).expect("a readable folder").map(|entry| entry.expect("a readable folder").path());
    entries.filter(|path| !path.ends_with("bench/runs")).flat_map(|path| variables_below(&path)).collect()
}

#[test]
fn every_environment_variable_is_in_the_list_and_none_that_nothing_reads() {
    let text = fs::read_to_string(project("docs/environment.md")).unwrap();
    let listed: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).flat_map(variables).collect();
    let sources = ["src", "tests", "scripts", "build.rs", "Makefile"];
    let read: BTreeSet<_> = sources.iter().flat_map(|name| variables_below(&project(name))).collect();
    assert_eq!(listed, read);
    // What a text says of one is said of one that exists.
    let told: BTreeSet<_> = DOCUMENTS.iter().flat_map(|document| variables(&text_of(document))).collect();
    assert!(told.is_subset(&listed), "{told:?}");
}

/// It is what readers meet first.
#[test]
fn the_readme_is_short() {
    assert!(text_of("README.md").len() <= 8_000);
}

#[test]
fn the_summary_lists_every_page_and_the_readme_leads_to_it() {
    let (summary, readme) = (text_of("docs/SUMMARY.md"), text_of("README.md"));
    for page in
        DOCUMENTS.iter().filter_map(|document| document.strip_prefix("docs/")).filter(|page| *page != "SUMMARY.md")
    {
        assert!(summary.contains(&format!("]({page})")), "{page}");
        // This page is the file beside the README.
        let link = if page == "changelog.md" { "](CHANGELOG.md)".to_string() } else { format!("](docs/{page})") };
        assert!(readme.contains(&link), "{page}");
    }
}

/// mdBook reads `docs/SUMMARY.md`: a title, then one list of links to pages, each once.
#[test]
fn the_book_is_one_list_of_pages_and_is_built_below_target() {
    let summary = text_of("docs/SUMMARY.md");
    let mut lines = summary.lines().filter(|line| !line.is_empty());
    assert_eq!(lines.next(), Some("# Summary"));
    let mut pages = BTreeSet::new();
    for line in lines {
        let link =
            line.strip_prefix("- [").and_then(|rest| rest.strip_suffix(')')).and_then(|rest| rest.split_once("]("));
        let (title, page) = link.unwrap_or_else(|| panic!("no page of the book: {line}"));
        assert!(!title.is_empty() && pages.insert(page), "{line}");
        let text = text_of(&format!("docs/{page}"));
        assert!(text.starts_with("# ") || text == "{{#include ../CHANGELOG.md}}\n", "{page} has no title");
    }
    let book = text_of("book.toml");
    for line in ["src = \"docs\"", "build-dir = \"target/book\"", "create-missing = false"] {
        assert!(book.lines().any(|found| found == line), "{line}");
    }
}
