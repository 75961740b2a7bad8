//! Tests of recipes.

use super::super::controls::ControlKind;
use super::*;

#[test]
fn a_recipe_is_the_same_after_json_and_says_no_more_than_it_must() {
    let short = Recipe::new("a cat", 7);
    assert_eq!(serde_json::to_string(&short).unwrap(), r#"{"prompt":"a cat","seed":7}"#);
    let long = Recipe {
        template: Some("a {cat|dog}".to_string()),
        upsampled: Some(Upsampled { request: "a".to_string(), model: "m".to_string(), ..Upsampled::default() }),
        regions: vec!["0,0,500,1000:a hat".parse().unwrap(), "m.png:a cat".parse().unwrap()],
        controls: vec![Control { kind: ControlKind::Canny, input: 0, make: true }],
        variation: "42:0.25".parse().ok(),
        variety: "0.3:50:0.2".parse().ok(),
        input_weights: vec![0.7],
        negative: Some("a dog".to_string()),
        width: Some(64),
        height: Some(48),
        steps: Some(3),
        guidance: Some(2.5),
        schedule: "power:1.5".parse().unwrap(),
        rng: Rng::Portable,
        max_sequence_length: Some(32),
        inputs: vec!["a.png".into(), "b.png".into()],
        mask: Some("mask.png".into()),
        strength: Some(0.1 + 0.2),
        extend: Some(Sides { left: 16, ..Sides::default() }),
        mask_padding: Some(8),
        feather: 4,
        no_composite: true,
        no_self_reference: true,
        sparse: true,
        transparent: Transparency::Key,
        noise: Some("n".into()),
        latents: Some("l".into()),
        embeddings: Some("e".into()),
        adapters: vec![AdapterFile {
            blocks: "single=0.5".parse().unwrap(),
            ..AdapterFile::new("style.safetensors", 0.7)
        }],
        tile: Some(512),
        tile_overlap: Some(64),
        hires: Some(Hires { by: Some(2.0), upscaler: Some("u.pth".into()), ..Hires::default() }),
        ..Recipe::new("", u64::MAX)
    };
    for recipe in [short, long, Recipe::default()] {
        let json = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&json).unwrap(), recipe, "{json}");
    }
}

#[test]
fn what_has_no_meaning_without_another_or_beside_it_is_refused() {
    let file = || Some("file".into());
    let image = || Recipe { inputs: vec!["a.png".into()], ..Recipe::new("x", 1) };
    let region = || vec!["0,0,9,9:a cat".parse().unwrap()];
    for (recipe, field, other) in [
        (Recipe { mask: file(), ..Recipe::new("x", 1) }, "mask", "`inputs`"),
        (Recipe { strength: Some(0.5), ..Recipe::new("x", 1) }, "strength", "`inputs`"),
        (Recipe { extend: Some(Sides::default()), ..Recipe::new("x", 1) }, "extend", "`inputs`"),
        (Recipe { feather: 4, ..Recipe::new("x", 1) }, "feather", "`inputs`"),
        (Recipe { feather: 4, strength: Some(0.5), ..image() }, "feather", "`mask` or `extend`"),
        (Recipe { no_composite: true, ..image() }, "no_composite", "`mask` or `extend`"),
        (Recipe { mask_padding: Some(8), ..image() }, "mask_padding", "`mask`"),
        (Recipe { no_self_reference: true, ..image() }, "no_self_reference", "`strength` or `mask`"),
        (Recipe { sparse: true, strength: Some(0.5), ..image() }, "sparse", "`mask` or `extend`"),
        (Recipe { feather: 4, no_composite: true, mask: file(), ..image() }, "feather", "`no_composite`"),
        (
            Recipe { mask_padding: Some(8), extend: Some(Sides::default()), mask: file(), ..image() },
            "mask_padding",
            "`extend`",
        ),
        (Recipe { sparse: true, no_self_reference: true, mask: file(), ..image() }, "sparse", "`no_self_reference`"),
        (Recipe { noise: file(), latents: file(), ..Recipe::new("x", 1) }, "noise", "`latents`"),
        (Recipe { hires: Some(Hires::default()), mask: file(), ..image() }, "hires", "`mask`"),
        (Recipe { regions: region(), sparse: true, mask: file(), ..image() }, "regions", "`sparse`"),
        (Recipe { regions: region(), mask_padding: Some(8), mask: file(), ..image() }, "regions", "`mask_padding`"),
        (Recipe { regions: region(), embeddings: file(), ..Recipe::new("", 1) }, "regions", "`embeddings`"),
        (Recipe { embeddings: file(), ..Recipe::new("x", 1) }, "embeddings", "`prompt`"),
        (Recipe { embeddings: file(), max_sequence_length: Some(8), ..Recipe::new("", 1) }, "embeddings", "length`"),
    ] {
        let error = recipe.check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{field}`")) && error.contains(other), "{error}");
    }
    let whole = Recipe { mask: file(), mask_padding: Some(8), feather: 4, no_self_reference: true, ..image() };
    assert!(whole.check().is_ok() && Recipe::new("x", 1).check().is_ok());
}

#[test]
fn what_a_recipe_does_not_know_is_an_error() {
    for json in [
        r#"{"promt": "a cat"}"#,
        r#"{"prompt": "a cat", "schedule": "power:x"}"#,
        r#"{"rng": "cuda"}"#,
        r#"{"adapters": [{"file": "a", "strength": 1, "layers": 3}]}"#,
        r#"{"seed": -1}"#,
        &format!(r#"{{"inputs": [{}"a"]}}"#, r#""a","#.repeat(MAX_FILES)),
        // The rest of the list is not read.
        &format!(r#"{{"adapters": [{}"#, r#"{"file": "a", "strength": 1},"#.repeat(MAX_FILES + 1)),
    ] {
        assert!(serde_json::from_str::<Recipe>(json).is_err(), "{json}");
    }
}
