"""The tokenizer: that of Qwen3 from a file, or one whose tokens are bytes."""

import gzip

# In the order of their ids; Qwen3 has more, and others between them.
SPECIAL = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
}
BYTES = 256
# How Qwen3 splits a text before it looks for tokens.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def special_of_bytes():
    """IDs of the special tokens, after those of bytes."""
    return {token: BYTES + place for place, token in enumerate(SPECIAL)}


def read(source):
    text = source.read_bytes()
    return gzip.decompress(text) if source.suffix == ".gz" else text


def of_bytes():
    """A tokenizer.json with one token for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, BYTES)]
    other = [byte for byte in range(BYTES) if byte not in plain]
    # As in GPT-2, a byte that is no visible character is written as one beyond Latin-1.
    vocabulary = {chr(byte) if byte in plain else chr(BYTES + other.index(byte)): byte for byte in range(BYTES)}
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    split = dict(type="Split", pattern=dict(Regex=SPLIT), behavior="Isolated", invert=False)
    return dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=[dict(id=index, content=token, **flags) for token, index in special_of_bytes().items()],
        normalizer=dict(type="NFC"),
        pre_tokenizer=dict(type="Sequence", pretokenizers=[split, byte_level]),
        post_processor=None,
        decoder=byte_level,
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=False,
            vocab=vocabulary,
            merges=[],
        ),
    )
