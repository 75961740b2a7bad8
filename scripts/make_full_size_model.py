#!/usr/bin/env python3
"""Writes a model folder as large as FLUX.2-klein or FLUX.3-klein, with random weights: for speed, memory and parity without
a download.

    python3 scripts/make_full_size_model.py 4b /tmp/klein-4b

Files, names, shapes and dtypes are those of the published models. The images mean nothing, but the weights are scaled so
that activations stay in the range of a trained network. 4b takes 16 GB, 9b 35 GB and flux3 20 GB of disk; `mini` and
`flux3-mini` have every part in 70 and 110 MB. The text encoder of flux3 has no vision tower, which no image needs. One seed
gives the same weights on every GPU, and others on a CPU. Needs torch; uses the GPU where there is one.
"""

import argparse
import gzip
import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

TOKENIZER = Path(__file__).resolve().parent.parent / "tests/golden/qwen3-tokenizer.json.gz"
LATENT_CHANNELS = 32
PATCH_CHANNELS = 4 * LATENT_CHANNELS
TIMESTEP_CHANNELS = 256
MLP_RATIO = 3
# The size of modulations, relative to that of other linear layers.
MODULATION_GAIN = 0.5
SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.int64: "I64"}

# The messages of the Qwen3 template that a text-to-image prompt needs: one from the user, then an answer without thinking.
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


@dataclass(frozen=True)
class TextSize:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    vocabulary: int = 151936


class AnySize:
    """What both families share."""

    vae_channels = (128, 256, 512, 512)
    vae_groups = 32

    @property
    def dim(self):
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Size(AnySize):
    """A model of FLUX.2-klein."""

    double_blocks: int
    single_blocks: int
    heads: int
    head_dim: int
    text: TextSize

    @property
    def context(self):
        """Three layers of the text encoder side by side."""
        return 3 * self.text.hidden


class MiniVae:
    vae_channels = (32, 64, 64, 64)
    vae_groups = 16


class MiniSize(MiniVae, Size):
    pass


@dataclass(frozen=True)
class Flux3Size(AnySize):
    """A model of FLUX.3-klein."""

    early_blocks: int
    joint_blocks: int
    heads: int
    head_dim: int
    text: TextSize

    @property
    def context(self):
        """Eight layers of the text encoder side by side."""
        return 8 * self.text.hidden


class MiniFlux3Size(MiniVae, Flux3Size):
    pass


SIZES = {
    "4b": Size(5, 20, 24, 128, TextSize(2560, 9728, 36, 32, 8, 128, tied=True)),
    "9b": Size(8, 24, 32, 128, TextSize(4096, 12288, 36, 32, 8, 128, tied=False)),
    "flux3": Flux3Size(5, 28, 24, 128, TextSize(2560, 9728, 36, 32, 8, 128, tied=True)),
    "flux3-mini": MiniFlux3Size(2, 3, 4, 64, TextSize(128, 352, 9, 4, 2, 64, tied=True)),
    "mini": MiniSize(1, 2, 4, 64, TextSize(128, 352, 4, 4, 2, 64, tied=True)),
}


class Entry(NamedTuple):
    """A tensor to write. `make` takes the device to draw on."""

    name: str
    shape: tuple[int, ...]
    make: Callable
    dtype: torch.dtype = torch.bfloat16

    @property
    def bytes(self):
        return math.prod(self.shape) * self.dtype.itemsize


def normal(name, shape, std, mean=0.0):
    def make(device):
        return torch.randn(*shape, device=device).mul_(std).add_(mean).to(torch.bfloat16)

    return Entry(name, shape, make)


def matrix(name, *shape, gain=1.0):
    """A weight that keeps the size of its input when `gain` is 1: [out, in] or [out, in, kernel, kernel]."""
    return normal(name, shape, gain / math.prod(shape[1:]) ** 0.5)


def scale(name, dim):
    """The weight of a norm, around 1."""
    return normal(name, (dim,), 0.1, mean=1.0)


def bias(name, dim):
    return normal(name, (dim,), 0.1)


