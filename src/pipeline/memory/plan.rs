//! The memory plan of an image: which parts of a model are in the device's memory, decided from sizes before anything
//! is loaded.
//!
//! Plans give up the cheapest things first. Streaming the text encoder copies it once for each prompt, as loading it
//! would. Streamed blocks of the transformer are copied at every step, while the device computes with other blocks.
//! Then the parts of a model take turns in memory. As a last resort, large activations of the VAE are in host memory.

use std::cmp::max;

use crate::backend::Bands;
use crate::pipeline::memory::block_sizes::BlockSizes;

/// The memory that an image needs, in bytes by purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemorySizes {
    /// The layers of the text encoder that run; empty if text features are passed.
    pub text_encoder: BlockSizes,
    /// Activations of the text encoder.
    pub encode_text: u64,
    /// The transformer.
    pub transformer: BlockSizes,
    /// Activations of one evaluation.
    pub step: u64,
    /// Activations of the early blocks, which text and references pass before they join the image tokens; between
    /// steps.
    pub early: u64,
    /// Cached keys and values of tokens that later steps do not recompute.
    pub kept: u64,
    /// Weights of the VAE's decoder.
    pub decoder: u64,
    /// Activations of the decoder.
    pub decode: InBands,
    /// Activations of encoder and decoder in host memory, with [`Bands::Host`].
    pub host: u64,
    /// Weights of the VAE's encoder; 0 without input images.
    pub encoder: u64,
    /// Activations of the encoder.
    pub encode: InBands,
    /// Weights of the tiny decoder for previews; 0 without one.
    pub preview_decoder: u64,
    /// Activations of the tiny decoder, which run between steps.
    pub preview: u64,
    /// Workspace of ops besides their operands.
    pub workspace: u64,
}

/// Bytes of activations that are partly computed in bands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InBands {
    /// With wide bands.
    pub wide: u64,
    /// With narrow bands.
    pub narrow: u64,
    /// With narrow bands of large activations in host memory.
    pub host: u64,
}

impl InBands {
    pub(crate) fn from_fn(bytes: impl Fn(Bands) -> u64) -> Self {
        Self { wide: bytes(Bands::Wide), narrow: bytes(Bands::Narrow), host: bytes(Bands::Host) }
    }

    /// Returns the bytes with these bands.
    pub fn bytes(self, bands: Bands) -> u64 {
        match bands {
            Bands::Wide => self.wide,
            Bands::Narrow => self.narrow,
            Bands::Host => self.host,
        }
    }
}

/// The location of the weights of a component.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlan {
    /// `true` for each streamed block, in the order of use.
    pub streamed: Vec<bool>,
    /// Bytes of the weights that are in memory.
    pub bytes: u64,
    /// Bytes of all weights.
    pub all: u64,
}

/// The parts of a model that are in memory, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes that may be used.
    pub budget: u64,
    /// Peak memory in bytes, estimated from sizes.
    pub peak: u64,
    /// The text encoder.
    pub text_encoder: BlockPlan,
    /// The transformer.
    pub transformer: BlockPlan,
    /// `true` if all parts are in memory together, so that each can be loaded before its use.
    pub together: bool,
    /// `true` if there is room for the buffers of CUDA graphs.
    pub graphs: bool,
    /// The bands in which the VAE computes large images.
    pub bands: Bands,
    /// Bytes of host memory for activations.
    pub host: u64,
}

impl BlockPlan {
    fn new(sizes: &BlockSizes, streamed: Vec<bool>) -> Self {
        Self { bytes: sizes.in_memory(&streamed), all: sizes.all(), streamed }
    }

    /// Returns the number of streamed blocks.
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
    /// Returns the minimum bytes with which the image can be generated.
    pub fn least(&self) -> u64 {
        self.least_in(Bands::Host)
    }

    /// Returns the minimum bytes with these bands of the VAE.
    fn least_in(&self, bands: Bands) -> u64 {
        let stages = [
            self.text_encoder.least() + self.encode_text,
            self.encoder + self.encode.bytes(bands),
            self.transformer.least() + self.stepping(),
            self.decoder + self.decode.bytes(bands),
        ];
        self.always() + stages.into_iter().max().unwrap_or(0)
    }

    /// Returns the memory for encoding images while another image of the same size is generated.
    pub(crate) fn encoding_alongside(&self) -> u64 {
        self.step + self.early + self.kept + self.encoder + self.encode.wide + self.decode.wide
    }

    /// Returns the memory that is taken at every stage.
    fn always(&self) -> u64 {
        self.workspace + self.preview_decoder + self.kept
    }

    /// Returns the activations of steps and previews, which alternate.
    fn stepping(&self) -> u64 {
        max(self.step, self.preview)
    }

