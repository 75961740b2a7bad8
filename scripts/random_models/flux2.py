"""FLUX.2-klein: sizes, tensors and configs."""

from dataclasses import dataclass, field

from random_models import text_encoder, tokenizer, vae
from random_models.folder import Folder, Part
from random_models.tensors import matrix, scale
from random_models.text_encoder import TextSize
from random_models.vae import PATCH_CHANNELS, VaeSize

TIMESTEP_CHANNELS = 256
MLP_RATIO = 3
# The size of modulations, relative to that of other linear layers.
MODULATION_GAIN = 0.5

# The messages of the Qwen3 template that a text-to-image prompt needs: one from the user, then an answer without thinking.
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


@dataclass(frozen=True)
class Size:
    double_blocks: int
    single_blocks: int
    heads: int
    head_dim: int
    text: TextSize
    vae: VaeSize = field(default_factory=VaeSize)
    image_size: int | None = None
    """The image sizes in the index."""

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def context(self):
        """Three layers of the text encoder side by side."""
        return 3 * self.text.hidden


SIZES = {
    "4b": Size(5, 20, 24, 128, TextSize(2560, 9728, 36, 32, 8, 128, tied=True)),
    "9b": Size(8, 24, 32, 128, TextSize(4096, 12288, 36, 32, 8, 128, tied=False)),
    "mini": Size(1, 2, 4, 64, TextSize(128, 352, 4, 4, 2, 64, tied=True), VaeSize((32, 64, 64, 64), groups=16), 256),
}


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


def text_encoder_config(text):
    return dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3") | text_encoder.config(
        text,
        rope_theta=1000000,
        rope_scaling=None,
        max_position_embeddings=40960,
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=text.layers,
        torch_dtype="bfloat16",
        bos_token_id=tokenizer.SPECIAL["<|endoftext|>"],
        eos_token_id=tokenizer.SPECIAL["<|im_end|>"],
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


def model_index(size, base):
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
    if size.image_size:
        index["default_image_size"] = [size.image_size] * 2
    return index


def folder(size, base, tokenizer_file):
    stem = "diffusion_pytorch_model"
    parts = [
        Part("transformer", stem, list(transformer_entries(size)), transformer_config(size)),
        Part("text_encoder", "model", list(text_encoder.entries(size.text)), text_encoder_config(size.text)),
        Part("vae", stem, list(vae.entries(size.vae)), vae.config(size.vae)),
    ]
    files = {
        "tokenizer/tokenizer.json": tokenizer.read(tokenizer_file),
        "tokenizer/tokenizer_config.json": tokenizer_config(),
        "scheduler/scheduler_config.json": scheduler_config(),
    }
    return Folder(parts, files, ("model_index.json", model_index(size, base)))
