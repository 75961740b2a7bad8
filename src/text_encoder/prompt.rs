//! Prompts to token ids: template, byte-level BPE, truncation and padding.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use tokenizers::Encoding;

use super::gguf_tokenizer::Vocabulary;
use super::tokenizer_file::{self, Inner};
use super::{gguf_tokenizer, qwen3};
use crate::error::{Error, Field, Result};
use crate::files::{Gguf, TokenizerFile, damage};
use flux_base::guard::guarded;

/// Maximum bytes of a tokenizer file; Qwen3's has 11 MB.
const MAX_BYTES: usize = 64 << 20;
/// The padding token.
const PAD: &str = "<|endoftext|>";
/// Number of prompts whose tokens are cached: planning an image tokenizes its prompt several times, and live images
/// repeat their prompt.
const KEPT: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// Maximum bytes of a cached prompt.
const MAX_CACHED: usize = 4096;

/// The chat template around a prompt.
#[derive(Debug, Clone, Copy)]
pub struct Template {
    /// The text before the prompt.
    pub before: &'static str,
    /// The text after the prompt.
    pub after: &'static str,
    /// The positions of the padding.
    pub padding: Padding,
}

/// The positions of padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Consecutive positions after the last token.
    Counted,
    /// One position for all padding, so all padding has the same features.
    At(usize),
}

/// The number of tokens that a prompt in its template is cut or padded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The maximum number of tokens; longer prompts are cut.
    pub max: usize,
    /// Prompts are padded to a multiple of `step`, or to `max`. `None` always pads to `max`.
    pub step: Option<usize>,
}

impl Window {
    /// Returns the padded length of a prompt of `tokens` tokens, at most `most`.
    pub fn length(self, tokens: usize, most: usize) -> usize {
        self.step.map_or(most, |step| (tokens.max(1).div_ceil(step) * step).min(most))
    }
}

/// Token ids of a prompt in its template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    /// Ids, padded to the model's length.
    pub ids: Vec<u32>,
    /// Number of tokens that are no padding.
    pub real: usize,
    /// The positions of the padding.
    pub padding: Padding,
    /// Number of tokens that were cut off because the prompt in its template is too long.
    pub truncated: usize,
    /// Byte offset of the part of the prompt that was cut off; the prompt's length if nothing was cut off.
    pub cut_at: usize,
}

/// The model's tokenizer.
pub struct Tokenizer {
    inner: Inner,
    pad: u32,
    template: Template,
    length: usize,
    /// The path of its file, for messages.
    file: String,
    /// Cached ids of recent prompts in the template, neither cut nor padded.
    known: Mutex<LruCache<String, Arc<[u32]>>>,
}

impl Tokenizer {
    /// Reads a tokenizer; prompts in the template become `length` tokens.
    ///
    /// Errors if the file is missing, is no tokenizer of Qwen's kind, or lacks a token of the template.
    pub fn load(file: &TokenizerFile, template: Template, length: usize) -> Result<Self> {
        let refused = |what: String| {
            Error::new(what)
                .at(file.display())
                .hint("this is not the tokenizer of a klein model, or its download was cut off: fetch it again")
        };
        let inner = match file {
            TokenizerFile::Json(folder, name) => {
                let bytes = folder.read(name, MAX_BYTES)?;
                if let Some(damage) = damage(&bytes) {
                    return Err(damage.at(file.display()));
                }
                guarded(|| tokenizer_file::parse(&bytes))
            }
            TokenizerFile::Gguf(path) => {
                let gguf = Gguf::open(path, "the file is damaged: fetch it again")?;
                let parts = gguf_tokenizer::Parts::read(&gguf)?;
                guarded(|| parts.tokenizer())
            }
            TokenizerFile::Carried => guarded(qwen3::tokenizer),
        };
        let inner = inner.unwrap_or_else(|panic| Err(format!("not a tokenizer: {panic}"))).map_err(refused)?;
        for token in ["<|im_start|>", "<|im_end|>", PAD] {
            if inner.token_to_id(token).is_none() {
                return Err(refused(format!("the tokenizer has no token `{token}`")));
            }
        }
        let pad = inner.token_to_id(PAD).expect("checked above");
        Ok(Self { inner, pad, template, length, file: file.display(), known: Mutex::new(LruCache::new(KEPT)) })
    }

