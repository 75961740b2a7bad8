//! Damaged image files: after any damage to a valid file, reading its texts ends in time and without a panic.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Infotext, Metadata, Settings, exif, said_by, split_tags, split_weights, strip};
use crate::input::{Header, pixel_digest};
use crate::output::{ImageFormat, Rgb, encode};

const TEXTS: [&str; 5] = [
    "a cat <lora:ink:0.5>\nNegative prompt: (dog:1.2)\nSteps: 4, Lora hashes: \"a: b\", Hashes: {\"a\": [1]}, Seed: 5, Size: 8x8",
    r#"{"sui_image_params": {"prompt": "a", "seed": 5}}"#,
    r#"{"1": {"class_type": "KSampler", "inputs": {"latent_image": ["2", 0], "positive": ["1", 0], "seed": ["2", 0]}},
        "2": {"class_type": "X", "inputs": {"width": 8, "value": ["1", 0]}}}"#,
    "\"a cat [a dog]\" -s 20 -S 5",
    r#"{"image": {"prompt": [{"prompt": "a [b]"}]}, "app_version": 1}"#,
];

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_be_bytes(), &kind[..], data, &[0; 4]].concat()
}

/// Files with texts of every kind in every place.
fn files() -> Vec<Vec<u8>> {
    let image = Rgb { width: 16, height: 8, bytes: vec![90; 16 * 8 * 3] };
    let metadata = |text: &str| Metadata {
        parameters: Some(text.to_string()),
        recipe: Some("{\"a\": \"<&>\"}".to_string()),
        ..Metadata::default()
    };
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp];
    let whole = TEXTS.iter().flat_map(|text| formats.map(|format| encode(&image, format, &metadata(text)).unwrap()));
    let keywords = ["parameters", "prompt", "workflow", "Dream", "sd-metadata", "invokeai_metadata", "Comment"];
    let with_keywords = TEXTS.iter().map(|text| {
        let texts = keywords.iter().map(|keyword| chunk(b"tEXt", format!("{keyword}\0{text}").as_bytes()));
        let profile: String = exif::user_comment(text).iter().map(|byte| format!("{byte:02x}")).collect();
        let profile =
            chunk(b"tEXt", format!("Raw profile type exif\0\nexif\n {}\n{profile}\n", profile.len()).as_bytes());
        let exif = chunk(b"eXIf", &exif::user_comment(text));
        [b"\x89PNG\r\n\x1a\n".to_vec(), texts.flatten().collect(), exif, profile].concat()
    });
    whole.chain(with_keywords).collect()
}

#[test]
fn damaged_files_are_read_in_time() {
    let (files, mut rng) = (files(), StdRng::seed_from_u64(1));
    let start = Instant::now();
    for _ in 0..20_000 {
        let mut file = files[rng.random_range(0..files.len())].clone();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..file.len());
            match rng.random_range(0..5) {
                0 => file[at] = rng.random(),
                1 => file[at] ^= 1 << rng.random_range(0..8),
                2 => file.truncate(at.max(12)),
                3 => {
                    let end = (at + rng.random_range(0..64)).min(file.len());
                    let part = file[at..end].to_vec();
                    file.splice(at..at, part);
                }
                _ => drop(file.splice(at..at, *b"[{\"\\:,<>")),
            }
        }
        let _ = Header::read(&file);
        for all in [false, true] {
            let Ok(stripped) = strip(&file, all) else { continue };
            assert!(stripped.file.len() <= file.len() + 1024);
            let again = strip(&stripped.file, all).expect("a stripped file is whole");
            assert_eq!((again.file == stripped.file, again.removed), (true, Vec::new()));
            if let (Ok(before), Ok(after)) = (pixel_digest(&file), pixel_digest(&stripped.file)) {
                assert_eq!(before, after);
            }
        }
        let Ok(said) = said_by(&file) else { continue };
        if let Some(settings) = Settings::read(&said) {
            let prompt = settings.prompt.unwrap_or_default();
            let _ = (split_tags(&prompt), split_weights(&prompt));
        }
        let _ = Infotext::parse(said.parameters.as_deref().unwrap_or_default());
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn texts_that_are_made_to_take_long_do_not() {
    let nodes = |node: &dyn Fn(usize) -> String| {
        let nodes: Vec<String> = (0..20_000).map(|id| format!("\"{id}\": {}", node(id))).collect();
        format!("{{{}}}", nodes.join(", "))
    };
    let samplers = nodes(&|id| {
        format!(
            r#"{{"class_type": "KSampler", "inputs": {{"latent_image": ["{}", 0], "positive": ["{}", 0]}}}}"#,
            id + 1,
            id / 2
        )
    });
    let long = "[".repeat(1 << 20);
    for text in [
        samplers.as_str(),
        &long,
        &"<lora:".repeat(1 << 18),
        &"(a:1.".repeat(1 << 18),
        &"{\"a\":".repeat(1 << 18),
        &"[\"[".repeat(1 << 18),
    ] {
        let start = Instant::now();
        let file = [b"\x89PNG\r\n\x1a\n", &chunk(b"tEXt", format!("prompt\0{text}").as_bytes())[..]].concat();
        let file = [file, chunk(b"tEXt", format!("parameters\0{text}").as_bytes())].concat();
        let _ = Settings::read(&said_by(&file).unwrap());
        let _ = (split_tags(text), split_weights(text), Infotext::parse(text));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}: {}", start.elapsed(), &text[..20]);
    }
}
