//! `tokenizer.json` of Qwen's kind. Everything else that the format allows, such as patterns of unbounded run time or
//! rules that change with each run, is an error.
//!
//! The model type is fixed, so the file is parsed once: 150 ms for Qwen3's 11 MB on one core. `tokenizers::Tokenizer`
//! takes 220 ms, because it reads a tree first to find the model type, and copies the tree twice.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, DecoderWrapper, PostProcessorWrapper, SplitDelimiterBehavior, TokenizerImpl};

use crate::error::shortened;

/// A tokenizer of this kind.
pub(super) type Inner = TokenizerImpl<BPE, NFC, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The regular expression by which Qwen2 and Qwen3 split a text into words.
const SPLIT_REGEX: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen3 has 151643 tokens and 151387 merges; its longest token has 256 bytes.
pub(super) const MAX_TOKENS: usize = 400_000;
pub(super) const MAX_TOKEN_BYTES: usize = 1024;
/// Qwen3 adds 26 tokens of up to 20 bytes. Adding one of 50 kB takes more than a minute.
pub(super) const MAX_ADDED: usize = 4096;
pub(super) const MAX_ADDED_BYTES: usize = 256;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<TokenizerStep>,
    pre_tokenizer: Option<TokenizerStep>,
    post_processor: Option<TokenizerStep>,
    decoder: Option<TokenizerStep>,
    model: Model,
}

/// A step of tokenizing, with the settings that identify Qwen's.
#[derive(Deserialize)]
struct TokenizerStep {
    #[serde(rename = "type")]
    kind: String,
    pattern: Option<Pattern>,
    behavior: Option<String>,
    invert: Option<bool>,
    add_prefix_space: Option<bool>,
    use_regex: Option<bool>,
    #[serde(default)]
    pretokenizers: Vec<TokenizerStep>,
}

#[derive(Deserialize)]
struct Pattern {
    #[serde(rename = "Regex")]
    regex: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(default)]
    vocab: Vocab,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// Two tokens that merge: a pair, or `"a b"` in older files.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMerge;
        impl<'de> Visitor<'de> for OfMerge {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "two tokens")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                let pair = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                pair.map(|(left, right)| Merge(left.into(), right.into()))
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                match (pair.next_element()?, pair.next_element()?, pair.next_element::<String>()?) {
                    (Some(left), Some(right), None) => Ok(Merge(left, right)),
                    _ => Err(de::Error::invalid_length(0, &self)),
                }
            }
        }
        deserializer.deserialize_any(OfMerge)
    }
}

/// Reads a tokenizer.
///
/// Errors with the reason if the file is no tokenizer, of another kind, or exceeds the bounds of this kind. May panic
/// if the crate does.
pub(super) fn parse(bytes: &[u8]) -> Result<Inner, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| format!("not a tokenizer: {e}"))?;
    file.check_kind()?;
    file.check_sizes()?;
    let File { added_tokens, normalizer, model, .. } = file;
    let merges = model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    build(model.vocab, merges, normalizer.map(|_| NFC), &added_tokens)
}

/// Builds a tokenizer from a vocabulary, its merges, and added tokens.
///
/// Errors with the reason if a merge has a token that is not in the vocabulary.
pub(super) fn build(
    vocab: Vocab,
    merges: Vec<(String, String)>,
    normalizer: Option<NFC>,
    added_tokens: &[AddedToken],
) -> Result<Inner, String> {
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).build().map_err(|e| format!("not a tokenizer: {e}"))?;
    let split = Split::new(SplitPattern::Regex(SPLIT_REGEX.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| format!("the built-in pattern is invalid: {e}"))?;
    let mut inner = Inner::new(bpe);
    inner.with_normalizer(normalizer);
    // Decoder and post-processor change no ids, so they are left out.
    inner.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), ByteLevel::new(false, false, false).into()])));
    inner.add_tokens(added_tokens);
    Ok(inner)
}

