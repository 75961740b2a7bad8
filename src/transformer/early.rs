//! The blocks that text, references and the image have for themselves, before they meet in one stream.

use super::modulation::Streams;
use super::{Keys, Modulation, Residual, Sequence, SingleBlock};
use crate::backend::Backend;
use crate::error::Result;
use crate::nn::Blocks;
use crate::ops::{Rope, TokenSplit};
use crate::tensor::Tensor;

/// The first of some blocks among all blocks in the order of use, and these blocks.
pub(super) type BlockList<B> = (usize, Vec<SingleBlock<B>>);

/// The blocks of each stream; there may be none.
pub(super) struct Early<B: Backend>(Streams<BlockList<B>>);

/// One of the streams.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Txt,
    References,
    Img,
}

impl<B: Backend> Early<B> {
    pub(super) fn new(blocks: Streams<BlockList<B>>) -> Self {
        Self(blocks)
    }

    /// Of models in which all streams meet at once.
    pub(super) fn none() -> Self {
        let none = || (0, Vec::new());
        Self(Streams { txt: none(), references: none(), img: none() })
    }

    fn of(&self, stream: Stream) -> &BlockList<B> {
        match stream {
            Stream::Txt => &self.0.txt,
            Stream::References => &self.0.references,
            Stream::Img => &self.0.img,
        }
    }

    /// What the tokens x [rows of this device, dim] of a stream become, which see each other alone.
    pub(super) fn forward<'a>(
        &self,
        stream: Stream,
        (x, eps): (Tensor<B>, f32),
        modulation: Option<&'a Streams<Modulation<B>>>,
        sequence: &Sequence<'_, B>,
        (backend, blocks): (&B, &Blocks<B>),
    ) -> Result<Residual<'a, B>> {
        let residual = Residual::new(x, 0, eps);
        let (first, own) = self.of(stream);
        let Some(modulation) = modulation.filter(|_| !own.is_empty()) else { return Ok(residual) };
        let modulation = match stream {
            Stream::Txt => &modulation.txt,
            Stream::References => &modulation.references,
            Stream::Img => &modulation.img,
        };
        let mut pass = blocks.begin(backend);
        let mut residuals = vec![residual];
        for (place, block) in (*first..).zip(own) {
            pass.enter(place)?;
            residuals = block.forward(residuals, &[[modulation; 2]], sequence, Keys::Rows)?;
        }
        Ok(residuals.remove(0))
    }
}

/// The tokens of the image alone in a sequence of others too, and their rows of its tables.
pub(super) fn image_alone<B: Backend>(sequence: &Sequence<'_, B>) -> (TokenSplit, Rope<B>) {
    let own = sequence.split.own();
    let (rope, first) = (sequence.rope, own.txt + own.references);
    let rows = |table: &Tensor<B>| table.row_view(first..table.rows());
    (sequence.split.image_alone(), Rope { cos: rows(&rope.cos), sin: rows(&rope.sin), pairs: rope.pairs })
}
