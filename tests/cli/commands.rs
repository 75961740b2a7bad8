//! The subcommands, `--help` and `--version`.

use std::fs;
use std::time::{Duration, Instant};

use super::folder;
use crate::program::{Run, draw, flux, project};

/// The output for equal images of 32 x 32.
const SAME: &str = "max 0 mean 0.0000 psnr inf dB ssim 1.00000 differing 0 of 1024\n";

#[test]
fn compare_measures_and_holds_to_its_bound() {
    let folder = folder();
    for (seed, name) in [("1", "a.png"), ("2", "b.png")] {
        draw(&folder, &["-p", "a cat", "-S", seed, "-o", name]).succeeds();
    }
    let compare = |args: &[&str]| Run::new(flux().current_dir(&folder).arg("compare").args(args));
    assert_eq!(compare(&["a.png", "a.png", "--min-psnr", "60"]).succeeds().stdout, SAME);
    let apart = compare(&["a.png", "b.png", "--min-psnr", "60"]);
    assert_eq!(apart.code, Some(1));
    assert!(apart.stdout.starts_with("max ") && apart.stderr.contains("60 dB"), "{}", apart.stderr);
    compare(&["a.png", "none.png"]).fails(1, &["none.png"]);
    fs::write(folder.join("text.png"), "no image").unwrap();
    compare(&["a.png", "text.png"]).fails(1, &["not a PNG, JPEG or WebP", "text.png", "hint: convert it"]);
    draw(&folder, &["-p", "a cat", "-S", "1", "-o", "a.webp"]).succeeds();
    draw(&folder, &["-p", "a cat", "-S", "1", "-o", "a.jpg"]).succeeds();
    assert_eq!(compare(&["a.png", "a.webp"]).succeeds().stdout, SAME);
    compare(&["a.png", "a.jpg", "--min-psnr", "25"]).succeeds();
    compare(&["a.webp", "a.jpg", "--min-psnr", "25"]).succeeds();
}

#[test]
fn bench_measures_every_stage_and_op_beside_the_ceilings() {
    let tiny = project("models/tiny");
    let bench = |args: &[&str]| {
        Run::new(flux().arg("bench").args(["--device", "cpu", "--runs", "1"]).args(args).arg("-d").arg(&tiny))
    };
    // Rounded down, and each once.
    let run = bench(&["--json", "--size", "32,48,47,48", "--steps", "1", "--batch", "2"]).succeeds();
    let rows: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let named = |start: &str| {
        rows.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with(start))).collect::<Vec<_>>()
    };
    for (size, row) in [32, 48].into_iter().zip(named("stages/")) {
        assert_eq!((row["size"].as_u64(), row["batch"].as_u64()), (Some(size), Some(2)));
        for field in ["text_ms", "step_ms", "step_tflop_s", "decode_ms", "png_ms", "png_bytes"] {
            assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {row}");
        }
        let parts: f64 =
            ["text_ms", "prepare_ms", "step_ms", "decode_ms"].iter().map(|part| row[part].as_f64().unwrap()).sum();
        assert!(row["total_ms"].as_f64().unwrap() > 0.9 * parts, "{row}");
    }
    assert_eq!((named("stages/").len(), named("ceiling/").len()), (2, 3));
    for (size, row) in [32, 48].into_iter().zip(named("vae_encode/")) {
        assert_eq!(row["name"], format!("vae_encode/{size}x{size}"));
        assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["tflop_s"].as_f64().is_some(), "{row}");
    }
    assert_eq!(named("vae_encode/").len(), 2);
    let halved = |row: &&serde_json::Value| row["name"].as_str().is_some_and(|name| name.ends_with(", halved"));
    assert_eq!(rows.iter().filter(halved).count(), 6, "three downsamplers of each size");
    let fused = [
        "gated_add", "swiglu", "adaln", "qk_norm_rope", "group_norm_silu", "conv2d_add", "norm_conv2d",
        "gated_add_adaln", "upsample_conv2d",
    ];
    for op in ["add", "rms_norm", "linear", "attention", "conv2d"].iter().chain(&fused) {
        let rows = named(&format!("ops/{op} "));
        assert!(!rows.is_empty(), "{op}");
        for row in rows {
            assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["of_ceiling"].as_f64().is_some(), "{row}");
            assert_eq!(row["composed"].as_f64().is_some(), fused.contains(op), "{row}");
        }
    }
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "each once: {names:?}");

    let table = bench(&["--size", "32", "adaln", "rms_norm"]).succeeds().stdout;
    let starts: Vec<_> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        starts,
        ["CPU,", "ceiling/copy", "ceiling/add", "ceiling/linear", "ops/adaln", "ops/gated_add_adaln", "ops/rms_norm"],
        "{table}"
    );
    assert!(table.contains("GB/s") && table.contains("of ceiling") && table.contains("composed"), "{table}");
    assert!(!table.contains("in a row"), "{table}");

    // Ops that overwrite their input, and ops that do not.
    let run =
        bench(&["--json", "--size", "32", "--in-a-row", "0.01", "ops/add", "ops/attention", "ops/rms_norm"]).succeeds();
    let rows: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(
        rows.len() >= 6 && rows.iter().all(|row| row["in_a_row_ms"].as_f64().is_some_and(|ms| ms > 0.0)),
        "{}",
        run.stdout
    );
    assert!(bench(&["--size", "32", "--in-a-row", "0.01", "adaln"]).succeeds().stdout.contains("in a row"));

    // One image that is not counted, and one that is.
    let start = Instant::now();
    let run = bench(&["--json", "--size", "16", "--steps", "1", "--pause", "1", "stages/"]).succeeds();
    let row: serde_json::Value = serde_json::from_str(run.stdout.trim()).expect("JSON");
    let parts = ["text_ms", "prepare_ms", "step_ms", "decode_ms"].iter().map(|part| row[part].as_f64().unwrap());
    // The pause is in neither.
    let most = parts.sum::<f64>() + 900.0;
    assert!(start.elapsed() >= Duration::from_secs(2) && row["total_ms"].as_f64().is_some_and(|ms| ms < most), "{row}");
}

