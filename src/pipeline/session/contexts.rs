//! Text and reference tokens as inputs of the steps.
//!
//! They have no noise, so the early blocks process them only once for all steps and images; or once per step, if the
//! model reads the time of the next step.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Rope, TokenSplit};
use crate::pipeline::residency::early_cache::EarlyInput;
use crate::pipeline::session::early_results::EarlyResults;
use crate::rgb::Rgb;
use crate::tensor::Tensor;
use crate::transformer::{Modulations, STEPS_TOGETHER, Sequence, Transformer};

/// The texts of a batch, embedded.
pub(super) struct Texts<B: Backend> {
    /// The rows of all texts, concatenated.
    pub rows: Tensor<B>,
    /// The [`TextRows::number`](crate::pipeline::session::text::TextRows::number) of each text.
    pub numbers: Vec<Option<u64>>,
    /// The tokens of each text. Each device has all tokens that meet in early blocks: devices that share an
    /// evaluation may have different numbers of texts, and would wait for each other.
    pub splits: Vec<TokenSplit>,
    /// The rows of each text that this device uses after the early blocks.
    pub own: Vec<Range<usize>>,
    /// The index of the text for each evaluation and sample.
    pub places: Vec<usize>,
    pub samples: usize,
}

/// The texts of the first steps, if later steps read other texts.
pub(super) struct FirstTexts<B: Backend> {
    pub texts: Texts<B>,
    /// The first step that reads other texts.
    pub until: usize,
}

/// The references of a turn, or of a tile of its image.
pub(super) struct Turn<'a, B: Backend> {
    /// The images, and the [`ImageLatents::numbers`](crate::pipeline::session::references::ImageLatents::numbers);
    /// `None` if a tile sees a part of an image.
    pub images: Option<(&'a [Arc<Rgb>], &'a [u64])>,
    /// Embedded latents, if references are in the sequence.
    pub embedded: Option<Tensor<B>>,
}

/// The references of a batch, embedded.
pub(super) struct References<B: Backend> {
    /// Each distinct set of references, and the key of its early results.
    sets: Vec<(Tensor<B>, Option<EarlyInput>)>,
    /// The index of the set for each turn and tile; `None` for a turn without references.
    of_turns: Vec<Option<usize>>,
    /// The number of sets of a turn: 1, or one for each tile.
    of_turn: usize,
    /// Sizes of the references, [height, width] in tokens.
    sizes: Vec<[usize; 2]>,
    /// The rows of a set on this device.
    split: TokenSplit,
}

impl<B: Backend> References<B> {
    /// Creates the references from those of each turn, or of each tile of the only one.
    pub(super) fn new(turns: Vec<Turn<'_, B>>, sizes: Vec<[usize; 2]>, split: TokenSplit) -> Self {
        let of_turn = if turns.iter().any(|turn| turn.images.is_none()) { turns.len() } else { 1 };
        let (mut sets, mut known, mut of_turns) = (Vec::new(), Vec::new(), Vec::new());
        for Turn { images, embedded } in turns {
            let same = known.iter().position(|known| images.is_some() && *known == images);
            of_turns.push(embedded.map(|embedded| {
                same.unwrap_or_else(|| {
                    let numbers = images.map(|(_, numbers)| EarlyInput::References(numbers.to_vec()));
                    sets.push((embedded, numbers));
                    known.push(images);
                    sets.len() - 1
                })
            }));
        }
        Self { sets, of_turns, of_turn, sizes, split }
    }
}

/// The positions of text and references in the early blocks.
struct Ropes<B: Backend> {
    texts: Vec<Rope<B>>,
    references: Option<Rope<B>>,
}

/// The text and reference inputs of [`Transformer::forward`].
pub(super) struct Contexts<B: Backend> {
    texts: Texts<B>,
    /// The texts that replace them, and the first step that reads these.
    later: Option<(usize, Texts<B>)>,
    references: References<B>,
    /// Positions in the early blocks, if the model has them.
    ropes: Option<Ropes<B>>,
    early: EarlyResults<B>,
    /// `true` if the context differs at each step.
    changes: bool,
    /// The context of all steps, if it does not differ.
    made: Option<Tensor<B>>,
    /// Texts after the early blocks for the next steps, as far as they are computed.
    texts_ahead: VecDeque<Vec<Tensor<B>>>,
}

impl<B: Backend> Texts<B> {
    /// Returns the positions of each text in the early blocks.
    fn ropes(&self, transformer: &Transformer<B>) -> Result<Vec<Rope<B>>> {
        self.splits.iter().map(|split| transformer.rope(split, &[], [0, 0])).collect()
    }
}

impl<B: Backend> Contexts<B> {
    /// Creates the contexts of a batch: `texts`, and those that the first steps read in their place, if any.
    ///
    /// Errors if memory runs out.
    pub(super) fn new(
        transformer: &Transformer<B>,
        (first, texts): (Option<FirstTexts<B>>, Texts<B>),
        references: References<B>,
        early: EarlyResults<B>,
    ) -> Result<Self> {
        let (texts, later) = match first {
            Some(first) => (first.texts, Some((first.until, texts))),
            None => (texts, None),
        };
        let (config, References { split, sizes, .. }) = (transformer.config(), &references);
        let ropes = || -> Result<_> {
            let of_references = || transformer.rope(split, sizes, [0, 0]);
            let of_references = (!references.sets.is_empty()).then(of_references).transpose()?;
            Ok(Ropes { texts: texts.ropes(transformer)?, references: of_references })
        };
        let ropes = config.has_early_blocks().then(ropes).transpose()?;
        Ok(Self {
            changes: config.reads_next_time(),
            texts,
            later,
            references,
            ropes,
            early,
            made: None,
            texts_ahead: VecDeque::new(),
        })
    }

