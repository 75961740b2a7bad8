//! The tiles of cuda/project_sm90a.cu, and the choice of their height.

/// Columns of a tile: `2 * COLS` of cuda/project_tiles_sm90a.cuh, because two blocks compute one tile.
pub(super) const COLS: usize = 256;
/// `STEP_BYTES`, `STAGES` and `STORERS` of that file.
const STEP_BYTES: usize = 128;
const STAGES: usize = 3;
const STORERS: usize = 3;
/// Max rows of tiles in a group: their x stays in L2 while weights stream.
const MAX_TOGETHER: usize = 14;
/// A short tile takes as long as this many rows of a whole one, whatever its height: it is computed after all whole
/// tiles, when L2 no longer has its weights.
const ROWS_OF_SHORT: usize = 224;

/// The kernels with tiles of one height, and the value of `FLUX_PROJECT` that selects them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernels {
    height: usize,
    pub(super) form: &'static str,
    pub(super) bf16: &'static str,
    pub(super) low_rank: &'static str,
    pub(super) e4m3: &'static str,
    pub(super) e4m3_low_rank: &'static str,
}

macro_rules! kernels {
    ($height:literal) => {
        Kernels {
            height: $height,
            form: concat!("sm90-", $height),
            bf16: concat!("project_bf16_", $height, "_sm90"),
            low_rank: concat!("project_low_rank_", $height, "_sm90"),
            e4m3: concat!("project_e4m3_", $height, "_sm90"),
            e4m3_low_rank: concat!("project_e4m3_low_rank_", $height, "_sm90"),
        }
    };
}

/// On equal times, the first are used.
pub(super) const KERNELS: [&Kernels; 2] = [&kernels!(256), &kernels!(224)];

/// The rows of tiles of a matrix multiplication in one or two parts, counted as `Work` of that file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    /// The kernels that compute the tiles.
    pub(super) kernels: &'static Kernels,
    /// Rows of whole tiles that need all columns; each is more than half full.
    tall: usize,
    /// Rows of tiles of at most half the height, at the end of each part.
    short: usize,
    /// Rows of whole tiles that need only k and v: the first of part 0.
    pub(super) keys: usize,
}

impl Tiles {
    /// Returns the tiles of these kernels for parts of these rows; the first `keys_only` rows need only k and v.
    pub(super) fn new(kernels: &'static Kernels, part_rows: [usize; 2], keys_only: usize) -> Self {
        let height = kernels.height;
        let tall = part_rows.map(|rows| (rows + height / 2 - 1) / height);
        let short = [0, 1].map(|part| usize::from(part_rows[part] > tall[part] * height));
        let keys = keys_only / height;
        Self { kernels, tall: tall[0] + tall[1] - keys, short: short[0] + short[1], keys }
    }

    /// Returns the tiles with the height that finishes first, for rows with these numbers of columns of tiles, all and
    /// only k and v.
    pub(super) fn fastest(part_rows: [usize; 2], keys_only: usize, cols: [usize; 2], clusters: usize) -> Self {
        let [first, second] = KERNELS.map(|kernels| Self::new(kernels, part_rows, keys_only));
        let time = |tiles: &Self| tiles.time(cols, clusters.max(1));
        if time(&second) < time(&first) { second } else { first }
    }

    /// Returns the time of the slowest cluster, in rows of whole tiles. Clusters process tiles in the order of
    /// `Work::tile_of` of that file.
    fn time(&self, [cols, key_cols]: [usize; 2], clusters: usize) -> usize {
        let (whole, short) = (self.tall * cols, self.short * cols);
        let (rounds, last) = (whole / clusters, whole % clusters);
        let (last_round, short_behind) = if last == 0 {
            (0, short)
        } else if 2 * last + short <= clusters {
            // The whole tiles are computed in halves, which fetch as many weights.
            (self.height() * 5 / 8, 0)
        } else {
            // Clusters without a whole tile in the last round compute two short ones instead.
            let instead = short.min(2 * (clusters - last));
            (self.height().max(instead.min(2) * ROWS_OF_SHORT), short - instead)
        };
        let keys = (self.keys * key_cols).div_ceil(clusters);
        (rounds + keys) * self.height() + last_round + short_behind.div_ceil(clusters) * ROWS_OF_SHORT
    }

