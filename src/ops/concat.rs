//! Rows one under the other, columns side by side.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// A copy of the parts, one under the other: [sum rows_i, cols].
    ///
    /// Errors when the parts differ in columns. Panics when `parts` is empty.
    pub fn concat_rows(parts: &[&Self]) -> Result<Self> {
        let first = parts[0];
        expect_activations("concat_rows", parts)?;
        expect(parts.iter().all(|part| part.cols() == first.cols()), "concat_rows", || {
            "the parts differ in columns".to_string()
        })?;
        first.backend().concat_rows(parts)
    }

    /// A copy of the parts, side by side: [rows, sum cols_i].
    ///
    /// Errors when the parts differ in rows. Panics when `parts` is empty.
    pub fn concat_cols(parts: &[&Self]) -> Result<Self> {
        let first = parts[0];
        expect_activations("concat_cols", parts)?;
        expect(parts.iter().all(|part| part.rows() == first.rows()), "concat_cols", || {
            "the parts differ in rows".to_string()
        })?;
        first.backend().concat_cols(parts)
    }

    /// A copy of some runs of rows, one under the other.
    ///
    /// Panics when there are none, or a run has rows that are not there.
    pub fn copy_runs(&self, runs: &[Range<usize>]) -> Result<Self> {
        let views: Vec<_> = runs.iter().map(|run| self.row_view(run.clone())).collect();
        Self::concat_rows(&views.iter().collect::<Vec<_>>())
    }

    /// A copy of self in which some runs of rows, in their order, are those of `rows`.
    ///
    /// Errors when `rows` has other columns, or another number of rows than the runs.
    pub fn with_runs(&self, runs: &[Range<usize>], rows: &Self) -> Result<Self> {
        let count: usize = runs.iter().map(Range::len).sum();
        expect(rows.rows() == count, "with_runs", || format!("{} rows are given, expected {count}", rows.rows()))?;
        let (mut parts, mut end, mut taken) = (Vec::new(), 0, 0);
        for run in runs {
            parts.push(self.row_view(end..run.start));
            parts.push(rows.row_view(taken..taken + run.len()));
            (end, taken) = (run.end, taken + run.len());
        }
        parts.push(self.row_view(end..self.rows()));
        let parts: Vec<_> = parts.iter().filter(|part| part.rows() > 0).collect();
        Self::concat_rows(&parts)
    }

    /// `self` with `bottom` under it; without a copy when [`Tensor::split_rows`] made them and both were written in
    /// place.
    ///
    /// Errors when the parts differ in columns.
    pub fn join_rows(self, bottom: Self) -> Result<Self> {
        expect_activations("join_rows", &[&self, &bottom])?;
        match Self::adjacent_rows(self, bottom) {
            Ok(whole) => Ok(whole),
            Err((top, bottom)) => Self::concat_rows(&[&top, &bottom]),
        }
    }
}
