//! The programs of examples/: their code runs in this process, and each is listed in docs/library.md.
#![cfg(feature = "default-model")]

use std::fs;
use std::path::Path;

use flux::ImageRecipe;
use flux::input::read;
use flux::metadata::said_by;

use crate::program::project;

#[path = "../examples/batch_with_progress.rs"]
#[expect(dead_code, reason = "the tests call what `main` calls")]
mod batch_with_progress;
#[path = "../examples/edit.rs"]
#[expect(dead_code, reason = "as above")]
mod edit;
#[cfg(feature = "server")]
#[path = "../examples/embedded_server.rs"]
#[expect(dead_code, reason = "as above")]
mod embedded_server;
#[path = "../examples/text_to_image.rs"]
#[expect(dead_code, reason = "as above")]
mod text_to_image;

/// Returns the recipe in an image file.
fn recipe(file: &Path) -> ImageRecipe {
    let metadata = said_by(&fs::read(file).unwrap()).unwrap();
    ImageRecipe::from_json(&metadata.recipe.expect("a recipe")).unwrap()
}

#[test]
fn an_image_is_written_with_its_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heart.png");
    text_to_image::text_to_image(&file).unwrap();
    let image = read(&file).unwrap();
    assert_eq!((image.width, image.height), (128, 128));
    assert_eq!(recipe(&file).recipe.prompt, "a red heart inside a yellow star");
}

#[test]
fn an_edit_changes_the_image_and_a_mask_keeps_a_half_of_it() {
    let folder = tempfile::tempdir().unwrap();
    edit::edit(folder.path()).unwrap();
    let [heart, blue, half] = ["heart", "blue", "half"].map(|name| folder.path().join(format!("{name}.png")));
    let made = recipe(&blue);
    assert_eq!(made.digests.values().collect::<Vec<_>>(), [&flux::files::digest::hash_file(&heart).unwrap()]);
    let [heart, blue, half] = [heart, blue, half].map(|file| read(&file).unwrap());
    assert_ne!(heart, blue);
    let row = 3 * 128;
    let right = |bytes: &[u8]| bytes.chunks(row).flat_map(|line| line[row / 2..].to_vec()).collect::<Vec<_>>();
    assert!(right(&blue.bytes) == right(&half.bytes) && blue != half);
}

#[test]
fn images_of_several_prompts_are_written() {
    let folder = tempfile::tempdir().unwrap();
    batch_with_progress::batch_with_progress(folder.path()).unwrap();
    for (file, prompt) in [("a-red-heart", "a red heart"), ("a-yellow-star", "a yellow star"), ("a-ghost", "a ghost")] {
        assert_eq!(recipe(&folder.path().join(format!("{file}.png"))).recipe.prompt, prompt);
    }
}

#[cfg(feature = "server")]
#[test]
fn an_app_serves_images_of_its_own_and_the_apis_of_flux() {
    use std::net::SocketAddr;

    use serde_json::Value;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = embedded_server::app().await.unwrap().into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    });
    let url = |path: &str| format!("http://{address}{path}");
    let png = ureq::get(url("/images/a-red-heart")).call().unwrap().body_mut().read_to_vec().unwrap();
    let metadata = said_by(&png).unwrap();
    assert_eq!(ImageRecipe::from_json(&metadata.recipe.unwrap()).unwrap().recipe.prompt, "a red heart");
    let models: Value = ureq::get(url("/flux/v1/models")).call().unwrap().body_mut().read_json().unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    let asked =
        serde_json::json!({"prompt": "a red heart", "size": "64x64", "seed": 45, "response_format": "b64_json"});
    let made = ureq::post(url("/flux/v1/images/generations")).send_json(&asked);
    let made: Value = made.unwrap().body_mut().read_json().unwrap();
    let decoded = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        made["data"][0]["b64_json"].as_str().unwrap(),
    );
    assert_eq!(flux::input::read_bytes(&decoded.unwrap()).unwrap(), flux::input::read_bytes(&png).unwrap());
    let page = ureq::get(url("/flux")).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(page.contains("<html") || page.contains("<!doctype"), "{page}");
}

#[test]
fn each_example_is_in_the_guide() {
    for (folder, guide) in [("examples", "library"), ("examples/python", "python")] {
        let guide = fs::read_to_string(project(&format!("docs/{guide}.md"))).unwrap();
        let is_shown = |name: &&String| !["make_random_model.rs", "python"].contains(&name.as_str());
        for name in crate::process::names(&project(folder)).iter().filter(is_shown) {
            assert!(guide.contains(name.as_str()), "{name}");
        }
    }
}
