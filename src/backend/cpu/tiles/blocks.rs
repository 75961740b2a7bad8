//! Units that keep a block of sums in vector registers, and the loop that most of them share: [`unit!`].

use std::marker::PhantomData;

use super::Offsets;
use super::tile::{Line, LineTiles, PAIR, Sums, TILE, Tile, Tiles};

/// Instructions that multiply blocks of vectors. [`Unit`] makes a unit of them.
pub(super) trait Blocks {
    /// See [`Tiles::BYTES`].
    const BYTES: usize;
    /// See [`Tiles::OFFSET`].
    const OFFSET: i32;

    /// See [`Tiles::available`].
    fn available() -> bool;

    /// Computes `sums (or 0, unless add) += a b` over `count` pairs of tiles; `at` returns the addresses of both. Sums
    /// past `x_rows` rows of X, 16 or 32, may be left out.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions. `at` returns addresses of 32 rows of 64 bytes, and of two tiles.
    unsafe fn accumulate(
        count: usize,
        at: impl Fn(usize) -> (*const u8, *const u8),
        x_rows: usize,
        add: bool,
        sums: &mut Sums,
    );
}

/// A unit of vector instructions, which multiplies tiles and lines. It exists only on a CPU that has them.
pub(super) struct Unit<T>(PhantomData<T>);

impl<T: Blocks> Tiles for Unit<T> {
    const BLOCK_STEPS: usize = 16;
    const BYTES: usize = T::BYTES;
    const OFFSET: i32 = T::OFFSET;

    fn available() -> bool {
        T::available()
    }

    fn begin() -> Self {
        assert!(T::available());
        Self(PhantomData)
    }

    fn multiply(
        &self,
        a: &[Tile],
        b: &[Tile],
        terms: usize,
        x_rows: usize,
        add: bool,
        sums: &mut Sums,
        _: *const Tile,
    ) {
        assert!(terms > 0 && a.len().is_multiple_of(2) && b.len() == a.len() * terms);
        let (count, a, b) = (b.len() / 2, a.as_ptr(), b.as_ptr());
        let at = |i: usize| (a.wrapping_add(i / terms * 2).cast(), b.wrapping_add(i * 2).cast());
        let x_rows = if x_rows > TILE { PAIR } else { TILE };
        // SAFETY: `self` exists, so the CPU has the instructions; `a` has two tiles for each step, and `b` two for each
        // step and term.
        unsafe { T::accumulate(count, at, x_rows, add, sums) };
    }
}

impl<T: Blocks> LineTiles for Unit<T> {
    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums) {
        let (steps, terms) = (b.len() / 2, offsets.terms());
        assert!(terms > 0 && offsets.bytes().len() == steps * terms && a.len() >= offsets.reach());
        let (a, b, offsets) = (a.as_ptr().cast::<u8>(), b.as_ptr(), offsets.bytes());
        let at = |i: usize| (a.wrapping_add(offsets[i]), b.wrapping_add(i / terms * 2).cast());
        // SAFETY: `self` exists, so the CPU has the instructions; `a` has 32 lines from each offset on, which end
        // before `reach`, and `b` two tiles for each step.
        unsafe { T::accumulate(steps * terms, at, PAIR, false, sums) };
    }
}

/// Defines a unit by its features, its vectors, the rows and vectors of a block of sums (also for at most 16 rows of
/// X), and the product that it adds to a vector of sums.
///
/// A vector holds cells of 32 bits of 4 to 16 rows of X. They are multiplied by a cell of a row of W, which the load
/// broadcasts. A block of sums, `ROWS` rows of W by `VECTORS` vectors, stays in registers.
macro_rules! unit {
    (
        $(#[$doc:meta])*
        $unit:ident, $features:literal, $detected:expr, $lanes:literal x $vector:ty: $load:ident $store:ident
        $broadcast:ident, $bytes:literal bytes, offset $offset:literal,
        blocks $rows:literal x $vectors:literal, $few_rows:literal x $few_vectors:literal,
        |$sum:ident, $w:ident, $x:ident| $product:expr
    ) => {
        $(#[$doc])*
        pub(super) struct $unit;

        impl $unit {
            /// See [`Blocks::accumulate`].
            ///
            /// # Safety
            ///
            /// As there.
            #[target_feature(enable = $features)]
            unsafe fn accumulate_in<const ROWS: usize, const VECTORS: usize>(
                count: usize,
                at: impl Fn(usize) -> (*const u8, *const u8),
                x_rows: usize,
                add: bool,
                sums: &mut Sums,
            ) {
                const LANES: usize = $lanes;
                let sums = sums.0.as_mut_ptr().cast::<u32>();
                // The first of a vector of sums: of a row of W, from a row of X on.
                let cells = |row: usize, x: usize| {
                    sums.wrapping_add((row / TILE * 2 + x / TILE) * TILE * TILE + row % TILE * TILE + x % TILE)
                };
                for x in (0..x_rows).step_by(LANES * VECTORS) {
                    for row in (0..PAIR).step_by(ROWS) {
                        let mut block = [[$broadcast(0); VECTORS]; ROWS];
                        if add {
                            for (r, block) in block.iter_mut().enumerate() {
                                for (v, sum) in block.iter_mut().enumerate() {
                                    // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                    *sum = unsafe { $load(cells(row + r, x + v * LANES).cast()) };
                                }
                            }
                        }
                        for i in 0..count {
                            let (a, b) = at(i);
                            let a = a.wrapping_add(row * LINE_BYTES);
                            for cell in 0..TILE {
                                let mut xs = [$broadcast(0); VECTORS];
                                for (v, values) in xs.iter_mut().enumerate() {
                                    let x = x + v * LANES;
                                    let at = x / TILE * TILE_BYTES + cell * LINE_BYTES + x % TILE * 4;
                                    // SAFETY: a vector of a row of the caller's two tiles.
                                    *values = unsafe { $load(b.wrapping_add(at).cast()) };
                                }
                                for (r, block) in block.iter_mut().enumerate() {
                                    let weight = a.wrapping_add(r * LINE_BYTES + cell * 4).cast::<i32>();
                                    // SAFETY: a cell of the caller's 32 rows.
                                    let $w: $vector = $broadcast(unsafe { weight.read_unaligned() });
                                    for ($sum, $x) in block.iter_mut().zip(xs) {
                                        *$sum = $product;
                                    }
                                }
                            }
                        }
                        for (r, block) in block.iter().enumerate() {
                            for (v, sum) in block.iter().enumerate() {
                                // SAFETY: the vectors of a block are in the 32 x 32 sums.
                                unsafe { $store(cells(row + r, x + v * LANES).cast(), *sum) };
                            }
                        }
                    }
                }
            }
        }

        impl Blocks for $unit {
            const BYTES: usize = $bytes;
            const OFFSET: i32 = $offset;

            fn available() -> bool {
                $detected
            }

            unsafe fn accumulate(
                count: usize,
                at: impl Fn(usize) -> (*const u8, *const u8),
                x_rows: usize,
                add: bool,
                sums: &mut Sums,
            ) {
                // SAFETY: as the caller promises.
                unsafe {
                    if x_rows > TILE {
                        Self::accumulate_in::<$rows, $vectors>(count, at, PAIR, add, sums);
                    } else {
                        Self::accumulate_in::<$few_rows, $few_vectors>(count, at, TILE, add, sums);
                    }
                }
            }
        }
    };
}

pub(super) use unit;