def transformer_entries(size):
    dim, mlp = size.dim, MLP_RATIO * size.dim
    yield matrix("x_embedder.weight", dim, PATCH_CHANNELS)
    yield matrix("context_embedder.weight", dim, size.context)
    yield matrix("time_guidance_embed.timestep_embedder.linear_1.weight", dim, TIMESTEP_CHANNELS)
    yield matrix("time_guidance_embed.timestep_embedder.linear_2.weight", dim, dim)
    yield matrix("double_stream_modulation_img.linear.weight", 6 * dim, dim, gain=MODULATION_GAIN)
    yield matrix("double_stream_modulation_txt.linear.weight", 6 * dim, dim, gain=MODULATION_GAIN)
    yield matrix("single_stream_modulation.linear.weight", 3 * dim, dim, gain=MODULATION_GAIN)
    yield matrix("norm_out.linear.weight", 2 * dim, dim, gain=MODULATION_GAIN)
    yield matrix("proj_out.weight", PATCH_CHANNELS, dim)
    for block in range(size.double_blocks):
        prefix = f"transformer_blocks.{block}"
        for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            yield matrix(f"{prefix}.attn.{name}.weight", dim, dim)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            yield scale(f"{prefix}.attn.{name}.weight", size.head_dim)
        for name in ("ff", "ff_context"):
            yield matrix(f"{prefix}.{name}.linear_in.weight", 2 * mlp, dim)
            yield matrix(f"{prefix}.{name}.linear_out.weight", dim, mlp)
    for block in range(size.single_blocks):
        prefix = f"single_transformer_blocks.{block}.attn"
        yield matrix(f"{prefix}.to_qkv_mlp_proj.weight", 3 * dim + 2 * mlp, dim)
        yield matrix(f"{prefix}.to_out.weight", dim, dim + mlp)
        yield scale(f"{prefix}.norm_q.weight", size.head_dim)
        yield scale(f"{prefix}.norm_k.weight", size.head_dim)