    /// Returns the vocabulary, padded to the `size` embeddings of a text encoder.
    ///
    /// Errors if it has more tokens.
    pub fn vocabulary(&self, size: usize) -> Result<Vocabulary> {
        Vocabulary::new(&self.inner, size).map_err(|why| {
            Error::new(why)
                .at(self.file.as_str())
                .hint(format!("pass the tokenizer of this text encoder with `{}`", Field::Tokenizer))
        })
    }

    /// [`Tokenizer::encode_to`] with the model's length.
    ///
    /// Errors as [`Tokenizer::encode_to`].
    pub fn encode(&self, prompt: &str) -> Result<PromptTokens> {
        self.encode_to(prompt, self.length)
    }

    /// Encodes the prompt in the template, cut to `length` tokens on the right or padded to them.
    ///
    /// Errors if the tokenizer fails, which a valid tokenizer does not.
    pub fn encode_to(&self, prompt: &str, length: usize) -> Result<PromptTokens> {
        let mut ids = self.ids(prompt)?.to_vec();
        let truncated = ids.len().saturating_sub(length);
        let mut cut_at = prompt.len();
        if truncated > 0 {
            // Offsets are slow to compute, so they are computed only here.
            let (before, text) = (self.template.before, self.whole(prompt));
            let places = self.encoding(|inner| inner.encode(text.as_str(), false))?;
            let place = places.get_offsets().get(length).map_or(text.len(), |&(start, _)| start);
            cut_at = place.saturating_sub(before.len()).min(prompt.len());
        }
        ids.truncate(length);
        let real = ids.len();
        ids.resize(length, self.pad);
        Ok(PromptTokens { ids, real, padding: self.template.padding, truncated, cut_at })
    }

    /// Returns the number of tokens of the prompt in the template, without padding.
    ///
    /// Errors as [`Tokenizer::encode_to`].
    pub fn count(&self, prompt: &str) -> Result<usize> {
        self.ids(prompt).map(|ids| ids.len())
    }

    /// Returns the prompt in the template.
    fn whole(&self, prompt: &str) -> String {
        let Template { before, after, .. } = self.template;
        format!("{before}{prompt}{after}")
    }

    /// Returns the ids of the prompt in the template.
    fn ids(&self, prompt: &str) -> Result<Arc<[u32]>> {
        let known = || self.known.lock();
        if let Some(found) = known().get(prompt) {
            return Ok(Arc::clone(found));
        }
        let text = self.whole(prompt);
        let ids: Arc<[u32]> = self.encoding(|inner| inner.encode_fast(text.as_str(), false))?.get_ids().into();
        if prompt.len() <= MAX_CACHED {
            known().put(prompt.to_string(), Arc::clone(&ids));
        }
        Ok(ids)
    }

    /// Errors if a token is outside a text encoder's vocabulary of `size` tokens.
    pub fn check_vocabulary(&self, tokens: &PromptTokens, size: usize) -> Result<()> {
        match tokens.ids.iter().find(|&&id| id as usize >= size) {
            None => Ok(()),
            Some(id) => Err(outside(*id, size).at(self.file.as_str())),
        }
    }

    /// Runs the crate's encoder, with its errors and panics as errors.
    fn encoding(&self, encode: impl FnOnce(&Inner) -> tokenizers::Result<Encoding>) -> Result<Encoding> {
        guarded(|| encode(&self.inner).map_err(|e| e.to_string())).and_then(|encoded| encoded).map_err(|why| {
            Error::new(format!("cannot tokenize the prompt: {why}"))
                .at(self.file.as_str())
                .hint("fetch the tokenizer again; if it is intact, reword the prompt")
        })
    }
}

