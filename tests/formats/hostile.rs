//! Damaged files lead to errors, or to tensors inside the file; never to a panic, or to more memory than the file
//! needs.
//!
//! `FLUX_FUZZ_RUNS` is the number of damaged files, `FLUX_FUZZ_SEED` chooses them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::thread;

use flux::files::{Bytes, Container};

const FILES: [&str; 8] = [
    "header.safetensors",
    "bitsandbytes.safetensors",
    "nvfp4-script.safetensors",
    "comfy.safetensors",
    "older.safetensors",
    "cast.safetensors",
    "fp8r.safetensors",
    "blocks.gguf",
];
/// Maximum allocation for a file of a few KiB: its values in float32 take at most 16 times its bytes.
const MAX_BYTES: usize = 1 << 20;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, and the largest allocation of each thread.
struct Watched;

#[global_allocator]
static WATCHED: Watched = Watched;

fn watch(bytes: usize) {
    // A thread that is ending has lost its value.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call goes to `System` unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        watch(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        watch(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        watch(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn read(name: &str) -> Vec<u8> {
    fs::read(crate::program::project("").join("tests/formats").join(name)).unwrap()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Returns `true` if the file can be opened; all of its tensors are then read.
fn opens(bytes: &[u8]) -> bool {
    let copy = |to: &mut [u8]| -> Result<(), String> {
        to.copy_from_slice(bytes);
        Ok(())
    };
    let (bytes, ()) = Bytes::filled(bytes.len(), copy).unwrap();
    let Ok(file) = Container::new(PathBuf::from("model"), bytes, "") else { return false };
    for name in file.names() {
        let Ok(view) = file.tensor(name) else { continue };
        // A damaged header may have a shape of many axes, and of values without bytes.
        assert!(view.elements() <= 8 * view.bytes().len() + 1, "{name}");
        view.to_f32();
        view.row_range(0..view.rows().min(1));
    }
    true
}

/// Damages a few bytes, in half of the cases at the start of the file, because the header is there.
fn damage(bytes: &mut Vec<u8>, mut random: impl FnMut(usize) -> usize) {
    for _ in 0..1 + random(3) {
        let place = if random(2) == 0 { random(bytes.len().min(1024)) } else { random(bytes.len()) };
        let old = bytes[place];
        bytes[place] = match random(5) {
            0 if old.is_ascii_digit() => b'0' + random(10) as u8,
            0 | 1 => random(256) as u8,
            2 => old ^ (1 << random(8)),
            3 => 0,
            _ => 0xff,
        };
    }
    if random(10) == 0 {
        bytes.truncate(bytes.len() - random(bytes.len()));
    }
}

#[test]
fn files_that_are_cut_off_are_refused() {
    for name in FILES {
        let bytes = read(name);
        // The end of a GGUF file is padding.
        let end = if name.ends_with("gguf") { bytes.len() - 32 } else { bytes.len() };
        for len in (0..end).step_by(1 + end / 500) {
            assert!(!opens(&bytes[..len]), "{len} bytes of {name}");
        }
    }
}

#[test]
fn files_that_are_damaged_lead_to_no_panic_and_take_little_memory() {
    let (runs, seed) = (number("FLUX_FUZZ_RUNS", 10_000), number("FLUX_FUZZ_SEED", 1));
    let of_each = runs.div_ceil(FILES.len() as u64);
    let of_file = |index: usize| {
        let (name, bytes) = (FILES[index], read(FILES[index]));
        let mut state = seed.wrapping_mul(FILES.len() as u64).wrapping_add(index as u64);
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut opened = 0;
        for run in 0..of_each {
            let mut damaged = bytes.clone();
            damage(&mut damaged, &mut random);
            LARGEST.set(0);
            opened += u64::from(opens(&damaged));
            let largest = LARGEST.get();
            assert!(largest <= MAX_BYTES, "run {run} of {name}: {largest} bytes were allocated at once");
        }
        println!("{name}: {opened} of {of_each} damaged files are opened");
        assert!(opened > of_each / 100 && opened < of_each, "{opened} of {of_each} of {name} are opened");
    };
    thread::scope(|scope| {
        for index in 0..FILES.len() {
            scope.spawn(move || of_file(index));
        }
    });
}
