//! The units, as tables. A unit is used if the CPU has its instructions and it passes a short check.

use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::blocks::Unit;
#[cfg(target_arch = "aarch64")]
use super::neon::{Bfmmla, Sdot, Usmmla};
use super::portable::Portable;
use super::tile::{Tiles, is_usable};
#[cfg(target_arch = "x86_64")]
use super::vectors::{Avx2, Avx512Bf16, Avx512Vnni, AvxVnni, is_amd};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::windows;
use super::windows::MultiplyWindows;
use super::{Multiply, multiply_on};

/// A unit that multiplies bfloat16.
pub struct Bf16Unit {
    /// The name of its instructions.
    pub name: &'static str,
    /// Returns `true` if this CPU has the instructions, and they pass a short comparison with their definition.
    pub is_available: fn() -> bool,
    /// True if three terms are faster than float32.
    pub is_fast_in_terms: bool,
    /// Returns `true` if one term is faster than float32.
    pub is_fast: fn() -> bool,
    /// The matrix multiplication.
    pub multiply: Multiply,
    /// The convolution.
    pub multiply_windows: MultiplyWindows,
}

/// A unit that multiplies 8-bit integers.
pub struct Int8Unit {
    /// The name of its instructions.
    pub name: &'static str,
    /// Returns `true` if this CPU has the instructions, and they pass a short comparison with their definition.
    pub is_available: fn() -> bool,
    /// The matrix multiplication; columns of [`Output::integers`](super::Output::integers) are required.
    pub multiply: Multiply,
}

/// The units for bfloat16, the fastest first.
pub static BF16: &[Bf16Unit] = &[
    #[cfg(target_arch = "x86_64")]
    Bf16Unit {
        name: "AMX-BF16",
        is_available: is_usable::<Amx<false>>,
        is_fast_in_terms: true,
        is_fast: || true,
        multiply: multiply_on::<Amx<false>>,
        multiply_windows: windows::multiply_on::<Amx<false>>,
    },
    #[cfg(target_arch = "x86_64")]
    Bf16Unit {
        name: "AVX512-BF16",
        is_available: is_usable::<Unit<Avx512Bf16>>,
        is_fast_in_terms: false,
        is_fast: is_amd,
        multiply: multiply_on::<Unit<Avx512Bf16>>,
        multiply_windows: windows::multiply_on::<Unit<Avx512Bf16>>,
    },
    // On Neoverse V1 and N2 an instruction has four times the products of a float32 multiply-add, and another arranges
    // operands for each two of them. One term may be faster there, but it was never timed, nor are other CPUs known.
    #[cfg(target_arch = "aarch64")]
    Bf16Unit {
        name: "BFMMLA",
        is_available: is_usable::<Unit<Bfmmla>>,
        is_fast_in_terms: false,
        is_fast: || false,
        multiply: multiply_on::<Unit<Bfmmla>>,
        multiply_windows: windows::multiply_on::<Unit<Bfmmla>>,
    },
];

impl Int8Unit {
    const fn new<T: Tiles>(name: &'static str) -> Self {
        Self { name, is_available: is_usable::<T>, multiply: multiply_on::<T> }
    }
}

/// The units for integers, the fastest first; the last is always available.
pub static INT8: &[Int8Unit] = &[
    #[cfg(target_arch = "x86_64")]
    Int8Unit::new::<Amx<true>>("AMX-INT8"),
    #[cfg(target_arch = "x86_64")]
    Int8Unit::new::<Unit<Avx512Vnni>>("AVX512-VNNI"),
    #[cfg(target_arch = "x86_64")]
    Int8Unit::new::<Unit<AvxVnni>>("AVX-VNNI"),
    #[cfg(target_arch = "x86_64")]
    Int8Unit::new::<Unit<Avx2>>("AVX2"),
    #[cfg(target_arch = "aarch64")]
    Int8Unit::new::<Unit<Usmmla>>("USMMLA"),
    #[cfg(target_arch = "aarch64")]
    Int8Unit::new::<Unit<Sdot>>("SDOT"),
    Int8Unit::new::<Portable>("portable"),
];

/// Returns the fastest unit for bfloat16 of this CPU, if it has one.
pub fn bf16() -> Option<&'static Bf16Unit> {
    static UNIT: OnceLock<Option<&Bf16Unit>> = OnceLock::new();
    *UNIT.get_or_init(|| BF16.iter().find(|unit| (unit.is_available)()))
}

/// Returns the fastest unit for integers of this CPU.
pub fn int8() -> &'static Int8Unit {
    static UNIT: OnceLock<&Int8Unit> = OnceLock::new();
    UNIT.get_or_init(|| INT8.iter().find(|unit| (unit.is_available)()).unwrap_or(&INT8[INT8.len() - 1]))
}
