//! Files that are no adapters, and wrong uses of adapters, are named in errors, and no image is made with half an
//! adapter.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::{KOHYA, Matrix, PEFT, folder_of, weights, write, write_adapter};
use crate::program::{self, Run, SMALL, flux, names};

/// Runs for the smallest image of a random model in `own`, with further flags.
fn draw(own: &Path, flags: &[&str]) -> Run {
    let model = folder_of("sharded");
    let mut command = flux();
    command
        .current_dir(own)
        .arg("-d")
        .arg(model)
        .args(SMALL)
        .args(["-p", "a cat", "-S", "3", "-o", "x.png"])
        .args(flags);
    Run::new(&mut command)
}

#[test]
fn a_path_that_names_no_adapter_is_told_with_what_is_there() {
    let own = tempfile::tempdir().unwrap();
    let at = |name: &str| own.path().join(name);
    write_adapter(&at("watercolour.safetensors"), &weights(&folder_of("sharded")), &KOHYA, 1);
    let before = names(own.path());
    let lora = |value: &str, code: i32, words: &[&str]| {
        let run = draw(own.path(), &["--lora", value]);
        assert!(!run.stderr.contains("download"), "{value}: {}", run.stderr);
        run.fails(code, &[&["hint: "], words].concat());
    };
    lora("watercolor.safetensors", 1, &["no such file", "did you mean `watercolour.safetensors`?"]);
    lora("watercolour:0.5", 1, &["no such file", "did you mean `watercolour.safetensors`?"]);
    lora("watercolour.safetensors:0,5", 2, &["`watercolour.safetensors` is `0,5`", "`:0.5`", "--lora"]);
    lora("watercolour.safetensors:", 2, &["the strength", "expected a number"]);
    lora("watercolour.safetensors:inf", 2, &["is `inf`, expected a number"]);
    lora("watercolour.safetensors:1e99", 2, &["strength is inf", "--lora"]);
    lora("", 2, &["is empty", "--lora"]);
    assert_eq!(names(own.path()), before, "no image is written");
}

/// Errors name the adapter, not the model.
#[test]
fn an_adapter_of_which_no_image_comes_is_named() {
    let own = tempfile::tempdir().unwrap();
    let at = |name: &str| own.path().join(name);
    let draw = |lora: &str| program::draw(own.path(), &["a cat", "-o", "x.png", "--lora", lora]);
    let layer = "proj_out";
    let weight = &weights(&crate::support::root().join("models/tiny"))[&format!("{layer}.weight")];
    let (rows, cols) = (weight.rows, weight.cols);
    let lora = |name: &str, value: f64, alpha: &str| {
        let tensors = [
            (format!("{layer}.lora_A.weight"), Matrix::from_fn(1, cols, |_, _| value)),
            (format!("{layer}.lora_B.weight"), Matrix::from_fn(rows, 1, |_, _| value)),
        ];
        let metadata = format!(r#"{{"transformer.r": 1, "transformer.lora_alpha": {alpha}}}"#);
        write(&at(name), &tensors, HashMap::from([("lora_adapter_metadata".to_string(), metadata)]));
        draw(name)
    };
    lora("alpha.safetensors", 0.01, "1e39").fails(1, &["1e39", "overflows float32", layer, "alpha.safetensors"]);
    lora("huge.safetensors", 1e38, "1").fails(1, &["lora_A.weight` overflows", "huge.safetensors", "hint: "]);
    let late = lora("late.safetensors", 1e18, "1");
    late.fails(
        1,
        &[
            "not numbers, from an adapter at strength 1",
            "in: --lora late.safetensors",
            "weights of the model are intact",
        ],
    );
    draw("late.safetensors:1000").fails(2, &["at strength 1000", "overflow", "hint: "]);
    assert!(!at("x.png").exists(), "no image is written");
}

#[test]
fn a_file_that_is_no_adapter_is_named_as_what_it_is() {
    let own = tempfile::tempdir().unwrap();
    let model = folder_of("sharded");
    fs::write(own.path().join("a.pt"), b"PK\x03\x04 a pickle in an archive").unwrap();
    fs::create_dir(own.path().join("empty")).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_string();
    for (value, words) in [
        ("a.pt".to_string(), &["PyTorch pickle", "a.pt"][..]),
        ("empty".to_string(), &["contains no adapter", "empty"]),
        (text(&model), &["contains a model", "`-d`"]),
        (text(&model.join("vae")), &["a VAE, expected an adapter", "`--vae`"]),
    ] {
        draw(own.path(), &["--lora", &value]).fails(1, &[&["hint: "], words].concat());
    }
}

#[test]
fn names_that_are_no_text_take_a_strength() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    let own = tempfile::tempdir().unwrap();
    let name = OsString::from_vec(b"b\xff.safetensors".to_vec());
    let path = own.path().join(&name);
    write_adapter(&own.path().join("b.safetensors"), &weights(&folder_of("sharded")), &PEFT, 1);
    fs::rename(own.path().join("b.safetensors"), &path).unwrap();
    let image = |lora: OsString| {
        let mut command = flux();
        command.current_dir(own.path()).arg("-d").arg(folder_of("sharded")).args(SMALL);
        Run::new(command.args(["-p", "a cat", "-S", "3", "-o", "y.png", "--lora"]).arg(lora)).succeeds();
        flux::input::read(&own.path().join("y.png")).unwrap().bytes
    };
    let with = |strength: &[u8]| OsString::from_vec([name.as_encoded_bytes(), strength].concat());
    assert!(image(with(b":0.25")) != image(with(b"")), "the strength counts");
}
