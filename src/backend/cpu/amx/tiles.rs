//! The tile unit: its instructions and tile shapes.

use super::Offsets;

/// Rows of a tile, and float32 columns of a tile of sums.
pub(super) const TILE: usize = 16;
/// bfloat16 columns of W or X in a tile.
pub(super) const TILE_COLS: usize = 32;

/// A tile of bfloat16 bits.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [u16; TILE * TILE_COLS]);

// SAFETY: the fields are numbers, and may be zero.
unsafe impl bytemuck::Zeroable for Tile {}
// SAFETY: an array of numbers with a size that is a multiple of its alignment, so without padding.
unsafe impl bytemuck::Pod for Tile {}

/// A row of tile A: 32 bfloat16 numbers.
pub type Line = [u16; TILE_COLS];

/// 2 x 2 tiles of sums: [tile A of the pair][tile B of the pair][row of A][row of B^T], with rows of W and X, or of X
/// and W.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; TILE * TILE]; 4]);

pub(super) const NO_TILE: Tile = Tile([0; TILE * TILE_COLS]);
pub(super) const NO_SUMS: Sums = Sums([[0.0; TILE * TILE]; 4]);

/// The operations of the tile unit, so that tests can run the rest on any CPU.
pub(super) trait Tiles {
    /// Configures this thread for the multiplications below until the value is dropped.
    fn begin() -> Self;

    /// Computes `sums (or 0, unless add) += a b` for a pair of tiles of W by a strip of X.
    ///
    /// `a` is `[step][2]` tiles, `b` `[step][term][2]` tiles. For each step and term, 512 bytes from `prefetch` on are
    /// prefetched to the second-level cache, if they exist.
    fn multiply(&self, a: &[Tile], b: &[Tile], terms: usize, add: bool, sums: &mut Sums, prefetch: *const Tile);

    /// Computes `sums = a b`: a step and term of `a` is 32 consecutive lines from one of `offsets` on, and `b` is
    /// `[step][2]` tiles.
    ///
    /// Panics if `offsets` reach past the end of `a`, or if their number isn't that of the steps and terms.
    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums);
}

/// Returns `true` if this CPU and this kernel permit the tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn available() -> bool {
    use std::sync::OnceLock;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const TILE_UNIT: u32 = 1 << 24;
        const BF16_PRODUCT: u32 = 1 << 22;
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILE_DATA: libc::c_long = 18;
        #[allow(unused_unsafe)] // Newer compilers consider it safe.
        // SAFETY: every x86-64 CPU has cpuid, and leaf 7 is read only if leaf 0 reports it.
        let features = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx } };
        // The tiles are 8 KiB of state, which Linux (from 5.16) saves only for processes that requested it. It refuses
        // if the CPU or the hypervisor doesn't support them, so XCR0 needs no check.
        features & TILE_UNIT != 0
            && features & BF16_PRODUCT != 0
            // SAFETY: this request takes a number, touches no memory of ours, and holds for all threads of the process.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) } == 0
    })
}

/// Returns `true` if this CPU and this kernel permit the tiles.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn available() -> bool {
    false
}

/// The tile unit, configured on this thread.
#[cfg(target_arch = "x86_64")]
pub(super) struct Unit {
    /// Makes the type neither `Send` nor `Sync`: the configuration belongs to a thread, so it must end on that thread.
    _this_thread: std::marker::PhantomData<*const ()>,
}

/// Expands to assembly that zeroes the tiles of sums, tmm0 to tmm3.
#[cfg(target_arch = "x86_64")]
macro_rules! zero_sums {
    () => {
        concat!("tilezero tmm0\n", "tilezero tmm1\n", "tilezero tmm2\n", "tilezero tmm3")
    };
}

/// Expands to assembly that writes the tiles of sums, tmm0 to tmm3, to `sums`, with rows `row` bytes apart.
#[cfg(target_arch = "x86_64")]
macro_rules! store_sums {
    () => {
        concat!(
            "tilestored [{sums} + {row}*1], tmm0\n",
            "tilestored [{sums} + {row}*1 + 1024], tmm1\n",
            "tilestored [{sums} + {row}*1 + 2048], tmm2\n",
            "tilestored [{sums} + {row}*1 + 3072], tmm3"
        )
    };
}

#[cfg(target_arch = "x86_64")]
impl Tiles for Unit {
    fn begin() -> Self {
        assert!(available(), "no AMX-BF16 on this machine");
        /// Palette 1: eight tiles, each of 16 rows of 64 bytes. Entries past the eighth must be 0.
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: `available` checked that the CPU has tiles and that the kernel permits them. The instruction reads 64
        // bytes, the size of `Config`.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        Self { _this_thread: std::marker::PhantomData }
    }

