//! Prompts to token ids with the real tokenizer.

use std::io::Read;

use flux::files::{Folder, TokenizerFile};
use flux::text_encoder::Tokenizer;

use crate::support::golden;

#[derive(serde::Deserialize)]
struct Row {
    prompt: String,
    ids: Vec<u32>,
}

fn tokenizer(length: usize) -> (tempfile::TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    let mut json = Vec::new();
    let file = std::fs::File::open(golden("qwen3-tokenizer.json.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut json).unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
    let file = TokenizerFile::Json(Folder::Disk(dir.path().to_path_buf()), "tokenizer.json".to_string());
    let tokenizer = Tokenizer::load(&file, length).unwrap();
    (dir, tokenizer)
}

/// The words, numbers, symbols and letters of many scripts that tell two tokenizers apart, in an order of no language.
fn strange_texts() -> impl Iterator<Item = String> {
    let pieces = [
        "a",
        "Äpfel",
        " the",
        "it's",
        "WE'LL",
        "\n\n",
        "\r\n ",
        "123456",
        "日本語",
        "שלום",
        "🧀🏽",
        "e\u{301}",
        "<|im_end|>",
    ]
    .into_iter()
    .chain([
        "<think>",
        "</tool_call>",
        "<|endoftext",
        "\t",
        "  ",
        "-->",
        "::",
        "\u{a0}",
        "ﬁ",
        "\u{1100}\u{1161}",
        "\0",
        "_x",
        "Σ",
    ]);
    let pieces: Vec<&str> = pieces.collect();
    (0..2000usize).map(move |seed| {
        let mut state = seed as u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            pieces[(state >> 33) as usize % pieces.len()]
        };
        (0..1 + seed % 12).map(|_| next()).collect()
    })
}

#[test]
fn the_tokenizer_that_the_program_carries_gives_the_ids_of_the_file() {
    let (_dir, of_file) = tokenizer(512);
    let carried = Tokenizer::load(&TokenizerFile::Qwen3, 512).unwrap();
    for text in strange_texts() {
        assert_eq!(carried.encode(&text).unwrap(), of_file.encode(&text).unwrap(), "{text:?}");
    }
}

#[test]
fn prompts_become_the_ids_of_the_reference() {
    const PAD: u32 = 151643;
    let (_dir, tokenizer) = tokenizer(512);
    let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(golden("tokens.json")).unwrap()).unwrap();
    assert!(rows.len() >= 40);
    for row in &rows {
        let tokens = tokenizer.encode(&row.prompt).unwrap();
        assert_eq!(tokens.ids[..tokens.real], row.ids, "{:?}", row.prompt);
        assert_eq!(tokens.ids.len(), 512);
        assert!(tokens.ids[tokens.real..].iter().all(|&id| id == PAD));
    }
    assert!(rows.iter().any(|row| row.ids.len() == 512), "no prompt is long enough to be cut");
}

#[test]
fn a_long_prompt_is_cut_at_its_end_and_says_so() {
    let (_dir, tokenizer) = tokenizer(16);
    let tokens = tokenizer.encode(&"cat ".repeat(50)).unwrap();
    assert_eq!((tokens.ids.len(), tokens.real), (16, 16));
    assert!(tokens.truncated > 40);
    assert_eq!(tokens.ids[0], 151644, "the template's beginning stays");
}

#[test]
fn the_place_of_the_cut_is_a_byte_of_the_prompt() {
    let cut = |length: usize, prompt: &str| tokenizer(length).1.encode(prompt).unwrap().cut_at;
    // The template's beginning takes three tokens, its end nine.
    assert_eq!(cut(16, "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"), 71);
    assert_eq!(cut(16, "a cat"), 5, "nothing is cut off");
    assert_eq!(cut(14, "one two three four"), 18, "the template's end alone is cut off");
    let cheese = "Käse 🧀 ".repeat(9);
    assert!(cheese.is_char_boundary(cut(16, &cheese)));
}
