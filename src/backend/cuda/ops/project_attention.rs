//! `project_attention` in two kernels on Hopper: if attention is in e4m3, `project` stores q, k and v in e4m3.
//! Otherwise it runs its composition; if `project` does so too, the MLP's activation function runs beside attention,
//! and the conversion for attention in int8 norms and rotates q and k.

use super::attention::Call;
use super::attention_e4m3::Values;
use super::attention_hopper::CHOICE;
use crate::backend::cuda::{Cuda, Tensor};
use crate::error::Result;
use crate::nn::{Linear, Operand};
use crate::ops::project::{borrowed, products};
use crate::ops::{Attended, Heads, Mask, Projection, QkNormRope};

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
        let values = is_wanted.then(|| Values::new(self.device(), layout.tokens(), heads.dim)).transpose()?;
        if let Some(mut values) = values
            && let Some(Projection { kvq: [k, v, q], mlp }) =
                self.project_in_one(&borrowed(&parts), Some(heads), Some(&mut values))?
        {
            drop(parts); // makes room
            let call = Call { q: &q, k: &k, v: &v, out: &q, head_dim, layout, mask, cached: None };
            let [txt, img] = heads.norm;
            let norms = [&txt.q, &img.q, &txt.k, &img.k].map(Tensor::address);
            self.attend_normed_in_e4m3(&call, &values, norms)?;
            return Ok(Attended { attn: q, mlp });
        }
        if let Some(Projection { kvq: [k, v, q], mlp }) = self.project_fused(&borrowed(&parts), Some(heads))? {
            drop(parts);
            return Ok(Attended { attn: q.attention(&k, &v, head_dim, layout, mask)?, mlp });
        }
        self.attend_with_mlp(parts, heads)
    }

    /// Runs the composition. The `swiglu` of an MLP, which is memory-bound, runs on multiprocessors that the last
    /// blocks of attention leave idle.
    fn attend_with_mlp(
        &self,
        parts: Vec<(Operand<Cuda>, &Linear<Cuda>)>,
        heads: &Heads<'_, Cuda>,
    ) -> Result<Attended<Cuda>> {
        let [k, v, q, gate, up] = products(self, &borrowed(&parts), Some(heads))?;
        drop(parts);
        let is_normed_later = self.norms_in_int8([&q, &k, &v], heads)?;
        let (q, k) = if is_normed_later {
            (q, k)
        } else {
            let &Heads { norm, rope, layout, .. } = heads;
            self.qk_norm_rope_op(QkNormRope { q, k, norm, rope, layout })?
        };
        let [q, gate, up] = [q, gate, up].map(|x| heads.with_query(x));
        let fresh = self.unless_writable(&gate)?;
        let mlp = fresh.as_ref().unwrap_or(&gate);
        let point = (mlp.cols() > 0).then(|| self.device().fork_point()).transpose()?;
        let (head_dim, layout, mask) = (heads.norm[0].q.cols(), heads.layout, Mask::None);
        let attn = if is_normed_later {
            let fresh = self.unless_writable(&q)?;
            let out = fresh.as_ref().unwrap_or(&q);
            self.attend_in_int8(&Call { q: &q, k: &k, v: &v, out, head_dim, layout, mask, cached: None }, Some(heads))?;
            fresh.unwrap_or(q)
        } else {
            q.attention(&k, &v, head_dim, layout, mask)?
        };
        if let Some(point) = point {
            self.device().on_side_stream(&point, |side| self.swiglu_on(side, &gate, &up, mlp))?;
        }
        Ok(Attended { attn, mlp: fresh.unwrap_or(gate) })
    }
}
