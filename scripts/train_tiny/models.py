"""The three models with their initial weights, and the parts of Flux2KleinPipeline for training."""

import math
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from layouts import Size
from report import UserError, left
from settings import Settings


def make_vae(settings: Settings) -> AutoencoderKLFlux2:
    """Residual branches start at zero: the decoder is a plain upsampler at first, which trains faster."""
    vae = AutoencoderKLFlux2(block_out_channels=settings.vae_channels, layers_per_block=1, latent_channels=settings.latent_channels,
                             norm_num_groups=settings.norm_groups, sample_size=settings.size)  # fmt: skip
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            if name.endswith(("conv2.weight", "conv2.bias")) or "to_out" in name:
                parameter.zero_()
    return vae


def make_text_encoder(settings: Settings) -> Qwen3ForCausalLM:
    hidden, vocabulary = settings.text_hidden, settings.vocabulary
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=settings.text_layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, bos_token_id=vocabulary - 5, eos_token_id=vocabulary - 3,
        pad_token_id=vocabulary - 5, attn_implementation="sdpa",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                writes_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.5 if "embed" in name else parameter.shape[1] ** -0.5 * (0.2 if writes_residual else 1.0)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def make_transformer(settings: Settings) -> Flux2Transformer2DModel:
    """Modulations and the last projection start at zero (adaLN-zero)."""
    model = Flux2Transformer2DModel(
        in_channels=4 * settings.latent_channels, num_layers=settings.double_blocks, num_single_layers=settings.single_blocks,
        attention_head_dim=settings.head_dim, num_attention_heads=settings.hidden // settings.head_dim,
        joint_attention_dim=len(settings.taps) * settings.text_hidden, timestep_guidance_channels=256, mlp_ratio=settings.mlp_ratio,
        axes_dims_rope=settings.rope_axes, rope_theta=2000, guidance_embeds=False,
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modulation" in name or name.startswith(("proj_out", "norm_out")):
                parameter.zero_()
    return model


def compute_dtype(settings: Settings) -> torch.dtype:
    return torch.bfloat16 if settings.device.startswith("cuda") else torch.float32


def transformer_blocks(transformer: Flux2Transformer2DModel) -> list[torch.nn.Module]:
    return [*transformer.transformer_blocks, *transformer.single_transformer_blocks]


def save(path: Path, models: dict[str, torch.nn.Module]) -> None:
    """A folder with one file of bf16 for each model, as they are shipped: so no file, and no folder, is too large to be carried between
    machines. Tied weights once."""
    unfinished = path.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, model in models.items():
        tensors = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
        tensors = {key: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous() for key, value in tensors.items()}
        save_file(tensors, unfinished / f"{name}.safetensors")
    shutil.rmtree(path, ignore_errors=True)
    unfinished.rename(path)


def load(path: Path, models: dict[str, torch.nn.Module], device: str) -> None:
    for name, model in models.items():
        own = load_file(path / f"{name}.safetensors")
        expected = {key: value.shape for key, value in model.state_dict().items() if key != "lm_head.weight"}
        if expected != {key: value.shape for key, value in own.items()}:
            raise UserError(f"the weights in `{path}` do not match this {name}", "use different `--work` folders with and without `--toy`")
        model.load_state_dict(own, strict=False)
        model.to(device)


def load_text_encoder_and_transformer(settings: Settings, name: str) -> tuple[Qwen3ForCausalLM, Flux2Transformer2DModel]:
    """Those of this name that a phase left (`distill` and `refine` under `final`), on the device in f32."""
    text_encoder, transformer = make_text_encoder(settings), make_transformer(settings)
    load(left(settings, name), {"transformer": transformer, "text_encoder": text_encoder}, settings.device)
    return text_encoder, transformer


def teacher_name(settings: Settings) -> str:
    """The last of the phases before `distill` that left weights."""
    return "tune" if (settings.work / "tune").exists() else "base"


def encode_text(settings: Settings, model: Qwen3ForCausalLM, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """ids [batch, tokens], lengths [batch] -> [batch, tokens, taps * hidden]: hidden states after the tapped layers, side by side."""
    layers = model.model
    states = layers.embed_tokens(ids)
    position = torch.arange(ids.shape[1], device=ids.device)
    mask = (position[None, :] <= position[:, None])[None] & (position[None] < lengths[:, None])[:, None]
    rotary = layers.rotary_emb(states, position[None])
    tapped = []
    for i, layer in enumerate(layers.layers[: settings.taps[-1]], start=1):
        states = layer(states, attention_mask=mask[:, None], position_embeddings=rotary, use_cache=False)
        if i in settings.taps:
            tapped.append(states)
    return torch.cat(tapped, -1)


class Velocity:
    """The transformer as a function of an image stream, its position ids, text and time."""

    def __init__(self, transformer: Flux2Transformer2DModel):
        self.transformer = transformer

    def __call__(self, stream: torch.Tensor, ids: torch.Tensor, text: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """stream [batch, tokens, channels], ids [tokens, 4], text [batch, tokens, dim], time [batch] -> [batch, tokens, channels] f32."""
        dtype = next(self.transformer.parameters()).dtype
        text_ids = F.pad(torch.arange(text.shape[1], device=text.device)[:, None], (3, 0))
        return self.transformer(
            hidden_states=stream.to(dtype), encoder_hidden_states=text.to(dtype), timestep=time, img_ids=ids, txt_ids=text_ids,
            return_dict=False,
        )[0].float()  # fmt: skip


def patchify(latents: torch.Tensor) -> torch.Tensor:
    """[batch, channels, height, width] -> [batch, height / 2 * width / 2, 4 * channels]."""
    batch, channels, height, width = latents.shape
    latents = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return latents.reshape(batch, height // 2 * (width // 2), 4 * channels)


def unpatchify(tokens: torch.Tensor, size: Size) -> torch.Tensor:
    """[batch, height * width, 4 * channels] -> [batch, channels, 2 * height, 2 * width]."""
    (batch, _, channels), (height, width) = tokens.shape, size
    tokens = tokens.view(batch, height, width, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return tokens.reshape(batch, channels // 4, 2 * height, 2 * width)


def encode_image(vae: AutoencoderKLFlux2, images: torch.Tensor) -> torch.Tensor:
    """[batch, 3, height, width] in -1..1 -> mean of the latents [batch, channels, height / 8, width / 8] f32."""
    return moments(vae, images)[0]


def moments(vae: AutoencoderKLFlux2, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and logarithm of the variance."""
    with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
        out = vae.quant_conv(vae.encoder(images))
    mean, log_variance = out.float().chunk(2, 1)
    return mean, log_variance.clamp(-20, 4)


def latent_scale(vae: AutoencoderKLFlux2) -> torch.Tensor:
    return torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps)


@torch.no_grad()
def decode(vae: AutoencoderKLFlux2, latents: torch.Tensor, size: Size) -> torch.Tensor:
    """Normalised latents [batch, tokens, channels] -> images [batch, 3, height, width] in -1..1."""
    latents = unpatchify(latents * latent_scale(vae) + vae.bn.running_mean, size)
    dtype = next(vae.parameters()).dtype
    return torch.cat([vae.decode(part.to(dtype)).sample.float() for part in latents.split(32)]).clamp(-1, 1)


def timesteps(tokens: int, steps: int) -> list[float]:
    """The pipeline's times for so many image tokens, from 1 to 0. Source: diffusers `compute_empirical_mu`."""
    few, many = 8.73809524e-05 * tokens + 1.89833333, 0.00016927 * tokens + 0.45666666
    slope = (many - few) / 190
    mu = many if tokens > 4300 else slope * steps + many - 200 * slope
    return [math.exp(mu) / (math.exp(mu) + steps / (steps - i) - 1) for i in range(steps)] + [0.0]


@torch.no_grad()
def sample(
    velocity: Velocity, text: torch.Tensor, noise: torch.Tensor, references: torch.Tensor, ids: torch.Tensor, steps: int,
    guidance: float = 1.0, empty: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """noise [batch, tokens, channels], references [batch, their tokens, channels] -> latents, by Euler steps; with guidance against the
    `empty` prompt's text where it is above 1. References stay as they are."""
    count = noise.shape[1]
    latents, times = noise.clone(), timesteps(count, steps)
    for time, after in zip(times, times[1:]):
        stream, now = torch.cat([latents, references], 1), torch.full_like(latents[:, 0, 0], time)
        latents = latents + (after - time) * guided(velocity, stream, ids, text, now, guidance, empty)[:, :count]
    return latents


def guided(
    velocity: Velocity, stream: torch.Tensor, ids: torch.Tensor, text: torch.Tensor, time: torch.Tensor, guidance: float, empty: torch.Tensor | None
) -> torch.Tensor:
    """Both runs have the references: only the text differs."""
    if guidance <= 1:
        return velocity(stream, ids, text, time)
    both = velocity(torch.cat([stream, stream]), ids, torch.cat([text, empty.expand_as(text)]), torch.cat([time, time]))
    with_text, without = both.chunk(2)
    return without + guidance * (with_text - without)
