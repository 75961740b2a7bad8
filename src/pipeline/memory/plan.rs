//! What of a model is in the device's memory while an image is made: decided from sizes alone, before anything is
//! loaded.
//!
//! Memory is given up in the order of what that costs. Streaming the text encoder copies it once for each prompt, as
//! loading it would. Streamed blocks of the transformer are copied at every step, while the device computes with
//! others. Last, the parts of a model take turns.

use std::cmp::max;

use crate::backend::Bands;
use crate::pipeline::memory::block_sizes::BlockSizes;

/// Bytes that an image needs, by what they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemorySizes {
    /// The text encoder's layers that run; nothing where text features are given.
    pub text_encoder: BlockSizes,
    /// Activations of the text encoder.
    pub encode_text: u64,
    /// The transformer.
    pub transformer: BlockSizes,
    /// Activations of one evaluation.
    pub step: u64,
    /// Activations of what text and references become before they meet the image, between steps.
    pub early: u64,
    /// Keys and values of tokens that are kept from a step for others.
    pub kept: u64,
    /// Weights of the VAE's decoder.
    pub decoder: u64,
    /// Activations of the decoder.
    pub decode: InBands,
    /// Weights of the VAE's encoder, where images are given.
    pub encoder: u64,
    /// Activations of the encoder.
    pub encode: InBands,
    /// Weights of the tiny decoder that shows steps, where there is one.
    pub preview_decoder: u64,
    /// Its activations, which are there between steps.
    pub preview: u64,
    /// What ops need beside their operands.
    pub workspace: u64,
}

/// Bytes of activations of which some are made in bands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InBands {
    /// In wide bands.
    pub wide: u64,
    /// In narrow bands.
    pub narrow: u64,
}

impl InBands {
    pub(crate) fn of(bytes: impl Fn(Bands) -> u64) -> Self {
        Self { wide: bytes(Bands::Wide), narrow: bytes(Bands::Narrow) }
    }

    /// In such bands.
    pub fn bytes(self, bands: Bands) -> u64 {
        match bands {
            Bands::Wide => self.wide,
            Bands::Narrow => self.narrow,
        }
    }
}

/// Where the weights of a component are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlan {
    /// Which blocks are streamed, in the order of use.
    pub streamed: Vec<bool>,
    /// Bytes of the weights that are in memory.
    pub bytes: u64,
    /// Bytes of all weights.
    pub all: u64,
}

/// Which parts of a model are in memory, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes that may be used.
    pub budget: u64,
    /// The most bytes that are used at once, as far as sizes tell.
    pub peak: u64,
    /// The text encoder.
    pub text_encoder: BlockPlan,
    /// The transformer.
    pub transformer: BlockPlan,
    /// Whether all parts are in memory together, so that each may be loaded ahead of its use.
    pub together: bool,
    /// Whether there is room for what CUDA graphs compute in.
    pub graphs: bool,
    /// How the VAE makes large images.
    pub bands: Bands,
}

impl BlockPlan {
    fn of(sizes: &BlockSizes, streamed: Vec<bool>) -> Self {
        Self { bytes: sizes.in_memory(&streamed), all: sizes.all(), streamed }
    }

    /// How many blocks are streamed.
    pub fn streamed(&self) -> usize {
        self.streamed.iter().filter(|streamed| **streamed).count()
    }

    fn line(&self, name: &str) -> String {
        match self.streamed() {
            0 => format!("{name}: {}, resident", gib(self.all)),
            streamed => format!(
                "{name}: {} of {} in memory, {streamed} of {} blocks are streamed",
                gib(self.bytes),
                gib(self.all),
                self.streamed.len()
            ),
        }
    }
}

impl MemorySizes {
    /// The fewest bytes with which the image can be made.
    pub fn least(&self) -> u64 {
        let stages = [
            self.text_encoder.least() + self.encode_text,
            self.encoder + self.encode.narrow,
            self.transformer.least() + self.stepping(),
            self.decoder + self.decode.narrow,
        ];
        self.always() + stages.into_iter().max().unwrap_or(0)
    }