    fn multiply(&self, a: &[Tile], b: &[Tile], terms: usize, add: bool, sums: &mut Sums, prefetch: *const Tile) {
        let steps = a.len() / 2;
        assert!(steps > 0 && terms > 0 && a.len() == 2 * steps && b.len() == a.len() * terms);
        // tmm0 to tmm3 hold the sums, tmm4 and tmm5 a step of W for all terms, tmm6 and tmm7 a term of X.
        // SAFETY: `self` exists, so this thread has tiles of 16 rows of 64 bytes. The loops read 2 tiles per step of
        // `a` and 2 tiles per step and term of `b`, as many as the assertion above found in them; `sums` is 4 tiles.
        // All are dense, 64 bytes per row. A prefetch never faults. The loop counts are at least 1.
        unsafe {
            std::arch::asm!(
                "test {add:e}, {add:e}",
                "jnz 20f",
                zero_sums!(),
                "jmp 30f",
                "20:",
                "tileloadd tmm0, [{sums} + {row}*1]",
                "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
                "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
                "tileloadd tmm3, [{sums} + {row}*1 + 3072]",
                "30:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "add {a}, 2048",
                "mov {term}, {terms}",
                "40:",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht1 [{prefetch}]",
                "prefetcht1 [{prefetch} + 64]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "prefetcht1 [{prefetch} + 128]",
                "prefetcht1 [{prefetch} + 192]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "prefetcht1 [{prefetch} + 256]",
                "prefetcht1 [{prefetch} + 320]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht1 [{prefetch} + 384]",
                "prefetcht1 [{prefetch} + 448]",
                "add {b}, 2048",
                "add {prefetch}, 512",
                "dec {term}",
                "jnz 40b",
                "dec {steps}",
                "jnz 30b",
                store_sums!(),
                add = in(reg) usize::from(add),
                row = in(reg) 64usize,
                sums = in(reg) sums.0.as_mut_ptr(),
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                prefetch = inout(reg) prefetch => _,
                steps = inout(reg) steps => _,
                terms = in(reg) terms,
                term = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums) {
        let (steps, terms) = (b.len() / 2, offsets.terms());
        assert!(
            steps > 0
                && terms > 0
                && b.len() == 2 * steps
                && offsets.bytes().len() == steps * terms
                && a.len() >= offsets.reach()
        );
        // tmm0 to tmm3 hold the sums, tmm4 and tmm5 a term of X, tmm6 and tmm7 a step of W for all terms.
        // SAFETY: `self` exists, so this thread has tiles of 16 rows of 64 bytes. The loops read 32 lines of 64 bytes
        // of `a` from each offset on, which end before `reach`; 2 tiles per step of `b`; and one of `offsets` per step
        // and term, as many as the assertion above found in them; `sums` is 4 tiles, dense, 64 bytes per row. The loop
        // counts are at least 1.
        unsafe {
            std::arch::asm!(
                zero_sums!(),
                "30:",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "add {b}, 2048",
                "mov {term}, {terms}",
                "40:",
                "mov {at}, [{offsets}]",
                "add {offsets}, 8",
                "add {at}, {a}",
                "tileloadd tmm4, [{at} + {row}*1]",
                "tileloadd tmm5, [{at} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {term}",
                "jnz 40b",
                "dec {steps}",
                "jnz 30b",
                store_sums!(),
                row = in(reg) 64usize,
                sums = in(reg) sums.0.as_mut_ptr(),
                a = in(reg) a.as_ptr(),
                b = inout(reg) b.as_ptr() => _,
                offsets = inout(reg) offsets.bytes().as_ptr() => _,
                at = out(reg) _,
                steps = inout(reg) steps => _,
                terms = in(reg) terms,
                term = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Unit {
    fn drop(&mut self) {
        // If a thread sleeps with tiles in use, the kernel has to save them, and the core may not reach a deeper sleep
        // state.
        // SAFETY: `begin` ensured that the CPU has tiles; no value is kept in them between multiplications.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Writes `to[col * stride + row] = from[row * 16 + col]` for 16 x 16 cells of 32 bits.
///
/// # Safety
///
/// `from` has 256 cells, `to` has the written cells, and they do not overlap.
pub(super) unsafe fn transpose(from: *const u32, to: *mut u32, stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        for (row, col) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: the CPU has AVX; the caller's cells hold the four blocks of 8 x 8 cells.
            unsafe { transpose_8x8(from.add(row * TILE + col).cast(), to.add(col * stride + row).cast(), stride) };
        }
        return;
    }
    for row in 0..TILE {
        for col in 0..TILE {
            // SAFETY: the cells that the caller promises.
            unsafe { *to.add(col * stride + row) = *from.add(row * TILE + col) };
        }
    }
}

/// Transposes one quarter of [`transpose`]; these moves preserve all bits, including those of a NaN.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_8x8(from: *const f32, to: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's 8 rows of 8 cells, 16 cells apart.
    let r: [__m256; 8] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(from.add(i * TILE)) });
    // Pairs of rows, then fours, then all eight.
    let pairs: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (r[i / 2 * 2], r[i / 2 * 2 + 1]);
        if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
    });
    let fours: [__m256; 8] = std::array::from_fn(|i| {
        let (a, b) = (pairs[i / 4 * 4 + i / 2 % 2], pairs[i / 4 * 4 + i / 2 % 2 + 2]);
        if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
    });
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        // SAFETY: the caller's 8 rows of 8 cells, `stride` cells apart.
        unsafe {
            _mm256_storeu_ps(to.add(i * stride), low);
            _mm256_storeu_ps(to.add((i + 4) * stride), high);
        }
    }
}
