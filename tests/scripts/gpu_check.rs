//! What runs on a machine with a GPU and without Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Run, names, project};
use crate::{folder, program_that, script, write};

/// The name of a test that is gone would leave out nothing, or run nothing.
#[test]
fn every_test_that_the_gpu_check_names_is_there() {
    let script = fs::read_to_string(project("scripts/gpu_check.sh")).expect("the script is there");
    let mut named = 0;
    for file in names(&project("tests/parity")) {
        let text = fs::read_to_string(project("tests/parity").join(&file)).expect("a parity test");
        let path = format!("{}::", file.trim_end_matches(".rs"));
        for (at, _) in script.match_indices(&path) {
            if script[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue; // the end of another file's name
            }
            let rest = &script[at + path.len()..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            assert!(text.contains(&format!("fn {name}")), "scripts/gpu_check.sh names {path}{name}");
            named += 1;
        }
    }
    assert!(named > 5, "{named}");
}

#[test]
fn adapters_are_measured_in_fp8_where_the_gpu_has_it() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for name in ["models/klein-4b", "work", "tools", "bin"] {
        fs::create_dir_all(path(name)).expect("a temporary folder is writable");
    }
    write(path("models/klein-4b/model_index.json"), "{}");
    let row = r#"echo "{\"name\":\"adapters/1024x1024\",\"step_ms\":50.0,\"merged_step_ms\":50.1,\"beside_step_ms\":58.5,\"open_ms\":5.0,\"first_ms\":30.0,\"factors_ms\":12.0,\"merge_ms\":9.0,\"again_ms\":0.4,\"without_ms\":0.3}"; echo "$*" >>"$RAN""#;
    fs::rename(program_that(&path("bin"), row), path("bin/flux")).expect("a temporary folder is writable");
    let section = |capability: &str| {
        fs::rename(program_that(&path("tools"), &format!("echo {capability}")), path("tools/nvidia-smi")).unwrap();
        let tools = format!("{}:{}", path("tools").display(), std::env::var("PATH").unwrap_or_default());
        let _ = fs::remove_file(path("work/ran"));
        let mut command = script("gpu_check.sh");
        command.args(["--section", "adapters"]).env("PATH", tools).env("RAN", path("work/ran"));
        for (name, value) in [("bin", "bin"), ("work", "work"), ("MODEL_DIR", "models")] {
            command.env(name, path(value));
        }
        let run = Run::of(&mut command).succeeds();
        (run.stdout, fs::read_to_string(path("work/ran")).unwrap())
    };
    let (printed, ran) = section("9.0");
    let figures =
        "step 50.0, merged 50.1, beside 58.5; open 5.0, ready 30.0 (factors 12.0, merge 9.0), cached 0.4, none 0.3;";
    assert!(printed.ends_with(&format!("result: bf16, ms: {figures} fp8, ms: {figures}\n")), "{printed}");
    let precisions: Vec<_> = ran.lines().map(|line| line.contains("--precision fp8")).collect();
    assert_eq!(precisions, [false, true], "{ran}");
    let (printed, ran) = section("8.0");
    assert!(printed.ends_with(&format!("result: bf16, ms: {figures}\n")), "{printed}");
    assert!(ran.lines().all(|line| line.contains("bench adapters/")), "{ran}");
}

/// A program in place of flux in a folder of its own: draws nothing, and benches with these times of a step.
fn program_with_steps_of(folder: &Path, bf16_ms: f32, fp8_ms: f32) -> PathBuf {
    fs::create_dir_all(folder).expect("a temporary folder is writable");
    let does = format!(
        r#"row() {{ echo "{{\"name\":\"stages/$1x$1\",\"size\":$1,\"step_ms\":$2,\"decode_ms\":17.5,\"total_ms\":234.0}}"; }}
        echo "$0" >>"$PROGRAMS_RUN"
        case "$*" in
            *fp8*) row 1024 {fp8_ms} ;;
            bench*) row 512 15; row 1024 {bf16_ms} ;;
            compare*) echo "max 0 mean 0.0000 psnr inf dB" ;;
        esac"#
    );
    let program = program_that(folder, &does);
    let flux = folder.join("flux");
    fs::rename(program, &flux).expect("a temporary folder is writable");
    flux
}

