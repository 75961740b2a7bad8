//! The tokenizer in a GGUF file of a text encoder, in llama.cpp's layout.

use serde::Deserialize;
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;
use tokenizers::normalizers::NFC;

use super::tokenizer_file::{Inner, MAX_ADDED, MAX_ADDED_BYTES, MAX_TOKEN_BYTES, MAX_TOKENS, build, short};
use crate::error::{Error, Field, Result};
use crate::files::Gguf;

/// The kinds of tokens that are read, by llama.cpp's numbers: words of the vocabulary, and added tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// Rows of the embedding without a token.
const UNUSED: i32 = 5;

/// A tokenizer in the form of GGUF files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// The text of each id, in the letters that stand for bytes.
    pub tokens: Vec<String>,
    /// The kind of each token, by llama.cpp's numbers.
    pub kinds: Vec<i32>,
    /// Pairs separated by a space, in the order of merging.
    pub merges: Vec<String>,
}

impl Vocabulary {
    /// Reads the vocabulary of a tokenizer, padded to `size` tokens.
    ///
    /// Errors with the reason if it has more.
    pub(super) fn new(inner: &Inner, size: usize) -> std::result::Result<Self, String> {
        #[derive(Deserialize)]
        struct Model {
            merges: Vec<(String, String)>,
        }
        let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
        let mut kinds = vec![UNUSED; size];
        let mut put = |id: u32, token: String, kind: i32| {
            let place = tokens.get_mut(id as usize).zip(kinds.get_mut(id as usize));
            let place = place.ok_or_else(|| {
                format!("the tokenizer has a token with id {id}, but the text encoder has {size} embeddings")
            })?;
            (*place.0, *place.1) = (token, kind);
            Ok::<(), String>(())
        };
        let vocab = inner.get_vocab(false);
        check_ids(vocab.values().copied().collect())?;
        for (token, id) in vocab {
            put(id, token, NORMAL)?;
        }
        for (id, token) in inner.get_added_tokens_decoder() {
            put(id, token.content, if token.special { CONTROL } else { USER_DEFINED })?;
        }
        // The crate exposes merges only through serialization.
        let model = serde_json::to_value(inner.get_model()).and_then(serde_json::from_value::<Model>);
        let merges = model.map_err(|e| format!("cannot read the merges of the tokenizer: {e}"))?.merges;
        let merges = merges.into_iter().map(|(left, right)| format!("{left} {right}")).collect();
        Ok(Self { tokens, kinds, merges })
    }

    /// Returns the id of a token.
    pub fn id(&self, token: &str) -> Option<usize> {
        self.tokens.iter().position(|known| known == token)
    }
}

/// Errors with the reason unless the ids are 0, 1, 2 and so on: readers of such files count them. With a gap, the
/// crate would print a line to standard output, which is for results.
fn check_ids(mut ids: Vec<u32>) -> std::result::Result<(), String> {
    ids.sort_unstable();
    if ids.iter().zip(0u32..).all(|(id, expected)| *id == expected) {
        return Ok(());
    }
    let words = ids.len();
    Err(format!("the ids of the tokenizer's {words} words are not 0 to {}", words.saturating_sub(1)))
}

/// The tokenizer's arrays in the file.
pub(super) struct Parts<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<i32>,
    merges: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Reads the arrays from a file.
    ///
    /// Errors if a key is missing, or the tokenizer is not of Qwen's kind.
    pub(super) fn read(file: &'a Gguf) -> Result<Self> {
        for (key, expected) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2")] {
            let found = file.string(key)?;
            if found != expected {
                return Err(Error::new(format!("`{key}` is `{}`, expected `{expected}`", short(found)))
                    .at_path(file.path())
                    .hint(format!("if this is a Qwen3 file, pass its tokenizer with `{}`", Field::Tokenizer)));
            }
        }
        Ok(Self {
            tokens: file.strings("tokenizer.ggml.tokens")?,
            kinds: file.i32s("tokenizer.ggml.token_type")?,
            merges: file.strings("tokenizer.ggml.merges")?,
        })
    }

    /// Builds the tokenizer. Its kind determines the normalizer and the split into words.
    ///
    /// Errors with the reason if the parts contradict each other, or exceed the bounds of this kind.
    pub(super) fn tokenizer(&self) -> std::result::Result<Inner, String> {
        let Self { tokens, kinds, merges } = self;
        if tokens.len() != kinds.len() {
            return Err(format!("the tokenizer has {} tokens, but {} token types", tokens.len(), kinds.len()));
        }
        if tokens.len() > MAX_TOKENS || merges.len() > MAX_TOKENS {
            let counts = [tokens.len(), merges.len()];
            return Err(format!("the tokenizer has {counts:?} tokens and merges, expected at most {MAX_TOKENS}"));
        }
        if let Some(token) = tokens.iter().find(|token| token.len() > MAX_TOKEN_BYTES) {
            return Err(format!("the token `{}` is too long, with {} bytes", short(token), token.len()));
        }
        let of_kind = |kind: i32| tokens.iter().zip(0u32..).zip(kinds).filter(move |(_, found)| **found == kind);
        let vocab: Vocab = of_kind(NORMAL).map(|((token, id), _)| (token.to_string(), id)).collect();
        let added = |kind: i32| of_kind(kind).map(move |((token, id), _)| (id, *token, kind == CONTROL));
        let mut added: Vec<_> = added(CONTROL).chain(added(USER_DEFINED)).collect();
        added.sort_unstable();
        if added.len() > MAX_ADDED || added.iter().any(|(_, token, _)| token.len() > MAX_ADDED_BYTES) {
            return Err(format!("the tokenizer has {} added tokens, and they are too many or too long", added.len()));
        }
        // The crate numbers added tokens itself, starting after the vocabulary.
        if let Some(((id, token, _), _)) = added.iter().zip(vocab.len() as u32..).find(|((id, ..), own)| id != own) {
            return Err(format!(
                "the added token `{}` has the id {id}, which does not follow the others",
                short(token)
            ));
        }
        let added: Vec<AddedToken> =
            added.into_iter().map(|(_, token, special)| AddedToken::from(token, special).normalized(false)).collect();
        let merge = |text: &&str| text.split_once(' ').map(|(left, right)| (left.to_string(), right.to_string()));
        let merges: Option<Vec<_>> = merges.iter().map(merge).collect();
        build(vocab, merges.ok_or("a merge is not a pair of tokens")?, Some(NFC), &added)
    }
}
