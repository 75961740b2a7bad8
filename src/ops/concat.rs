//! Concatenation of rows and of columns.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::Result;
use crate::tensor::{Tensor, expect, expect_activations};

impl<B: Backend> Tensor<B> {
    /// Copies the parts into one tensor, stacked: [sum rows_i, cols].
    ///
    /// Errors if the parts differ in columns. Panics if `parts` is empty.
    pub fn concat_rows(parts: &[&Self]) -> Result<Self> {
        let first = parts[0];
        expect_activations("concat_rows", parts)?;
        expect(parts.iter().all(|part| part.cols() == first.cols()), "concat_rows", || {
            "the parts differ in columns".to_string()
        })?;
        first.backend().concat_rows(parts)
    }

    /// Copies the parts into one tensor, side by side: [rows, sum cols_i].
    ///
    /// Errors if the parts differ in rows. Panics if `parts` is empty.
    pub fn concat_cols(parts: &[&Self]) -> Result<Self> {
        let first = parts[0];
        expect_activations("concat_cols", parts)?;
        expect(parts.iter().all(|part| part.rows() == first.rows()), "concat_cols", || {
            "the parts differ in rows".to_string()
        })?;
        first.backend().concat_cols(parts)
    }

    /// Copies some runs of rows into one tensor.
    ///
    /// Panics if `runs` is empty, or a run exceeds the rows.
    pub fn copy_runs(&self, runs: &[Range<usize>]) -> Result<Self> {
        let views: Vec<_> = runs.iter().map(|run| self.row_view(run.clone())).collect();
        Self::concat_rows(&views.iter().collect::<Vec<_>>())
    }

    /// Returns a copy of self in which `rows` replace some runs of rows, in their order.
    ///
    /// Errors if `rows` differs in columns, or has another number of rows than the runs.
    pub fn with_runs(&self, runs: &[Range<usize>], rows: &Self) -> Result<Self> {
        let count: usize = runs.iter().map(Range::len).sum();
        expect(rows.rows() == count, "with_runs", || format!("{} rows were passed, expected {count}", rows.rows()))?;
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

    /// Stacks `self` and `bottom`. No copy is needed if [`Tensor::split_rows`] made both and both were written in
    /// place.
    ///
    /// Errors if the parts differ in columns.
    pub fn join_rows(self, bottom: Self) -> Result<Self> {
        expect_activations("join_rows", &[&self, &bottom])?;
        match Self::adjacent_rows(self, bottom) {
            Ok(whole) => Ok(whole),
            Err((top, bottom)) => Self::concat_rows(&[&top, &bottom]),
        }
    }
}
