"""The tokenizer: Qwen's pipeline with a small vocabulary of its own, and the prompt format."""

from random import Random

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from concepts import Concept
from edits import Edits
from scenes import Scenes
from vocabulary import COLOR_WORDS, COLORS

# Source: tokenizer.json of Qwen3.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PADDING, END = "<|endoftext|>", "<|im_end|>"
SPECIAL = [PADDING, "<|im_start|>", END]
ADDED = ["<think>", "</think>"]

# What Qwen3's own template gives for one message of the user, with thinking off.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)


def chat(prompt: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def train_tokenizer(concepts: list[Concept], vocabulary: int, captions: int) -> Tokenizer:
    """Byte-level BPE over captions and instructions, with names and colors repeated so that they become whole tokens."""
    rng, scenes, edits = Random(1), Scenes(concepts), Edits(concepts)
    texts = [scenes.draw(rng).caption for _ in range(captions)] + [edits.draw(rng).instruction for _ in range(captions // 2)]
    for concept in concepts:
        name = concept.name.words
        texts += [f"a {name}", f"A {name}", name, concept.plural or name, " ".join(other.words for other in concept.others)] * 12
    for color in [*COLORS, *sum(COLOR_WORDS.values(), [])]:
        texts += [f"a {color} thing", color] * 30
    texts += ["user\n\n", "assistant\n", "\n", "\n\n", "user", "assistant"] * 500

    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(**level)])
    tokenizer.decoder = decoders.ByteLevel(**level)
    tokenizer.post_processor = processors.ByteLevel(**level)
    size = vocabulary - len(SPECIAL) - len(ADDED)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in ADDED])
    return tokenizer


def encode(tokenizer: Tokenizer, prompts: list[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """ids [prompts, length] i64, cut or padded; how many are not padding [prompts] i64."""
    ids = np.full((len(prompts), length), tokenizer.token_to_id(PADDING), np.int64)
    lengths = np.zeros(len(prompts), np.int64)
    for row, encoding in enumerate(tokenizer.encode_batch_fast([chat(prompt) for prompt in prompts], add_special_tokens=False)):
        tokens = encoding.ids[:length]
        ids[row, : len(tokens)], lengths[row] = tokens, len(tokens)
    return ids, lengths