#[test]
fn bench_measures_images_from_references() {
    let bench = |args: &[&str]| {
        Run::new(flux().arg("bench").args(["--device", "cpu", "--runs", "1", "--steps", "1"]).args(args))
    };
    let rows = |args: &[&str]| -> Vec<serde_json::Value> {
        let run = bench(&[&["--json", "--size", "64"], args].concat()).succeeds();
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let values = |row: &serde_json::Value, fields: &[&str]| -> f64 {
        let value = |field: &&str| row[*field].as_f64().filter(|value| *value > 0.0);
        fields.iter().map(|field| value(field).unwrap_or_else(|| panic!("{field}: {row}"))).sum()
    };
    // Each once, next to the image without references.
    let plain = rows(&["--references", "1,2,1", "stages/"]);
    let names: Vec<_> = plain.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stages/64x64", "stages/edit-64x64+1", "stages/edit-64x64+2"]);
    for row in &plain[1..] {
        // The step is that of the second image, on a machine that may have been busier then.
        let parts = values(row, &["read_ms", "text_ms", "encode_ms", "prepare_ms", "decode_ms"]);
        assert!(values(row, &["total_ms"]) > 0.8 * parts, "{row}");
        assert!(values(row, &["second_ms"]) > 0.8 * values(row, &["step_ms"]), "{row}");
        values(row, &["encode_tflop_s", "step_tflop_s", "enqueue_ms"]);
        assert!(row["kv"] == false && row["references_ms"].is_null() && row["third_ms"].is_null(), "{row}");
    }
    assert_eq!(values(&plain[2], &["references"]), 2.0);
    assert!(values(&plain[2], &["file_bytes"]) > 1.5 * values(&plain[1], &["file_bytes"]));

    let cached = rows(&["--references", "2", "--kv", "stages/edit-"]);
    assert_eq!(cached.len(), 1, "{cached:?}");
    values(&cached[0], &["references_ms", "references_tflop_s", "step_ms", "total_ms", "second_ms", "third_ms"]);
    assert_eq!(cached[0]["kv"], true);
    let table = bench(&["--size", "64", "--references", "2", "--kv", "stages/edit-"]).succeeds().stdout;
    for part in ["+2 read ", "2 files", "+2 keys ", "+2 step ", "second prompt", "third prompt"] {
        assert!(table.contains(part), "{part}: {table}");
    }

    bench(&["--json", "--size", "48,64", "--references", "1"]).fails(2, &["48x48", "--size", "--references"]);
    bench(&["--references", "17"]).fails(2, &["--references"]);
    bench(&["--references", "0"]).fails(2, &["--references"]);
    bench(&["--json", "stages/edit"]).fails(2, &["`stages/edit`", "--references"]);
}

#[test]
fn bench_measures_what_adapters_cost() {
    let (folder, tiny) = (folder(), project("models/tiny"));
    let bench = |flags: &[&str]| {
        let mut command = flux();
        command.args(["bench", "--device", "cpu", "--runs", "1", "--size", "32", "--steps", "1", "adapters/"]);
        Run::new(command.env("TMPDIR", &folder).args(flags).arg("-d").arg(&tiny)).succeeds().stdout
    };
    let printed = bench(&["--json"]);
    let row: serde_json::Value = serde_json::from_str(printed.trim()).expect("one row");
    assert_eq!((row["name"].as_str(), row["rank"].as_u64()), (Some("adapters/32x32"), Some(32)));
    for field in ["step_ms", "beside_step_ms", "open_ms", "first_ms", "again_ms", "without_ms", "factors_ms"] {
        assert!(row[field].as_f64().is_some_and(|ms| ms > 0.0), "{field}: {row}");
    }
    // All modules of the blocks are changed, so the factors are a large part of the model's weights.
    assert!(row["file_bytes"].as_u64().is_some_and(|bytes| bytes > 1_000_000), "{row}");
    assert!(row["factors_ms"].as_f64() < row["first_ms"].as_f64(), "{row}");
    // The CPU merges no factors; the time between two events is not quite zero.
    assert_eq!(row["placement"].as_str(), Some("beside"), "{row}");
    assert!(row["merge_ms"].as_f64().is_some_and(|ms| ms < 100.0), "{row}");
    assert!(row.get("merged_step_ms").is_none(), "{row}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the adapters are removed");

    let table = bench(&[]);
    for line in ["adapters/32x32 step, unmerged", "ready for a step, first use", "ms for factors"] {
        assert!(table.contains(line), "{table}");
    }
}

#[test]
fn bench_takes_the_shapes_of_klein_4b_without_a_model_and_refuses_what_it_cannot_measure() {
    let bench = |args: &[&str]| Run::new(flux().arg("bench").args(["--device", "cpu", "--runs", "1"]).args(args));
    let table = bench(&["--size", "16", "rms_norm"]).succeeds().stdout;
    assert!(table.contains("ops/rms_norm 512x2560 "), "{table}");
    assert!(bench(&["--size", "16", "--steps", "1", "stages/"]).succeeds().stdout.contains("stages/16x16 PNG"));
    assert!(bench(&["swigloo"]).stderr.contains("`swigloo`"));
    assert_eq!(bench(&["swigloo"]).code, Some(2));
    bench(&["--size", "8"]).fails(2, &["--size"]);
    bench(&["--runs", "0"]).fails(2, &["--runs"]);
    bench(&["--in-a-row", "61"]).fails(2, &["--in-a-row"]);
    bench(&["--pause", "61"]).fails(2, &["--pause"]);
    bench(&["-d", "none"]).fails(1, &["file: `none`", "in: -d"]);
}

#[test]
fn version_and_help_are_as_they_were() {
    let version = Run::new(flux().arg("-V")).succeeds();
    assert_eq!(version.stdout, concat!("flux ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = Run::new(flux().arg("--help").env_remove("COLUMNS")).succeeds().stdout;
    let snapshot = project("tests/snapshots/help.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&snapshot, &help).unwrap();
    }
    assert_eq!(
        help,
        fs::read_to_string(&snapshot).unwrap(),
        "if the change is meant: UPDATE_SNAPSHOTS=1 cargo test --profile quick --test command_line cli::"
    );
}

#[test]
fn help_fits_the_terminal_and_groups_the_flags() {
    let help = |flags: &[&str], columns: &str| Run::new(flux().args(flags).env("COLUMNS", columns)).succeeds().stdout;
    let too_long = |text: &str, most: usize| text.lines().find(|line| line.chars().count() > most).map(String::from);
    for flags in [&["-h"][..], &["--help"], &["bench", "-h"], &["bench", "--help"], &["convert", "--help"]] {
        for columns in [60, 80, 120] {
            assert_eq!(too_long(&help(flags, &columns.to_string()), columns), None, "{flags:?}");
        }
    }
    assert!(too_long(&help(&["--help"], "120"), 110).is_some(), "a wide terminal is used");
    for command in [&["-h"][..], &["bench", "-h"], &["convert", "-h"], &["info", "-h"]] {
        let short = help(command, "80");
        assert!(short.lines().count() <= 70, "{} lines: {short}", short.lines().count());
    }
    let text = help(&["--help"], "80");
    let headings: Vec<_> = text.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    let expected = [
        "Commands:", "Prompt:", "Size and sampling:", "Output:", "Input images:", "Second pass:", "Tensors:", "Model:",
        "Prompt upsampling:", "Device:", "Information:", "Examples:",
    ];
    assert_eq!(headings, expected);
    let usual = help(&["-h"], "80");
    assert!(usual.contains("--prompt") && usual.contains("--lora") && !usual.contains("--embeddings"), "{usual}");
    let bench = help(&["bench", "-h"], "80");
    let own = bench.split("\nOptions:\n").nth(1).expect("its own flags").split("\n\n").next().unwrap_or_default();
    assert!(own.contains("--batch") && own.contains("--json") && !own.contains("--device"), "{bench}");
}

#[test]
fn a_config_file_is_under_variables_and_these_under_flags() {
    let folder = &folder();
    let model = project("models/tiny");
    fs::write(
        folder.join("flux.toml"),
        format!("model = {model:?}\noutput = \"images/{{seed}}.webp\"\ndevice = \"cpu\"\nprecision = \"f32\"\n"),
    )
    .unwrap();
    fs::create_dir(folder.join("images")).unwrap();
    let command = || {
        let mut command = flux();
        command.current_dir(folder).env_remove("FLUX_CONFIG").env("XDG_CONFIG_HOME", folder.join("none"));
        command
    };
    let words = ["-p", "a cat", "-S", "7", "-s", "1", "--size", "32", "-v"];
    let run = Run::new(command().args(words)).succeeds();
    assert!(run.stderr.contains("images/7.webp") && run.stderr.contains("device: CPU"), "{}", run.stderr);
    assert!(folder.join("images/7.webp").exists());
    Run::new(command().args(words).args(["-o", "flag.png"])).succeeds();
    assert!(folder.join("flag.png").exists());
    Run::new(command().env("FLUX_OUTPUT", "variable.png").args(words)).succeeds();
    assert!(folder.join("variable.png").exists());
    let told = Run::new(command().env("FLUX_PRECISION", "bf16").arg("config")).succeeds().stdout;
    for line in [
        "device          cpu  (flux.toml, line 3)",
        "precision       bf16  (FLUX_PRECISION)",
        "parallel        -  (not set",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let json = Run::new(command().args(["config", "--json"])).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["device"]["value"].as_str(), json["parallel"].is_null()), (Some("cpu"), true));
    // The error for a missing model names the source of its name.
    Run::new(command().env("FLUX_MODEL", "none").args(words)).fails(1, &["none", "FLUX_MODEL"]);
    // An image keeps the model that made it.
    Run::new(command().env("FLUX_MODEL", "none").args(["again", "flag.png", "-o", "again.png"])).succeeds();
    fs::write(folder.join("flux.toml"), "device = \"cpu\"\nstride = 3\n").unwrap();
    Run::new(command().args(words)).fails(2, &["line 2", "stride", "flux.toml", "keys are"]);
    Run::new(command().env("FLUX_CONFIG", "").args(["config"])).succeeds();
    Run::new(command().env("FLUX_CONFIG", "gone.toml").args(["config"])).fails(1, &["gone.toml"]);
}
