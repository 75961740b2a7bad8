//! The tokenizer in a GGUF file of a text encoder, as llama.cpp writes it.

use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;
use tokenizers::normalizers::NFC;

use super::tokenizer_file::{Inner, MAX_ADDED, MAX_ADDED_BYTES, MAX_TOKEN_BYTES, MAX_TOKENS, build, short};
use crate::error::{Error, Result};
use crate::files::Gguf;

/// The kinds of tokens that count: words of the vocabulary, and tokens that are no words.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// What the file has of a tokenizer.
pub(super) struct Parts<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<i32>,
    merges: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Those in a file.
    ///
    /// Errors when a key is missing, or the tokenizer is not of Qwen's kind.
    pub(super) fn of(file: &'a Gguf) -> Result<Self> {
        for (key, expected) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2")] {
            let found = file.string(key)?;
            if found != expected {
                return Err(Error::new(format!("`{key}` is `{}`, expected `{expected}`", short(found)))
                    .at_path(file.path())
                    .hint("this is not the file of a Qwen3; name its tokenizer with `--tokenizer` if it is"));
            }
        }
        Ok(Self {
            tokens: file.strings("tokenizer.ggml.tokens")?,
            kinds: file.i32s("tokenizer.ggml.token_type")?,
            merges: file.strings("tokenizer.ggml.merges")?,
        })
    }

    /// The tokenizer. Its normalizer and the words into which it splits a text follow from its kind.
    ///
    /// Errors with the reason when the parts contradict each other, or are larger than any of this kind.
    pub(super) fn tokenizer(&self) -> std::result::Result<Inner, String> {
        let Self { tokens, kinds, merges } = self;
        if tokens.len() != kinds.len() {
            return Err(format!("the tokenizer has {} tokens and {} types of them", tokens.len(), kinds.len()));
        }
        if tokens.len() > MAX_TOKENS || merges.len() > MAX_TOKENS {
            let counts = [tokens.len(), merges.len()];
            return Err(format!("the tokenizer has {counts:?} tokens and merges, expected at most {MAX_TOKENS}"));
        }
        if let Some(token) = tokens.iter().find(|token| token.len() > MAX_TOKEN_BYTES) {
            return Err(format!("the token `{}` has {} bytes", short(token), token.len()));
        }
        let of_kind = |kind: i32| tokens.iter().zip(0u32..).zip(kinds).filter(move |(_, found)| **found == kind);
        let vocab: Vocab = of_kind(NORMAL).map(|((token, id), _)| (token.to_string(), id)).collect();
        let added = |kind: i32| of_kind(kind).map(move |((token, id), _)| (id, *token, kind == CONTROL));
        let mut added: Vec<_> = added(CONTROL).chain(added(USER_DEFINED)).collect();
        added.sort_unstable();
        if added.len() > MAX_ADDED || added.iter().any(|(_, token, _)| token.len() > MAX_ADDED_BYTES) {
            return Err(format!("the tokenizer has {} added tokens, or long ones", added.len()));
        }
        // The crate numbers added tokens itself, from the end of the vocabulary on.
        if let Some(((id, token, _), _)) = added.iter().zip(vocab.len() as u32..).find(|((id, ..), own)| id != own) {
            return Err(format!("the added token `{}` has the id {id}, and does not follow the others", short(token)));
        }
        let added: Vec<AddedToken> =
            added.into_iter().map(|(_, token, special)| AddedToken::from(token, special).normalized(false)).collect();
        let merge = |text: &&str| text.split_once(' ').map(|(left, right)| (left.to_string(), right.to_string()));
        let merges: Option<Vec<_>> = merges.iter().map(merge).collect();
        build(vocab, merges.ok_or("a merge is no pair of tokens")?, Some(NFC), &added)
    }
}
