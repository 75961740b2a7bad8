//! Results of collectives on each device of a group, against their definitions. The checks are the same for every
//! backend, and all devices of a group run them at the same time.

use std::ops::Range;

use flux::backend::Backend;
use flux::ops::{GroupNorm, RowSplit, Sharing, TokenLayout, TokenSplit};
use flux::{Result, Tensor};

/// Returns layouts whose rows do not divide, each also with queries of its images only.
pub fn layouts(more: &[TokenLayout]) -> Vec<TokenLayout> {
    let layouts = [
        TokenLayout { references: 6, ..TokenLayout::new(1, 5, 15) },
        TokenLayout::new(3, 3, 7),
        TokenLayout::new(2, 9, 1),
        TokenLayout::single(2),
    ];
    layouts.iter().chain(more).flat_map(|layout| [*layout, layout.image_queries()]).collect()
}

/// Returns splits of tokens and of image bands.
pub fn row_splits(layouts: &[TokenLayout], bands: &[[usize; 2]], world: usize) -> Vec<RowSplit> {
    let tokens = layouts.iter().map(|layout| TokenSplit::new(*layout, 0, world).rows());
    tokens.chain(bands.iter().map(|[units, unit]| RowSplit::bands(*units, *unit, world))).collect()
}

/// Returns the rows of the whole on a rank.
pub fn rows_of(rows: RowSplit, rank: usize) -> Vec<usize> {
    rows.runs_of(rank).flat_map(|run| run.whole).collect()
}

/// A whole tensor that devices share, with values that are exact in every precision.
struct Whole {
    cols: usize,
    values: Vec<f32>,
}

impl Whole {
    fn new(rows: usize, cols: usize) -> Self {
        Self { cols, values: (0..rows * cols).map(|i| ((i * 7919) % 251) as f32).collect() }
    }

    fn cells(&self, rows: impl IntoIterator<Item = usize>, cols: Range<usize>) -> Vec<f32> {
        rows.into_iter().flat_map(|row| &self.values[row * self.cols..][cols.clone()]).copied().collect()
    }

    /// Uploads some rows and columns, in a tensor with `beside` more columns.
    fn upload<B: Backend>(&self, b: &B, rows: &[usize], cols: Range<usize>, beside: usize) -> Result<Tensor<B>> {
        let row = |row: &usize| [self.cells([*row], cols.clone()), vec![-1.0; beside]].concat();
        let wide: Vec<f32> = rows.iter().flat_map(row).collect();
        let [x, _] = b.upload(&wide, rows.len(), cols.len() + beside)?.split_cols([cols.len(), beside]);
        Ok(x)
    }
}

/// Checks that keys, values and queries are exchanged for the own heads of all tokens, and queries back. If halves
/// have sequences of their own, each half exchanges internally, and the images of the halves are swapped.
pub fn check_heads<B: Backend>(b: &B, layout: TokenLayout, sharing: Sharing, head_dim: usize) -> Result<()> {
    let what = format!("{layout:?} {sharing:?}, {head_dim} a head, rank {} of {}", b.rank(), b.world());
    let (dim, split) = (4 * head_dim, TokenSplit::shared(layout, sharing, b.rank(), b.world()));
    // Halves with sequences of their own have different values.
    let whole = Whole::new(2 * layout.rows(), 3 * dim);
    let start = split.ranks().start / split.world() * layout.rows();
    let own = |rows: RowSplit, skipped: usize| -> Vec<usize> {
        rows_of(rows, split.rank()).into_iter().map(|row| start + skipped + row).collect()
    };
    // The rows of queries begin after those without a query.
    let skipped = layout.rows_without_query();
    let (rows, queries) = (own(split.rows(), 0), own(split.query_rows(), skipped));
    let kvq = [
        whole.upload(b, &rows, 0..dim, 8)?,
        whole.upload(b, &rows, dim..2 * dim, 1)?,
        whole.upload(b, &queries, 2 * dim..3 * dim, 0)?,
    ];
    let crossed = Tensor::all_to_all_heads(kvq, head_dim, &split)?;
    let heads = split.rank() * dim / split.world()..(split.rank() + 1) * dim / split.world();
    for (i, (x, skipped)) in crossed.iter().zip([0, 0, skipped]).enumerate() {
        let cols = i * dim + heads.start..i * dim + heads.end;
        assert!(b.download(x)? == whole.cells(start + skipped..start + layout.rows(), cols), "{what}: tensor {i}");
    }
    let [_, _, q] = crossed;
    let back = q.all_to_all_rows(&split)?;
    assert_eq!(back.cols(), dim, "{what}");
    assert!(b.download(&back)? == whole.cells(queries, 2 * dim..3 * dim), "{what}: back");

    let (images, image) = (split.image_rows(), layout.rows() - layout.img_rows());
    let gathered = whole.upload(b, &own(images, image), 0..3, 1)?.all_gather_rows(&images)?;
    let of = |start: usize| whole.cells(start + image..start + layout.rows(), 0..3);
    assert!(b.download(&gathered)? == of(start), "{what}: images");
    if sharing == Sharing::Half {
        assert!(b.download(&gathered.swap_halves()?)? == of(layout.rows() - start), "{what}: of the other half");
    }
    Ok(())
}

