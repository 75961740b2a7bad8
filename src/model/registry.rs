//! The kinds of models that this program runs. All facts of a kind are in its [`ModelKind`], or in the table of
//! [`own_models`] that it points to.

use crate::files::own_models::{self, Architecture, OwnModel};
use crate::sampler::{Shift, empirical_shift};
use crate::text_encoder::{Padding, Template, Window};

/// A kind of models.
#[derive(Debug)]
pub struct ModelKind {
    /// The table of its files.
    pub files: &'static OwnModel,
    /// Defaults of models that were distilled to few steps without guidance.
    pub distilled: Defaults,
    /// Defaults of undistilled models.
    pub base: Defaults,
    /// Pixels on each side of an image, if neither the model nor the request sets a size.
    pub side: usize,
    /// Maximum ratio between the area of an image and the model's own, for models without trained sides.
    pub area_factor: f64,
    /// Maximum ratio of the sides, for models that have trained sides but no ratio.
    pub aspect_ratio: f64,
    /// The chat template around a prompt.
    pub template: Template,
    /// Text tokens of a prompt, padding included, unless the model sets another number.
    pub window: Window,
    /// Returns the shift of the schedule, by the tokens of an image and the number of steps.
    pub shift: fn(usize, usize) -> Shift,
    /// `true` if a size that the model cannot make is rounded down; otherwise it is an error.
    pub rounds_sizes: bool,
    /// `true` if guidance below 1 has an effect.
    pub guides_below_one: bool,
    /// The resizing of input images to references.
    pub references: ReferenceSizes,
    /// `true` if the model was trained on prompts with boxes.
    pub reads_boxes: bool,
    /// `true` if the model was trained on full captions, which describe a scene in 100 words or more.
    pub wants_captions: bool,
}

/// The resizing of input images to references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceSizes {
    /// Each image is scaled down to a megapixel and cropped. Its sides are bounded.
    Cropped,
    /// Several images are scaled and cropped as in [`ReferenceSizes::Cropped`], without bounds. A single image keeps
    /// its size up to four megapixels, is padded, and sets the size of the result.
    AloneWhole,
}

/// Values for requests and models that set none.
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
    // The full-size models were trained on half and twice the side.
    area_factor: 4.0,
    aspect_ratio: 2.0,
    // The text encoder's chat template for one user message with thinking disabled.
    template: Template {
        before: "<|im_start|>user\n",
        after: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        padding: Padding::Counted,
    },
    window: Window { max: 512, step: None },
    shift: empirical_shift,
    rounds_sizes: true,
    guides_below_one: false,
    references: ReferenceSizes::Cropped,
    reads_boxes: false,
    wants_captions: false,
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
    window: Window { max: 8192, step: Some(80) },
    shift: |_, _| Shift::Constant(6.93),
    rounds_sizes: false,
    guides_below_one: true,
    references: ReferenceSizes::AloneWhole,
    reads_boxes: true,
    wants_captions: true,
};

/// All kinds of models.
pub static KINDS: [&ModelKind; 2] = [&FLUX2_KLEIN, &FLUX3_KLEIN];

impl ModelKind {
    /// Returns the kind of models with this architecture.
    pub fn for_architecture(architecture: Architecture) -> &'static Self {
        let is = |kind: &&Self| kind.files.architecture == architecture;
        KINDS.into_iter().find(is).expect("every architecture is of a kind")
    }

    /// Returns the values for requests that set none.
    pub fn defaults(&self, is_distilled: bool) -> &Defaults {
        if is_distilled { &self.distilled } else { &self.base }
    }

    /// Lists the text encoders of the published sizes, for the error of an encoder that does not fit.
    pub(super) fn encoders(&self) -> String {
        let sizes = self.files.sizes.iter().enumerate().map(|(index, size)| {
            let (encoder, _) = size.text_encoder;
            let encoder = if index == 0 { format!("needs the {encoder} encoder") } else { encoder.to_string() };
            format!("the {} transformer {encoder} ({})", size.name, size.features)
        });
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        format!("the two belong to different models: {sizes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_encoders_are_named_with_their_sizes() {
        let told = FLUX2_KLEIN.encoders();
        for words in ["4B transformer", "Qwen3-4B encoder (7680)", "9B transformer", "Qwen3-8B (12288)"] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    #[test]
    fn every_kind_of_files_has_its_facts() {
        let kinds: Vec<_> = KINDS.iter().map(|kind| kind.files.name).collect();
        assert_eq!(kinds, own_models::OWN_MODELS.map(|model| model.name));
    }
}
