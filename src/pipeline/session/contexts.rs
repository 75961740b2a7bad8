//! Text and references as the steps read them.
//!
//! They have no noise, so what they become before they meet the image is made once: for all steps and images, or once
//! for each step where the model reads the time that a step leads to.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenSplit};
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::transformer::{Sequence, StepModulation, Transformer};

/// The texts of a batch, embedded.
pub(super) struct Texts<B: Backend> {
    /// One under the other.
    pub rows: Tensor<B>,
    /// The tokens of each. Each device has all that meet in blocks of text alone: devices that share an evaluation may
    /// have as many texts as others, or not, and would wait for each other.
    pub splits: Vec<TokenSplit>,
    /// Which rows of each this device goes on with.
    pub own: Vec<Range<usize>>,
    /// The text of each evaluation and sample.
    pub places: Vec<usize>,
    pub samples: usize,
}

/// The references of a turn: images and what they are as embedded latents, where these are in the sequence.
pub(super) type Turn<'a, B> = (&'a [Arc<Rgb>], Option<Tensor<B>>);

/// The references of a batch, embedded.
pub(super) struct References<B: Backend> {
    /// Each set of references once.
    sets: Vec<Tensor<B>>,
    /// The set of each turn; none of a turn without references.
    of_turns: Vec<Option<usize>>,
    /// Their sizes, [height, width] in tokens.
    sizes: Vec<[usize; 2]>,
    /// Which rows of a set this device has.
    split: TokenSplit,
}

impl<B: Backend> References<B> {
    /// Those of each turn.
    pub(super) fn new(turns: Vec<Turn<'_, B>>, sizes: Vec<[usize; 2]>, split: TokenSplit) -> Self {
        let (mut sets, mut known, mut of_turns) = (Vec::new(), Vec::<&[Arc<Rgb>]>::new(), Vec::new());
        for (images, embedded) in turns {
            of_turns.push(embedded.map(|embedded| {
                known.iter().position(|known| *known == images).unwrap_or_else(|| {
                    sets.push(embedded);
                    known.push(images);
                    sets.len() - 1
                })
            }));
        }
        Self { sets, of_turns, sizes, split }
    }
}

/// The positions of text and references by themselves.
struct Ropes<B: Backend> {
    texts: Vec<Rope<B>>,
    references: Option<Rope<B>>,
}

/// What [`Transformer::forward`] reads of text and references.
pub(super) struct Contexts<B: Backend> {
    texts: Texts<B>,
    references: References<B>,
    /// Where text and references are by themselves before they meet the image.
    ropes: Option<Ropes<B>>,
    /// Whether it is another one at each step.
    changes: bool,
    /// The one of all steps.
    made: Option<Tensor<B>>,
}

impl<B: Backend> Contexts<B> {
    /// Errors when memory runs out.
    pub(super) fn new(transformer: &Transformer<B>, texts: Texts<B>, references: References<B>) -> Result<Self> {
        let (config, References { split, sizes, .. }) = (transformer.config(), &references);
        let ropes = || -> Result<_> {
            let of_texts = texts.splits.iter().map(|split| transformer.rope(split, &[], [0, 0]));
            let of_references = || transformer.rope(split, sizes, [0, 0]);
            let of_references = (!references.sets.is_empty()).then(of_references).transpose()?;
            Ok(Ropes { texts: of_texts.collect::<Result<_>>()?, references: of_references })
        };
        let ropes = config.has_early_blocks().then(ropes).transpose()?;
        Ok(Self { changes: config.reads_next_time(), texts, references, ropes, made: None })
    }

    /// The context of a step whose row of modulations this is.
    ///
    /// Errors when memory runs out.
    pub(super) fn at_step(&mut self, transformer: &Transformer<B>, modulation: &Tensor<B>) -> Result<Tensor<B>> {
        let made = match self.made.take() {
            Some(made) => made,
            None => self.make(transformer, &transformer.modulation(modulation)?)?,
        };
        if !self.changes {
            self.made = Some(made.row_view(0..made.rows()));
        }
        Ok(made)
    }

    /// Of each evaluation, one under the other: the text of each of the samples that have a turn, and their references.
    fn make(&self, transformer: &Transformer<B>, modulation: &StepModulation<B>) -> Result<Tensor<B>> {
        let (texts, references) = (&self.texts, &self.references);
        let lengths: Vec<usize> = texts.splits.iter().map(|split| split.whole().rows()).collect();
        let starts: Vec<usize> = lengths.iter().scan(0, |end, length| Some(mem::replace(end, *end + length))).collect();
        let view = |rows: &Tensor<B>| rows.row_view(0..rows.rows());
        let text = |place: usize| texts.rows.row_view(starts[place]..starts[place] + lengths[place]);
        let is_plain = self.ropes.is_none() && references.sets.is_empty() && references.of_turns.len() == 1;
        if is_plain && texts.places.iter().copied().eq(0..lengths.len()) {
            return Ok(view(&texts.rows));
        }
        let (mut early_texts, mut early_sets) = (Vec::new(), Vec::new());
        for (place, own) in texts.own.iter().enumerate() {
            let early = match &self.ropes {
                Some(ropes) => {
                    let sequence = Sequence { split: texts.splits[place], rope: &ropes.texts[place] };
                    transformer.early_text(text(place), &sequence, modulation)?
                }
                None => text(place),
            };
            early_texts.push(early.row_view(own.clone()));
        }
        for set in &references.sets {
            early_sets.push(match &self.ropes {
                Some(Ropes { references: Some(rope), .. }) => {
                    let sequence = Sequence { split: references.split, rope };
                    transformer.early_references(view(set), &sequence, modulation)?
                }
                _ => view(set),
            });
        }
        let in_turn = texts.samples / references.of_turns.len();
        let mut parts: Vec<Tensor<B>> = Vec::new();
        for (turn, set) in references.of_turns.iter().enumerate() {
            for evaluation in texts.places.chunks(texts.samples) {
                let places = &evaluation[turn * in_turn..(turn + 1) * in_turn];
                parts.extend(places.iter().map(|place| view(&early_texts[*place])));
                parts.extend(set.map(|set| view(&early_sets[set])));
            }
        }
        if let [only] = &parts[..] {
            return Ok(view(only));
        }
        Tensor::concat_rows(&parts.iter().collect::<Vec<_>>())
    }
}
