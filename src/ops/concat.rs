//! Rows one under the other, columns side by side.

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