impl File {
    fn check_kind(&self) -> Result<(), String> {
        self.model.check_kind()?;
        for (name, part, expected) in [
            ("normalizer", &self.normalizer, "NFC"),
            ("post_processor", &self.post_processor, "ByteLevel"),
            ("decoder", &self.decoder, "ByteLevel"),
        ] {
            if let Some(part) = part.as_ref().filter(|part| part.kind != expected) {
                return Err(format!("the tokenizer's {name} is `{}`, expected `{expected}`", short(&part.kind)));
            }
        }
        let Some(words) = &self.pre_tokenizer else {
            return Err("the tokenizer has no pre_tokenizer, expected `Split` and `ByteLevel`".to_string());
        };
        let [split, bytes] = &words.pretokenizers[..] else { return Err(words.not_split_and_bytes()) };
        if [&*words.kind, &*split.kind, &*bytes.kind] != ["Sequence", "Split", "ByteLevel"] {
            return Err(words.not_split_and_bytes());
        }
        let pattern = split.pattern.as_ref().and_then(|pattern| pattern.regex.as_deref()).unwrap_or_default();
        if pattern != SPLIT_REGEX || split.behavior.as_deref() != Some("Isolated") || split.invert == Some(true) {
            return Err(format!("the tokenizer splits by the pattern `{}`, expected Qwen's", short(pattern)));
        }
        if bytes.add_prefix_space != Some(false) || bytes.use_regex != Some(false) {
            return Err("the tokenizer's `ByteLevel` has add_prefix_space or use_regex, expected neither".to_string());
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), String> {
        let Self { added_tokens, model: Model { vocab, merges, .. }, .. } = self;
        for (count, what, most) in [
            (vocab.len(), "tokens", MAX_TOKENS),
            (merges.len(), "merges", MAX_TOKENS),
            (added_tokens.len(), "added tokens", MAX_ADDED),
        ] {
            if count > most {
                return Err(format!("the tokenizer has {count} {what}, expected at most {most}"));
            }
        }
        if let Some((token, id)) =
            vocab.iter().find(|(token, id)| token.len() > MAX_TOKEN_BYTES || **id as usize >= 2 * MAX_TOKENS)
        {
            return Err(format!(
                "the token `{}` has {} bytes and id {id}, expected at most {MAX_TOKEN_BYTES} bytes and an id below {}",
                short(token),
                token.len(),
                2 * MAX_TOKENS
            ));
        }
        if let Some(AddedToken { content, .. }) = added_tokens.iter().find(|t| t.content.len() > MAX_ADDED_BYTES) {
            return Err(format!(
                "the added token `{}` has {} bytes, expected at most {MAX_ADDED_BYTES}",
                short(content),
                content.len()
            ));
        }
        Ok(())
    }
}

impl TokenizerStep {
    fn not_split_and_bytes(&self) -> String {
        let kinds: Vec<_> = self.pretokenizers.iter().take(4).map(|part| short(&part.kind)).collect();
        format!(
            "the tokenizer's pre_tokenizer is `{}` of {kinds:?}, expected `Sequence` of `Split` and `ByteLevel`",
            short(&self.kind)
        )
    }
}

impl Model {
    fn check_kind(&self) -> Result<(), String> {
        if let Some(kind) = self.kind.as_ref().filter(|kind| *kind != "BPE") {
            return Err(format!("the tokenizer's model is `{}`, expected `BPE`", short(kind)));
        }
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let settings = [
            ("dropout", self.dropout.is_some_and(|dropout| dropout != 0.0)),
            ("unk_token", self.unk_token.is_some()),
            ("continuing_subword_prefix", is_set(&self.continuing_subword_prefix)),
            ("end_of_word_suffix", is_set(&self.end_of_word_suffix)),
            ("fuse_unk", self.fuse_unk == Some(true)),
            ("byte_fallback", self.byte_fallback == Some(true)),
            ("ignore_merges", self.ignore_merges == Some(true)),
        ];
        match settings.iter().find(|(_, set)| *set) {
            Some((name, _)) => Err(format!("the tokenizer's model has {name}, which Qwen's does not have")),
            None => Ok(()),
        }
    }
}

/// Shortens a text from the file to both of its ends, for a message.
pub(super) fn short(text: &str) -> String {
    const MAX: usize = 40;
    shortened(text, MAX).into_owned()
}
