#!/usr/bin/env python3
"""Writes tests/golden/encoder.safetensors from the reference implementation: the VAE encoder of diffusers'
Flux2KleinPipeline stage by stage, float32, on the CPU.

    python3 scripts/dump_encoder.py MODELS OUT

MODELS     folder with the random models `tiny`, `sharded`, `base` and `uneven` (cargo run --example make_random_model)
OUT        output folder: tests/golden

`make golden` creates the models and runs this script. The package versions are in requirements-reference.txt.
"""

import argparse
from pathlib import Path

import diffusers
import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from dump_reference import CASES, Recorder, generator, save

# Rows and columns of the image: 2 x 3 packed latents.
HEIGHT, WIDTH = 32, 48


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    diffusers.utils.logging.set_verbosity_error()
    rgb = torch.randint(0, 256, (HEIGHT, WIDTH, 3), generator=generator(2))
    tensors = {"rgb": rgb.int()}
    with torch.no_grad():
        for preset in CASES:
            vae = AutoencoderKLFlux2.from_pretrained(args.models / preset, subfolder="vae", torch_dtype=torch.float32)
            tensors |= {f"{preset}.{name}": tensor for name, tensor in encoder_tensors(vae, rgb).items()}
    save(args.out / "encoder.safetensors", tensors)


def encoder_tensors(vae, rgb):
    """The outputs of the encoder's stages, and the packed latents for the transformer."""
    # As VaeImageProcessor converts an image to pixel values.
    pixels = 2 * (rgb.permute(2, 0, 1)[None].float() / 255) - 1
    blocks = {f"down_blocks.{i}.output": block for i, block in enumerate(vae.encoder.down_blocks)}
    with Recorder(mid_block=vae.encoder.mid_block, encoder=vae.encoder, **blocks) as record:
        mode = vae.encode(pixels).latent_dist.mode()
    tensors = {name: record[name].output for name in blocks}
    return tensors | {
        "mid_block.output": record["mid_block"].output,
        "latents": normalise(vae, mode),
        # The result of a VAE without this convolution: the means are the first half.
        "latents_without_quant_conv": normalise(vae, record["encoder"].output.chunk(2, dim=1)[0]),
    }


def normalise(vae, latents):
    """[1, channels, 2 height, 2 width] -> [height * width, 4 * channels], as in `_encode_vae_image`."""
    packed = Flux2KleinPipeline._patchify_latents(latents)
    mean = vae.bn.running_mean.view(1, -1, 1, 1)
    std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps)
    return Flux2KleinPipeline._pack_latents((packed - mean) / std)[0]


if __name__ == "__main__":
    main()