/// Checks that the rows of all devices are gathered at their places.
pub fn check_gathered<B: Backend>(b: &B, split: RowSplit, cols: usize, beside: usize) -> Result<()> {
    let whole = Whole::new(split.rows(), cols);
    let gathered = whole.upload(b, &rows_of(split, b.rank()), 0..cols, beside)?.all_gather_rows(&split)?;
    assert!(b.download(&gathered)? == whole.values, "{split:?} {cols}, rank {} of {}", b.rank(), b.world());
    Ok(())
}

/// Checks that a halo has the rows of the neighbours, and none beyond the edges.
pub fn check_halo<B: Backend>(b: &B, halo: [usize; 2], cols: usize, beside: usize) -> Result<()> {
    let (split, whole) = (RowSplit::bands(9, 2, b.world()), Whole::new(18, cols));
    let own = rows_of(split, b.rank());
    let got = whole.upload(b, &own, 0..cols, beside)?.halo_rows(halo)?;
    let (first, end) = (own[0], own[own.len() - 1] + 1);
    let rows = [first.saturating_sub(halo[0])..first, end..(end + halo[1]).min(18)];
    for (got, rows) in [got.above, got.below].into_iter().zip(rows) {
        let got = got.map_or(Ok(Vec::new()), |got| b.download(&got))?;
        assert!(got == whole.cells(rows, 0..cols), "{halo:?} {cols}, rank {} of {}", b.rank(), b.world());
    }
    Ok(())
}

/// Checks that all ranks have the tensor of rank 0, and the values that hosts exchange.
pub fn check_broadcast<B: Backend>(b: &B) -> Result<()> {
    let told: Vec<u64> = (0..b.world() as u64).map(|rank| 10 + rank).collect();
    assert_eq!(b.gather_host("sizes", told[b.rank()])?, told);
    let whole = Whole::new(7, 11);
    let x = (b.rank() == 0).then(|| whole.upload(b, &[0, 1, 2, 3, 4, 5, 6], 0..11, 0)).transpose()?;
    assert!(b.download(&Tensor::broadcast(b, x, [7, 11])?)? == whole.values);
    Ok(())
}

fn normed<B: Backend>(x: &Tensor<B>, statistics: Option<&B::ChannelStatistics>) -> Result<Vec<f32>> {
    let (b, channels) = (x.backend(), x.cols());
    let (weight, bias) = (b.upload(&vec![1.5; channels], 1, channels)?, b.upload(&vec![0.25; channels], 1, channels)?);
    let norm = GroupNorm { weight: &weight, bias: &bias, groups: 4, eps: 1e-6, statistics };
    b.download(&x.group_norm(&norm)?)
}

/// Returns a device's results by the statistics of its whole band of `whole`, and of a row that all devices have.
pub fn normed_band<B: Backend>(b: &B, whole: &[f32], channels: usize) -> Result<[Vec<f32>; 2]> {
    let own = rows_of(RowSplit::bands(whole.len() / channels, 1, b.world()), b.rank());
    let x = b.upload(&whole[own[0] * channels..][..own.len() * channels], own.len(), channels)?;
    let reduced = x.all_reduce_statistics(None)?;
    assert_eq!(reduced.is_none(), b.world() == 1);
    let same = b.upload(&whole[..channels], 1, channels)?;
    Ok([normed(&x, reduced.as_ref())?, normed(&same, reduced.as_ref())?])
}

/// Compares the results of all devices with the norm of the whole by `alone`, up to `bound(value)` of each value.
pub fn assert_normed<B: Backend>(
    alone: &B,
    whole: &[f32],
    channels: usize,
    bands: &[[Vec<f32>; 2]],
    bound: impl Fn(f32) -> f32,
) {
    let expected = normed(&alone.upload(whole, whole.len() / channels, channels).unwrap(), None).unwrap();
    let got: Vec<f32> = bands.iter().flat_map(|[own, _]| own.clone()).collect();
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= bound(expected), "{got} for {expected}, {} devices", bands.len());
    }
    assert!(bands.iter().all(|[_, same]| *same == bands[0][1]), "all have the same statistics");
}
