//! Generation and check of docs/occupancy.md: compiler resources of each kernel, with the shared memory of its launch.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::attention::Base;
use super::conv2d_narrow::{NARROW, NARROW_UPSAMPLED};
use super::conv2d_sm90a::{HALVED, SAME, Shape};
use super::linear_quantized::Form;
use super::upsample_conv2d::UPSAMPLED;
use super::{
    attention, attention_512, attention_e4m3, attention_int8, conv2d_taps, linear_quantized, low_rank, project_tiles,
};
use crate::backend::cuda::buffer::BufferKind;
use crate::backend::cuda::element::Element;
use crate::backend::cuda::resources::{self, Kernels, Resources};

/// The resources of a multiprocessor. Source: CUDA C++ Programming Guide, technical specifications per compute
/// capability.
struct Architecture {
    /// The compiler's name.
    name: &'static str,
    capability: (i32, i32),
    gpus: &'static str,
    warps: usize,
    blocks: usize,
    shared: usize,
    /// Max shared memory of one block.
    shared_of_block: usize,
}

const fn architecture(
    name: &'static str,
    capability: (i32, i32),
    gpus: &'static str,
    [warps, blocks, shared_kib]: [usize; 3],
) -> Architecture {
    let reserved = if capability.0 == 7 { 0 } else { 1 };
    let [shared, shared_of_block] = [shared_kib << 10, (shared_kib - reserved) << 10];
    Architecture { name, capability, gpus, warps, blocks, shared, shared_of_block }
}

const ARCHITECTURES: [Architecture; 7] = [
    architecture("75", (7, 5), "Turing", [32, 16, 64]),
    architecture("80", (8, 0), "A100", [64, 32, 164]),
    architecture("86", (8, 6), "RTX 30, A10", [48, 16, 100]),
    architecture("89", (8, 9), "RTX 40, L4, L40S", [48, 24, 100]),
    architecture("90a", (9, 0), "H100, H200", [64, 32, 228]),
    architecture("100", (10, 0), "B200", [64, 32, 228]),
    architecture("120", (12, 0), "RTX 50", [48, 24, 100]),
];

const THREADS_OF_WARP: usize = 32;
/// Registers of a multiprocessor on all of them, and their allocation unit per warp.
const REGISTERS: usize = 64 << 10;
const REGISTERS_STEP: usize = 256;

impl Architecture {
    fn element(&self) -> Element {
        if self.capability < (8, 0) { Element::F16 } else { Element::Bf16 }
    }

    /// Returns the concurrent blocks of a kernel on a multiprocessor, with all threads that the kernel is compiled for.
    fn blocks(&self, kernel: Resources, launched: usize) -> usize {
        let shared = kernel.shared + launched;
        if shared > self.shared_of_block {
            return 0;
        }
        let reserved = self.shared - self.shared_of_block;
        let warps = kernel.threads.div_ceil(THREADS_OF_WARP);
        let registers = (kernel.registers * THREADS_OF_WARP).next_multiple_of(REGISTERS_STEP);
        let by_registers = REGISTERS / registers / warps;
        let by_shared = self.shared / (shared + reserved).next_multiple_of(128).max(1);
        (self.warps / warps).min(self.blocks).min(by_registers).min(by_shared)
    }

    /// Returns the occupancy in percent of the max warps of a multiprocessor.
    fn percent(&self, kernel: Resources, launched: usize) -> usize {
        100 * self.blocks(kernel, launched) * kernel.threads.div_ceil(THREADS_OF_WARP) / self.warps
    }
}

/// Returns the bytes of dynamic shared memory of a launch.
fn launched(file: &str, kernel: &str, architecture: &Architecture) -> usize {
    let base = |head_dim| {
        let base = Base::find(head_dim, architecture.element(), architecture.capability)?;
        (base.name == kernel).then(|| base.shared_bytes(head_dim))
    };
    let shapes = || SAME.iter().chain(&HALVED).chain(&UPSAMPLED);
    match file {
        "attention" => [128, 64, 32, 16].into_iter().find_map(base).unwrap_or(0),
        "attention_512_sm90a" => attention_512::SHARED_BYTES,
        "attention_e4m3_sm90a" if kernel.ends_with("_sm90") => attention_e4m3::SHARED_BYTES,
        "attention_int8" if kernel == "attention_int8" => attention_int8::SHARED_BYTES,
        "attention_sm90a" => attention::HOPPER_SHARED_BYTES,
        "conv2d_taps" => conv2d_taps::shared_bytes(kernel, architecture.capability),
        "linear_int8" | "linear_w4a8" | linear_quantized::E4M3_FILE => {
            [BufferKind::Int8 { group: 1 }, BufferKind::W4a8 { group: 1 }, BufferKind::E4m3]
                .map(|kind| Form::choose(kind, architecture.element(), architecture.capability))
                .into_iter()
                .find(|form| form.kernel == kernel)
                .map_or(0, |form| form.shared_bytes(architecture.element()))
        }
        "low_rank_sm90a" => low_rank::SHARED_BYTES,
        "project_sm90a" => project_tiles::shared_bytes(kernel),
        _ => {
            let narrow = NARROW
                .iter()
                .chain(&NARROW_UPSAMPLED)
                .find(|shape| shape.name == kernel)
                .map(|shape| shape.shared_bytes());
            narrow.unwrap_or_else(|| shapes().find(|shape| shape.name == kernel).map_or(0, Shape::shared_bytes))
        }
    }
}

