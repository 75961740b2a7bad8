//! Upscalers against spandrel: `scripts/dump_upscalers.py` writes the files and what spandrel makes of an image.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::*;
use crate::backend::cpu::{Cpu, Precision};
use crate::error::ErrorKind;

/// The files, each with its kind and factor.
const FILES: [(&str, &str, usize); 7] = [
    ("rrdb-old-4x.legacy.pth", "ESRGAN", 4),
    ("rrdb-new-2x.pth", "ESRGAN", 2),
    ("rrdb-bsrgan-1x.safetensors", "ESRGAN", 1),
    ("rrdb-plus-2x.safetensors", "ESRGAN+", 2),
    ("compact-3x.pth", "Compact", 3),
    ("compact-1x.safetensors", "Compact", 1),
    ("span-2x.safetensors", "SPAN", 2),
];
/// Tiles of the golden files.
const TILES: Tiles = Tiles::Of { side: 16, overlap: 8 };

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upscaler").join(name)
}

fn upscaler(path: &Path) -> Upscaler<Cpu> {
    Upscaler::load(&Cpu::new(Precision::F32), &UpscalerFile::open(path).unwrap()).unwrap()
}

/// Returns a tensor [3, height, width] of a golden file, as [height * width, 3].
fn pixels(golden: &SafeTensors<'_>, name: &str) -> (Vec<f32>, [usize; 2]) {
    let view = golden.tensor(name).unwrap();
    let &[3, height, width] = view.shape() else { panic!("{name} {:?}", view.shape()) };
    let values: Vec<f32> =
        view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let area = height * width;
    ((0..3 * area).map(|i| values[i % 3 * area + i / 3]).collect(), [width, height])
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(path(&format!("{}-golden.safetensors", name.split('.').next().unwrap()))).unwrap()
}

fn input(golden: &SafeTensors<'_>) -> Rgb {
    let (values, [width, height]) = pixels(golden, "input");
    Rgb { width, height, bytes: values.iter().map(|value| (value * 255.0).round() as u8).collect() }
}

fn enlarged(upscaler: &Upscaler<Cpu>, image: &Rgb, tiles: Tiles) -> Rgb {
    upscaler.enlarge(image, tiles, &Caller::new(&mut |_| {}, &CancelFlag::default())).unwrap()
}

#[track_caller]
fn close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{what}: {worst}");
}

#[test]
fn every_network_computes_what_the_reference_does() {
    for (name, kind, scale) in FILES {
        let file = UpscalerFile::open(&path(name)).unwrap();
        assert_eq!((file.architecture(), file.scale()), (kind, scale), "{name}");
        let (upscaler, bytes) = (upscaler(&path(name)), golden(name));
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let image = input(&golden);
        for (tensor, tiles) in [("output", Tiles::Whole), ("tiled", TILES)] {
            let (expected, size) = pixels(&golden, tensor);
            let got = upscaler.values(&image, tiles).unwrap();
            close(&format!("{name} {tensor}"), &got, &expected);
            let made = enlarged(&upscaler, &image, tiles);
            assert_eq!([made.width, made.height], size, "{name} {tensor}");
            let off =
                |(got, expected): (&u8, &f32)| (f32::from(*got) - (expected * 255.0).clamp(0.0, 255.0)).abs() > 0.51;
            assert!(!made.bytes.iter().zip(&expected).any(off), "{name} {tensor}: bytes");
        }
    }
}

#[test]
fn a_tile_as_large_as_the_image_changes_nothing() {
    for name in ["rrdb-new-2x.pth", "compact-3x.pth"] {
        let (upscaler, bytes) = (upscaler(&path(name)), golden(name));
        let image = input(&SafeTensors::deserialize(&bytes).unwrap());
        let whole = enlarged(&upscaler, &image, Tiles::Whole);
        for tiles in [Tiles::Auto, Tiles::Of { side: 21, overlap: 8 }, Tiles::Of { side: 64, overlap: 8 }] {
            assert_eq!(enlarged(&upscaler, &image, tiles), whole, "{name} {tiles:?}");
        }
    }
}

#[test]
fn the_smallest_images_are_enlarged_and_empty_ones_refused() {
    for (name, _, scale) in FILES {
        let upscaler = upscaler(&path(name));
        for [width, height] in [[1, 1], [1, 3], [2, 1]] {
            let image = Rgb { width, height, bytes: vec![77; 3 * width * height] };
            let made = enlarged(&upscaler, &image, Tiles::Auto);
            assert_eq!([made.width, made.height], [width * scale, height * scale], "{name}");
        }
        let empty = Rgb { width: 0, height: 3, bytes: Vec::new() };
        assert!(upscaler.enlarge(&empty, Tiles::Auto, &Caller::new(&mut |_| {}, &CancelFlag::default())).is_err());
    }
}

#[test]
fn progress_rises_and_a_cancelled_image_ends() {
    let upscaler = upscaler(&path("compact-3x.pth"));
    let image = Rgb { width: 30, height: 20, bytes: vec![9; 1800] };
    let mut seen = Vec::new();
    let cancel = CancelFlag::default();
    upscaler
        .enlarge(&image, TILES, &Caller::new(&mut |progress| seen.push((progress.done, progress.total)), &cancel))
        .unwrap();
    assert!(
        seen.is_sorted()
            && seen.first().unwrap().0 == 0
            && seen.last().map(|(done, total)| done == total) == Some(true)
    );
    cancel.cancel();
    let ended = upscaler.enlarge(&image, TILES, &Caller::new(&mut |_| {}, &cancel));
    assert!(ended.is_err_and(|e| e.kind() == ErrorKind::Cancelled));
}

#[test]
fn other_files_are_refused_with_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let written = |names: &[&str]| {
        let zeros = [1u8; 36];
        let tensor =
            || safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, 1, 3, 3], &zeros).unwrap();
        let path = folder.path().join("x.safetensors");
        safetensors::serialize_to_file(names.iter().map(|name| (*name, tensor())), None, &path).unwrap();
        UpscalerFile::open(&path).expect_err("the file is refused").to_string()
    };
    for (names, words) in [
        (&["params.layers.0.residual_group.blocks.0.norm1.weight"][..], "SwinIR"),
        (&["unet.a", "unet.b"], "`unet.a`, `unet.b`"),
        (&["body.0.rdb1.conv1.weight"], "`conv_first.weight` is missing"),
        (&["body.0.rdb1.conv1.weight", "conv_first.weight"], "1 input channels"),
    ] {
        assert!(written(names).contains(words), "{words}: {}", written(names));
    }
    let cut = folder.path().join("cut.pth");
    let whole = fs::read(path("compact-3x.pth")).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    assert!(UpscalerFile::open(&cut).is_err());
    assert!(UpscalerFile::open(&folder.path().join("none.pth")).is_err());
}
