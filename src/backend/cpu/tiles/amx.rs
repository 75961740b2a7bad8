//! The tile unit of Intel CPUs since Sapphire Rapids: AMX-BF16 and AMX-INT8.

use super::Offsets;
use super::tile::{Line, LineTiles, Sums, Tile, Tiles};

/// The tile unit, configured on this thread; it multiplies bfloat16, or integers if `INT8`.
pub(super) struct Amx<const INT8: bool> {
    /// Makes the type neither `Send` nor `Sync`: the configuration belongs to a thread, so it must end on that thread.
    _this_thread: std::marker::PhantomData<*const ()>,
}

/// Expands to assembly that zeroes the tiles of sums, tmm0 to tmm3.
macro_rules! zero_sums {
    () => {
        concat!("tilezero tmm0\n", "tilezero tmm1\n", "tilezero tmm2\n", "tilezero tmm3")
    };
}

/// Expands to assembly that writes the tiles of sums, tmm0 to tmm3, to `sums`, with rows `row` bytes apart.
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

/// Expands to the loop of [`Tiles::multiply`] with an instruction.
macro_rules! multiply_tiles {
    ($product:literal, $a:ident, $b:ident, $steps:ident, $terms:ident, $add:ident, $sums:ident, $prefetch:ident) => {
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
            concat!($product, " tmm0, tmm4, tmm6"),
            "prefetcht1 [{prefetch}]",
            "prefetcht1 [{prefetch} + 64]",
            concat!($product, " tmm2, tmm5, tmm6"),
            "prefetcht1 [{prefetch} + 128]",
            "prefetcht1 [{prefetch} + 192]",
            concat!($product, " tmm1, tmm4, tmm7"),
            "prefetcht1 [{prefetch} + 256]",
            "prefetcht1 [{prefetch} + 320]",
            concat!($product, " tmm3, tmm5, tmm7"),
            "prefetcht1 [{prefetch} + 384]",
            "prefetcht1 [{prefetch} + 448]",
            "add {b}, 2048",
            "add {prefetch}, 512",
            "dec {term}",
            "jnz 40b",
            "dec {steps}",
            "jnz 30b",
            store_sums!(),
            add = in(reg) usize::from($add),
            row = in(reg) 64usize,
            sums = in(reg) $sums.0.as_mut_ptr(),
            a = inout(reg) $a.as_ptr() => _,
            b = inout(reg) $b.as_ptr() => _,
            prefetch = inout(reg) $prefetch => _,
            steps = inout(reg) $steps => _,
            terms = in(reg) $terms,
            term = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl<const INT8: bool> Tiles for Amx<INT8> {
    /// A strip of X takes 64 to 96 KiB and the block of W at most 256 KiB, so reading and writing the 8 KiB of sums is
    /// cheap in comparison.
    const BLOCK_STEPS: usize = 32;
    const BYTES: usize = if INT8 { 1 } else { 2 };
    const OFFSET: i32 = if INT8 { 128 } else { 0 };

    /// Returns `true` if this CPU and this kernel permit the tiles. All CPUs that multiply bfloat16 multiply integers.
    fn available() -> bool {
        use std::sync::OnceLock;
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            const ALL: u32 = TILE_UNIT | BF16_PRODUCT | INT8_PRODUCT;
            const TILE_UNIT: u32 = 1 << 24;
            const BF16_PRODUCT: u32 = 1 << 22;
            const INT8_PRODUCT: u32 = 1 << 25;
            const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
            const XFEATURE_XTILE_DATA: libc::c_long = 18;
            #[allow(unused_unsafe)] // Newer compilers consider it safe.
            // SAFETY: every x86-64 CPU has cpuid, and leaf 7 is read only if leaf 0 reports it.
            let features = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx } };
            // The tiles are 8 KiB of state, which Linux (from 5.16) saves only for processes that requested it. It
            // refuses if the CPU or the hypervisor doesn't support them, so XCR0 needs no check.
            features & ALL == ALL
                // SAFETY: this request takes a number, touches no memory of ours, and holds for all threads of the
                // process.
                && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) } == 0
        })
    }

    fn begin() -> Self {
        assert!(Self::available(), "no AMX on this machine");
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

    fn multiply(
        &self,
        a: &[Tile],
        b: &[Tile],
        terms: usize,
        _: usize,
        add: bool,
        sums: &mut Sums,
        prefetch: *const Tile,
    ) {
        let steps = a.len() / 2;
        assert!(steps > 0 && terms > 0 && a.len() == 2 * steps && b.len() == a.len() * terms);
        // tmm0 to tmm3 hold the sums, tmm4 and tmm5 a step of W for all terms, tmm6 and tmm7 a term of X.
        // SAFETY: `self` exists, so this thread has tiles of 16 rows of 64 bytes. The loops read 2 tiles per step of
        // `a` and 2 tiles per step and term of `b`, as many as the assertion above found in them; `sums` is 4 tiles.
        // All are dense, 64 bytes per row. A prefetch never faults. The loop counts are at least 1.
        unsafe {
            if INT8 {
                // Signed W by unsigned X.
                multiply_tiles!("tdpbsud", a, b, steps, terms, add, sums, prefetch);
            } else {
                multiply_tiles!("tdpbf16ps", a, b, steps, terms, add, sums, prefetch);
            }
        }
    }
}

impl LineTiles for Amx<false> {
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

impl<const INT8: bool> Drop for Amx<INT8> {
    fn drop(&mut self) {
        // If a thread sleeps with tiles in use, the kernel has to save them, and the core may not reach a deeper sleep
        // state.
        // SAFETY: `begin` ensured that the CPU has tiles; no value is kept in them between multiplications.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
