//! Shared code of launchers of Hopper kernels (`cuda/*_sm90a.cu`): the choice of the kernel, and tensor maps for TMA.

use std::env;
use std::ffi::{OsStr, c_void};

use cudarc::driver::sys;

use super::capability::HOPPER;
use super::driver::failed;
use super::element::Element;
use super::{Cuda, kernels, launch};
use crate::error::{Error, Result};
use crate::files::e4m3::MULTIPLE;

/// An op with a kernel for Hopper besides its kernel for all GPUs.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The name of the op.
    pub op: &'static str,
    /// The environment variable that chooses the kernel: `base` is the one for all GPUs, `sm90` the one for Hopper.
    pub variable: &'static str,
    /// The file in cuda/ that holds the kernel for Hopper.
    pub file: &'static str,
    /// Values of the variable that choose a slower variant of that kernel.
    pub forms: &'static [&'static str],
}

const BASE: &str = "base";
const FASTEST: &str = "sm90";

impl Choice {
    /// Returns the value of the variable, if set.
    fn wish(self, value: Option<&OsStr>) -> Result<Option<&'static str>> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
        let known = [&[BASE, FASTEST], self.forms].concat();
        if let Some(wish) = known.iter().find(|known| value == **known) {
            return Ok(Some(wish));
        }
        let what = format!("`{}` is not a kernel for {}", value.to_string_lossy(), self.op);
        Err(Error::usage(what).at(self.variable).hint(format!("use `{}`", known.join("` or `"))))
    }

    /// Converts `value` to a kernel argument.
    ///
    /// Errors if it is too large.
    pub fn int(self, value: usize) -> Result<i32> {
        launch::int(value, || self.place())
    }

    /// Returns a TMA map of bf16 values at `address`, with 128-byte swizzle. The first of `axes` is the dense one, with
    /// a step of 1 and 64 cells per box.
    ///
    /// `address` and all steps except the first must be multiples of 16 bytes, and no axis may be empty; launchers
    /// ensure it.
    pub fn tensor_map<const N: usize>(self, address: u64, axes: [Axis; N]) -> Result<sys::CUtensorMap> {
        self.tensor_map_of(sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, address, axes)
    }

    /// As [`Choice::tensor_map`], for one-byte values: a box has 128 cells of the dense axis.
    pub fn byte_tensor_map<const N: usize>(self, address: u64, axes: [Axis; N]) -> Result<sys::CUtensorMap> {
        self.tensor_map_of(sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, address, axes)
    }

    /// Returns a map of rows of e4m3 or bf16 values, in boxes of `in_box` rows and 128 bytes of each.
    ///
    /// As [`Choice::tensor_map`].
    pub fn rows_map(
        self,
        e4m3: bool,
        address: u64,
        [rows, cols]: [usize; 2],
        stride: usize,
        in_box: usize,
    ) -> Result<sys::CUtensorMap> {
        const BOX_BYTES: usize = 128;
        // The stride of a single row is unused, and need not be aligned.
        let rows = Axis { cells: rows, step: if rows > 1 { stride } else { cols.next_multiple_of(MULTIPLE) }, in_box };
        let values = |bytes: usize| Axis { cells: cols, step: 1, in_box: BOX_BYTES / bytes };
        if e4m3 {
            self.byte_tensor_map(address, [values(1), rows])
        } else {
            self.tensor_map(address, [values(2), rows])
        }
    }

    fn tensor_map_of<const N: usize>(
        self,
        kind: sys::CUtensorMapDataType,
        size: u64,
        address: u64,
        axes: [Axis; N],
    ) -> Result<sys::CUtensorMap> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let cells = axes.map(|axis| axis.cells as u64);
        let step_bytes = axes.map(|axis| size * axis.step as u64);
        let boxes = axes.map(|axis| axis.in_box as u32);
        let steps_in_box = [1u32; N];
        // SAFETY: the driver writes `map`, which has the size that it expects, and reads N sizes, N - 1 strides, N box
        // sizes and N steps. It stores the address without reading from there.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                N as u32,
                address as *mut c_void,
                cells.as_ptr(),
                step_bytes[1..].as_ptr(),
                boxes.as_ptr(),
                steps_in_box.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        encoded.result().map_err(|e| {
            let hint = format!("use the kernel for all GPUs with `{}=base`", self.variable);
            failed(&format!("cannot create a tensor map of {axes:?}"), e).at(self.place()).hint(hint)
        })?;
        Ok(map)
    }

    fn place(self) -> String {
        format!("op `{}`", self.op)
    }
}

/// An axis of a tensor map.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// Cells of the tensor.
    pub cells: usize,
    /// The stride from one cell to the next, in values.
    pub step: usize,
    /// Cells of a box, at most 256.
    pub in_box: usize,
}

impl Cuda {
    /// Returns `true` if the Hopper kernel should run on inputs that it supports.
    ///
    /// Errors if the variable names no kernel, or one that this GPU or this program doesn't have.
    pub(super) fn hopper_wanted(&self, choice: Choice) -> Result<bool> {
        Ok(self.hopper_form(choice)?.is_some())
    }

    /// Returns the variant of the Hopper kernel to run on inputs that it supports: `sm90`, the fastest, or one of
    /// `choice.forms`.
    ///
    /// Errors as [`Cuda::hopper_wanted`].
    pub(super) fn hopper_form(&self, choice: Choice) -> Result<Option<&'static str>> {
        let bf16 = self.element() == Element::Bf16;
        let built = kernels::fatbin(choice.file, self.element()).is_some();
        let here = bf16 && built && self.device().capability == HOPPER;
        match choice.wish(env::var_os(choice.variable).as_deref())? {
            Some(BASE) => Ok(None),
            Some(form) if !here => {
                let what = format!(
                    "`{form}` needs a GPU of compute capability 9.0 that computes in bf16, and a program built for it"
                );
                Err(Error::usage(what).at(choice.variable))
            }
            form => Ok(here.then(|| form.unwrap_or(FASTEST))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_kernel_or_is_an_error() {
        let choice =
            Choice { op: "attention", variable: "FLUX_ATTENTION", file: "attention_sm90a", forms: &["sm90-single"] };
        let wish = |value: &str| choice.wish(Some(OsStr::new(value)));
        assert_eq!(choice.wish(None).unwrap(), None);
        assert_eq!(wish("").unwrap(), None);
        for known in ["base", "sm90", "sm90-single"] {
            assert_eq!(wish(known).unwrap(), Some(known));
        }
        let message = wish("flash").unwrap_err().to_string();
        assert!(
            message.contains("`flash`") && message.contains("FLUX_ATTENTION") && message.contains("`sm90`"),
            "{message}"
        );
        assert!(Choice { forms: &[], ..choice }.wish(Some(OsStr::new("sm90-single"))).is_err());
    }

    #[test]
    fn a_number_that_the_kernel_cannot_take_is_an_error() {
        let choice = Choice { op: "conv2d", variable: "FLUX_CONV2D", file: "conv2d_sm90a", forms: &[] };
        assert_eq!(choice.int(7).unwrap(), 7);
        let message = choice.int(1 << 31).unwrap_err().to_string();
        assert!(message.contains("`2147483648` is too large") && message.contains("op `conv2d`"), "{message}");
    }
}
