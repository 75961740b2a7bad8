//! `flux list`.

use super::*;

fn listed(home: &Home) -> Vec<serde_json::Value> {
    let run = Run::new(home.flux().args(["list", "--json"]).env("FLUX_MODELS", home.path().join("shelf"))).succeeds();
    assert_eq!(run.stderr, "");
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn models_parts_and_adapters_are_listed_and_damaged_ones_with_their_fault() {
    let home = Home::new();
    let none = Run::new(home.flux().arg("list")).succeeds();
    assert!(none.stdout.is_empty() && none.stderr.contains("flux download 4b"), "{}", none.stderr);

    let hub = Hub::start(tiny(KLEIN), fine);
    Run::new(&mut home.download(&hub, &["4b"])).succeeds();
    let tiny_folder = model_copy::tiny();
    let shelf = home.path().join("shelf");
    for folder in ["vae", "damaged", "foreign", "broken", "models"] {
        fs::create_dir_all(shelf.join(folder)).unwrap();
    }
    let vae = tiny_folder.join("vae/diffusion_pytorch_model.safetensors");
    fs::copy(&vae, shelf.join("vae/flux2-vae.safetensors")).unwrap();
    fs::write(shelf.join("damaged/cut.safetensors"), &fs::read(&vae).unwrap()[..1000]).unwrap();
    fs::write(shelf.join("damaged/notes.txt"), "x").unwrap();
    std::os::unix::fs::symlink("nowhere.gguf", shelf.join("damaged/link.gguf")).unwrap();
    fs::write(shelf.join("foreign/model_index.json"), "{\"_class_name\": \"StableDiffusionPipeline\"}").unwrap();
    fs::write(shelf.join("broken/model_index.json"), "{").unwrap();
    std::os::unix::fs::symlink(&shelf, shelf.join("models/loop")).unwrap();

    let entries = listed(&home);
    let find = |name: &str| {
        let found: Vec<_> = entries.iter().filter(|entry| entry["name"].as_str().unwrap().ends_with(name)).collect();
        assert!(!found.is_empty(), "{name} is not in {entries:?}");
        found[0]
    };
    let model = find("4b");
    assert_eq!((&model["kind"], &model["format"]), (&"model".into(), &"bf16".into()));
    assert_eq!(
        (&model["licence"]["name"], &model["path"]),
        (&"apache-2.0".into(), &home.snapshot(KLEIN).display().to_string().into())
    );
    assert!(model["bytes"].as_u64().unwrap() > 20_000_000 && model.get("fault").is_none());
    let part = find("vae/flux2-vae.safetensors");
    assert_eq!(
        (&part["kind"], &part["format"], &part["licence"]),
        (&"VAE".into(), &"bf16".into(), &serde_json::Value::Null)
    );
    for (name, words) in [("cut.safetensors", ""), ("link.gguf", "nowhere.gguf"), ("shelf/broken", "JSON")] {
        let entry = find(name);
        assert_eq!(entry["kind"], "damaged", "{name}");
        assert!(entry["fault"].as_str().unwrap().contains(words), "{entry}");
    }
    assert!(entries.iter().all(|entry| !entry["path"].as_str().unwrap().contains("foreign")), "{entries:?}");

    let table = Run::new(home.flux().arg("list").env("FLUX_MODELS", &shelf)).succeeds().stdout;
    let first = table.lines().next().unwrap();
    assert!(first.starts_with("name") && first.ends_with("path"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("4b ") && line.contains("  model  ")), "{table}");
}

#[test]
fn a_download_that_has_not_ended_is_listed_so() {
    let hub = Hub::start(small(), |seen, _, reply| {
        if seen.path.ends_with(LARGE) && seen.path.starts_with("/cdn/") {
            reply.cut = Some(1000);
        }
    });
    let home = Home::new();
    Run::new(&mut home.download(&hub, &["4b"])).fails(1, &["was interrupted"]);
    let entries = listed(&home);
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert!(entries[0]["fault"].as_str().unwrap().contains("`flux download 4b`"), "{entries:?}");
}