#[test]
fn two_programs_are_compared_in_turn() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let base = program_with_steps_of(&path("base"), 50.0, 40.0);
    let new = program_with_steps_of(&path("new"), 45.0, 30.0);
    for name in ["models/klein-4b", "work", "tools"] {
        fs::create_dir_all(path(name)).expect("a temporary folder is writable");
    }
    write(path("models/klein-4b/model_index.json"), "{}");
    let compare = |capability: &str, base: &Path| {
        for entry in names(&path("work")) {
            fs::remove_file(path("work").join(entry)).expect("our file");
        }
        fs::rename(program_that(&path("tools"), &format!("echo {capability}")), path("tools/nvidia-smi")).unwrap();
        let tools = format!("{}:{}", path("tools").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = script("gpu_check.sh");
        command
            .args(["--section", "compare"])
            .env("PATH", tools)
            .env("PROGRAMS_RUN", path("work/run"))
            .env("BASE", base);
        for (name, value) in [("bin", "new"), ("work", "work"), ("bundle", "bundle"), ("MODEL_DIR", "models")] {
            command.env(name, path(value));
        }
        Run::of(&mut command)
    };
    let table = |run: &Run| -> Vec<String> {
        let rows = run.stdout.lines().skip_while(|line| !line.starts_with("median of 3")).skip(1);
        let rows = rows.take_while(|line| !line.starts_with("result")).filter(|line| !line.starts_with("start to PNG"));
        rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };

    let run = compare("9.0", &base).succeeds();
    let expected = [
        "step 512, bf16, ms 15 15 1.0000",
        "step 1024, bf16, ms 50 45 0.9000",
        "step 1024, fp8, ms 40 30 0.7500",
        "decode 1024, ms 17.5 17.5 1.0000",
        "image 1024, bf16, ms 234 234 1.0000",
        "image 1024, fp8, ms 234 234 1.0000",
    ];
    assert_eq!(table(&run), expected, "{}", run.stdout);
    assert!(run.stdout.contains("result: new / base: ") && run.stdout.ends_with("psnr inf dB\n"), "{}", run.stdout);
    // One image to warm up and, at the end, the comparison; in between three calls each, in turn.
    let ran = fs::read_to_string(path("work/run")).unwrap();
    let mut ran: Vec<&Path> = ran.lines().map(Path::new).collect();
    ran.dedup();
    assert_eq!(ran, [&new, &base, &new, &base, &new, &base, &new]);

    let run = compare("8.0", &base).succeeds();
    assert!(table(&run).iter().all(|row| !row.contains("fp8,")), "{}", run.stdout);
    assert!(run.stdout.contains("no fp8: this is no Hopper GPU"), "{}", run.stdout);
    let run = compare("9.0", &path("none"));
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("make gpu-bundle BASE="), "{}", run.stdout);
}

/// A section with programs in place of flux, of Python, which writes a model folder, and of nvidia-smi. Each row that the
/// bench is asked for has the size of its image, and of its references, in its times.
struct Section {
    folder: tempfile::TempDir,
}

