//! A prompt to token ids: chat template, byte-level BPE, truncation and padding.

use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use crate::error::{Error, Result};
use crate::files::ModelFiles;

const FILE: &str = "tokenizer/tokenizer.json";
/// The token that pads a prompt at its end.
const PAD: &str = "<|endoftext|>";
/// What the template puts before a prompt.
const BEGINNING: &str = "<|im_start|>user\n";

/// Token ids of a prompt in its template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    /// Ids, padded to the model's length.
    pub ids: Vec<u32>,
    /// How many of them are no padding.
    pub real: usize,
    /// Tokens that were cut off because the prompt in its template is too long.
    pub truncated: usize,
    /// Where the part of the prompt begins that was cut off, in bytes; the prompt's length where all of it was read.
    pub cut_at: usize,
}

/// A tokenizer whose model type is given, so that the file is parsed once: 150 ms for Qwen3's 11 MB on one core.
/// `tokenizers::Tokenizer` takes 220 ms, because it reads a tree first to find the model type, and copies that twice.
type Inner = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The model's own tokenizer.
pub struct Tokenizer {
    inner: Inner,
    pad: u32,
    length: usize,
}

impl Tokenizer {
    /// Reads `tokenizer/tokenizer.json`; prompts become `length` tokens.
    ///
    /// Errors when the file is missing, no tokenizer, or lacks a token of the template.
    pub fn load(dir: &ModelFiles, length: usize) -> Result<Self> {
        let text = String::from_utf8(dir.read(FILE)?)
            .map_err(|_| Error::new("the tokenizer is no UTF-8 text").at(dir.display(FILE)))?;
        let mut inner: Inner = serde_json::from_str(&text).map_err(|e| {
            Error::new(format!("not a tokenizer: {e}"))
                .at(dir.display(FILE))
                .hint("the file is damaged or its download was cut off: fetch it again")
        })?;
        // Some files carry a length of their own, which is not the one to use.
        let _ = inner.with_truncation(None);
        inner.with_padding(None);
        for token in ["<|im_start|>", "<|im_end|>", PAD] {
            if inner.token_to_id(token).is_none() {
                return Err(Error::new(format!("the tokenizer has no token `{token}`"))
                    .at(dir.display(FILE))
                    .hint("this is not the tokenizer of a klein model"));
            }
        }
        let pad = inner.token_to_id(PAD).expect("checked above");
        Ok(Self { inner, pad, length })
    }

    /// The prompt in the chat template, cut to the length on the right and padded to it.
    ///
    /// Errors when the tokenizer fails, which a valid one does not.
    /// Source: Qwen3's chat template for one user message with thinking disabled.
    pub fn encode(&self, prompt: &str) -> Result<PromptTokens> {
        let text = format!("{BEGINNING}{prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
        let failed = |e| Error::new(format!("cannot tokenize the prompt: {e}"));
        let mut ids = self.inner.encode_fast(text.as_str(), false).map_err(failed)?.get_ids().to_vec();
        let truncated = ids.len().saturating_sub(self.length);
        let mut cut_at = prompt.len();
        if truncated > 0 {
            // Places in the text cost time, so they are asked for only here.
            let places = self.inner.encode(text.as_str(), false).map_err(failed)?;
            let place = places.get_offsets().get(self.length).map_or(text.len(), |&(start, _)| start);
            cut_at = place.saturating_sub(BEGINNING.len()).min(prompt.len());
        }
        ids.truncate(self.length);
        let real = ids.len();
        ids.resize(self.length, self.pad);
        Ok(PromptTokens { ids, real, truncated, cut_at })
    }
}
