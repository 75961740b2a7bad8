"""FLUX.3-klein: sizes, tensors and configs."""

from dataclasses import dataclass, field

from random_models import text_encoder, tokenizer, vae
from random_models.folder import Folder, Part
from random_models.tensors import matrix, scale
from random_models.text_encoder import TextSize, VisionSize
from random_models.vae import PATCH_CHANNELS, VaeSize

TIMESTEP_CHANNELS = 256
MLP_RATIO = 3

# The messages of the template of Qwen3-VL that a prompt needs.
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}{%- if m.content is string %}{{- m.content }}{%- else %}"
    "{%- for c in m.content %}{%- if 'text' in c %}{{- c.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Size:
    early_blocks: int
    joint_blocks: int
    heads: int
    head_dim: int
    text: TextSize
    vae: VaeSize = field(default_factory=VaeSize)
    vision: VisionSize | None = None
    """The vision half, which no image needs."""
    modulation_gain: float = 0.5
    """The size of modulations, relative to that of other linear layers."""

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def context(self):
        """Eight layers of the text encoder side by side."""
        return 8 * self.text.hidden


SIZES = {
    "flux3": Size(5, 28, 24, 128, TextSize(2560, 9728, 36, 32, 8, 128, tied=True)),
    "flux3-mini": Size(
        2, 3, 4, 64, TextSize(128, 352, 9, 4, 2, 64, tied=True), VaeSize((32, 64, 64, 64), groups=16)
    ),
    # That of tests/golden.
    "flux3-tiny": Size(
        2,
        3,
        2,
        32,
        TextSize(32, 64, 9, 4, 2, 16, tied=True, vocabulary=264),
        VaeSize((16, 16, 16, 32), groups=8, blocks=1, pixels=64, last_gain=0.3),
        VisionSize(16, 32, 1, 2, 16, deepstack=(0,)),
        modulation_gain=1.0,
    ),
}


def transformer_entries(size, base):
    """The tensors of distilled models only are last, so a base model with the same seed shares all others."""
    dim, mlp = size.dim, MLP_RATIO * size.dim
    yield from time_embedder("timestep_embedder", dim)
    for part in ("early", "single"):
        for stream in ("image", "image_cond", "txt"):
            name = f"{part}_stream_modulations.{stream}.linear.weight"
            yield matrix(name, 3 * dim, dim, gain=size.modulation_gain)
    for stream in ("image", "image_cond"):
        yield matrix(f"x_embedders.{stream}.weight", dim, PATCH_CHANNELS)
    yield matrix("context_embedder.weight", dim, size.context)
    blocks = [(name, size.early_blocks) for name in ("mode_blocks.image", "mode_blocks.image_cond", "txt_mode_blocks")]
    blocks.append(("single_transformer_blocks", size.joint_blocks))
    for prefix in (f"{name}.{block}" for name, count in blocks for block in range(count)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield matrix(f"{prefix}.attn.{name}.weight", dim, dim)
        for name in ("norm_q", "norm_k"):
            yield scale(f"{prefix}.attn.{name}.weight", size.head_dim)
        yield matrix(f"{prefix}.ff.linear_in.weight", 2 * mlp, dim)
        yield matrix(f"{prefix}.ff.linear_out.weight", dim, mlp)
    yield matrix("norm_out.linear.weight", 2 * dim, dim, gain=0.5)
    yield matrix("proj_out.weight", PATCH_CHANNELS, dim)
    if not base:
        yield from time_embedder("target_timestep_embedder", dim)


def time_embedder(prefix, dim):
    yield matrix(f"{prefix}.linear_1.weight", dim, TIMESTEP_CHANNELS)
    yield matrix(f"{prefix}.linear_2.weight", dim, dim)


def text_encoder_entries(size):
    yield from text_encoder.entries(size.text, "model.language_model")
    if size.vision:
        yield from text_encoder.vision_entries(size.vision, size.text)


def transformer_config(size, base):
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


def text_encoder_config(size):
    text, ids = size.text, special_tokens(size)
    # Pairs of features for height and for width; the rest are for time. A text has the same position on all three.
    side = 5 * text.head_dim // 32
    config = dict(
        architectures=["Qwen3VLForConditionalGeneration"],
        model_type="qwen3_vl",
        dtype="bfloat16",
        tie_word_embeddings=text.tied,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        text_config=dict(model_type="qwen3_vl_text", dtype="bfloat16")
        | text_encoder.config(
            text,
            rope_parameters=dict(
                rope_type="default",
                rope_theta=5000000.0,
                mrope_interleaved=True,
                mrope_section=[text.head_dim // 2 - 2 * side, side, side],
            ),
            max_position_embeddings=262144,
            bos_token_id=ids["<|endoftext|>"],
            eos_token_id=ids["<|im_end|>"],
        ),
    )
    if size.vision:
        config["vision_config"] = text_encoder.vision_config(size.vision, text)
    return config


def special_tokens(size):
    return tokenizer.SPECIAL if has_tokens_of_qwen3(size) else tokenizer.special_of_bytes()


def has_tokens_of_qwen3(size):
    return size.text.vocabulary == text_encoder.VOCABULARY


def scheduler_config():
    return dict(
        _class_name="FlowMatchEulerDiscreteScheduler", num_train_timesteps=1000, shift=6.93, use_dynamic_shifting=False
    )


def tokenizer_files(size, file):
    """With what a processor of Qwen3-VL needs beside the tokenizer."""
    pixels = dict(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size=dict(shortest_edge=65536, longest_edge=16777216),
    )
    processor = dict(processor_class="Qwen3VLProcessor")
    config = dict(
        tokenizer_class="Qwen2Tokenizer",
        add_bos_token=False,
        add_prefix_space=False,
        bos_token=None,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        errors="replace",
        clean_up_tokenization_spaces=False,
        model_max_length=262144,
    )
    return {
        "tokenizer/tokenizer.json": tokenizer.read(file) if has_tokens_of_qwen3(size) else tokenizer.of_bytes(),
        "tokenizer/tokenizer_config.json": config | processor,
        "tokenizer/chat_template.jinja": CHAT_TEMPLATE,
        "tokenizer/preprocessor_config.json": pixels | dict(image_processor_type="Qwen2VLImageProcessorFast") | processor,
        "tokenizer/video_preprocessor_config.json": pixels | dict(video_processor_type="Qwen3VLVideoProcessor") | processor,
    }


def model_index(base):
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


def folder(size, base, tokenizer_file):
    stem = "diffusion_pytorch_model"
    # The transformer last: it alone differs between a distilled and a base model.
    parts = [
        Part("text_encoder", "model", list(text_encoder_entries(size)), text_encoder_config(size)),
        Part("vae", stem, list(vae.entries(size.vae)), vae.config(size.vae)),
        Part("transformer", stem, list(transformer_entries(size, base)), transformer_config(size, base)),
    ]
    scheduler = {"scheduler/scheduler_config.json": scheduler_config()}
    index = "modular_model_index.json", model_index(base)
    return Folder(parts, tokenizer_files(size, tokenizer_file) | scheduler, index)
