//! Early blocks: the separate blocks of text, references and image, before the three are joined in one stream.

use super::modulation::{PerKind, TokenKind};
use super::{Keys, Modulated, Sequence, SingleBlock, StepModulation, Stream, Transformer};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenSplit};
use crate::tensor::Tensor;

/// Maximum number of steps whose texts [`Transformer::early_texts`] computes at once. A text has few rows, which leave
/// most of a GPU idle. A matrix multiplication takes two parts of the stream, each with two modulations.
pub const STEPS_TOGETHER: usize = 4;

/// The index of the first block among all blocks in the order of use, and the blocks.
pub(super) type BlockList<B> = (usize, Vec<SingleBlock<B>>);

/// The early blocks of each kind of tokens; there may be none.
pub(super) struct Early<B: Backend>(PerKind<BlockList<B>>);

impl<B: Backend> Early<B> {
    pub(super) fn new(blocks: PerKind<BlockList<B>>) -> Self {
        Self(blocks)
    }

    /// Returns no blocks, for models that join all tokens at once.
    pub(super) fn none() -> Self {
        let none = || (0, Vec::new());
        Self(PerKind { txt: none(), references: none(), img: none() })
    }
}

impl<B: Backend> Transformer<B> {
    /// Runs the early blocks on the result of [`Transformer::context`], at each of up to [`STEPS_TOGETHER`] steps.
    /// Without early blocks the text is unchanged. The result is the same at every step unless
    /// [`TransformerConfig::reads_next_time`](super::TransformerConfig::reads_next_time).
    ///
    /// The sequence has the text alone, on this device: txt [tokens, dim] -> the same shape for each step.
    pub fn early_texts(
        &self,
        txt: &Tensor<B>,
        sequence: &Sequence<'_, B>,
        steps: &[StepModulation<B>],
    ) -> Result<Vec<Tensor<B>>> {
        let view = || txt.row_view(0..txt.rows());
        if !self.config.has_early_blocks() {
            return Ok(steps.iter().map(|_| view()).collect());
        }
        let early =
            steps.iter().map(|step| step.early.as_ref().expect("models with early blocks have their modulation"));
        let of_steps: Vec<_> = early.map(|early| &early.txt).collect();
        // Two steps form one part of the stream: the text rows of the part are those of the first step.
        let (mut parts, mut modulations) = (Vec::new(), Vec::new());
        for of_part in of_steps.chunks(2) {
            let (x, txt_rows, modulated) = match *of_part {
                [first, second] => (Tensor::concat_rows(&[txt, txt])?, txt.rows(), Modulated::Apart([first, second])),
                _ => (view(), 0, Modulated::Joined(of_part[0])),
            };
            parts.push(Stream::new(x, txt_rows, self.config.eps));
            modulations.push(modulated);
        }
        let sequence = Sequence { split: sequence.split.with_one_kind(steps.len()), ..*sequence };
        self.early_blocks(TokenKind::Text, Stream::concat(parts), &modulations, &sequence)?.sums()
    }

    /// Runs the early blocks on the result of [`Transformer::references`], at one step. References see only each
    /// other: references [rows of this device, dim] -> the same shape.
    pub fn early_references(
        &self,
        references: Tensor<B>,
        sequence: &Sequence<'_, B>,
        modulation: &StepModulation<B>,
    ) -> Result<Tensor<B>> {
        self.early_stream(TokenKind::References, references, modulation, sequence)?.sum()
    }

    /// Runs the early blocks on the image. Both evaluations of guidance may share the result.
    ///
    /// latents [batch * img, in_channels] -> [batch * img, dim].
    pub fn early_image(
        &self,
        latents: &Tensor<B>,
        modulation: &StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Tensor<B>> {
        self.image_stream(latents, modulation, sequence)?.sum()
    }

    /// Embeds the image, and runs its early blocks.
    pub(super) fn image_stream<'a>(
        &self,
        latents: &Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let x = latents.linear(&self.x_embedder, None)?;
        let (split, rope) = image_alone(sequence);
        self.early_stream(TokenKind::Image, x, modulation, &Sequence::new(split, &rope))
    }

    /// Runs the early blocks on tokens of one kind at one step.
    fn early_stream<'a>(
        &self,
        kind: TokenKind,
        x: Tensor<B>,
        modulation: &'a StepModulation<B>,
        sequence: &Sequence<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let stream = Stream::new(x, 0, self.config.eps);
        match &modulation.early {
            Some(early) => self.early_blocks(kind, stream, &[Modulated::Joined(early.get(kind))], sequence),
            None => Ok(stream),
        }
    }

    /// Runs the early blocks of a kind of tokens, which see only each other. There is a modulation for each part of
    /// the stream.
    fn early_blocks<'a>(
        &self,
        kind: TokenKind,
        mut stream: Stream<'a, B>,
        modulations: &[Modulated<'a, B>],
        sequence: &Sequence<'_, B>,
    ) -> Result<Stream<'a, B>> {
        let (first, own) = self.early.0.get(kind);
        if own.is_empty() {
            return Ok(stream);
        }
        let mut pass = self.blocks.begin(&self.backend);
        for (place, block) in (*first..).zip(own) {
            pass.enter(place)?;
            stream = block.forward(stream, modulations, sequence, Keys::Rows)?;
        }
        Ok(stream)
    }
}

/// Returns the split and the rotary tables of the image alone, in a sequence that has other tokens too.
fn image_alone<B: Backend>(sequence: &Sequence<'_, B>) -> (TokenSplit, Rope<B>) {
    let own = sequence.split.own();
    let (rope, first) = (sequence.rope, own.txt + own.references);
    let rows = |table: &Tensor<B>| table.row_view(first..table.rows());
    (sequence.split.image_alone(), Rope { cos: rows(&rope.cos), sin: rows(&rope.sin), pairs: rope.pairs })
}
