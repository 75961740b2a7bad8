"""Qwen3, which encodes the prompt, and the vision half of Qwen3-VL."""

from dataclasses import dataclass

from random_models.tensors import linear, matrix, norm, normal, scale

VOCABULARY = 151936


@dataclass(frozen=True)
class TextSize:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    vocabulary: int = VOCABULARY


@dataclass(frozen=True)
class VisionSize:
    """The sizes of the vision half. `deepstack` are the layers whose outputs the text half would also read."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    positions: int
    deepstack: tuple[int, ...]


def entries(text, root="model"):
    cols, kv_cols = text.heads * text.head_dim, text.kv_heads * text.head_dim
    yield normal(f"{root}.embed_tokens.weight", (text.vocabulary, text.hidden), 1.0)
    for layer in range(text.layers):
        prefix = f"{root}.layers.{layer}"
        yield scale(f"{prefix}.input_layernorm.weight", text.hidden)
        yield scale(f"{prefix}.post_attention_layernorm.weight", text.hidden)
        yield scale(f"{prefix}.self_attn.q_norm.weight", text.head_dim)
        yield scale(f"{prefix}.self_attn.k_norm.weight", text.head_dim)
        yield matrix(f"{prefix}.self_attn.q_proj.weight", cols, text.hidden)
        yield matrix(f"{prefix}.self_attn.k_proj.weight", kv_cols, text.hidden)
        yield matrix(f"{prefix}.self_attn.v_proj.weight", kv_cols, text.hidden)
        yield matrix(f"{prefix}.self_attn.o_proj.weight", text.hidden, cols)
        yield matrix(f"{prefix}.mlp.gate_proj.weight", text.intermediate, text.hidden)
        yield matrix(f"{prefix}.mlp.up_proj.weight", text.intermediate, text.hidden)
        yield matrix(f"{prefix}.mlp.down_proj.weight", text.hidden, text.intermediate)
    yield scale(f"{root}.norm.weight", text.hidden)
    if not text.tied:
        yield matrix("lm_head.weight", text.vocabulary, text.hidden)


def vision_entries(vision, text):
    """Patches of 2 x 16 x 16 pixels; 2 x 2 of them become a token of the text half."""
    root, dim = "model.visual", vision.hidden
    yield matrix(f"{root}.patch_embed.proj.weight", dim, 3, 2, 16, 16)
    yield normal(f"{root}.patch_embed.proj.bias", (dim,), 0.1)
    yield normal(f"{root}.pos_embed.weight", (vision.positions, dim), 1.0)
    for layer in range(vision.layers):
        prefix = f"{root}.blocks.{layer}"
        yield from norm(f"{prefix}.norm1", dim)
        yield from norm(f"{prefix}.norm2", dim)
        yield from linear(f"{prefix}.attn.qkv", 3 * dim, dim)
        yield from linear(f"{prefix}.attn.proj", dim, dim)
        yield from linear(f"{prefix}.mlp.linear_fc1", vision.intermediate, dim)
        yield from linear(f"{prefix}.mlp.linear_fc2", dim, vision.intermediate)
    mergers = [("merger", dim), *((f"deepstack_merger_list.{i}", 4 * dim) for i in range(len(vision.deepstack)))]
    for name, width in mergers:
        yield from norm(f"{root}.{name}.norm", width)
        yield from linear(f"{root}.{name}.linear_fc1", 4 * dim, 4 * dim)
        yield from linear(f"{root}.{name}.linear_fc2", text.hidden, 4 * dim)


def config(text, **more):
    """The shared config of Qwen3 and of the text half of Qwen3-VL."""
    return dict(
        hidden_size=text.hidden,
        intermediate_size=text.intermediate,
        num_hidden_layers=text.layers,
        num_attention_heads=text.heads,
        num_key_value_heads=text.kv_heads,
        head_dim=text.head_dim,
        rms_norm_eps=1e-6,
        vocab_size=text.vocabulary,
        tie_word_embeddings=text.tied,
        attention_bias=False,
        attention_dropout=0.0,
        hidden_act="silu",
        **more,
    )


def vision_config(vision, text):
    return dict(
        model_type="qwen3_vl",
        depth=vision.layers,
        hidden_size=vision.hidden,
        intermediate_size=vision.intermediate,
        num_heads=vision.heads,
        out_hidden_size=text.hidden,
        deepstack_visual_indexes=vision.deepstack,
        num_position_embeddings=vision.positions,
        patch_size=16,
        spatial_merge_size=2,
        temporal_patch_size=2,
        in_channels=3,
        hidden_act="gelu_pytorch_tanh",
    )
