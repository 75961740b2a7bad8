//! Models and adapters by name.

use super::*;

const SMALL: [&str; 8] = ["--size", "32", "-s", "1", "-S", "1", "--device", "cpu"];

fn draw(home: &Home, arguments: &[&str]) -> Run {
    Run::of(home.flux().args(["-p", "a cat"]).args(SMALL).args(arguments))
}

#[test]
fn a_downloaded_model_draws_by_its_name() {
    let hub = Hub::start(tiny(KLEIN), fine);
    let home = Home::new();
    draw(&home, &["-d", "4b", "-o", "x.png"]).fails(
        1,
        &["no file or folder `4b`", "in: --dir", "hint: `flux download 4b` fetches it: 16 GB, licence apache-2.0"],
    );
    Run::of(&mut home.download(&hub, &["4b"])).succeeds();
    let drawn = |name: &str| {
        draw(&home, &["-d", name, "-o", "x.png"]).succeeds();
        let said = Run::of(home.flux().args(["info", "x.png"])).succeeds().stdout;
        assert!(said.contains(&format!("-d {name} ")), "the recipe keeps the name: {said}");
        flux::input::read(&home.path().join("x.png")).unwrap()
    };
    let by_path = drawn(home.snapshot(KLEIN).to_str().unwrap());
    assert!(drawn("4b") == by_path, "the same image");
    let info = Run::of(home.flux().args(["info", KLEIN])).succeeds();
    assert!(info.stdout.contains("transformer"), "{}", info.stdout);
    let file = "4b:transformer/diffusion_pytorch_model.safetensors";
    Run::of(home.flux().args(["info", file, "--text-encoder", "4b", "--vae", "4b"])).succeeds();

    // A path that is there wins.
    fs::create_dir(home.path().join("4b")).unwrap();
    draw(&home, &["-d", "4b", "-o", "x.png"]).fails(1, &["not a model folder", "in: 4b"]);
}

#[test]
fn names_that_are_not_there_tell_the_command_that_fetches_them() {
    let home = Home::new();
    let info = |name: &str| Run::of(home.flux().args(["info", name]));
    info("someone/model").fails(1, &["no file or folder `someone/model`", "`flux download someone/model` fetches it"]);
    info("9b").fails(
        1,
        &["`flux download 9b` fetches it: 35 GB, licence flux-non-commercial-license, for non-commercial use"],
    );
    info("a/b:c.safetensors").fails(1, &["`flux download a/b:c.safetensors` fetches it"]);
    // What lies in a folder that is there is a path, and so is what has not the form of a name.
    fs::create_dir(home.path().join("someone")).unwrap();
    info("someone/model").fails(1, &["no such model folder: `someone/model`"]);
    info("someon/model").fails(1, &["no such model folder: `someon/model`", "did you mean `someone`?"]);
    info("some/where/else").fails(1, &["no such model folder: `some/where/else`"]);
    info("loras/x.safetensors").fails(1, &["no such model folder: `loras/x.safetensors`"]);
    Run::of(home.flux().args(["info", "9b"]).env("FLUX_MODEL", "4b")).fails(1, &["9b"]);
    Run::of(home.flux().arg("info").env("FLUX_MODEL", "4b")).fails(1, &["no file or folder `4b`", "in: FLUX_MODEL"]);
    draw(&home, &["--vae", "a/b", "-o", "x.png"]).fails(1, &["no file or folder `a/b`", "in: --vae"]);
}

#[test]
fn folders_of_models_are_known_by_short_names() {
    let home = Home::new();
    let shelf = home.path().join("shelf");
    fs::create_dir(&shelf).unwrap();
    std::os::unix::fs::symlink(model_copy::tiny(), shelf.join("klein-4b")).unwrap();
    Run::of(home.flux().args(["info", "4b"])).fails(1, &["flux download 4b"]);
    Run::of(home.flux().args(["info", "4b"]).env("FLUX_MODELS", format!("/none:{}", shelf.display()))).succeeds();
    std::os::unix::fs::symlink(&shelf, home.path().join("models")).unwrap();
    Run::of(home.flux().args(["info", "4b"])).succeeds();
}

/// An adapter that changes nothing a test looks at.
fn adapter() -> Vec<u8> {
    use flux::files::ModelFiles;
    use flux::model::ModelInfo;
    use safetensors::tensor::{Dtype, TensorView};
    let model = ModelFiles::open(&model_copy::tiny()).expect("the built-in model");
    let dim = ModelInfo::read(&model).expect("the built-in model").transformer.dim();
    let values: Vec<u8> = (0..dim).flat_map(|i| (i as f32 / dim as f32).to_le_bytes()).collect();
    let half = |name: &str, shape| {
        let tensor = TensorView::new(Dtype::F32, shape, &values).expect("as many values as the shape has");
        (format!("transformer.transformer_blocks.0.attn.to_out.0.lora_{name}.weight"), tensor)
    };
    safetensors::serialize([half("A", vec![1, dim]), half("B", vec![dim, 1])], None).expect("a file")
}

#[test]
fn adapters_go_by_name_with_a_file_and_a_strength() {
    let files = [("README.md", b"x".to_vec()), ("style.safetensors", adapter()), ("sub/other.safetensors", adapter())];
    let files = files.map(|(name, bytes)| (name.to_string(), bytes));
    let hub = Hub::start(content("someone/styles", files.clone().into()), fine);
    let home = Home::new();
    draw(&home, &["--lora", "someone/styles:style.safetensors:0.5", "-o", "x.png"])
        .fails(1, &["in: --lora", "`flux download someone/styles:style.safetensors` fetches it"]);
    Run::of(&mut home.download(&hub, &["someone/styles"]))
        .fails(2, &["2 files of weights", "someone/styles:style.safetensors"]);
    Run::of(&mut home.download(&hub, &["someone/styles:style.safetensors"])).succeeds();
    for (name, file, strength) in [
        ("someone/styles:style.safetensors:0.5", "someone/styles:style.safetensors", "0.5"),
        ("someone/styles", "someone/styles", "1"),
    ] {
        draw(&home, &["--lora", name, "-o", "x.png"]).succeeds();
        let made = Run::of(home.flux().args(["info", "x.png"])).succeeds().stdout;
        let told =
            [format!("\"file\": \"{file}\""), format!("\"strength\": {strength}"), format!("\"{file}\": \"sha256:")];
        assert!(told.iter().all(|told| made.contains(told)), "the recipe keeps the name: {made}");
        Run::of(home.flux().args(["again", "x.png", "--exact", "--device", "cpu"])).succeeds();
        fs::remove_file(home.path().join("x-again.png")).unwrap();
    }
    Run::of(&mut home.download(&hub, &["someone/styles:sub/other.safetensors"])).succeeds();
    draw(&home, &["--lora", "someone/styles", "-o", "x.png"]).fails(2, &["2 files of weights", "in: --lora"]);
}
