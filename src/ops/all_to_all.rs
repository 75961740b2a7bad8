//! Exchanges between devices around attention: outside it each device has some tokens, inside it some heads.

use std::ops::Range;

use super::{RowSplit, TokenSplit};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, expect, expect_activations};
use crate::token_split::own_heads;

impl<B: Backend> Tensor<B> {
    /// Exchanges k, v and q of this rank's tokens for this rank's heads of k, v and q of all tokens.
    ///
    /// k and v [split.own().rows(), dim], q [split.own().query_rows(), dim] -> k and v [split.whole().rows(), dim /
    /// world], q [split.whole().query_rows(), dim / world]: `dim / world` columns from column `rank * dim / world` on.
    /// On one device they are returned unchanged.
    ///
    /// Errors if the shapes do not fit, the heads of `head_dim` columns cannot be shared evenly, or another rank fails
    /// or does not join.
    pub fn all_to_all_heads(kvq: [Self; 3], head_dim: usize, split: &TokenSplit) -> Result<[Self; 3]> {
        const OP: &str = "all_to_all_heads";
        expect_activations(OP, &kvq.each_ref())?;
        expect_rank(OP, kvq[0].backend(), split)?;
        let own = split.own();
        for (x, rows) in kvq.iter().zip([own.rows(), own.rows(), own.query_rows()]) {
            expect(x.rows() == rows && x.cols().is_multiple_of(head_dim.max(1)), OP, || {
                format!("x has shape [{}, {}], expected {rows} rows of heads of {head_dim}", x.rows(), x.cols())
            })?;
            own_heads(x.cols() / head_dim.max(1), split.world()).map_err(|e| e.at(format!("op `{OP}`")))?;
        }
        let b = kvq[0].backend().clone();
        b.all_to_all_heads(kvq, split)
    }

    /// Exchanges this rank's heads of all queries for all heads of this rank's queries. This undoes
    /// [`Tensor::all_to_all_heads`] of q.
    ///
    /// self [split.whole().query_rows(), dim / world] -> [split.own().query_rows(), dim].
    ///
    /// Errors if the rows do not fit, or another rank fails or does not join.
    pub fn all_to_all_rows(self, split: &TokenSplit) -> Result<Self> {
        const OP: &str = "all_to_all_rows";
        expect_activations(OP, &[&self])?;
        expect_rank(OP, self.backend(), split)?;
        let rows = split.whole().query_rows();
        expect(self.rows() == rows, OP, || format!("x has {} rows, expected {rows}", self.rows()))?;
        let b = self.backend().clone();
        b.all_to_all_rows(self, split)
    }
}

fn expect_rank<B: Backend>(op: &str, on: &B, split: &TokenSplit) -> Result<()> {
    let ranks = split.ranks();
    expect(ranks.start + split.rank() == on.rank() && ranks.end <= on.world(), op, || {
        let (rank, world) = (ranks.start + split.rank(), ranks.end);
        format!("tokens of rank {rank} of {world} cannot be used on rank {} of {}", on.rank(), on.world())
    })
}

/// Exchanges among `ranks` of the group, counted from the first of them; other ranks have exchanges of their own.
pub(super) fn exchange_among<B: Backend>(
    b: &B,
    op: &'static str,
    ranks: Range<usize>,
    parcel: impl Fn(usize) -> Vec<Tensor<B>>,
) -> Result<Vec<Vec<Tensor<B>>>> {
    let sent = (0..b.world()).map(|rank| if ranks.contains(&rank) { parcel(rank - ranks.start) } else { Vec::new() });
    let mut received = b.exchange(op, sent.collect())?;
    received.truncate(ranks.end);
    Ok(received.split_off(ranks.start))
}

/// Defines `all_to_all_heads` by an exchange.
pub fn compose_heads<B: Backend>(b: &B, kvq: [Tensor<B>; 3], split: &TokenSplit) -> Result<[Tensor<B>; 3]> {
    const OP: &str = "all_to_all_heads";
    let world = split.world();
    if world == 1 {
        return Ok(kvq);
    }
    let heads_of = |rank: usize| {
        let heads = |x: &Tensor<B>| x.col_view(rank * x.cols() / world..(rank + 1) * x.cols() / world);
        kvq.iter().map(heads).collect()
    };
    let received = exchange_among(b, OP, split.ranks(), heads_of)?;
    let whole = |i: usize, rows: RowSplit| {
        let parts: Vec<&Tensor<B>> = received.iter().filter_map(|parcel| parcel.get(i)).collect();
        assemble(b, OP, rows, &parts)
    };
    Ok([whole(0, split.rows())?, whole(1, split.rows())?, whole(2, split.query_rows())?])
}

/// Defines `all_to_all_rows` by an exchange.
pub fn compose_rows<B: Backend>(b: &B, x: Tensor<B>, split: &TokenSplit) -> Result<Tensor<B>> {
    const OP: &str = "all_to_all_rows";
    if split.world() == 1 {
        return Ok(x);
    }
    let rows = split.query_rows();
    let rows_of = |rank: usize| rows.runs_of(rank).map(|run| x.row_view(run.whole)).collect();
    let received = exchange_among(b, OP, split.ranks(), rows_of)?;
    let heads = received.iter().enumerate().map(|(rank, parts)| {
        let own = concat_rows(b, parts.iter().collect())?;
        expect_parcel(OP, rank, shape_of(&own), [rows.rows_of(split.rank()), x.cols()])?;
        Ok(own)
    });
    let heads = heads.collect::<Result<Vec<_>>>()?;
    b.concat_cols(&heads.iter().collect::<Vec<_>>())
}

/// Assembles the whole from each rank's rows.
pub(super) fn assemble<B: Backend>(b: &B, op: &str, rows: RowSplit, parts: &[&Tensor<B>]) -> Result<Tensor<B>> {
    for (rank, part) in parts.iter().enumerate() {
        expect_parcel(op, rank, shape_of(part), [rows.rows_of(rank), parts[0].cols()])?;
    }
    let views: Vec<_> = rows.runs().into_iter().map(|run| parts[run.rank].row_view(run.own)).collect();
    concat_rows(b, views.iter().collect())
}

/// Stacks the parts. Parts without rows are left out, unless all are empty.
pub(super) fn concat_rows<B: Backend>(b: &B, mut parts: Vec<&Tensor<B>>) -> Result<Tensor<B>> {
    if parts.iter().any(|part| part.rows() > 0) {
        parts.retain(|part| part.rows() > 0);
    }
    b.concat_rows(&parts)
}

pub(super) fn shape_of<B: Backend>(x: &Tensor<B>) -> [usize; 2] {
    [x.rows(), x.cols()]
}

/// Errors unless the tensor from rank `rank` has the expected shape. It differs if ranks make different images.
pub(crate) fn expect_parcel(op: &str, rank: usize, shape: [usize; 2], expected: [usize; 2]) -> Result<()> {
    if shape == expected {
        return Ok(());
    }
    Err(Error::new(format!("rank {rank} sent {shape:?}, expected {expected:?}"))
        .at(format!("op `{op}`"))
        .hint("generate the same image with the same model on all ranks"))
}