    /// Returns the context of the first of `steps`. If it differs at each step, texts of several steps are computed
    /// at once, with at most `rows` rows.
    ///
    /// Errors if memory runs out.
    pub(super) fn at_step(
        &mut self,
        transformer: &Transformer<B>,
        modulations: &Modulations<B>,
        steps: Range<usize>,
        rows: usize,
    ) -> Result<Tensor<B>> {
        if let Some((_, texts)) = self.later.take_if(|(first, _)| steps.start >= *first) {
            if let Some(ropes) = &mut self.ropes {
                ropes.texts = texts.ropes(transformer)?;
            }
            (self.texts, self.made) = (texts, None);
        }
        if let Some(made) = &self.made {
            return Ok(made.row_view(0..made.rows()));
        }
        if self.texts_ahead.is_empty() {
            let longest = self.texts.splits.iter().map(|split| split.whole().rows()).max().unwrap_or(0);
            let together = if self.changes { (rows / longest.max(1)).clamp(1, STEPS_TOGETHER) } else { 1 };
            let end = self.later.as_ref().map_or(steps.end, |(first, _)| steps.end.min(*first));
            let together = steps.start..end.min(steps.start + together);
            self.texts_ahead = self.early_texts(transformer, modulations, together)?;
        }
        let texts = self.texts_ahead.pop_front().expect("created above");
        let made = self.make(transformer, texts, modulations, steps.start)?;
        if !self.changes {
            self.made = Some(made.row_view(0..made.rows()));
        }
        Ok(made)
    }

    /// Returns the number of passes through early blocks since the last call.
    pub(super) fn take_made(&mut self) -> usize {
        mem::take(&mut self.early.made)
    }

    /// Returns this device's rows of all texts after the early blocks, for each step.
    fn early_texts(
        &mut self,
        transformer: &Transformer<B>,
        modulations: &Modulations<B>,
        steps: Range<usize>,
    ) -> Result<VecDeque<Vec<Tensor<B>>>> {
        let Self { texts, ropes, early, .. } = self;
        let mut of_steps: VecDeque<Vec<_>> = steps.clone().map(|_| Vec::new()).collect();
        let mut end = 0;
        for (place, (split, own)) in texts.splits.iter().zip(&texts.own).enumerate() {
            let text = texts.rows.row_view(end..end + split.whole().rows());
            end += text.rows();
            let made = match ropes {
                Some(ropes) => {
                    early.get_or_compute(texts.numbers[place].map(EarlyInput::Text), steps.clone(), || {
                        let sequence = Sequence::new(*split, &ropes.texts[place]);
                        let modulations = steps.clone().map(|step| transformer.modulation(&modulations.row(step)));
                        transformer.early_texts(&text, &sequence, &modulations.collect::<Result<Vec<_>>>()?)
                    })?
                }
                None => steps.clone().map(|_| text.row_view(0..text.rows())).collect(),
            };
            for (of_step, text) in of_steps.iter_mut().zip(made) {
                of_step.push(text.row_view(own.clone()));
            }
        }
        Ok(of_steps)
    }

    /// Returns each set of references after the early blocks at a step.
    fn early_references(
        &mut self,
        transformer: &Transformer<B>,
        modulations: &Modulations<B>,
        step: usize,
    ) -> Result<Vec<Tensor<B>>> {
        let Self { references, ropes, early, .. } = self;
        let mut sets = Vec::new();
        for (set, key) in &references.sets {
            let set = set.row_view(0..set.rows());
            let Some(Ropes { references: Some(rope), .. }) = ropes else {
                sets.push(set);
                continue;
            };
            sets.extend(early.get_or_compute(key.clone(), step..step + 1, || {
                let (sequence, modulation) =
                    (Sequence::new(references.split, rope), transformer.modulation(&modulations.row(step))?);
                Ok(vec![transformer.early_references(set, &sequence, &modulation)?])
            })?);
        }
        Ok(sets)
    }

    /// Assembles the context. For each turn and tile, and for each evaluation, it concatenates the text and the
    /// references of each sample in the turn.
    fn make(
        &mut self,
        transformer: &Transformer<B>,
        early_texts: Vec<Tensor<B>>,
        modulations: &Modulations<B>,
        step: usize,
    ) -> Result<Tensor<B>> {
        let view = |rows: &Tensor<B>| rows.row_view(0..rows.rows());
        let is_plain = self.ropes.is_none() && self.references.sets.is_empty() && self.references.of_turns.len() == 1;
        if is_plain && self.texts.places.iter().copied().eq(0..self.texts.splits.len()) {
            return Ok(view(&self.texts.rows));
        }
        let early_sets = self.early_references(transformer, modulations, step)?;
        let (texts, references) = (&self.texts, &self.references);
        let in_turn = texts.samples * references.of_turn / references.of_turns.len();
        let mut parts: Vec<Tensor<B>> = Vec::new();
        for (place, set) in references.of_turns.iter().enumerate() {
            let turn = place / references.of_turn;
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
