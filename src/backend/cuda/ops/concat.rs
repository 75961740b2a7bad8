//! `concat_rows` and `concat_cols`: the driver copies rows, or cuda/concat.cu if there are many parts.

use std::ffi::c_void;
use std::ptr;

use crate::backend::cuda::launch::{self, row_tiles};
use crate::backend::cuda::layout::assert_layout;
use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

/// With fewer parts, copies by the driver are as fast.
const MIN_PARTS: usize = 4;
/// `PARTS` in cuda/concat.cu.
const PARTS: usize = 240;

/// `Parts` of that file, field by field.
#[repr(C)]
struct Parts {
    from: [u64; PARTS],
    stride: [i32; PARTS],
    end: [i32; PARTS],
}

assert_layout! { Parts: 3840, from: 0, stride: 1920, end: 2880 }

impl Cuda {
    pub(crate) fn concat_rows_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts.iter().map(|part| part.rows()).sum(), parts[0].cols())?;
        let mut row = 0;
        if parts.len() >= MIN_PARTS && all_aligned(parts) && out.aligned() {
            for parts in parts.chunks(PARTS) {
                let rows: usize = parts.iter().map(|part| part.rows()).sum();
                self.gather(parts, &out.row_view(row..row + rows))?;
                row += rows;
            }
            return Ok(out);
        }
        for part in parts {
            self.copy_cells(part, &out.row_view(row..row + part.rows()))?;
            row += part.rows();
        }
        Ok(out)
    }

    /// Copies the rows of at most [`PARTS`] parts to `out`, which has as many rows; all are aligned.
    fn gather(&self, parts: &[&Tensor<Cuda>], out: &Tensor<Cuda>) -> Result<()> {
        let launch = self.launch("concat", "concat_rows")?;
        let int = |value: usize| launch::int(value, || "op `concat_rows`".to_string());
        let (mut rows, mut cols) = (int(out.rows())?, int(out.cols())?);
        let mut given = Parts { from: [0; PARTS], stride: [0; PARTS], end: [rows; PARTS] };
        let mut end = 0;
        for (place, part) in parts.iter().enumerate() {
            end += part.rows();
            given.from[place] = part.address();
            given.end[place] = int(end)?;
            if part.rows() > 1 {
                given.stride[place] = int(part.stride())?;
            }
        }
        let (mut address, mut stride) = (out.address(), out.stride() as i64);
        let mut arguments: [*mut c_void; 5] = [
            ptr::from_mut(&mut given).cast(),
            ptr::from_mut(&mut address).cast(),
            ptr::from_mut(&mut stride).cast(),
            ptr::from_mut(&mut rows).cast(),
            ptr::from_mut(&mut cols).cast(),
        ];
        let (grid, block) = row_tiles(out.rows(), out.cols() / 8);
        // SAFETY: types and order match `concat_rows` in cuda/concat.cu, with `Parts` laid out as there. `out` was made
        // for all rows, with the columns that `Tensor::concat_rows` found in all parts, and `all_aligned` found all of
        // them aligned.
        unsafe { launch.run_raw(grid, block, &mut arguments) }
    }

    pub(crate) fn concat_cols_op(&self, parts: &[&Tensor<Cuda>]) -> Result<Tensor<Cuda>> {
        let out = self.empty(parts[0].rows(), parts.iter().map(|part| part.cols()).sum())?;
        let mut column = 0;
        for part in parts {
            let (from, to) = (part.address(), out.address() + 2 * column as u64);
            // SAFETY: `Tensor::concat_cols` checked that all parts have equal numbers of rows, and are activations; out
            // has a column for each of theirs.
            unsafe { self.copy_rows(from, part.stride(), to, out.stride(), part.rows(), part.cols()) }?;
            column += part.cols();
        }
        Ok(out)
    }
}