impl Section {
    fn new(capability: &str) -> Self {
        let folder = folder();
        for name in ["bin", "work", "tools", "models", "memory"] {
            fs::create_dir_all(folder.path().join(name)).expect("a temporary folder is writable");
        }
        let section = Self { folder };
        section.program("tools/nvidia-smi", &format!("echo {capability}"));
        section.program("tools/python3", r#"mkdir -p "$3" && echo {} >"$3/model_index.json" && echo "wrote $2""#);
        section.program(
            "bin/flux",
            r#"echo "$*" >>"$RAN"
            for name in "stages/1024x1024 0" "stages/edit-512x512+1 1" "stages/edit-1024x1024+1 1" \
                "stages/edit-1024x1024+2 2" "stages/edit-1024x1024+4 4" "vae_encode/1024x1024 0" "vae_encode/2048x2048 0"; do
                n=${name#* }
                times="\"ms\":8,\"step_ms\":1$n,\"total_ms\":2$n,\"second_ms\":3$n,\"references_ms\":4$n,\"read_ms\":5$n"
                echo "{\"name\":\"${name% *}\",\"size\":1024,\"min_ms\":7,$times}"
            done"#,
        );
        section
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, does: &str) {
        fs::rename(program_that(self.folder.path(), does), self.path(name)).expect("a temporary folder is writable");
    }

    /// Runs it. Returns its line of the summary, and what the bench was called with.
    fn run(&self, name: &str, keep: bool) -> (String, Vec<String>) {
        let run = Run::of(&mut self.command(name, keep)).succeeds();
        let result = run.stdout.lines().find_map(|line| line.strip_prefix("result: "));
        let ran = fs::read_to_string(self.path("ran")).expect("the bench ran");
        fs::remove_file(self.path("ran")).expect("our file");
        (result.unwrap_or_else(|| panic!("{}", run.stdout)).to_string(), ran.lines().map(str::to_string).collect())
    }

    /// The last line of the summary that a section gives which fails.
    fn fail(&self, name: &str) -> String {
        let run = Run::of(&mut self.command(name, false));
        assert_eq!(run.code, Some(1), "{}", run.stdout);
        let result = run.stdout.lines().filter_map(|line| line.strip_prefix("result: ")).next_back();
        result.unwrap_or_else(|| panic!("{}", run.stdout)).to_string()
    }

    fn command(&self, name: &str, keep: bool) -> Command {
        let tools = format!("{}:{}", self.path("tools").display(), std::env::var("PATH").unwrap_or_default());
        let mut command = script("gpu_check.sh");
        command.args(["--section", name]).env("PATH", tools).env("RAN", self.path("ran")).env_remove("PYTHON");
        for (name, value) in
            [("bin", "bin"), ("root", "."), ("work", "work"), ("MEMORY_DIR", "memory"), ("MODEL_DIR", "models")]
        {
            command.env(name, self.path(value));
        }
        if keep {
            command.env("KEEP", "1")
        } else {
            command.env_remove("KEEP")
        };
        command
    }
}

/// A bench of what two GPUs exchange, in so many us at each size, beside NCCL with 100.
fn exchanges_of(us: &str, note: &str) -> Section {
    let section = Section::new("9.0");
    section.program("tools/nvidia-smi", "echo GPU 0; echo GPU 1");
    let rows = |name: &str, us: &str, more: &str| {
        let row = r#"echo "{\"name\":\"NAME/${size}x$size over 2\",\"block_us\":US,\"size\":0MORE}""#;
        let row = row.replace("NAME", name).replace("US", us).replace("MORE", more);
        format!("echo \"$FLUX_PEER_ACCESS $FLUX_MODEL $*\" >>\"$RAN\"; for size in 512 1024 2048; do {row}; done")
    };
    section.program("bin/flux", &rows("exchange", us, note));
    section.program("tools/python3", &rows("nccl", "100.0", ""));
    section
}

#[test]
fn what_gpus_exchange_is_measured_beside_nccl_by_both_ways() {
    let (result, ran) = exchanges_of("99.5", "").run("exchange", false);
    let figures = "512: 99.5 / 100.0; 1024: 99.5 / 100.0; 2048: 99.5 / 100.0;";
    let expected = format!("into each other's memory {figures} through memory of the host {figures}");
    assert_eq!(result, format!("us of a block, ours / NCCL: {expected}"));
    let nccl: Vec<_> = ran.iter().filter(|line| line.contains("bench_nccl.py")).collect();
    assert!(
        nccl.len() == 2 && !nccl[0].contains("--no-peer-access") && nccl[1].contains("--no-peer-access"),
        "{ran:?}"
    );
    assert!(ran[0].starts_with("1  bench exchange/") && ran[2].starts_with("0  bench exchange/"), "{ran:?}");

    let slower = exchanges_of("100.5", "").fail("exchange");
    assert!(slower.starts_with("slower than NCCL: into each other's memory at 512: 100.5, NCCL 100.0;"), "{slower}");
    let nothing = exchanges_of("", "").fail("exchange");
    assert!(nothing.starts_with("slower than NCCL"), "{nothing}");
    let apart = exchanges_of("1.0", r#",\"note\":\"no link\""#).fail("exchange");
    assert!(apart.contains("do not reach each other's memory"), "{apart}");
}

#[test]
fn images_from_references_are_measured_in_fp8_where_the_gpu_has_it() {
    let section = Section::new("9.0");
    fs::create_dir(section.path("models/klein-4b")).unwrap();
    write(section.path("models/klein-4b/model_index.json"), "{}");
    let edits = "512x512+1 step 11, image 21, read 51; 1024x1024+1 step 11, image 21, read 51; \
                 1024x1024+2 step 12, image 22, read 52;";
    let encodes = "vae_encode/1024x1024 8; vae_encode/2048x2048 8;";
    let (result, ran) = section.run("edits", false);
    assert_eq!(result, format!("ms, bf16: {edits} {encodes} fp8: {edits}"));
    assert!(ran.len() == 2 && ran[0].contains("--precision bf16") && ran[1].contains("--precision fp8"), "{ran:?}");
    assert!(ran[0].contains("vae_encode/2048x2048") && !ran[1].contains("vae_encode"), "{ran:?}");

    section.program("tools/nvidia-smi", "echo 8.9");
    let (result, ran) = section.run("edits", false);
    assert_eq!((result, ran.len()), (format!("ms, bf16: {edits} {encodes}"), 1));
}

#[test]
fn the_model_of_9b_is_written_where_it_is_not_and_kept_where_that_is_asked_for() {
    let section = Section::new("9.0");
    let model = section.path("models/klein-9b");
    let figures = "ms, step without references 10; with 1: step 11 (1.100 x), made in 41, prompts 21, 31; \
                   with 2: step 12 (1.200 x), made in 42, prompts 22, 32; \
                   with 4: step 14 (1.400 x), made in 44, prompts 24, 34;";
    // Where the disk is too small it is in memory, and the bench is told.
    let used = |ran: &[String]| ran[0].split(" -d ").nth(1).unwrap().split(' ').next().unwrap().to_string();
    let (result, ran) = section.run("kv", false);
    assert!(result.starts_with("written in ") && result.ends_with(&format!(" s; {figures}")), "{result}");
    assert!(ran.len() == 1 && ran[0].contains("--kv") && ran[0].contains("--references 1,2,4"), "{ran:?}");
    assert!(!Path::new(&used(&ran)).exists(), "it deletes what it wrote");

    fs::create_dir_all(&model).unwrap();
    write(model.join("model_index.json"), "{}");
    let (result, ran) = section.run("kv", false);
    assert_eq!(
        (result, used(&ran)),
        (format!("{} was there; {figures}", model.display()), model.display().to_string())
    );
    assert!(model.exists(), "it deletes nothing else");

    fs::remove_dir_all(&model).unwrap();
    let (_, ran) = section.run("kv", true);
    let kept = used(&ran);
    assert!(Path::new(&kept).join("model_index.json").exists());
    fs::remove_dir_all(kept).unwrap();
}

#[test]
fn replicas_need_two_gpus_of_nearly_twice_the_speed_that_give_the_same_bytes() {
    let section = Section::new("9.0");
    fs::create_dir(section.path("models/klein-4b")).unwrap();
    write(section.path("models/klein-4b/model_index.json"), "{}");
    // An image is its seed, and for the second GPU what SECOND says; the bench has the factor FACTOR.
    section.program(
        "bin/flux",
        r#"echo "$*" >>"$RAN"
        if [ "$1" = bench ]; then
            for size in 512 1024; do
                echo "{\"name\":\"replicas/${size}x$size x 2\",\"size\":$size,\"factor\":$FACTOR}"
            done
            exit
        fi
        while [ $# -gt 0 ]; do
            case "$1" in
                --seed) seed=$2 ;;
                --device) device=$2 ;;
                -n) count=$2 ;;
                -o) out=$2 ;;
            esac
            shift
        done
        end=$((seed + count))
        while [ "$seed" -lt "$end" ]; do
            [ "$count" = 1 ] || name=-$seed
            case "$device" in *,*) other=$SECOND ;; esac
            echo "$seed$other" >"${out%.png}$name.png"
            seed=$((seed + 1))
        done"#,
    );
    let run = |gpus: &str, factor: &str, second: &str| {
        section.program("tools/nvidia-smi", &format!("printf '{gpus}'"));
        for entry in names(&section.path("work")) {
            let _ = fs::remove_dir_all(section.path("work").join(&entry));
        }
        let mut command = script("gpu_check.sh");
        let tools = format!("{}:{}", section.path("tools").display(), std::env::var("PATH").unwrap_or_default());
        command.args(["--section", "replicas"]).env("PATH", tools).env("RAN", section.path("ran"));
        command.env("FACTOR", factor).env("SECOND", second);
        for (name, value) in [("bin", "bin"), ("root", "."), ("work", "work"), ("MODEL_DIR", "models")] {
            command.env(name, section.path(value));
        }
        Run::of(&mut command)
    };
    let whole = run("H200\\nH200\\n", "1.97", "");
    assert!(
        whole.stdout.contains("512 by 1: 1.97, 1024 by 1: 1.97, 512 by 4: 1.97, 1024 by 4: 1.97,"),
        "{}",
        whole.stdout
    );
    assert!(!whole.stdout.contains("another image"), "{}", whole.stdout);
    for (gpus, factor, second, why) in [
        ("H200\\n", "1.97", "", "need two GPUs, this machine shows 1"),
        ("H200\\nH200\\n", "1.94", "", "the factor of 512 by 1: 1.94, expected at least 1.95"),
        ("H200\\nH200\\n", "1.97", "x", "another image than one"),
    ] {
        let run = run(gpus, factor, second);
        assert!(run.code == Some(1) && run.stdout.contains(why), "{}", run.stdout);
    }
}

