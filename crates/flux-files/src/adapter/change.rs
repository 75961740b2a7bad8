//! The change that an adapter makes to one module: its tensors, and how they apply to the weight.

use std::collections::BTreeMap;
use std::ops::Range;

use super::keys::{DIFFERENCE, DOWN, MAGNITUDE, REPLACEMENT, Role, UP};
use super::modules::Module;
use crate::{TensorView, dequantize_rows};
use flux_base::error::{Error, Result};

/// The largest value of bfloat16, the narrowest type in which a device holds factors and weights.
pub(super) const LARGEST: f64 = 3.389_531_389_251_535_5e38;

/// A change of a weight W [out, in], at strength 1.
pub struct Change {
    pub(super) delta: Delta,
    pub(super) magnitude: Option<Magnitude>,
    /// Rows and columns of the weight.
    pub(super) shape: [usize; 2],
    /// An upper bound of the magnitudes of all values.
    extent: f64,
}

/// The kinds of changes, with their tensors.
pub enum Delta {
    /// `scale * up down`
    LowRank(LowRank),
    /// `scale * kron(left, right)`: row `o1 * O2 + o2` and column `i1 * I2 + i2` hold `left[o1][i1] * right[o2][i2]`.
    Kronecker { left: Factor, right: Factor, scale: f32 },
    /// `scale * (first product) * (second product)`, elementwise.
    Hadamard { first: LowRank, second: LowRank, scale: f32 },
    /// A difference [out, in] that is added to the weight.
    Difference(TensorView),
    /// A weight [out, in] that replaces the original one.
    Replacement(TensorView),
}

/// `scale * up down`
pub struct LowRank {
    /// [out, rank]
    pub up: TensorView,
    /// [rank, in]
    pub down: TensorView,
    /// The factor of the product.
    pub scale: f32,
}

/// A matrix, in row-major float32.
pub struct Factor {
    values: Vec<f32>,
    rows: usize,
    cols: usize,
}

/// The magnitudes of DoRA: norms to which the rows or the columns of W + delta are scaled.
pub enum Magnitude {
    /// \[out\]
    OfRows(Vec<f32>),
    /// \[in\]
    OfCols(Vec<f32>),
}

/// The tensors of a module's change by role, each with its key.
pub(super) type Tensors = BTreeMap<Role, (String, TensorView)>;

impl Change {
    /// Returns all changes that `tensors` describe for `module`. `scale` returns the scale of a product from its rank.
    ///
    /// Errors if a tensor is missing, has no use or has another shape, if `scale` fails, or if values overflow the type
    /// in which they are used.
    pub(super) fn all(
        mut tensors: Tensors,
        has_alpha: bool,
        module: &Module,
        scale: impl Fn(usize) -> Result<f32>,
    ) -> Result<Vec<Self>> {
        let first = tensors.values().next().map_or(String::new(), |(key, _)| key.clone());
        let magnitude = tensors.remove(MAGNITUDE);
        let mut deltas = Vec::new();
        deltas.extend(low_rank(&mut tensors, [DOWN, UP], module, &scale)?.map(Delta::LowRank));
        deltas.extend(kronecker(&mut tensors, module, &scale)?);
        deltas.extend(hadamard(&mut tensors, module, &scale)?);
        let is_decomposable = deltas.len() == 1;
        if has_alpha && deltas.is_empty() {
            return Err(incomplete(&module.name, "`.alpha`", "the factors that it scales"));
        }
        for (role, delta) in [(DIFFERENCE, Delta::Difference as fn(_) -> _), (REPLACEMENT, Delta::Replacement)] {
            if let Some((key, view)) = tensors.remove(role) {
                expect_shape(&key, view.shape(), &module.shape)?;
                deltas.push(delta(view));
            }
        }
        if let Some((key, _)) = magnitude.as_ref().filter(|_| !is_decomposable) {
            return Err(incomplete(&module.name, &format!("`{key}`"), "a pair of factors"));
        }
        let mut magnitude = magnitude.map(|(key, view)| Magnitude::new(&key, &view, module)).transpose()?;
        debug_assert!(tensors.is_empty(), "every role is handled");
        let shape = [module.rows(), module.cols()];
        let change = |delta: Delta| {
            let magnitude = magnitude.take();
            let extent = delta.extent().max(magnitude.as_ref().map_or(0.0, Magnitude::largest));
            if extent > LARGEST {
                let what =
                    format!("the change of `{}` by tensor `{first}` overflows: it reaches {extent:.1e}", module.name);
                return Err(Error::new(what).hint("the adapter is damaged: fetch it again, or use another"));
            }
            Ok(Self { delta, magnitude, shape, extent })
        };
        deltas.into_iter().map(change).collect()
    }

