//! Models and adapters by name.

use super::*;

const SMALL: [&str; 8] = ["--size", "32", "-s", "1", "-S", "1", "--device", "cpu"];

fn draw(home: &Home, arguments: &[&str]) -> Run {
    Run::new(home.flux().args(["-p", "a cat"]).args(SMALL).args(arguments))
}

#[test]
fn a_downloaded_model_draws_by_its_name() {
    let hub = Hub::start(tiny(KLEIN), fine);
    let home = Home::new();
    draw(&home, &["-d", "4b", "-o", "x.png"]).fails(
        1,
        &["no file or folder `4b`", "in: -d", "hint: download it with `flux download 4b`: 16 GB, licence apache-2.0"],
    );
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let drawn = |name: &str| {
        draw(&home, &["-d", name, "-o", "x.png"]).succeeds();
        let said = Run::new(home.flux().args(["info", "x.png"])).succeeds().stdout;
        assert!(said.contains(&format!("-d {name} ")), "the recipe keeps the name: {said}");
        flux::input::read(&home.path().join("x.png")).unwrap()
    };
    let by_path = drawn(home.snapshot(KLEIN).to_str().unwrap());
    assert!(drawn("4b") == by_path, "the same image");
    let info = Run::new(home.flux().args(["info", KLEIN])).succeeds();
    assert!(info.stdout.contains("transformer"), "{}", info.stdout);
    let file = "4b:transformer/diffusion_pytorch_model.safetensors";
    Run::new(home.flux().args(["info", file, "--text-encoder", "4b", "--vae", "4b"])).succeeds();

    // An existing path wins.
    fs::create_dir(home.path().join("4b")).unwrap();
    draw(&home, &["-d", "4b", "-o", "x.png"]).fails(1, &["not a model folder", "in: 4b"]);
}

#[test]
fn names_that_are_not_there_tell_the_command_that_fetches_them() {
    let home = Home::new();
    let info = |name: &str| Run::new(home.flux().args(["info", name]));
    info("someone/model").fails(1, &["folder `someone/model`", "`flux download someone/model`"]);
    info("9b").fails(1, &["`flux download 9b`: 35 GB, licence flux-non-commercial-license, for non-commercial use"]);
    info("a/b:c.safetensors").fails(1, &["`flux download a/b:c.safetensors`"]);
    // A name inside an existing folder is a path, and so is a text that does not have the form of a name.
    fs::create_dir(home.path().join("someone")).unwrap();
    info("someone/model").fails(1, &["file: `someone/model`"]);
    info("someon/model").fails(1, &["file: `someon/model`", "did you mean `someone`?"]);
    info("some/where/else").fails(1, &["file: `some/where/else`"]);
    info("loras/x.safetensors").fails(1, &["file: `loras/x.safetensors`"]);
    Run::new(home.flux().args(["info", "9b"]).env("FLUX_MODEL", "4b")).fails(1, &["9b"]);
    Run::new(home.flux().arg("info").env("FLUX_MODEL", "4b")).fails(1, &["folder `4b`", "in: FLUX_MODEL"]);
    draw(&home, &["--vae", "a/b", "-o", "x.png"]).fails(1, &["folder `a/b`", "in: --vae"]);
}

/// Puts the built-in model in the cache, as other tools do for this spelling of the name.
fn cached_as(home: &Home, repository: &str) -> PathBuf {
    let folder = home.repository(repository);
    let snapshot = folder.join("snapshots/abc");
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), "abc").unwrap();
    fs::create_dir_all(folder.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    model_copy::link_all(&model_copy::tiny(), &snapshot);
    folder
}