    /// Returns the rows of x in a whole tile.
    pub(super) fn height(&self) -> usize {
        self.kernels.height
    }

    /// Returns the number of tiles.
    pub(super) fn count(&self, [cols, key_cols]: [usize; 2]) -> usize {
        (self.tall + self.short) * cols + self.keys * key_cols
    }

    /// Returns the rows of whole tiles in a group.
    pub(super) fn rows_together(&self) -> usize {
        rows_of_tiles(self.tall)
    }

    /// Returns the rows of x in a box.
    pub(super) fn x_box(&self) -> usize {
        self.height() / 4
    }

    /// `BARRIERS` of that file, two barriers for each stage and each half of a tile, and two floats for each storing
    /// warp.
    pub(super) fn shared_bytes(&self) -> usize {
        STAGES * (self.height() + COLS / 2) * STEP_BYTES + self.height() * COLS + 16 * (STAGES + 2) + 8 * STORERS
    }
}

/// Returns the rows of tiles in a group, such that no group is much smaller than the others.
pub(super) fn rows_of_tiles(all: usize) -> usize {
    all.div_ceil(all.div_ceil(MAX_TOGETHER).max(1)).max(1)
}

/// Returns the bytes of shared memory of a kernel.
#[cfg(test)]
pub(super) fn shared_bytes(kernel: &str) -> usize {
    let of = |all: &&'static Kernels| [all.bf16, all.low_rank, all.e4m3, all.e4m3_low_rank].contains(&kernel);
    Tiles::new(KERNELS.into_iter().find(of).unwrap(), [0, 0], 0).shared_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of klein 4B and FLUX.3, and clusters of an H100 or H200.
    const SIZES: ([usize; 2], usize) = ([27648 / COLS, 6144 / COLS], 66);

    #[test]
    fn the_kernels_fit_the_shared_memory_of_hopper() {
        let bytes = KERNELS.map(|kernels| Tiles::new(kernels, [1, 0], 0).shared_bytes());
        assert_eq!(bytes, [3 * (256 + 128) * 128 + (64 << 10) + 104, 3 * (224 + 128) * 128 + (56 << 10) + 104]);
        assert!(bytes.iter().all(|bytes| *bytes <= 227 << 10));
    }

    #[test]
    fn parts_have_whole_tiles_and_short_ones() {
        let of = |part_rows, keys_only| {
            let Tiles { tall, short, keys, .. } = Tiles::new(KERNELS[0], part_rows, keys_only);
            [tall, short, keys]
        };
        assert_eq!(of([1344, 0], 0), [5, 1, 0]);
        assert_eq!(of([128, 129], 0), [1, 1, 0]);
        assert_eq!(of([512, 100], 511), [1, 1, 1]);
        assert_eq!(Tiles::new(KERNELS[0], [512, 100], 511).count([10, 4]), 2 * 10 + 4);
    }

    #[test]
    fn groups_of_tiles_are_of_one_height() {
        assert_eq!([0, 1, 14, 15, 18, 29, 66].map(rows_of_tiles), [1, 1, 14, 8, 9, 10, 14]);
    }

    /// Measured times in microseconds with tiles of 256 and of 224 rows: 1104 rows 324 and 300, 1184 324 and 343, 1280
    /// 318 and 325, 1344 381 and 348, 1424 379 and 407, 1504 375 and 399, 1536 366 and 388, 2624 681 and 660, 4416 1145
    /// and 1129, 4608 1142 and 1183.
    #[test]
    fn the_height_is_that_of_the_shorter_time() {
        let height = |rows| Tiles::fastest([rows, 0], 0, SIZES.0, SIZES.1).height();
        assert_eq!([1104, 1344, 2624, 4416].map(height), [224; 4]);
        assert_eq!([1184, 1280, 1424, 1504, 1536, 4608].map(height), [256; 6]);
    }
}