    /// Returns `true` if the change leaves the weight as it is.
    pub(super) fn is_nothing(&self) -> bool {
        self.magnitude.is_none() && self.delta.is_zero()
    }

    /// Returns an upper bound of the magnitudes of the change's values, at strength 1.
    pub(super) fn extent(&self) -> f64 {
        self.extent
    }

    /// Returns the rows and columns of the change that `tensors` imply for any module, or `None` if they imply none.
    pub(super) fn implied_shape(tensors: &Tensors) -> Option<[usize; 2]> {
        let axes = |role: Role| match tensors.get(role)?.1.shape() {
            &[rows, cols] => Some([rows, cols]),
            _ => None,
        };
        let product = |up: Role, down: Role| Some([axes(up)?[0], axes(down)?[1]]);
        let factor = |whole: Role, up: Role, down: Role| axes(whole).or_else(|| product(up, down));
        let kronecker = || {
            let (left, right) =
                (factor("lokr_w1", "lokr_w1_a", "lokr_w1_b")?, factor("lokr_w2", "lokr_w2_a", "lokr_w2_b")?);
            Some([left[0].checked_mul(right[0])?, left[1].checked_mul(right[1])?])
        };
        product(UP, DOWN)
            .or_else(kronecker)
            .or_else(|| product("hada_w1_a", "hada_w1_b"))
            .or_else(|| axes(DIFFERENCE))
            .or_else(|| axes(REPLACEMENT))
    }

    /// Returns the factors if the change is their product and nothing else.
    pub fn low_rank(&self) -> Option<&LowRank> {
        match (&self.delta, &self.magnitude) {
            (Delta::LowRank(low_rank), None) => Some(low_rank),
            _ => None,
        }
    }
}

impl LowRank {
    /// Returns the rank: the columns of `up` and the rows of `down`.
    pub fn rank(&self) -> usize {
        self.down.rows()
    }
}

impl Factor {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn largest(&self) -> f64 {
        largest(&self.values)
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

impl Magnitude {
    fn new(key: &str, view: &TensorView, module: &Module) -> Result<Self> {
        let [rows, cols] = [module.rows(), module.cols()];
        match view.shape() {
            shape if shape == [rows, 1] || shape == [rows] => Ok(Self::OfRows(view.to_f32())),
            shape if shape == [1, cols] => Ok(Self::OfCols(view.to_f32())),
            shape => {
                Err(Error::new(format!("tensor `{key}` has shape {shape:?}, expected [{rows}, 1] or [1, {cols}]"))
                    .hint(OTHER_MODEL))
            }
        }
    }

