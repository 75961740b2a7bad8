//! Launches cuda/softcap.cu.

use crate::backend::cuda::{Cuda, Tensor, all_aligned};
use crate::error::Result;

impl Cuda {
    pub(crate) fn softcap_op(&self, x: Tensor<Cuda>, cap: f32) -> Result<Tensor<Cuda>> {
        let fresh = self.unless_writable(&x)?;
        let out = fresh.as_ref().unwrap_or(&x);
        let wide = all_aligned(&[&x, out]);
        let launch = self.launch("softcap", if wide { "softcap" } else { "softcap_any" })?;
        let launch = launch.matrix(&x).matrix(out).int(x.rows()).int(x.cols()).float(cap);
        // SAFETY: argument types and order match `softcap` and `softcap_any` in cuda/softcap.cu; `out` is x, or new
        // and of its shape. A thread reads a run before it writes it.
        unsafe { launch.run_rows(x.rows(), x.cols(), wide) }?;
        Ok(fresh.unwrap_or(x))
    }
}
