"""The VAE of FLUX.2 and FLUX.3."""

from dataclasses import dataclass

import torch

from random_models.folder import Folder, Part
from random_models.tensors import Entry, linear, matrix, bias, norm

LATENT_CHANNELS = 32
PATCH_CHANNELS = 4 * LATENT_CHANNELS


@dataclass(frozen=True)
class VaeSize:
    channels: tuple[int, ...] = (128, 256, 512, 512)
    decoder_channels: tuple[int, ...] | None = None
    """The widths of the decoder, if they differ."""
    groups: int = 32
    blocks: int = 2
    pixels: int = 1024
    last_gain: float = 1.0
    """Below 1, fewer pixels lie outside of what an image can hold."""


SIZES = {"small-decoder": VaeSize(decoder_channels=(96, 192, 384, 384))}


def folder(size, base, tokenizer_file):
    """Only a VAE."""
    index = dict(_class_name="Flux2KleinPipeline", vae=["diffusers", "AutoencoderKLFlux2"])
    part = Part("vae", "diffusion_pytorch_model", list(entries(size)), config(size))
    return Folder([part], {}, ("model_index.json", index))


def entries(vae):
    first, top = vae.channels[0], vae.channels[-1]
    yield from conv("encoder.conv_in", first, 3)
    before = first
    for level, after in enumerate(vae.channels):
        for block in range(vae.blocks):
            yield from resnet(f"encoder.down_blocks.{level}.resnets.{block}", before, after)
            before = after
        if level + 1 < len(vae.channels):
            yield from conv(f"encoder.down_blocks.{level}.downsamplers.0.conv", after, after)
    yield from mid_block("encoder.mid_block", top)
    yield from norm("encoder.conv_norm_out", top)
    yield from conv("encoder.conv_out", 2 * LATENT_CHANNELS, top)
    yield from conv("quant_conv", 2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, kernel=1)
    yield from conv("post_quant_conv", LATENT_CHANNELS, LATENT_CHANNELS, kernel=1)
    channels = vae.decoder_channels or vae.channels
    first, top = channels[0], channels[-1]
    yield from conv("decoder.conv_in", top, LATENT_CHANNELS)
    yield from mid_block("decoder.mid_block", top)
    before = top
    for level, after in enumerate(reversed(channels)):
        for block in range(vae.blocks + 1):
            yield from resnet(f"decoder.up_blocks.{level}.resnets.{block}", before, after)
            before = after
        if level + 1 < len(channels):
            yield from conv(f"decoder.up_blocks.{level}.upsamplers.0.conv", after, after)
    yield from norm("decoder.conv_norm_out", first)
    weight, offset = conv("decoder.conv_out", 3, first)
    yield weight._replace(make=lambda device: weight.make(device).mul_(vae.last_gain))
    yield offset
    shape = (PATCH_CHANNELS,)
    yield Entry("bn.running_mean", shape, lambda device: (0.3 * torch.randn(*shape)).to(torch.bfloat16))
    yield Entry("bn.running_var", shape, lambda device: (0.5 + 1.5 * torch.rand(*shape)).to(torch.bfloat16))
    yield Entry("bn.num_batches_tracked", (), lambda device: torch.tensor(1000), torch.int64)


def conv(prefix, channels_out, channels_in, kernel=3):
    yield matrix(f"{prefix}.weight", channels_out, channels_in, kernel, kernel)
    yield bias(f"{prefix}.bias", channels_out)


def resnet(prefix, channels_in, channels_out):
    yield from norm(f"{prefix}.norm1", channels_in)
    yield from conv(f"{prefix}.conv1", channels_out, channels_in)
    yield from norm(f"{prefix}.norm2", channels_out)
    yield from conv(f"{prefix}.conv2", channels_out, channels_out)
    if channels_in != channels_out:
        yield from conv(f"{prefix}.conv_shortcut", channels_out, channels_in, kernel=1)


def mid_block(prefix, channels):
    yield from resnet(f"{prefix}.resnets.0", channels, channels)
    yield from norm(f"{prefix}.attentions.0.group_norm", channels)
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        yield from linear(f"{prefix}.attentions.0.{name}", channels, channels)
    yield from resnet(f"{prefix}.resnets.1", channels, channels)


def config(vae):
    levels = len(vae.channels)
    decoder = dict(decoder_block_out_channels=vae.decoder_channels) if vae.decoder_channels else {}
    return dict(
        _class_name="AutoencoderKLFlux2",
        in_channels=3,
        out_channels=3,
        latent_channels=LATENT_CHANNELS,
        block_out_channels=vae.channels,
        layers_per_block=vae.blocks,
        norm_num_groups=vae.groups,
        act_fn="silu",
        sample_size=vae.pixels,
        force_upcast=True,
        use_quant_conv=True,
        use_post_quant_conv=True,
        mid_block_add_attention=True,
        batch_norm_eps=1e-4,
        batch_norm_momentum=0.1,
        patch_size=[2, 2],
        down_block_types=["DownEncoderBlock2D"] * levels,
        up_block_types=["UpDecoderBlock2D"] * levels,
        **decoder,
    )