    fn largest(&self) -> f64 {
        match self {
            Self::OfRows(values) | Self::OfCols(values) => largest(values),
        }
    }
}

fn largest(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max)
}

/// The hint for a shape that does not fit.
const OTHER_MODEL: &str =
    "the adapter was trained for another model: use it with that model, or use an adapter for this model";

fn incomplete(module: &str, has: &str, lacks: &str) -> Error {
    Error::new(format!("the adapter has {has} of `{module}`, but not {lacks}"))
        .hint("the file is incomplete: fetch it again, or export it again with the program that created it")
}

fn expect_shape(key: &str, shape: &[usize], expected: &[usize]) -> Result<()> {
    if shape == expected {
        return Ok(());
    }
    Err(Error::new(format!("tensor `{key}` has shape {shape:?}, expected {expected:?}")).hint(OTHER_MODEL))
}

/// Takes two factors of a product for `module` out of `tensors`; `None` if both are absent. `scale` returns the scale
/// of the product from its rank.
fn low_rank(
    tensors: &mut Tensors,
    [down, up]: [Role; 2],
    module: &Module,
    scale: impl Fn(usize) -> Result<f32>,
) -> Result<Option<LowRank>> {
    let ((down_key, down), (up_key, up)) = match (tensors.remove(down), tensors.remove(up)) {
        (Some(down), Some(up)) => (down, up),
        (None, None) => return Ok(None),
        (Some((key, _)), None) => {
            return Err(incomplete(&module.name, &format!("`{key}`"), "the matching factor"));
        }
        (None, Some((key, _))) => {
            return Err(incomplete(&module.name, &format!("`{key}`"), "the matching factor"));
        }
    };
    let rank = down.shape().first().copied().unwrap_or(0);
    let is_matrix = module.shape.len() == 2 && rank > 0;
    expect_shape(&down_key, down.shape(), &[if is_matrix { rank } else { 1 }, module.cols()])?;
    expect_shape(&up_key, up.shape(), &[module.rows(), rank])?;
    Ok(Some(LowRank { up, down, scale: scale(rank)? }))
}

/// Takes the factors of a Kronecker product out of `tensors`; `None` if there are none.
fn kronecker(tensors: &mut Tensors, module: &Module, scale: impl Fn(usize) -> Result<f32>) -> Result<Option<Delta>> {
    if !tensors.keys().any(|role| role.starts_with("lokr_")) {
        return Ok(None);
    }
    let implied = Change::implied_shape(tensors);
    // The shape is checked before any factor is computed, so that no product is larger than the layer.
    if module.shape.len() != 2 || implied.is_none_or(|implied| implied != *module.shape) {
        return Err(Error::new(format!(
            "the Kronecker product of `{}` has shape {implied:?}, expected {:?}",
            module.name, module.shape
        ))
        .hint(OTHER_MODEL));
    }
    let mut rank = None;
    let mut factor = |roles: [Role; 3]| -> Result<Factor> {
        let [whole, a, b] = roles.map(|role| tensors.remove(role));
        match (whole, a, b) {
            (Some((key, view)), None, None) => matrix(&key, &view),
            (None, Some(a), Some(b)) => {
                let (left, right) = (matrix(&a.0, &a.1)?, matrix(&b.0, &b.1)?);
                expect_shape(&a.0, a.1.shape(), &[left.rows, right.rows])?;
                // The second factor is computed last, so its rank counts.
                rank = Some(right.rows);
                Ok(product(&left, &right))
            }
            _ => Err(incomplete(&module.name, "parts of a Kronecker product", "each of its two factors exactly once")),
        }
    };
    let left = factor(["lokr_w1", "lokr_w1_a", "lokr_w1_b"])?;
    let right = factor(["lokr_w2", "lokr_w2_a", "lokr_w2_b"])?;
    // Alpha has no effect on two whole factors.
    let scale = rank.map_or(Ok(1.0), scale)?;
    Ok(Some(Delta::Kronecker { left, right, scale }))
}

fn hadamard(tensors: &mut Tensors, module: &Module, scale: impl Fn(usize) -> Result<f32>) -> Result<Option<Delta>> {
    if !tensors.keys().any(|role| role.starts_with("hada_")) {
        return Ok(None);
    }
    let mut pair = |down, up| low_rank(tensors, [down, up], module, |_| Ok(1.0));
    match (pair("hada_w1_b", "hada_w1_a")?, pair("hada_w2_b", "hada_w2_a")?) {
        (Some(first), Some(second)) => {
            let scale = scale(first.rank())?;
            Ok(Some(Delta::Hadamard { first, second, scale }))
        }
        _ => Err(incomplete(&module.name, "one of two products", "the other")),
    }
}

/// Returns a tensor that must be a matrix, in float32.
fn matrix(key: &str, view: &TensorView) -> Result<Factor> {
    match view.shape() {
        &[rows, cols] if rows > 0 && cols > 0 => Ok(Factor { values: view.to_f32(), rows, cols }),
        shape => Err(Error::new(format!("tensor `{key}` has shape {shape:?}, expected a matrix"))
            .hint("the file is incomplete: fetch it again, or export it again with the program that created it")),
    }
}

fn product(left: &Factor, right: &Factor) -> Factor {
    let mut values = vec![0.0; left.rows * right.cols];
    for (row, out) in values.chunks_exact_mut(right.cols).enumerate() {
        for (k, factor) in left.row(row).iter().enumerate() {
            add_scaled(out, *factor, right.row(k));
        }
    }
    Factor { values, rows: left.rows, cols: right.cols }
}

/// Adds `factor * x` to `out`.
pub(super) fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += factor * x);
}

/// Returns rows of a view in float32, contiguous.
pub(super) fn rows_of(view: &TensorView, rows: Range<usize>) -> Vec<f32> {
    let mut values = vec![0.0; rows.len() * view.cols()];
    dequantize_rows(view, rows, &mut values);
    values
}
