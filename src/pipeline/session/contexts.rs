//! Text and references as the steps read them.
//!
//! They have no noise, so what they become before they meet the image is made once: for all steps and images, or once
//! for each step where the model reads the time that a step leads to.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenSplit};
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::transformer::{Modulations, STEPS_TOGETHER, Sequence, StepModulation, Transformer};

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
    /// The early texts of the steps to come, as far as they are made.
    texts_ahead: VecDeque<Vec<Tensor<B>>>,
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
        Ok(Self {
            changes: config.reads_next_time(),
            texts,
            references,
            ropes,
            made: None,
            texts_ahead: VecDeque::new(),
        })
    }

    /// The context of the first of `steps`. Where it is another one at each step, texts of several are made at once,
    /// which may have as many rows as `rows`.
    ///
    /// Errors when memory runs out.
    pub(super) fn at_step(
        &mut self,
        transformer: &Transformer<B>,
        modulations: &Modulations<B>,
        steps: Range<usize>,
        rows: usize,
    ) -> Result<Tensor<B>> {
        if let Some(made) = &self.made {
            return Ok(made.row_view(0..made.rows()));
        }
        let modulation = |step: usize| transformer.modulation(&modulations.row(step));
        if self.texts_ahead.is_empty() {
            let longest = self.texts.splits.iter().map(|split| split.whole().rows()).max().unwrap_or(0);
            let together = if self.changes { (rows / longest.max(1)).clamp(1, STEPS_TOGETHER) } else { 1 };
            let steps = steps.clone().take(together).map(modulation).collect::<Result<Vec<_>>>()?;
            self.texts_ahead = self.early_texts(transformer, &steps)?;
        }
        let texts = self.texts_ahead.pop_front().expect("made above");
        let made = self.make(transformer, texts, &modulation(steps.start)?)?;
        if !self.changes {
            self.made = Some(made.row_view(0..made.rows()));
        }
        Ok(made)
    }

    /// The own rows of all texts, of each step.
    fn early_texts(
        &self,
        transformer: &Transformer<B>,
        steps: &[StepModulation<B>],
    ) -> Result<VecDeque<Vec<Tensor<B>>>> {
        let mut of_steps: VecDeque<Vec<_>> = steps.iter().map(|_| Vec::new()).collect();
        let mut end = 0;
        for (place, (split, own)) in self.texts.splits.iter().zip(&self.texts.own).enumerate() {
            let text = self.texts.rows.row_view(end..end + split.whole().rows());
            end += text.rows();
            let early = match &self.ropes {
                Some(ropes) => {
                    let sequence = Sequence { split: *split, rope: &ropes.texts[place] };
                    transformer.early_texts(&text, &sequence, steps)?
                }
                None => steps.iter().map(|_| text.row_view(0..text.rows())).collect(),
            };
            for (of_step, text) in of_steps.iter_mut().zip(early) {
                of_step.push(text.row_view(own.clone()));
            }
        }
        Ok(of_steps)
    }

    /// Of each evaluation, one under the other: the text of each of the samples that have a turn, and their references.
    fn make(
        &self,
        transformer: &Transformer<B>,
        early_texts: Vec<Tensor<B>>,
        modulation: &StepModulation<B>,
    ) -> Result<Tensor<B>> {
        let (texts, references) = (&self.texts, &self.references);
        let view = |rows: &Tensor<B>| rows.row_view(0..rows.rows());
        let is_plain = self.ropes.is_none() && references.sets.is_empty() && references.of_turns.len() == 1;
        if is_plain && texts.places.iter().copied().eq(0..texts.splits.len()) {
            return Ok(view(&texts.rows));
        }
        let mut early_sets = Vec::new();
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