/// Two GPUs that take this share of the time of one for a step, in place of which nothing is drawn.
fn gpus_with_steps_of(share_ms: &str) -> Section {
    let section = Section::new("9.0");
    fs::create_dir(section.path("models/klein-4b")).unwrap();
    write(section.path("models/klein-4b/model_index.json"), "{}");
    section.program("tools/nvidia-smi", "echo GPU 0; echo GPU 1");
    section.program("bin/gpu", r#"echo "test result: ok. 11 passed; 0 failed; 0 ignored""#);
    let does = r#"echo "$FLUX_PEER_ACCESS $*" >>"$RAN"
        row() { echo "{\"name\":\"$1\",\"step_ms\":$2,\"decode_ms\":$3,\"total_ms\":$3}"; }
        case "$*" in
            bench*) for name in stages/512x512 stages/1024x1024 stages/2048x2048 stages/edit-1024x1024+1; do
                case "$*" in *"${name%+1}"*) row "$name" 100 100; row "$name over 2" SHARE 50 ;; esac
            done ;;
            *" -v "*) echo "two GPUs make each image together, which takes less time" ;;
            # Far longer than a program takes to start beside other tests.
            *"--device cuda:0 "*2048*) sleep 0.8 ;;
            *2048*) sleep 0.1 ;;
        esac"#;
    section.program("bin/flux", &does.replace("SHARE", share_ms));
    section
}

#[test]
fn two_gpus_take_less_than_their_share_of_one_or_the_check_fails() {
    let (result, ran) = gpus_with_steps_of("50.5").run("gpus", false);
    assert_eq!(result, "test result: ok. 11 passed; 0 failed");
    let hosts: Vec<_> = ran.iter().filter(|line| line.starts_with("0 bench")).collect();
    assert!(hosts.len() == 1 && hosts[0].contains("stages/1024x1024"), "{ran:?}");

    let slow = gpus_with_steps_of("57.5").fail("gpus");
    let rows = [
        "bf16 2048x2048 step: 0.575, expected at most 0.56;",
        "bf16 edit-1024x1024+1 step: 0.575, expected at most 0.57;",
    ];
    assert!(rows.iter().all(|row| slow.contains(row)), "{slow}");
    assert!(!slow.contains("1024x1024 step: 0.575, expected at most 0.60"), "{slow}");
    let nothing = gpus_with_steps_of("0").fail("gpus");
    assert!(nothing.contains("bf16 512x512 step: 0.000, expected at most 0.70;"), "{nothing}");
}
