//! Kinds of models that this program runs: all facts of a kind stand in its value, or in the table of
//! [`own_models`] that it points to.

use crate::files::own_models::{self, Architecture, OwnModel};
use crate::sampler::{Shift, empirical_shift};
use crate::text_encoder::{Padding, Template, Window};

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
    pub window: Window,
    /// The shift of the schedule, by tokens of an image and steps.
    pub shift: fn(usize, usize) -> Shift,
    /// Whether a size that the model cannot make is rounded down; else it is an error.
    pub rounds_sizes: bool,
    /// Whether guidance below 1 is another than none.
    pub guides_below_one: bool,
    /// How the images become references that are given.
    pub references: ReferenceSizes,
}

/// How images that are given become references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceSizes {
    /// Each is scaled down to a megapixel and cropped. There are bounds for its sides.
    Cropped,
    /// The same where there are several, without bounds. One alone keeps its size up to four megapixels, is filled up,
    /// and gives the result its size.
    AloneWhole,
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
        padding: Padding::Counted,
    },
    window: Window { most: 512, step: None },
    shift: empirical_shift,
    rounds_sizes: true,
    guides_below_one: false,
    references: ReferenceSizes::Cropped,
};

/// FLUX.3-klein.
pub static FLUX3_KLEIN: ModelKind = ModelKind {
    files: &own_models::FLUX3_KLEIN,
    distilled: Defaults { steps: 16, guidance: 1.0 },
    base: Defaults { steps: 50, guidance: 3.5 },
    side: 1024,
    area_factor: 4.0,
    aspect_ratio: 4.0,
    // The text encoder's chat template for one user message.
    template: Template {
        before: "<|im_start|>user\n",
        after: "<|im_end|>\n<|im_start|>assistant\n",
        padding: Padding::At(1),
    },
    window: Window { most: 8192, step: Some(80) },
    shift: |_, _| Shift::Constant(6.93),
    rounds_sizes: false,
    guides_below_one: true,
    references: ReferenceSizes::AloneWhole,
};

/// All of them.
pub static KINDS: [&ModelKind; 2] = [&FLUX2_KLEIN, &FLUX3_KLEIN];

impl ModelKind {
    /// The kind of models with this transformer.
    pub fn of(architecture: Architecture) -> &'static Self {
        let is = |kind: &&Self| kind.files.architecture == architecture;
        KINDS.into_iter().find(is).expect("every architecture is of a kind")
    }

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
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        format!("the two are of different models: {sizes}")
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
