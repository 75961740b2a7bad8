//! `project_attention` by two kernels of Hopper: where attention is in e4m3, `project` stores q and k so. Elsewhere it
//! is its composition.

use super::attention::Call;
use super::attention_hopper::CHOICE;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::project_attention::{borrowed, compose};
use crate::ops::{Attended, Heads, Mask, Projection};

impl Cuda {
    pub(crate) fn project_attention_op(
        &self,
        parts: Vec<(Operand<Cuda>, &Linear<Cuda>)>,
        heads: &Heads<'_, Cuda>,
    ) -> Result<Attended<Cuda>> {
        let (head_dim, layout, mask) = (heads.norm[0].q.cols(), heads.layout, Mask::None);
        // Rows of one sample are in the order of its tokens, so that a tile of keys is a box of rows.
        let is_wanted =
            layout.batch == 1 && self.hopper_form(CHOICE)?.is_some() && self.attends_in_e4m3(head_dim, layout, mask)?;
        let projection = is_wanted.then(|| self.project_in_one(&borrowed(&parts), Some(heads), true)).transpose()?;
        let Some(Projection { kvq: [k, v, q], mlp }) = projection.flatten() else {
            return compose(self, parts, heads);
        };
        drop(parts); // makes room
        let call = Call { q: &q, k: &k, v: &v, out: &q, head_dim, layout, mask, cached: None };
        let [txt, img] = heads.norm;
        let norms = [&txt.q, &img.q, &txt.k, &img.k].map(Tensor::address);
        self.attend_normed_in_e4m3(&call, norms)?;
        Ok(Attended { attn: q, mlp })
    }
}