/// The error for a token outside a vocabulary of `size` tokens.
pub(super) fn outside(id: u32, size: usize) -> Error {
    Error::new(format!("token id {id} is outside the encoder's vocabulary of {size}"))
        .hint("tokenizer and text encoder belong to different models: fetch the whole folder again")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::*;
    use crate::files::Folder;

    const FILE: &str = "tokenizer.json";
    const BARE: Template = Template { before: "", after: "", padding: Padding::Counted };

    /// Loads the built-in model's tokenizer after `change`.
    fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer> {
        let mut tokenizer =
            serde_json::from_slice(include_bytes!("../../models/tiny/tokenizer/tokenizer.json")).unwrap();
        change(&mut tokenizer);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), tokenizer.to_string()).unwrap();
        let start = Instant::now();
        let loaded = Tokenizer::load(
            &TokenizerFile::Json(Folder::Disk(folder.path().to_path_buf()), FILE.to_string()),
            BARE,
            64,
        );
        // Each takes less than half a second; other tests run at the same time.
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        loaded
    }

    #[track_caller]
    fn refused(words: &[&str], change: impl FnOnce(&mut Value)) {
        let error = changed(change).map(drop).unwrap_err().to_string();
        let found = words.iter().chain(&[FILE, "hint: "]).all(|word| error.contains(word));
        assert!(found && error.len() < 1000, "{error}");
    }

    fn added(content: String) -> Value {
        json!({ "id": 9999, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    }

    #[test]
    fn steps_of_tokenizing_that_qwen_has_not_are_refused_by_name() {
        refused(&["model is `WordPiece`"], |file| file["model"]["type"] = json!("WordPiece"));
        refused(&["normalizer is `Replace`"], |file| {
            file["normalizer"] = json!({ "type": "Replace", "pattern": { "Regex": "(a*)*b" }, "content": "" })
        });
        refused(&["post_processor is `TemplateProcessing`"], |file| {
            file["post_processor"] = json!({ "type": "TemplateProcessing", "single": [] })
        });
        refused(&["decoder is `Fuse`"], |file| file["decoder"] = json!({ "type": "Fuse" }));
        refused(&["no pre_tokenizer"], |file| file["pre_tokenizer"] = Value::Null);
        refused(&["pre_tokenizer is `Metaspace`"], |file| file["pre_tokenizer"]["type"] = json!("Metaspace"));
        refused(&["`Sequence` of [\"Digits\", \"ByteLevel\"]"], |file| {
            file["pre_tokenizer"]["pretokenizers"][0] = json!({ "type": "Digits", "individual_digits": true })
        });
        refused(&["`Sequence` of [\"Split\"]"], |file| {
            file["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap().truncate(1)
        });
        refused(&["pattern `(a*)*b`"], |file| {
            file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("(a*)*b")
        });
        refused(&["add_prefix_space"], |file| {
            file["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = json!(true)
        });
        for (key, value) in
            [("dropout", json!(0.5)), ("continuing_subword_prefix", json!("é")), ("unk_token", json!("x"))]
        {
            refused(&["model has ", key], |file| file["model"][key] = value);
        }
    }

    #[test]
    fn a_tokenizer_larger_than_any_of_its_kind_is_refused_at_once() {
        let tokens = |file: &mut Value, tokens: Vec<Value>| file["added_tokens"].as_array_mut().unwrap().extend(tokens);
        refused(&["added token `xxx", "50000 bytes", " 256"], |file| tokens(file, vec![added("x".repeat(50_000))]));
        refused(&["5005 added", " 4096"], |file| {
            tokens(file, (0..5000).map(|i| added(format!("token {i}"))).collect())
        });
        refused(&["400001 tokens", " 400000"], |file| {
            file["model"]["vocab"] =
                (0..400_001).map(|i| (format!("{i}"), json!(i))).collect::<serde_json::Map<_, _>>().into()
        });
        refused(&["400001 merges"], |file| file["model"]["merges"] = json!(vec!["a b"; 400_001]));
        refused(&["token `xxx", "2000 bytes"], |file| file["model"]["vocab"]["x".repeat(2000)] = json!(7));
        refused(&["token `~~`", "id 4294967295"], |file| file["model"]["vocab"]["~~"] = json!(u32::MAX));
        changed(|file| tokens(file, (0..4000).map(|i| added(format!("{i:0>256}"))).collect())).unwrap();
    }

    #[test]
    fn merges_that_name_no_token_or_are_no_pair_are_refused() {
        for bad in [json!("a b c"), json!("ab"), json!(["a"]), json!(["a", "b", "c"]), json!(3), json!(["~~~", "a"])] {
            refused(&["not a tokenizer"], |file| file["model"]["merges"] = json!([bad]));
        }
    }

    #[test]
    fn a_vocabulary_whose_ids_do_not_follow_each_other_is_refused() {
        let of = |change: fn(&mut Value)| changed(change).unwrap().vocabulary(4096).map(|found| found.tokens.len());
        assert_eq!(of(|_| {}).unwrap(), 4096);
        for change in
            [(|file| drop(file["model"]["vocab"].as_object_mut().unwrap().remove("!"))) as fn(&mut Value), |file| {
                file["model"]["vocab"]["~~"] = json!(0)
            }]
        {
            let error = of(change).unwrap_err().to_string();
            assert!(error.contains("words are not 0 to") && error.contains("`tokenizer`"), "{error}");
        }
    }
}
