//! The tokenizer of Qwen3, for models that have none.
//!
//! The merges determine the vocabulary: the first 256 tokens are the letters that stand for bytes, and each merge
//! makes the next token. So the program contains only the merges, compressed, and the list of added tokens.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde::Deserialize;
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;
use tokenizers::normalizers::NFC;

use super::tokenizer_file::{Inner, build};

/// `merges.txt` of Qwen3, a line for each merge.
const MERGES: &[u8] = include_bytes!("../../models/qwen3-tokenizer/merges.txt.gz");
const CONFIG: &[u8] = include_bytes!("../../models/qwen3-tokenizer/tokenizer_config.json");

/// Number of its tokens, added tokens included.
pub const TOKENS: usize = 151_669;

#[derive(Deserialize)]
struct Config {
    added_tokens_decoder: BTreeMap<u32, AddedToken>,
}

/// Builds the tokenizer.
///
/// Errors with the reason if the embedded data is damaged.
pub(super) fn tokenizer() -> Result<Inner, String> {
    let damaged = |e: &dyn std::fmt::Display| format!("the built-in tokenizer is damaged: {e}");
    let mut text = String::new();
    GzDecoder::new(MERGES).read_to_string(&mut text).map_err(|e| damaged(&e))?;
    let mut vocab: Vocab = letters().zip(0..).map(|(letter, id)| (letter.to_string(), id)).collect();
    let mut merges = Vec::new();
    for line in text.lines() {
        let (left, right) = line.split_once(' ').ok_or_else(|| damaged(&line))?;
        vocab.insert(format!("{left}{right}"), vocab.len() as u32);
        merges.push((left.to_string(), right.to_string()));
    }
    let config: Config = serde_json::from_slice(CONFIG).map_err(|e| damaged(&e))?;
    let added: Vec<AddedToken> = config.added_tokens_decoder.into_values().collect();
    build(vocab, merges, Some(NFC), &added)
}

/// The letters that stand for bytes, in the order of their tokens: printable bytes stand for themselves, and the
/// letters from U+0100 on for the other bytes.
fn letters() -> impl Iterator<Item = char> {
    ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}').chain('\u{100}'..='\u{143}')
}
