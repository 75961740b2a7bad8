//! Matrix multiplications with weights.
//!
//! A layer may have low-rank factors ([`Linear::low_rank`]). On every backend, its result is then `x weight^T + x
//! down^T up^T`. These ops call [`Tensor::low_rank`] for such layers; backends implement the ops with the weight
//! alone.

use crate::backend::Backend;
use crate::error::Result;
use crate::nn::{Linear, LowRank, Operand};
use crate::tensor::{Dtype, Tensor, expect, expect_activation, expect_activations};

/// Operands of matrix multiplications: inputs and their weights.
pub enum Products<'a, B: Backend> {
    /// One multiplication of concatenated columns: x_i [rows, in_i], weight [out, sum in_i] -> [rows, out].
    Columns(&'a [&'a Tensor<B>], &'a Linear<B>),
    /// Stacked multiplications: x_i [rows_i, in_i], weight_i [out, in_i] -> [sum rows_i, out].
    Rows(&'a [(&'a Tensor<B>, &'a Linear<B>)]),
}

// A derived implementation would demand a backend that is `Copy`.
impl<B: Backend> Clone for Products<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Products<'_, B> {}

/// Matrix multiplications, and the summands of their results. Backends use the weights alone, without factors.
pub struct LinearArgs<'a, B: Backend> {
    /// The multiplications.
    pub products: Products<'a, B>,
    /// [1, out]
    pub bias: Option<&'a Tensor<B>>,
    /// [rows, out]. The result may overwrite it.
    pub residual: Option<Tensor<B>>,
}

impl<'a, B: Backend> From<Products<'a, B>> for LinearArgs<'a, B> {
    fn from(products: Products<'a, B>) -> Self {
        Self { products, bias: None, residual: None }
    }
}

impl<B: Backend> Tensor<B> {
    /// Computes `self weight^T + bias`, accumulated in float32.
    ///
    /// self [rows, in], weight [out, in], bias [1, out] -> [rows, out].
    ///
    /// Errors if the shapes do not fit.
    pub fn linear(&self, weight: &Linear<B>, bias: Option<&Self>) -> Result<Self> {
        expect_linear("linear", self, weight)?;
        let Some(bias) = bias else { return product(self, weight) };
        expect_activations("linear", &[self, bias])?;
        expect(bias.rows() == 1 && bias.cols() == weight.rows(), "linear", || {
            format!("bias has shape [{}, {}], expected [1, {}]", bias.rows(), bias.cols(), weight.rows())
        })?;
        let products = Products::Columns(&[self], weight);
        let out = self.backend().linear(LinearArgs { bias: Some(bias), ..products.into() })?;
        add_low_rank(self.backend(), &[self], weight, out)
    }

    /// Computes `linear(self) + residual`, rounded once. Overwrites `residual` if it is writable.
    ///
    /// self [rows, in], weight [out, in], residual [rows, out] -> [rows, out].
    ///
    /// Errors if the shapes do not fit.
    pub fn linear_add(&self, weight: &Linear<B>, residual: Self) -> Result<Self> {
        expect_linear("linear_add", self, weight)?;
        expect_activations("linear_add", &[self, &residual])?;
        expect(residual.rows() == self.rows() && residual.cols() == weight.rows(), "linear_add", || {
            format!(
                "residual has shape [{}, {}], expected [{}, {}]",
                residual.rows(),
                residual.cols(),
                self.rows(),
                weight.rows()
            )
        })?;
        let products = Products::Columns(&[self], weight);
        let out = self.backend().linear(LinearArgs { residual: Some(residual), ..products.into() })?;
        add_low_rank(self.backend(), &[self], weight, out)
    }

    /// Stacks `linear` of each (x, weight).
    ///
    /// x_i [rows_i, in_i], weight_i [out, in_i] -> [sum rows_i, out].
    ///
    /// Errors if the shapes do not fit. Panics if `parts` is empty.
    pub fn linear_rows(parts: &[(&Self, &Linear<B>)]) -> Result<Self> {
        expect_rows("linear_rows", parts)?;
        let (backend, products) = (parts[0].0.backend(), Products::Rows(parts));
        match parts.iter().any(|(_, weight)| weight.low_rank().is_some()) {
            true => backend.low_rank(products),
            false => backend.linear(products.into()),
        }
    }

    /// Sums `linear` of each (x, weight). The sum is rounded once if the backend computes it as one multiplication.
    ///
    /// x_i [rows, in_i], weight_i [out, in_i] -> [rows, out].
    ///
    /// Errors if the shapes do not fit. Panics if `parts` is empty.
    pub fn linear_sum(parts: &[(&Self, &Linear<B>)]) -> Result<Self> {
        expect_rows("linear_sum", parts)?;
        let ((first, first_weight), rest) = (parts[0], &parts[1..]);
        expect(rest.iter().all(|(x, _)| x.rows() == first.rows()), "linear_sum", || {
            "the parts differ in rows".to_string()
        })?;
        if parts.iter().all(|(_, weight)| weight.low_rank().is_none()) {
            return first.backend().linear_sum(parts);
        }
        let sum = first.linear(first_weight, None)?;
        rest.iter().try_fold(sum, |sum, (x, weight)| x.linear_add(weight, sum))
    }

