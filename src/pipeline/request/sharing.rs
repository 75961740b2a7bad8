//! The choice between one and several devices for an image.

use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::plan::Plan;
use crate::token_split::own_heads;

/// Floating-point operations of an image's steps from which two GPUs are faster than one, counted from the start of a
/// program. Two GPUs save 0.4 to 0.45 of the steps, which one GPU computes at 650 TFLOP/s, and take 0.3 to 0.45 s
/// longer to open, load and release: 0.4 / 0.4 * 650 TFLOP (H100, tests/bench/runs/2026-11-25-h100-x2-b and -c).
const WORTH_SHARING: u64 = 650_000_000_000_000;

impl ModelInfo {
    /// Checks a request against the configs and the tensor shapes of the model.
    ///
    /// Errors if the model cannot do what is requested.
    pub fn check_request(&self, request: &Request) -> Result<()> {
        Plan::new(request, self).map(drop)
    }

    /// Returns `true` if two GPUs generate an image faster together than one GPU, counted from the start of a program
    /// for this single image. Measured on H100s; on slower GPUs, smaller images benefit too.
    ///
    /// Errors if the model cannot do what is requested.
    pub fn gains_by_sharing(&self, request: &Request) -> Result<bool> {
        let divides = own_heads(self.transformer.num_attention_heads, 2).is_ok();
        Ok(divides
            && !request.sparse
            && request.reuse.is_none()
            && self.step_flops(&Plan::new(request, self)?) >= WORTH_SHARING)
    }

    /// Returns the floating-point operations of the blocks, in all steps of an image.
    fn step_flops(&self, plan: &Plan) -> u64 {
        let patch = self.vae.patch_pixels();
        let tokens = |[height, width]: [usize; 2]| ((height / patch) * (width / patch)) as u64;
        let images = tokens([plan.height, plan.width]) + plan.references.iter().copied().map(tokens).sum::<u64>();
        let evaluation = |text: &usize| self.transformer.evaluation_flops(*text as u64 + images);
        let step = plan.text().iter().map(evaluation).fold(0, u64::saturating_add);
        step.saturating_mul(plan.steps_to_run() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;

    /// The built-in model with the sizes of klein 4B that matter here.
    fn klein_4b() -> ModelInfo {
        let mut info = ModelInfo::read(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
        let transformer = &mut info.transformer;
        (transformer.num_attention_heads, transformer.attention_head_dim, transformer.mlp_ratio) = (24, 128, 3.0);
        (transformer.num_layers, transformer.num_single_layers) = (5, 20);
        info
    }

    fn sized(side: usize) -> Request {
        Request { width: Some(side), height: Some(side), ..Request::new("a cat", 1) }
    }

    #[test]
    fn a_step_of_klein_4b_is_as_much_work_as_its_ops() {
        let info = klein_4b();
        let plan = Plan::new(&Request { steps: Some(1), ..sized(1024) }, &info).unwrap();
        // 34.66 TFLOP by the ops of `flux bench`.
        assert_eq!(info.step_flops(&plan) / 100_000_000_000, 347);
    }

    #[test]
    fn large_images_and_many_steps_are_shared_and_small_ones_are_not() {
        let info = klein_4b();
        let gains = |request: Request| info.gains_by_sharing(&request).unwrap();
        let steps = |side: usize, steps: usize| Request { steps: Some(steps), ..sized(side) };
        assert!(!gains(steps(512, 4)) && !gains(steps(1024, 4)) && !gains(steps(1024, 16)));
        assert!(gains(steps(2048, 4)) && gains(steps(1024, 50)) && !gains(steps(512, 50)));
        let mut odd = info.clone();
        odd.transformer.num_attention_heads = 23;
        assert!(!odd.gains_by_sharing(&steps(1024, 50)).unwrap(), "heads cannot be divided evenly");
        assert!(gains(steps(8192, 1000)), "more operations than the counter holds");
        assert!(info.gains_by_sharing(&sized(1 << 20)).is_err());
    }
}