/// Returns `true` if a kernel is launched on an architecture: for some files each architecture has its own kernel.
fn is_launched(file: &str, kernel: &str, architecture: &Architecture) -> bool {
    !["attention", "conv2d_taps", "linear_int8"].contains(&file) || launched(file, kernel, architecture) > 0
}

fn kernels() -> Kernels {
    resources::from_text(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/resources.txt"))).unwrap()
}

/// Calls `f` for every kernel and every architecture on which it is launched.
fn each(mut f: impl FnMut(&str, &str, &Architecture, Resources)) {
    for ((file, kernel), by_arch) in &kernels() {
        for architecture in &ARCHITECTURES {
            if let Some(&resources) = by_arch.get(architecture.name)
                && is_launched(file, kernel, architecture)
            {
                f(file, kernel, architecture, resources);
            }
        }
    }
}

#[test]
fn every_kernel_fits_every_gpu_that_it_is_for() {
    each(|file, kernel, architecture, resources| {
        assert!(resources.threads > 0, "{kernel}: no __launch_bounds__");
        let blocks = architecture.blocks(resources, launched(file, kernel, architecture));
        assert!(blocks > 0, "{kernel} of {file}.cu does not fit a {}", architecture.gpus);
    });
}

/// Kernels that spill, and their spilled bytes. e4m3 kernels with mma.sync run on Hopper only in tests.
const SPILLING: [(&str, &str, usize); 7] = [
    ("attention_128x128", "100", 56),
    ("attention_int8", "90a", 20),
    ("multiply_e4m3", "90a", 24),
    ("exchange_through_host", "90a", 8),
    ("linear_e4m3", "90a", 228),
    ("linear_w4a8", "100", 148),
    ("linear_w4a8", "120", 32),
];

#[test]
fn no_kernel_spills_but_those_that_are_known() {
    let mut found = Vec::new();
    each(|_, kernel, architecture, resources| {
        if resources.spilled > 0 {
            found.push((kernel.to_string(), architecture.name, resources.spilled));
        }
    });
    assert_eq!(found, SPILLING.map(|(kernel, arch, bytes)| (kernel.to_string(), arch, bytes)));
}

/// Returns the page's table.
fn table() -> String {
    let mut text = String::from("| kernel | threads | shared memory, KiB |");
    ARCHITECTURES.iter().for_each(|arch| write!(text, " {}.{} |", arch.capability.0, arch.capability.1).unwrap());
    text.push_str("\n|---|---|---|");
    ARCHITECTURES.iter().for_each(|_| text.push_str("---|"));
    text.push('\n');
    for ((file, kernel), by_arch) in &kernels() {
        let of = |architecture: &Architecture| {
            let resources = *by_arch.get(architecture.name)?;
            is_launched(file, kernel, architecture).then(|| (resources, launched(file, kernel, architecture)))
        };
        let all = |number: &dyn Fn(Resources, usize) -> String| {
            let numbers: BTreeSet<String> = ARCHITECTURES
                .iter()
                .filter_map(|arch| of(arch).map(|(resources, bytes)| number(resources, bytes)))
                .collect();
            Vec::from_iter(numbers).join(", ")
        };
        let threads = all(&|resources, _| resources.threads.to_string());
        let kib = |resources: Resources, bytes: usize| format!("{:.1}", (resources.shared + bytes) as f64 / 1024.0);
        write!(text, "| {kernel} | {threads} | {} |", all(&kib).replace(".0", "")).unwrap();
        for architecture in &ARCHITECTURES {
            match of(architecture) {
                None => text.push_str(" |"),
                Some((resources, bytes)) => {
                    let spilled = match resources.spilled {
                        0 => String::new(),
                        bytes => format!(", {bytes} spilled"),
                    };
                    let percent = architecture.percent(resources, bytes);
                    write!(text, " {}{spilled}: {percent}% |", resources.registers).unwrap();
                }
            }
        }
        text.push('\n');
    }
    text
}

/// The text above the table.
const TOP: &str = "\
# Registers and occupancy

The compiler's numbers for each kernel, by compute capability: registers per thread, bytes that spill to local memory,
and the share of a multiprocessor's warps that run at once with the number of threads that the kernel is compiled for.
Shared memory is per block. If architectures differ, the table lists all numbers. An empty cell means that the kernel
is not built for that architecture. On Hopper, kernels whose names end in `sm90` give registers from the warps that
fetch to those that multiply.

`make kernels` compares the numbers in `cuda/resources.txt` with those of the compiler. A test compares this page with
them, and fails if a new kernel spills registers or if a kernel does not fit on a GPU that it is built for.

";

#[test]
fn the_page_is_what_the_compiler_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/occupancy.md");
    let text = TOP.to_string() + &table();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&page, text).unwrap();
        return;
    }
    let there = fs::read_to_string(&page).unwrap();
    assert!(there == text, "if the change is intended: UPDATE_SNAPSHOTS=1 cargo test --profile quick --lib occupancy");
}
