//! Kinds of models that this program runs: all facts of a kind stand in its value, or in the table of
//! [`own_models`] that it points to.

use crate::files::own_models::{self, OwnModel};
use crate::sampler::empirical_shift;
use crate::text_encoder::Template;

/// A kind of models.
#[derive(Debug)]
pub struct ModelKind {
    /// Its files.
    pub files: &'static OwnModel,
    /// Where it was distilled to few steps without guidance.
    pub distilled: Defaults,
    /// Where it was not.
    pub base: Defaults,
    /// Pixels on each side of an image, where neither the model nor a request says so.
    pub side: usize,
    /// How far in area an image may be from the size that a model was made for, where it names no sides.
    pub area_factor: f64,
    /// How many times longer than the other a side may be, where a model names sides but no ratio.
    pub aspect_ratio: f64,
    /// What stands around a prompt.
    pub template: Template,
    /// Text tokens of a prompt, padding included, where a model names no other number.
    pub text_tokens: usize,
    /// The shift of the schedule, by tokens of an image and steps.
    pub shift: fn(usize, usize) -> f32,
}

/// What a request leaves open, where the model does not say it either.
#[derive(Debug)]
pub struct Defaults {
    /// Steps.
    pub steps: usize,
    /// Guidance scale.
    pub guidance: f32,
}

/// FLUX.2-klein.
pub static FLUX2_KLEIN: ModelKind = ModelKind {
    files: &own_models::FLUX2_KLEIN,
    distilled: Defaults { steps: 4, guidance: 1.0 },
    base: Defaults { steps: 50, guidance: 4.0 },
    side: 1024,
    // The full-size models saw half and twice the side.
    area_factor: 4.0,
    aspect_ratio: 2.0,
    // The text encoder's chat template for one user message with thinking disabled.
    template: Template {
        before: "<|im_start|>user\n",
        after: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    },
    text_tokens: 512,
    shift: empirical_shift,
};

/// All of them.
pub static KINDS: [&ModelKind; 1] = [&FLUX2_KLEIN];

impl ModelKind {
    /// What requests leave open.
    pub fn defaults(&self, is_distilled: bool) -> &Defaults {
        if is_distilled { &self.distilled } else { &self.base }
    }

    /// Which text encoders its published sizes need, for someone whose own does not fit.
    pub(super) fn encoders(&self) -> String {
        let sizes = self.files.sizes.iter().enumerate().map(|(index, size)| {
            let (encoder, _) = size.text_encoder;
            let encoder = if index == 0 { format!("needs the {encoder} encoder") } else { encoder.to_string() };
            format!("the {} transformer {encoder} ({})", size.name, size.features)
        });
        format!("the two are of different models: {}", sizes.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_encoders_are_named_with_their_sizes() {
        assert_eq!(
            FLUX2_KLEIN.encoders(),
            "the two are of different models: the 4B transformer needs the Qwen3-4B encoder (7680), the 9B transformer \
             Qwen3-8B (12288)"
        );
    }

    #[test]
    fn every_kind_of_files_has_its_facts() {
        let kinds: Vec<_> = KINDS.iter().map(|kind| kind.files.name).collect();
        assert_eq!(kinds, own_models::OWN_MODELS.map(|model| model.name));
    }
}