    /// Returns all memory of previews.
    pub(crate) fn previews(&self) -> u64 {
        self.preview_decoder + self.preview
    }

    /// Returns the memory besides the text encoder and the transformer with CUDA graphs, whose buffers stay allocated
    /// while other work runs.
    fn besides_models_with_graphs(&self) -> u64 {
        // Convolution weights exist twice while they are reordered.
        let activations = self.step + self.preview + max(max(self.decode.wide, self.encode.wide), self.early);
        self.always() + 2 * self.decoder + self.encoder + activations
    }

    /// Returns the memory besides the text encoder and the transformer without graphs: activations of the stages
    /// follow each other.
    fn besides_models(&self, bands: Bands) -> u64 {
        let activations = [self.encode_text, self.encode.bytes(bands), self.stepping(), self.decode.bytes(bands)];
        let activations = activations.into_iter().max().unwrap_or(0);
        self.always() + 2 * self.decoder + self.encoder + activations
    }

    /// Returns the minimum memory for each level, as a name and bytes: everything resident, text encoder streamed,
    /// all parts together with a streamed transformer, and parts that take turns.
    pub fn levels(&self) -> [(&'static str, u64); 4] {
        let with_graphs = self.transformer.all() + self.besides_models_with_graphs();
        [
            ("everything resident", self.text_encoder.all() + with_graphs),
            ("text encoder streamed", self.text_encoder.least() + with_graphs),
            (
                "transformer streamed",
                self.text_encoder.least() + self.transformer.least() + self.besides_models(Bands::Narrow),
            ),
            ("parts take turns", self.least()),
        ]
    }
}

impl MemoryPlan {
    /// Creates the fastest plan within `budget` bytes; `None` if there is no plan.
    pub fn new(sizes: &MemorySizes, budget: u64) -> Option<Self> {
        let (all_text, all_blocks) = (sizes.text_encoder.none(), sizes.transformer.none());
        let text = sizes.text_encoder.fitting(sizes.text_encoder.least())?;
        let plan = |text: &[bool], blocks: Vec<bool>, beside: u64, bands: Bands| {
            let text_encoder = BlockPlan::new(&sizes.text_encoder, text.to_vec());
            let transformer = BlockPlan::new(&sizes.transformer, blocks);
            let peak = text_encoder.bytes + transformer.bytes + beside;
            Self { budget, peak, text_encoder, transformer, together: true, graphs: false, bands, host: 0 }
        };
        let saves = |bands: Bands, other: Bands| {
            [sizes.decode, sizes.encode].iter().any(|bytes| bytes.bytes(bands) < bytes.bytes(other))
        };
        let narrow = if saves(Bands::Narrow, Bands::Wide) { Bands::Narrow } else { Bands::Wide };
        let fits = |plan: &Self| plan.peak <= budget;
        let fitting = |beside: u64| budget.checked_sub(beside).and_then(|bytes| sizes.transformer.fitting(bytes));
        let graphed = |text: &[bool]| {
            let plan = plan(text, all_blocks.clone(), sizes.besides_models_with_graphs(), Bands::Wide);
            Some(Self { graphs: true, ..plan }).filter(fits)
        };
        let together = |bands: Bands| {
            let blocks = fitting(sizes.text_encoder.in_memory(&text) + sizes.besides_models(bands))?;
            Some(plan(&text, blocks, sizes.besides_models(bands), bands))
        };
        let apart = |bands: Bands| {
            let blocks = fitting(sizes.always() + sizes.stepping()).filter(|_| sizes.least_in(bands) <= budget)?;
            let apart = plan(&text, blocks, 0, bands);
            let stages = [
                apart.transformer.bytes + sizes.stepping(),
                apart.text_encoder.bytes + sizes.encode_text,
                sizes.encoder + sizes.encode.bytes(bands),
                sizes.decoder + sizes.decode.bytes(bands),
            ];
            let peak = sizes.always() + stages.into_iter().max().unwrap_or(0);
            Some(Self { peak, together: false, ..apart })
        };
        let wide =
            || Some(plan(&text, all_blocks.clone(), sizes.besides_models(Bands::Wide), Bands::Wide)).filter(fits);
        let smallest = |bands: Bands| together(bands).or_else(|| apart(bands));
        let on_host = || {
            let bands = Some(Bands::Host).filter(|bands| saves(*bands, Bands::Narrow))?;
            smallest(bands).map(|plan| Self { host: sizes.host, ..plan })
        };
        graphed(&all_text).or_else(|| graphed(&text)).or_else(wide).or_else(|| smallest(narrow)).or_else(on_host)
    }