    /// What encoding images may take while an image of the same size is made.
    pub(crate) fn beside_others(&self) -> u64 {
        self.step + self.early + self.kept + self.encoder + self.encode.wide + self.decode.wide
    }

    /// What is there whichever part of the model is.
    fn always(&self) -> u64 {
        self.workspace + self.preview_decoder + self.kept
    }

    /// Activations while steps are made and shown, one after the other.
    fn stepping(&self) -> u64 {
        max(self.step, self.preview)
    }

    /// All that previews take.
    pub(crate) fn previews(&self) -> u64 {
        self.preview_decoder + self.preview
    }

    /// Beside the text encoder and the transformer, with CUDA graphs, whose memory stays while other work runs.
    fn beside_with_graphs(&self) -> u64 {
        // Convolution weights exist twice while they are reordered.
        let activations = self.step + self.preview + max(max(self.decode.wide, self.encode.wide), self.early);
        self.always() + 2 * self.decoder + self.encoder + activations
    }

    /// The same without graphs: the activations of the stages are there one after the other.
    fn beside(&self, bands: Bands) -> u64 {
        let activations = [self.encode_text, self.encode.bytes(bands), self.stepping(), self.decode.bytes(bands)];
        let activations = activations.into_iter().max().unwrap_or(0);
        self.always() + 2 * self.decoder + self.encoder + activations
    }

    /// The least memory in which everything is resident, in which the text encoder is streamed, in which all parts are
    /// in memory together, and in which the image can be made at all; in words, and in bytes.
    pub fn levels(&self) -> [(&'static str, u64); 4] {
        let with_graphs = self.transformer.all() + self.beside_with_graphs();
        [
            ("everything resident", self.text_encoder.all() + with_graphs),
            ("text encoder streamed", self.text_encoder.least() + with_graphs),
            ("transformer streamed", self.text_encoder.least() + self.transformer.least() + self.beside(Bands::Narrow)),
            ("parts take turns", self.least()),
        ]
    }
}

impl MemoryPlan {
    /// The plan that costs least time within `budget` bytes; none where there is no plan.
    pub fn new(sizes: &MemorySizes, budget: u64) -> Option<Self> {
        let (all_text, all_blocks) = (sizes.text_encoder.none(), sizes.transformer.none());
        let text = sizes.text_encoder.fitting(sizes.text_encoder.least())?;
        let plan = |text: &[bool], blocks: Vec<bool>, beside: u64, bands: Bands| {
            let text_encoder = BlockPlan::of(&sizes.text_encoder, text.to_vec());
            let transformer = BlockPlan::of(&sizes.transformer, blocks);
            let peak = text_encoder.bytes + transformer.bytes + beside;
            Self { budget, peak, text_encoder, transformer, together: true, graphs: false, bands }
        };
        let differ = [sizes.decode, sizes.encode].iter().any(|bytes| bytes.narrow < bytes.wide);
        let bands = if differ { Bands::Narrow } else { Bands::Wide };
        let fits = |plan: &Self| plan.peak <= budget;
        let fitting = |beside: u64| budget.checked_sub(beside).and_then(|bytes| sizes.transformer.fitting(bytes));
        let graphed = |text: &[bool]| {
            let plan = plan(text, all_blocks.clone(), sizes.beside_with_graphs(), Bands::Wide);
            Some(Self { graphs: true, ..plan }).filter(fits)
        };
        let narrow = || {
            let blocks = fitting(sizes.text_encoder.in_memory(&text) + sizes.beside(Bands::Narrow))?;
            Some(plan(&text, blocks, sizes.beside(Bands::Narrow), bands))
        };
        let apart = || {
            let blocks = fitting(sizes.always() + sizes.stepping()).filter(|_| sizes.least() <= budget)?;
            let apart = plan(&text, blocks, 0, bands);
            let stages = [
                apart.transformer.bytes + sizes.stepping(),
                apart.text_encoder.bytes + sizes.encode_text,
                sizes.encoder + sizes.encode.narrow,
                sizes.decoder + sizes.decode.narrow,
            ];
            let peak = sizes.always() + stages.into_iter().max().unwrap_or(0);
            Some(Self { peak, together: false, ..apart })
        };
        let wide = || Some(plan(&text, all_blocks.clone(), sizes.beside(Bands::Wide), Bands::Wide)).filter(fits);
        graphed(&all_text).or_else(|| graphed(&text)).or_else(wide).or_else(narrow).or_else(apart)
    }

