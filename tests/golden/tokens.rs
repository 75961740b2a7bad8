//! Prompts to token ids with the real tokenizer.

use std::io::Read;

use crate::gguf::{self, Value};
use flux::files::{Folder, TokenizerFile};
use flux::model::registry::FLUX2_KLEIN;
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
    let tokenizer = Tokenizer::load(&file, FLUX2_KLEIN.template, length).unwrap();
    (dir, tokenizer)
}

/// Returns words, numbers, symbols and letters of many scripts that distinguish tokenizers, in an order of no
/// language.
fn strange_texts() -> impl Iterator<Item = String> {
    let pieces = [
        "a", "Äpfel", " the", "it's", "WE'LL", "\n\n", "\r\n ", "123456", "日本語", "שלום", "🧀🏽", "e\u{301}",
        "<|im_end|>",
    ]
    .into_iter()
    .chain([
        "<think>", "</tool_call>", "<|endoftext", "\t", "  ", "-->", "::", "\u{a0}", "ﬁ", "\u{1100}\u{1161}", "\0",
        "_x", "Σ",
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
fn a_gguf_file_gives_the_ids_of_the_file_that_it_was_made_from() {
    let (dir, of_file) = tokenizer(512);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("tokenizer.json")).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    // Rows of the embedding without a token are included, as in llama.cpp's files.
    let mut tokens: Vec<String> = (0..151_936).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![5; tokens.len()];
    for (token, id) in vocab {
        let id = id.as_u64().unwrap() as usize;
        (tokens[id], kinds[id]) = (token.clone(), 1);
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        tokens[id] = added["content"].as_str().unwrap().to_string();
        kinds[id] = if added["special"].as_bool().unwrap() { 3 } else { 4 };
    }
    let merge = |pair: &serde_json::Value| match pair.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => pair.as_str().unwrap().to_string(),
    };
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let path = dir.path().join("qwen.gguf");
    let written = |pre: &str, kinds: Vec<i32>| {
        let values = [
            ("tokenizer.ggml.model", Value::Text("gpt2")),
            ("tokenizer.ggml.pre", Value::Text(pre)),
            ("tokenizer.ggml.tokens", Value::Texts(tokens.clone())),
            ("tokenizer.ggml.token_type", Value::Ints(kinds)),
            ("tokenizer.ggml.merges", Value::Texts(Vec::clone(&merges))),
        ];
        gguf::write(&path, &values, &[]);
        Tokenizer::load(&TokenizerFile::Gguf(path.clone()), FLUX2_KLEIN.template, 512)
    };
    let carried = written("qwen2", kinds.clone()).unwrap();
    for text in strange_texts() {
        assert_eq!(carried.encode(&text).unwrap(), of_file.encode(&text).unwrap(), "{text:?}");
    }
    let refused = |made: flux::Result<Tokenizer>, word: &str| {
        let error = made.map(drop).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("qwen.gguf") && error.contains("hint: "), "{error}");
    };
    refused(written("llama-bpe", kinds.clone()), "`tokenizer.ggml.pre` is `llama-bpe`, expected `qwen2`");
    refused(written("qwen2", vec![1; 3]), "151936 tokens, but 3 token types");
    kinds[151_643] = 5;
    refused(written("qwen2", kinds), "does not follow");
}

#[test]
fn the_tokenizer_that_the_program_carries_gives_the_ids_of_the_file() {
    let (_dir, of_file) = tokenizer(512);
    let carried = Tokenizer::load(&TokenizerFile::Carried, FLUX2_KLEIN.template, 512).unwrap();
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
