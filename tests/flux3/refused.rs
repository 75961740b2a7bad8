//! Unsupported uses of these models, and components of other models.

use std::fs;

use flux::error::Field;
use flux::files::{ModelFiles, ModelPaths};
use flux::model::{ModelInfo, OpenModel};
use flux::pipeline::{Area, RegionPrompt, Request};

use super::{distilled, small};
use crate::flux3_base::write_base;
use crate::golden::flux3::model_folder;
use crate::support;

#[test]
fn what_the_model_cannot_do_is_an_error() {
    let (model, folder) = (distilled(), tempfile::tempdir().unwrap());
    let error = model.plan(&Request { width: Some(70), ..small("a cat", 1) }).unwrap_err();
    assert_eq!(error.field(), Some(Field::Width));
    assert!(error.to_string().contains("64 and 80"), "{error}");
    let regions = vec![RegionPrompt { prompt: "a cat".to_string(), area: Area::Box([0, 0, 1000, 500]) }];
    let error = model.plan(&Request { regions, ..small("a cat", 1) }).unwrap_err();
    assert!(error.field() == Some(Field::Regions) && error.to_string().contains("boxes"), "{error}");
    let paths = |variant| ModelPaths { model: Some(model_folder()), variant: Some(variant), ..ModelPaths::default() };
    for variant in [flux::files::Variant::Base, flux::files::Variant::Kv] {
        let files = paths(variant).open(|| unreachable!("a model is named")).unwrap();
        let error = ModelInfo::read(&files).unwrap_err();
        assert_eq!(error.field(), Some(Field::Variant), "{error}");
    }
    let files = ModelFiles::open(&model_folder()).unwrap();
    let error = OpenModel::open(&files).unwrap().cache_references().unwrap_err().to_string();
    assert!(error.contains("no FLUX.3-klein was trained to"), "{error}");
    // The transformer of one kind, the index of the other.
    write_base(folder.path());
    fs::remove_file(folder.path().join("modular_model_index.json")).unwrap();
    fs::write(folder.path().join("model_index.json"), r#"{"_class_name": "Flux2KleinPipeline"}"#).unwrap();
    let error = ModelInfo::read(&ModelFiles::open(folder.path()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("Flux2KleinPipeline") && error.contains("FLUX.3"), "{error}");
    // A text-only encoder, and a vision-language encoder in place of a text-only one.
    let change = |key: &str, value: serde_json::Value| {
        write_base(folder.path());
        let _ = fs::remove_file(folder.path().join("model_index.json"));
        let path = folder.path().join("text_encoder/config.json");
        let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["text_config"]["rope_parameters"][key] = value;
        fs::write(&path, json.to_string()).unwrap();
        ModelInfo::read(&ModelFiles::open(folder.path()).unwrap()).map(drop)
    };
    assert!(change("rope_theta", 5e6.into()).is_ok());
    assert!(change("rope_theta", 1e6.into()).unwrap_err().to_string().contains("Qwen3-VL"));
    let paths = ModelPaths {
        model: Some(support::root().join("models/tiny")),
        text_encoder: Some(model_folder()),
        ..ModelPaths::default()
    };
    let error = ModelInfo::read(&paths.open(|| unreachable!("a model is named")).unwrap()).unwrap_err().to_string();
    assert!(error.contains("reads images") || error.contains("vocabulary"), "{error}");
}