    /// Returns `true` if a transformer with `bytes` in memory leaves room for the rest of the plan.
    pub fn admits(&self, bytes: u64) -> bool {
        bytes <= self.transformer.bytes || self.peak - self.transformer.bytes.min(self.peak) + bytes <= self.budget
    }

    /// Returns the plan as lines of text for verbose output.
    pub fn lines(&self) -> Vec<String> {
        if self.transformer.all == 0 {
            return Vec::new(); // weights are used in the mapped files
        }
        let mut lines = vec![format!("memory: at most {} of {}", gib(self.peak), gib(self.budget))];
        if self.text_encoder.all > 0 {
            lines.push(self.text_encoder.line("text encoder"));
        }
        lines.push(self.transformer.line("transformer"));
        let parts = if self.together { "are in memory together" } else { "are in memory one at a time" };
        lines.push(format!("text encoder, transformer and VAE {parts}"));
        if self.host > 0 {
            lines.push(format!("VAE: up to {} of activations in host memory", gib(self.host)));
        }
        if !self.graphs {
            lines.push("no CUDA graphs: kernels are launched one by one".to_string());
        }
        lines
    }

    /// Returns one line for each thing that was given up for lack of memory.
    pub fn notes(&self) -> Vec<String> {
        let budget = gib(self.budget);
        let mut notes = Vec::new();
        if self.text_encoder.streamed() > 0 {
            notes.push(format!(
                "the text encoder ({}) is streamed for every prompt: it does not fit in {budget}",
                gib(self.text_encoder.all)
            ));
        }
        let (streamed, blocks) = (self.transformer.streamed(), self.transformer.streamed.len());
        if streamed > 0 {
            notes.push(format!(
                "{streamed} of {blocks} blocks of the transformer ({}) are streamed at every step: \
                 they do not fit in {budget}",
                gib(self.transformer.all)
            ));
        }
        if self.bands == Bands::Narrow {
            notes.push(format!("images are decoded in narrow bands: wide bands do not fit in {budget}"));
        }
        if self.host > 0 {
            notes.push(format!(
                "the largest activations of the VAE (up to {}) are in host memory: they do not fit in {budget}",
                gib(self.host)
            ));
        }
        if !self.together && self.transformer.all > 0 {
            notes.push(format!(
                "the transformer is freed before the image is decoded: the decoder does not fit beside it in {budget}"
            ));
        }
        notes
    }
}

/// Formats bytes as GiB.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const GIB: u64 = 1 << 30;

    /// Approximate sizes of klein 4B in bf16 at 1024 x 1024.
    fn klein_4b() -> MemorySizes {
        let (single, double) = (245 * MB, 490 * MB);
        MemorySizes {
            text_encoder: BlockSizes { blocks: vec![202 * MB; 27], rest: 0 },
            encode_text: 60 * MB,
            transformer: BlockSizes { blocks: [vec![double; 5], vec![single; 20]].concat(), rest: 390 * MB },
            step: 380 * MB,
            decoder: 100 * MB,
            decode: InBands { wide: 1340 * MB, narrow: 870 * MB, host: 870 * MB },
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
        assert!(sizes.decoder + sizes.decode.narrow < least, "the step needs the most memory");
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
        assert_eq!(graphs(&sizes) - graphs(&klein_4b()), 406 * MB, "graphs keep their working memory");
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

    #[test]
    fn activations_are_in_host_memory_as_a_last_resort() {
        let decode = InBands { wide: 13_000 * MB, narrow: 12_900 * MB, host: 1600 * MB };
        let sizes = MemorySizes { decode, host: 12_800 * MB, step: 3000 * MB, ..klein_4b() };
        let apart = sizes.least_in(Bands::Narrow);
        assert_eq!(apart, (64 + 100 + 12_900) * MB);
        let before = MemoryPlan::new(&sizes, apart).unwrap();
        assert_eq!((before.bands, before.host, before.together), (Bands::Narrow, 0, false));
        let after = MemoryPlan::new(&sizes, apart - 1).unwrap();
        assert_eq!((after.bands, after.host, after.together), (Bands::Host, sizes.host, true));
        assert!(after.notes().iter().any(|note| note.contains("host memory")), "{:?}", after.notes());
        assert!(after.lines().iter().any(|line| line.contains("host memory")), "{:?}", after.lines());
        let least = MemoryPlan::new(&sizes, sizes.least()).unwrap();
        assert_eq!((least.peak, least.bands, least.together), (sizes.least(), Bands::Host, false));
        assert_eq!(MemoryPlan::new(&sizes, sizes.least() - 1), None);
        assert!(before.notes().iter().chain(&before.lines()).all(|line| !line.contains("host memory")));
    }
}