def flux3_transformer_entries(size, base):
    dim, mlp = size.dim, MLP_RATIO * size.dim
    for name in ("timestep_embedder", *(() if base else ("target_timestep_embedder",))):
        yield matrix(f"{name}.linear_1.weight", dim, TIMESTEP_CHANNELS)
        yield matrix(f"{name}.linear_2.weight", dim, dim)
    for part in ("early", "single"):
        for stream in ("image", "image_cond", "txt"):
            yield matrix(f"{part}_stream_modulations.{stream}.linear.weight", 3 * dim, dim, gain=MODULATION_GAIN)
    for stream in ("image", "image_cond"):
        yield matrix(f"x_embedders.{stream}.weight", dim, PATCH_CHANNELS)
    yield matrix("context_embedder.weight", dim, size.context)
    yield matrix("norm_out.linear.weight", 2 * dim, dim, gain=MODULATION_GAIN)
    yield matrix("proj_out.weight", PATCH_CHANNELS, dim)
    blocks = [(name, size.early_blocks) for name in ("mode_blocks.image", "mode_blocks.image_cond", "txt_mode_blocks")]
    blocks.append(("single_transformer_blocks", size.joint_blocks))
    for prefix in (f"{name}.{block}" for name, count in blocks for block in range(count)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield matrix(f"{prefix}.attn.{name}.weight", dim, dim)
        for name in ("norm_q", "norm_k"):
            yield scale(f"{prefix}.attn.{name}.weight", size.head_dim)
        yield matrix(f"{prefix}.ff.linear_in.weight", 2 * mlp, dim)
        yield matrix(f"{prefix}.ff.linear_out.weight", dim, mlp)


def text_encoder_entries(text, root="model"):
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


def vae_entries(channels):
    first, top = channels[0], channels[-1]
    # First, because its values are the widest and a file aligns nothing.
    yield Entry("bn.num_batches_tracked", (), lambda device: torch.tensor(1000), torch.int64)
    yield from conv("encoder.conv_in", first, 3)
    before = first
    for level, after in enumerate(channels):
        for block in range(2):
            yield from resnet(f"encoder.down_blocks.{level}.resnets.{block}", before, after)
            before = after
        if level + 1 < len(channels):
            yield from conv(f"encoder.down_blocks.{level}.downsamplers.0.conv", after, after)
    yield from mid_block("encoder.mid_block", top)
    yield from group_norm("encoder.conv_norm_out", top)
    yield from conv("encoder.conv_out", 2 * LATENT_CHANNELS, top)
    yield from conv("quant_conv", 2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, kernel=1)
    yield from conv("post_quant_conv", LATENT_CHANNELS, LATENT_CHANNELS, kernel=1)
    yield from conv("decoder.conv_in", top, LATENT_CHANNELS)
    yield from mid_block("decoder.mid_block", top)
    before = top
    for level, after in enumerate(reversed(channels)):
        for block in range(3):
            yield from resnet(f"decoder.up_blocks.{level}.resnets.{block}", before, after)
            before = after
        if level + 1 < len(channels):
            yield from conv(f"decoder.up_blocks.{level}.upsamplers.0.conv", after, after)
    yield from group_norm("decoder.conv_norm_out", first)
    yield from conv("decoder.conv_out", 3, first)
    shape = (PATCH_CHANNELS,)
    yield Entry("bn.running_mean", shape, lambda device: (0.3 * torch.randn(*shape)).to(torch.bfloat16))
    yield Entry("bn.running_var", shape, lambda device: (0.5 + 1.5 * torch.rand(*shape)).to(torch.bfloat16))


def group_norm(prefix, channels):
    yield scale(f"{prefix}.weight", channels)
    yield bias(f"{prefix}.bias", channels)


def conv(prefix, channels_out, channels_in, kernel=3):
    yield matrix(f"{prefix}.weight", channels_out, channels_in, kernel, kernel)
    yield bias(f"{prefix}.bias", channels_out)


def resnet(prefix, channels_in, channels_out):
    yield from group_norm(f"{prefix}.norm1", channels_in)
    yield from conv(f"{prefix}.conv1", channels_out, channels_in)
    yield from group_norm(f"{prefix}.norm2", channels_out)
    yield from conv(f"{prefix}.conv2", channels_out, channels_out)
    if channels_in != channels_out:
        yield from conv(f"{prefix}.conv_shortcut", channels_out, channels_in, kernel=1)


def mid_block(prefix, channels):
    yield from resnet(f"{prefix}.resnets.0", channels, channels)
    yield from group_norm(f"{prefix}.attentions.0.group_norm", channels)
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        yield matrix(f"{prefix}.attentions.0.{name}.weight", channels, channels)
        yield bias(f"{prefix}.attentions.0.{name}.bias", channels)
    yield from resnet(f"{prefix}.resnets.1", channels, channels)


def write_weights(folder, stem, entries, shards, device):
    """One .safetensors file, or `shards` of them with an index; each tensor goes to disk before the next is drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_safetensors(folder / f"{stem}.safetensors", entries, device)
        return
    per_shard = math.ceil(len(entries) / shards)
    weight_map = {}
    for shard in range(shards):
        name = f"{stem}-{shard + 1:05}-of-{shards:05}.safetensors"
        part = entries[shard * per_shard : (shard + 1) * per_shard]
        write_safetensors(folder / name, part, device)
        weight_map |= {entry.name: name for entry in part}
    total = sum(entry.bytes for entry in entries)
    write_json(folder / f"{stem}.safetensors.index.json", dict(metadata=dict(total_size=total), weight_map=weight_map))


def write_safetensors(path, entries, device):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for entry in entries:
        span = [offset, offset + entry.bytes]
        header[entry.name] = dict(dtype=SAFETENSORS_NAMES[entry.dtype], shape=entry.shape, data_offsets=span)
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            tensor = entry.make(device).cpu()
            assert tensor.shape == entry.shape and tensor.dtype == entry.dtype, entry.name
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def transformer_config(size):
    return dict(
        _class_name="Flux2Transformer2DModel",
        patch_size=1,
        in_channels=PATCH_CHANNELS,
        out_channels=None,
        num_layers=size.double_blocks,
        num_single_layers=size.single_blocks,
        attention_head_dim=size.head_dim,
        num_attention_heads=size.heads,
        joint_attention_dim=size.context,
        timestep_guidance_channels=TIMESTEP_CHANNELS,
        mlp_ratio=float(MLP_RATIO),
        axes_dims_rope=[size.head_dim // 4] * 4,
        rope_theta=2000,
        eps=1e-6,
        guidance_embeds=False,
    )


def flux3_transformer_config(size, base):
    return dict(
        _class_name="Flux3Transformer2DModel",
        in_channels=PATCH_CHANNELS,
        cond_in_channels=PATCH_CHANNELS,
        num_layers=size.early_blocks,
        num_single_layers=size.joint_blocks,
        attention_head_dim=size.head_dim,
        num_attention_heads=size.heads,
        joint_attention_dim=size.context,
        timestep_channels=TIMESTEP_CHANNELS,
        mlp_ratio=float(MLP_RATIO),
        axes_dims_rope=[size.head_dim // 4] * 4,
        rope_theta=10000,
        eps=1e-6,
        flow_map=not base,
    )


def flux3_text_encoder_config(text):
    of_qwen3 = text_encoder_config(text)
    gone = ("architectures", "rope_theta", "rope_scaling", "use_sliding_window", "sliding_window", "max_window_layers")
    text_config = {name: value for name, value in of_qwen3.items() if name not in gone}
    rope = dict(rope_type="default", rope_theta=5000000.0, mrope_interleaved=True, mrope_section=[24, 20, 20])
    text_config |= dict(model_type="qwen3_vl_text", rope_parameters=rope, max_position_embeddings=262144)
    return dict(
        architectures=["Qwen3VLForConditionalGeneration"],
        model_type="qwen3_vl",
        tie_word_embeddings=text.tied,
        text_config=text_config,
    )


def text_encoder_config(text):
    return dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        hidden_size=text.hidden,
        intermediate_size=text.intermediate,
        num_hidden_layers=text.layers,
        num_attention_heads=text.heads,
        num_key_value_heads=text.kv_heads,
        head_dim=text.head_dim,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        rope_scaling=None,
        vocab_size=text.vocabulary,
        max_position_embeddings=40960,
        tie_word_embeddings=text.tied,
        attention_bias=False,
        attention_dropout=0.0,
        hidden_act="silu",
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=text.layers,
        torch_dtype="bfloat16",
        bos_token_id=151643,
        eos_token_id=151645,
    )


def vae_config(size):
    levels = len(size.vae_channels)
    return dict(
        _class_name="AutoencoderKLFlux2",
        in_channels=3,
        out_channels=3,
        latent_channels=LATENT_CHANNELS,
        block_out_channels=size.vae_channels,
        layers_per_block=2,
        norm_num_groups=size.vae_groups,
        act_fn="silu",
        sample_size=1024,
        force_upcast=True,
        use_quant_conv=True,
        use_post_quant_conv=True,
        mid_block_add_attention=True,
        batch_norm_eps=1e-4,
        batch_norm_momentum=0.1,
        patch_size=[2, 2],
        down_block_types=["DownEncoderBlock2D"] * levels,
        up_block_types=["UpDecoderBlock2D"] * levels,
    )


def scheduler_config():
    return dict(
        _class_name="FlowMatchEulerDiscreteScheduler",
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        time_shift_type="exponential",
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
        shift_terminal=None,
        invert_sigmas=False,
        stochastic_sampling=False,
        use_karras_sigmas=False,
        use_exponential_sigmas=False,
        use_beta_sigmas=False,
    )


def tokenizer_config():
    return dict(
        tokenizer_class="Qwen2TokenizerFast",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        unk_token=None,
        bos_token=None,
        add_prefix_space=False,
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
        chat_template=CHAT_TEMPLATE,
    )


def model_index(base, default_image_size):
    index = dict(
        _class_name="Flux2KleinPipeline",
        _diffusers_version="0.37.0",
        scheduler=["diffusers", "FlowMatchEulerDiscreteScheduler"],
        text_encoder=["transformers", "Qwen3ForCausalLM"],
        tokenizer=["transformers", "Qwen2TokenizerFast"],
        transformer=["diffusers", "Flux2Transformer2DModel"],
        vae=["diffusers", "AutoencoderKLFlux2"],
    )
    if not base:
        index["is_distilled"] = True
    if default_image_size:
        index["default_image_size"] = [default_image_size] * 2
    return index


def flux3_model_index(base):
    kind = "Flux3" if base else "Flux3Distilled"

    def part(name, library, kind):
        place = dict(pretrained_model_name_or_path=None, subfolder=name, variant=None, revision=None, type_hint=[library, kind])
        return [library, kind, place]

    return dict(
        _class_name=f"{kind}ModularPipeline",
        _blocks_class_name=f"{kind}AutoBlocks",
        _diffusers_version="0.42.1",
        scheduler=part("scheduler", "diffusers", "FlowMatchEulerDiscreteScheduler"),
        text_encoder=part("text_encoder", "transformers", "Qwen3VLForConditionalGeneration"),
        tokenizer=part("tokenizer", "transformers", "AutoProcessor"),
        transformer=part("transformer", "diffusers", "Flux3Transformer2DModel"),
        vae=part("vae", "diffusers", "AutoencoderKLFlux2"),
    )


def write_tokenizer(folder, source):
    text = source.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(gzip.decompress(text) if source.suffix == ".gz" else text)
    write_json(folder / "tokenizer_config.json", tokenizer_config())


def write_model(args):
    size, folder = SIZES[args.size], args.folder
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_flux3 = isinstance(size, Flux3Size)
    transformer = flux3_transformer_entries(size, args.base) if is_flux3 else transformer_entries(size)
    text_encoder = text_encoder_entries(size.text, "model.language_model" if is_flux3 else "model")
    parts = [
        ("transformer", "diffusion_pytorch_model", list(transformer), 1),
        ("text_encoder", "model", list(text_encoder), args.text_encoder_shards),
        ("vae", "diffusion_pytorch_model", list(vae_entries(size.vae_channels)), 1),
    ]
    needed = sum(entry.bytes for _, _, entries, _ in parts for entry in entries)
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < needed:
        sys.exit(f"error: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free\n  in: {folder}")

    write_tokenizer(folder / "tokenizer", args.tokenizer)
    if is_flux3:
        scheduler = scheduler_config() | dict(shift=6.93, use_dynamic_shifting=False)
        configs = flux3_transformer_config(size, args.base), flux3_text_encoder_config(size.text)
        index = "modular_model_index.json", flux3_model_index(args.base)
    else:
        scheduler = scheduler_config()
        configs = transformer_config(size), text_encoder_config(size.text)
        index = "model_index.json", model_index(args.base, 256 if isinstance(size, MiniVae) else None)
    write_json(folder / "scheduler/scheduler_config.json", scheduler)
    for part, config in zip(("transformer", "text_encoder"), configs):
        write_json(folder / part / "config.json", config)
    write_json(folder / "vae/config.json", vae_config(size))
    torch.manual_seed(args.seed)
    for part, stem, entries, shards in parts:
        write_weights(folder / part, stem, entries, shards, device)
        print(f"{part}: {sum(math.prod(entry.shape) for entry in entries):,} parameters", flush=True)
    # Last, so that a folder that has it is complete.
    write_json(folder / index[0], index[1])
    print(f"{folder}: {needed / 1e9:.1f} GB, drawn with {device}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", action="store_true", help="an undistilled model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text-encoder-shards", type=int, default=2, metavar="N", help="files of the text encoder [default: 2]")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=TOKENIZER,
        metavar="FILE",
        help="Qwen3's tokenizer.json, plain or .gz [default: of tests/golden]",
    )
    args = parser.parse_args()
    with torch.no_grad():
        write_model(args)


if __name__ == "__main__":
    main()
