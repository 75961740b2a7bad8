//! The properties of the host: its processor and its memory.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::thread;

use serde::Serialize;

use super::tiles::BF16;
use super::{Cpu, Precision, gemm};
use crate::memory;

/// The processor and the memory of the host.
#[derive(Debug, Clone, Serialize)]
pub struct HostFacts {
    /// The name of the processor; `None` if the system doesn't report it.
    pub name: Option<String>,
    /// Cores of the machine; `None` if the system doesn't report them.
    pub cores: Option<usize>,
    /// Threads that this program may run at once.
    pub threads: usize,
    /// The processor's instruction sets that this program uses.
    pub instructions: Vec<&'static str>,
    /// A description of the arithmetic of matrix multiplications.
    pub products: String,
    /// Total bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that this program may take; `None` if the system doesn't report them.
    pub available_bytes: Option<u64>,
}

/// Queries the system.
pub fn host_facts() -> HostFacts {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    HostFacts {
        name: name(&cpuinfo),
        cores: cores(&cpuinfo),
        threads: thread::available_parallelism().map_or(1, NonZero::get),
        instructions: instructions(),
        products: products(),
        memory_bytes: memory::total_bytes(),
        available_bytes: Some(memory::available_bytes()).filter(|bytes| *bytes < u64::MAX),
    }
}

/// Describes the default arithmetic.
fn products() -> String {
    let built_in = gemm::describe(Precision::F32);
    if Cpu::is_bf16_faster() {
        format!("{built_in}; of large models {}", gemm::describe(Precision::Bf16))
    } else {
        built_in
    }
}

/// Returns the value of a key in a line of /proc/cpuinfo.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (name, value) = line.split_once(':')?;
    (name.trim() == key).then(|| value.trim())
}

fn name(cpuinfo: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| value(line, "model name")).map(String::from)
}

/// Returns the cores of all sockets; several threads may share one.
fn cores(cpuinfo: &str) -> Option<usize> {
    let core = |block: &str| {
        let of = |key| block.lines().find_map(|line| value(line, key)).map(String::from);
        Some((of("physical id")?, of("core id")?))
    };
    Some(cpuinfo.split("\n\n").filter_map(core).collect::<BTreeSet<_>>().len()).filter(|cores| *cores > 0)
}

/// Returns the instruction sets of matrix multiplications and sums, which determine the order of rounding.
pub(super) fn instructions() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512-bf16", has_unit("AVX512-BF16")),
        ("amx-bf16", has_unit("AMX-BF16")),
    ];
    #[cfg(target_arch = "aarch64")]
    let found = [
        ("neon", true),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("bf16", has_unit("BFMMLA")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(&str, bool); 0] = [];
    found.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn has_unit(name: &str) -> bool {
    BF16.iter().any(|unit| unit.name == name && (unit.is_available)())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_once_however_many_threads_share_them() {
        let block = |core: usize, socket: usize| {
            format!("processor\t: 0\nmodel name\t: A CPU : 3\nphysical id\t: {socket}\ncore id\t\t: {core}\n")
        };
        let text = [block(0, 0), block(1, 0), block(0, 0), block(0, 1)].join("\n");
        assert_eq!((cores(&text), name(&text).as_deref()), (Some(3), Some("A CPU : 3")));
        assert_eq!((cores(""), name("")), (None, None));
    }

    #[test]
    fn this_host_has_threads_and_a_way_to_multiply() {
        let host = host_facts();
        assert!(host.threads > 0 && !host.products.is_empty(), "{host:?}");
    }
}