    /// Whether a transformer that takes `bytes` in memory leaves room for all that is planned.
    pub fn admits(&self, bytes: u64) -> bool {
        bytes <= self.transformer.bytes || self.peak - self.transformer.bytes.min(self.peak) + bytes <= self.budget
    }

    /// The plan in lines, for the curious.
    pub fn lines(&self) -> Vec<String> {
        if self.transformer.all == 0 {
            return Vec::new(); // weights are used in the mapped files
        }
        let mut lines = vec![format!("memory: at most {} of {}", gib(self.peak), gib(self.budget))];
        if self.text_encoder.all > 0 {
            lines.push(self.text_encoder.line("text encoder"));
        }
        lines.push(self.transformer.line("transformer"));
        let parts = if self.together { "are in memory together" } else { "take turns in memory" };
        lines.push(format!("text encoder, transformer and VAE {parts}"));
        if !self.graphs {
            lines.push("no CUDA graphs: work is enqueued kernel by kernel".to_string());
        }
        lines
    }

    /// What was given up for want of memory, a line each.
    pub fn notes(&self) -> Vec<String> {
        let budget = gib(self.budget);
        let mut notes = Vec::new();
        if self.text_encoder.streamed() > 0 {
            notes.push(format!(
                "the text encoder ({}) is streamed for every prompt: there is no room for it in {budget}",
                gib(self.text_encoder.all)
            ));
        }
        let (streamed, blocks) = (self.transformer.streamed(), self.transformer.streamed.len());
        if streamed > 0 {
            notes.push(format!(
                "{streamed} of {blocks} blocks of the transformer ({}) are streamed at every step: there is no room for \
                 all in {budget}",
                gib(self.transformer.all)
            ));
        }
        if self.bands == Bands::Narrow {
            notes.push(format!("images are decoded in narrow bands: there is no room for wide ones in {budget}"));
        }
        if !self.together && self.transformer.all > 0 {
            notes.push(format!(
                "the transformer is freed before the image is decoded: there is no room for both in {budget}"
            ));
        }
        notes
    }
}

/// Bytes for people.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const GIB: u64 = 1 << 30;

    /// About klein 4B in bf16 at 1024 x 1024.
    fn klein_4b() -> MemorySizes {
        let (single, double) = (245 * MB, 490 * MB);
        MemorySizes {
            text_encoder: BlockSizes { blocks: vec![202 * MB; 27], rest: 0 },
            encode_text: 60 * MB,
            transformer: BlockSizes { blocks: [vec![double; 5], vec![single; 20]].concat(), rest: 390 * MB },
            step: 380 * MB,
            decoder: 100 * MB,
            decode: InBands { wide: 1340 * MB, narrow: 870 * MB },
            workspace: 64 * MB,
            ..MemorySizes::default()
        }
    }

    fn plan(budget: u64) -> MemoryPlan {
        let plan = MemoryPlan::new(&klein_4b(), budget).unwrap();
        assert!(plan.peak <= budget, "{plan:?}");
        plan
    }

    #[test]
    fn what_costs_least_time_is_given_up_first() {
        let streamed = |gib: u64| {
            let plan = plan(gib * GIB);
            (plan.text_encoder.streamed(), plan.transformer.streamed(), plan.together, plan.graphs)
        };
        assert_eq!(streamed(16), (0, 0, true, true));
        assert_eq!(streamed(12), (27, 0, true, true));
        assert_eq!(streamed(10), (27, 0, true, true));
        let (text, blocks, together, graphs) = streamed(8);
        assert!(text == 27 && (3..14).contains(&blocks) && together && !graphs, "{blocks}");
        let (text, blocks, together, graphs) = streamed(4);
        assert!(text == 27 && (20..25).contains(&blocks) && together && !graphs, "{blocks}");
        let apart = plan(2 * GIB);
        assert!(!apart.together && apart.transformer.streamed() > 20, "{apart:?}");
    }