#[test]
fn case_does_not_matter_in_names_of_the_cache() {
    let home = Home::new();
    let lower = cached_as(&home, "black-forest-labs/FLUX.2-klein-4b");
    let list = || Run::new(home.flux().arg("list")).succeeds().stdout;
    let info = |name: &str| Run::new(home.flux().args(["info", "--json", name]));
    let is_found = |name: &str, folder: &Path| {
        let said = info(name).succeeds().stdout;
        assert!(said.contains(folder.to_str().unwrap()), "{name}: {said}");
    };
    assert!(list().contains("\n4b "), "{}", list());
    for name in ["4b", "4B", "Klein-4B", KLEIN, "Black-Forest-Labs/flux.2-KLEIN-4b"] {
        is_found(name, &lower);
    }
    draw(&home, &["-d", "4b", "-o", "x.png"]).succeeds();
    let file = "4B:Transformer/diffusion_pytorch_model.safetensors";
    draw(&home, &["-d", file, "--text-encoder", "4b", "--vae", "4b", "-o", "x.png"]).succeeds();
    let download = |name: &str| Run::new(home.flux().args(["download", name]).env("HF_HUB_OFFLINE", "1"));
    let there = download("4b").succeeds().stdout;
    assert!(there.contains(lower.to_str().unwrap()), "{there}");

    // The exact spelling wins, and the other model stays.
    let exact = cached_as(&home, KLEIN);
    is_found("4b", &exact);
    is_found(KLEIN, &exact);
    is_found("black-forest-labs/FLUX.2-klein-4b", &lower);
    assert!(list().contains("\nblack-forest-labs/FLUX.2-klein-4b "), "{}", list());
    let remove = |name: &str| Run::new(home.flux().args(["rm", "--yes", name]));
    // Without it, two are left that differ only in their spelling.
    let other = cached_as(&home, "black-forest-labs/flux.2-klein-4B");
    remove("4b").succeeds();
    assert!(!exact.exists() && lower.exists() && other.exists());
    info("4b").fails(2, &["FLUX.2-klein-4b", "flux.2-klein-4B", "differ only in case"]);
    remove("4b").fails(2, &["differ only in case"]);
    download("4b").fails(2, &["differ only in case"]);
    remove("black-forest-labs/flux.2-klein-4B").succeeds();
    remove("4b").succeeds();
    assert!(!lower.exists() && !other.exists());
    // Adapters, by repository and file.
    let style = home.repository("someone/Style").join("snapshots/abc");
    fs::create_dir_all(&style).unwrap();
    crate::cli::again::write_adapter(&style.join("Ink.safetensors"), 0.3);
    for name in ["someone/style", "Someone/Style:ink.safetensors"] {
        draw(&home, &["--lora", name, "-o", "x.png"]).succeeds();
    }
    let remove = |name: &str| Run::new(home.flux().args(["rm", "--yes", name]));
    remove("someone/style:ink.safetensors").succeeds();
    assert!(!style.join("Ink.safetensors").exists());
}

#[test]
fn folders_of_models_are_known_by_short_names() {
    let home = Home::new();
    let shelf = home.path().join("shelf");
    fs::create_dir(&shelf).unwrap();
    std::os::unix::fs::symlink(model_copy::tiny(), shelf.join("klein-4b")).unwrap();
    Run::new(home.flux().args(["info", "4b"])).fails(1, &["flux download 4b"]);
    Run::new(home.flux().args(["info", "4b"]).env("FLUX_MODELS", format!("/none:{}", shelf.display()))).succeeds();
    std::os::unix::fs::symlink(&shelf, home.path().join("models")).unwrap();
    Run::new(home.flux().args(["info", "4b"])).succeeds();
}

#[test]
fn adapters_go_by_name_with_a_file_and_a_strength() {
    let adapter = crate::readme::adapter();
    let files =
        [("README.md", b"x".to_vec()), ("style.safetensors", adapter.clone()), ("sub/other.safetensors", adapter)];
    let files = files.map(|(name, bytes)| (name.to_string(), bytes));
    let hub = Hub::start(content("someone/styles", files.clone().into()), fine);
    let home = Home::new();
    draw(&home, &["--lora", "someone/styles:style.safetensors:0.5", "-o", "x.png"])
        .fails(1, &["in: --lora", "`flux download someone/styles:style.safetensors`"]);
    Run::new(&mut home.download(&hub, &["someone/styles"])).fails(2, &["2 weight", "someone/styles:style.safetensors"]);
    Run::new(&mut home.download(&hub, &["someone/styles:style.safetensors"])).succeeds();
    for (name, file, strength) in [
        ("someone/styles:style.safetensors:0.5", "someone/styles:style.safetensors", "0.5"),
        ("someone/styles", "someone/styles", "1"),
    ] {
        draw(&home, &["--lora", name, "-o", "x.png"]).succeeds();
        let made = Run::new(home.flux().args(["info", "x.png"])).succeeds().stdout;
        let told =
            [format!("\"file\": \"{file}\""), format!("\"strength\": {strength}"), format!("\"{file}\": \"sha256:")];
        assert!(told.iter().all(|told| made.contains(told)), "the recipe keeps the name: {made}");
        Run::new(home.flux().args(["again", "x.png", "--exact", "--device", "cpu"])).succeeds();
        fs::remove_file(home.path().join("x-again.png")).unwrap();
    }
    Run::new(&mut home.download(&hub, &["someone/styles:sub/other.safetensors"])).succeeds();
    draw(&home, &["--lora", "someone/styles", "-o", "x.png"]).fails(2, &["2 weight", "in: --lora"]);
}
