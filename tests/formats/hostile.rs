//! Damaged files lead to errors, or to tensors that lie in them; never to a panic.

use std::fs;
use std::path::PathBuf;

use flux::files::{Bytes, Container};

const FILES: [&str; 4] = ["header.safetensors", "bitsandbytes.safetensors", "nvfp4-script.safetensors", "blocks.gguf"];
/// Changed files of each.
const CHANGES: usize = 2500;

fn read(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)).unwrap()
}

/// Whether the file is opened; all of its tensors are then read.
fn opens(bytes: Vec<u8>) -> bool {
    let Ok(file) = Container::new(PathBuf::from("model"), Bytes::Embedded(bytes.leak()), "") else { return false };
    for name in file.names() {
        let Ok(view) = file.tensor(name) else { continue };
        // A shape of a damaged header may have many axes, and values of no bytes.
        assert!(view.elements() <= 8 * view.bytes().len() + 1, "{name}");
        view.to_f32();
        view.row_range(0..view.rows().min(1));
    }
    true
}

#[test]
fn files_that_are_cut_off_are_refused() {
    for name in FILES {
        let bytes = read(name);
        // The end of a GGUF file is padding.
        let end = if name.ends_with("gguf") { bytes.len() - 32 } else { bytes.len() };
        for len in (0..end).step_by(1 + end / 500) {
            assert!(!opens(bytes[..len].to_vec()), "{len} bytes of {name}");
        }
    }
}

#[test]
fn files_that_are_changed_lead_to_no_panic() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for name in FILES {
        let bytes = read(name);
        let mut opened = 0;
        for _ in 0..CHANGES {
            let mut changed = bytes.clone();
            for _ in 0..1 + random(3) {
                let place = random(changed.len());
                let digit = changed[place].is_ascii_digit();
                changed[place] = if digit { b'0' + random(10) as u8 } else { [0, 0xff, random(256) as u8][random(3)] };
            }
            opened += usize::from(opens(changed));
        }
        assert!(opened > CHANGES / 50 && opened < CHANGES, "{opened} of {CHANGES} changed {name} are opened");
    }
}
