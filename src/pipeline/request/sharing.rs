//! Whether devices make an image sooner together.

use crate::error::Result;
use crate::model::info::ModelInfo;
use crate::pipeline::request::plan::{Plan, Request};
use crate::token_split::own_heads;

/// Floating-point operations of an image's steps from which on two GPUs write it sooner than one, from the start of a
/// program. Two save 0.4 to 0.45 of the steps, which one makes at 650 TFLOP/s, and take 0.3 to 0.45 s longer to open,
/// load and give back: 0.4 / 0.4 * 650 TFLOP (H100, tests/bench/runs/2026-11-25-h100-x2-b and -c).
const WORTH_SHARING: u64 = 650_000_000_000_000;

impl ModelInfo {
    /// Errors when the model cannot do what is asked for, as far as its configs and the shapes of its files tell it.
    pub fn check_request(&self, request: &Request) -> Result<()> {
        Plan::new(request, self).map(drop)
    }

    /// Whether two GPUs make an image sooner together than one of them, counted from the start of a program that makes
    /// this one image. Measured on H100s; slower GPUs gain from smaller images on.
    ///
    /// Errors when the model cannot do what is asked for.
    pub fn gains_by_sharing(&self, request: &Request) -> Result<bool> {
        let divides = own_heads(self.transformer.num_attention_heads, 2).is_ok();
        Ok(divides
            && !request.sparse
            && request.reuse.is_none()
            && self.step_flops(&Plan::new(request, self)?) >= WORTH_SHARING)
    }

    /// Of the blocks, in all steps of an image.
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

    /// The built-in model with the sizes of klein 4B, as far as they count here.
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
        assert!(!odd.gains_by_sharing(&steps(1024, 50)).unwrap(), "heads do not divide");
        assert!(gains(steps(8192, 1000)), "more operations than are counted");
        assert!(info.gains_by_sharing(&sized(1 << 20)).is_err());
    }
}
