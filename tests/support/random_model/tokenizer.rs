//! A small byte-level tokenizer in the form of Qwen3's.

use serde_json::{Map, Value, json};

/// Number of tokens of the tokenizer.
pub(super) const TOKENS: usize = 256 + MERGES.len() + ADDED_TOKENS.len();

/// Byte pairs that merge to one token, highest rank first, spelled in the alphabet of byte-level BPE: Ġ is a space, Ċ
/// a newline, Ã© is é.
pub(super) const MERGES: [(&str, &str); 16] = [
    ("Ċ", "Ċ"),
    ("Ġ", "a"),
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("o", "n"),
    ("i", "n"),
    ("Ġ", "c"),
    ("a", "t"),
    ("Ġc", "at"),
    ("e", "r"),
    ("u", "s"),
    ("us", "er"),
    ("Ã", "©"),
    ("Ġ", "Ġ"),
    ("Ġa", "t"),
];

/// Text of an added token, and `true` if it is special; in the order of their ids.
pub(super) const ADDED_TOKENS: [(&str, bool); 5] =
    [("<|endoftext|>", true), ("<|im_start|>", true), ("<|im_end|>", true), ("<think>", false), ("</think>", false)];

pub(super) const SPLIT_REGEX: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(super) const CHAT_TEMPLATE: &str = r"{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}";

/// Returns byte-level BPE as in Qwen3, with few merges, written as pairs, or as `"a b"` in the form of older files.
pub(super) fn tokenizer(merges_as_pairs: bool) -> Value {
    let mut vocab = Map::new();
    for symbol in byte_alphabet() {
        vocab.insert(symbol.to_string(), json!(vocab.len()));
    }
    for (left, right) in MERGES {
        vocab.insert(format!("{left}{right}"), json!(vocab.len()));
    }
    let merges: Vec<Value> = MERGES
        .iter()
        .map(|(left, right)| if merges_as_pairs { json!([left, right]) } else { json!(format!("{left} {right}")) })
        .collect();
    let added: Vec<Value> = added_tokens()
        .map(|(id, mut token)| {
            token["id"] = json!(id);
            token
        })
        .collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": SPLIT_REGEX }, "behavior": "Isolated", "invert": false },
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        },
    })
}

pub(super) fn tokenizer_config() -> Value {
    let added: Map<String, Value> = added_tokens().map(|(id, token)| (id.to_string(), token)).collect();
    json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": null,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 512,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": false,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": null,
    })
}

/// Ids follow the bytes and the merges, as in the real vocabulary.
pub(super) fn added_tokens() -> impl Iterator<Item = (usize, Value)> {
    ADDED_TOKENS.into_iter().enumerate().map(|(index, (content, special))| {
        let token = json!({
            "content": content,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": special,
        });
        (256 + MERGES.len() + index, token)
    })
}

/// Returns GPT-2's alphabet in the order of its ids: printable bytes stand for themselves, the other 68 are U+0100 and
/// up.
pub(super) fn byte_alphabet() -> impl Iterator<Item = char> {
    let printable = (b'!'..=b'~').chain(0xa1..=0xac).chain(0xae..=0xff).map(char::from);
    printable.chain((0..68).map(|i| char::from_u32(0x100 + i).expect("U+0100 to U+0143 are letters")))
}
