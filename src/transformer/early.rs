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

    /// Whether streams have blocks for themselves.
    pub(super) fn is_none(&self) -> bool {
        [Stream::Txt, Stream::References, Stream::Img].into_iter().all(|stream| self.of(stream).1.is_empty())
    }

    /// What the tokens [rows of this device, dim] of a stream become, which see each other alone. They are in parts,
    /// each with a modulation for its text rows and one for the others, as [`SingleBlock::forward`] takes them.
    pub(super) fn forward<'a>(
        &self,
        stream: Stream,
        mut parts: Vec<Residual<'a, B>>,
        modulations: &[[&'a Modulation<B>; 2]],
        sequence: &Sequence<'_, B>,
        (backend, blocks): (&B, &Blocks<B>),
    ) -> Result<Vec<Residual<'a, B>>> {
        let (first, own) = self.of(stream);
        if own.is_empty() {
            return Ok(parts);
        }
        let mut pass = blocks.begin(backend);
        for (place, block) in (*first..).zip(own) {
            pass.enter(place)?;
            parts = block.forward(parts, modulations, sequence, Keys::Rows)?;
        }
        Ok(parts)
    }
}

/// The modulation of a stream.
pub(super) fn modulation_of<B: Backend>(streams: &Streams<Modulation<B>>, stream: Stream) -> &Modulation<B> {
    match stream {
        Stream::Txt => &streams.txt,
        Stream::References => &streams.references,
        Stream::Img => &streams.img,
    }
}

/// The tokens of the image alone in a sequence of others too, and their rows of its tables.
pub(super) fn image_alone<B: Backend>(sequence: &Sequence<'_, B>) -> (TokenSplit, Rope<B>) {
    let own = sequence.split.own();
    let (rope, first) = (sequence.rope, own.txt + own.references);
    let rows = |table: &Tensor<B>| table.row_view(first..table.rows());
    (sequence.split.image_alone(), Rope { cos: rows(&rope.cos), sin: rows(&rope.sin), pairs: rope.pairs })
}