    #[test]
    fn less_memory_never_streams_less() {
        let mut last = 0;
        for budget in (15..160).rev().map(|tenths| tenths * GIB / 10) {
            let Some(plan) = MemoryPlan::new(&klein_4b(), budget).filter(|plan| plan.together) else { break };
            assert!(plan.transformer.streamed() >= last && plan.peak <= budget, "{plan:?}");
            last = plan.transformer.streamed();
        }
        assert_eq!(last, 25, "all of them in the end");
    }

    #[test]
    fn the_least_memory_is_enough_and_one_byte_less_is_not() {
        let sizes = klein_4b();
        let least = sizes.least();
        assert_eq!(MemoryPlan::new(&sizes, least).unwrap().peak, least);
        assert_eq!(MemoryPlan::new(&sizes, least - 1), None);
        assert!(sizes.decoder + sizes.decode.narrow < least, "the step needs most");
        assert_eq!(least, 64 * MB + (390 + 2 * 490 + 380) * MB);
    }

    #[test]
    fn previews_have_room_in_every_plan() {
        let sizes = MemorySizes { preview_decoder: 3 * MB, preview: 403 * MB, ..klein_4b() };
        for (with, without) in sizes.levels().iter().zip(klein_4b().levels()) {
            assert!((3 * MB..=406 * MB).contains(&(with.1 - without.1)), "{}", with.0);
            assert!(MemoryPlan::new(&sizes, with.1).is_some_and(|plan| plan.peak <= with.1), "{}", with.0);
        }
        let graphs = |sizes: &MemorySizes| sizes.levels()[1].1;
        assert_eq!(graphs(&sizes) - graphs(&klein_4b()), 406 * MB, "graphs keep what they compute in");
    }

    #[test]
    fn levels_are_where_plans_begin() {
        let sizes = klein_4b();
        let [resident, text, blocks, least] = sizes.levels().map(|(_, bytes)| bytes);
        let plan = |bytes| MemoryPlan::new(&sizes, bytes);
        assert!(plan(resident).unwrap().notes().is_empty() && !plan(resident - 1).unwrap().notes().is_empty());
        assert!(plan(text).unwrap().graphs && !plan(text - 1).unwrap().graphs);
        assert!(plan(blocks).unwrap().together && !plan(blocks - 1).unwrap().together);
        assert!(plan(least).is_some() && plan(least - 1).is_none());
    }

    #[test]
    fn everything_that_is_given_up_is_told_in_a_line() {
        assert_eq!(plan(16 * GIB).notes(), [""; 0]);
        assert_eq!(plan(12 * GIB).notes().len(), 1);
        let notes = plan(4 * GIB).notes();
        assert!(notes.len() == 3 && notes[0].contains("text encoder (5.08 GiB)"), "{notes:?}");
        assert!(notes[1].contains("of 25 blocks") && notes[1].contains("4.00 GiB"), "{notes:?}");
        assert!(notes[2].contains("narrow bands"), "{notes:?}");
        assert_eq!(plan(2 * GIB).notes().len(), 4);
        let lines = plan(16 * GIB).lines().join("\n");
        assert!(lines.contains("transformer: 7.21 GiB, resident") && lines.contains("together"), "{lines}");
        assert!(plan(4 * GIB).lines().iter().any(|line| line.contains("no CUDA graphs")));
    }

    #[test]
    fn without_a_prompt_there_is_no_text_encoder() {
        let sizes = MemorySizes { text_encoder: BlockSizes::default(), encode_text: 0, ..klein_4b() };
        let plan = MemoryPlan::new(&sizes, 4 * GIB).unwrap();
        assert!(plan.notes().len() == 2 && !plan.lines().iter().any(|line| line.starts_with("text encoder:")));
    }
}