    /// `linear` of the parts' concatenated columns.
    ///
    /// x_i [rows, in_i], weight [out, sum in_i] -> [rows, out].
    ///
    /// Errors if the shapes do not fit. Panics if `parts` is empty.
    pub fn linear_concat(parts: &[&Self], weight: &Linear<B>) -> Result<Self> {
        expect_concat("linear_concat", parts, weight)?;
        let (backend, products) = (parts[0].backend(), Products::Columns(parts, weight));
        match weight.low_rank() {
            Some(_) => backend.low_rank(products),
            None => backend.linear(products.into()),
        }
    }
}

impl<B: Backend> Operand<B> {
    /// Computes `self weight^T`; shapes and errors as [`Tensor::linear`].
    pub fn linear(&self, weight: &Linear<B>) -> Result<Tensor<B>> {
        expect_operand("linear", self.tensor().backend(), self)?;
        expect_weight("linear", self.tensor().backend(), self.cols(), weight)?;
        product(self.tensor(), weight)
    }
}

/// Computes `x weight^T`, with the weight's factors if it has any.
fn product<B: Backend>(x: &Tensor<B>, weight: &Linear<B>) -> Result<Tensor<B>> {
    match weight.low_rank() {
        Some(_) => x.backend().low_rank(Products::Rows(&[(x, weight)])),
        None => x.backend().linear(Products::Columns(&[x], weight).into()),
    }
}

fn expect_linear<B: Backend>(op: &str, x: &Tensor<B>, weight: &Linear<B>) -> Result<()> {
    expect_activations(op, &[x])?;
    expect_weight(op, x.backend(), x.cols(), weight)
}

/// Errors unless the results of all (x, weight) can be stacked.
pub(super) fn expect_rows<B: Backend>(op: &str, parts: &[(&Tensor<B>, &Linear<B>)]) -> Result<()> {
    let (first, first_weight) = parts[0];
    for (x, weight) in parts {
        expect_linear(op, x, weight)?;
        expect_activations(op, &[first, x])?;
        expect(weight.rows() == first_weight.rows(), op, || {
            format!("the weights differ in rows, {} and {}", first_weight.rows(), weight.rows())
        })?;
    }
    Ok(())
}

/// Errors unless `weight` takes the concatenated columns of the parts.
fn expect_concat<B: Backend>(op: &str, parts: &[&Tensor<B>], weight: &Linear<B>) -> Result<()> {
    expect_activations(op, parts)?;
    expect_weight(op, parts[0].backend(), parts.iter().map(|x| x.cols()).sum(), weight)?;
    let rows = parts[0].rows();
    expect(parts.iter().all(|x| x.rows() == rows), op, || "the parts differ in rows".to_string())
}

/// Errors unless `x` is on the device of `on`, and is an activation or a quantized one.
pub(super) fn expect_operand<B: Backend>(op: &str, on: &B, x: &Operand<B>) -> Result<()> {
    let x = x.tensor();
    let is_quantized = matches!(x.dtype(), Dtype::E4m3 | Dtype::Int8);
    if is_quantized && on.is_same_device(x.backend()) { Ok(()) } else { expect_activation(op, on, x) }
}

/// Errors unless `weight` is on the device of `on` and takes an operand of `cols` columns.
pub(super) fn expect_weight<B: Backend>(op: &str, on: &B, cols: usize, weight: &Linear<B>) -> Result<()> {
    expect(on.is_same_device(weight.backend()), op, || format!("`{}` is on another device", weight.name()))?;
    expect(cols == weight.cols(), op, || {
        format!("x has {cols} columns, but `{}` has shape [{}, {}]", weight.name(), weight.rows(), weight.cols())
    })
}

/// Returns `out + x down^T up^T` by the factors of `weight`, or `out` if it has none. x are concatenated columns.
pub(super) fn add_low_rank<B: Backend>(
    b: &B,
    x: &[&Tensor<B>],
    weight: &Linear<B>,
    out: Tensor<B>,
) -> Result<Tensor<B>> {
    let Some(LowRank { down, up }) = weight.low_rank() else { return Ok(out) };
    let low = b.linear(Products::Columns(x, down).into())?;
    b.linear(LinearArgs { residual: Some(out), ..Products::Columns(&[&low], up).into() })
}

/// Defines a sum of multiplications: each is added to the rounded sum of those before it.
pub fn compose_sum<B: Backend>(b: &B, parts: &[(&Tensor<B>, &Linear<B>)]) -> Result<Tensor<B>> {
    let ((first, first_weight), rest) = (parts[0], &parts[1..]);
    let sum = b.linear(Products::Columns(&[first], first_weight).into())?;
    rest.iter().try_fold(sum, |sum, (x, weight)| {
        b.linear(LinearArgs { residual: Some(sum), ..Products::Columns(&[x], weight).into() })
    })
}

/// Defines multiplications with a residual.
pub fn compose<B: Backend>(b: &B, mut args: LinearArgs<'_, B>) -> Result<Tensor<B>> {
    let residual = args.residual.take();
    let out = b.linear(args)?;
    match residual {
        Some(residual) => b.add(residual, &out),
        None => Ok(out),
    }
}
