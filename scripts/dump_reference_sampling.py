#!/usr/bin/env python3
"""Writes tests/golden/sampling-*.png from the reference implementation: other conditioning and schedules, float32, CPU.

    python3 scripts/dump_reference_sampling.py MODELS OUT

MODELS  folder with the random models `tiny` and `base` (cargo run --example make_random_model)
OUT     output folder: tests/golden

The cases match those of tests/golden/sampling.rs, which defines each in flux's terms.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from diffusers.utils.torch_utils import randn_tensor

from dump_reference import generator, load, pipeline_arguments, save_png

WIDTH, HEIGHT, SEED = 96, 64, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        for name, image in {**of_tiny(args.models / "tiny"), **of_base(args.models / "base")}.items():
            save_png(image, args.out / f"sampling-{name}.png")


def of_tiny(folder):
    pipe, call = load(folder, torch.float32), pipeline_arguments(folder)
    channels = pipe.transformer.config.in_channels
    latents = 0.7 * randn_tensor((1, channels, HEIGHT // 16, WIDTH // 16), generator=generator(9))
    mu = compute_empirical_mu(WIDTH * HEIGHT // 256, 3)
    # The sigmas that the reference shifts to these levels.
    sigmas = [1 / (1 + math.exp(mu) * (1 / level - 1)) for level in (0.9, 0.6, 0.2)]
    return {
        "max-sequence-length": draw(pipe, call | dict(max_sequence_length=21), prompt="a cat on the moon"),
        "latents": draw(pipe, call, prompt="a cat on the moon", latents=latents),
        "sigmas": draw(pipe, call, prompt="a cat on the moon", sigmas=sigmas, num_inference_steps=3),
    }


def of_base(folder):
    pipe, call = load(folder, torch.float32), pipeline_arguments(folder)

    def embeds(text, length):
        return pipe.encode_prompt(prompt=text, **call | dict(max_sequence_length=length))[0]

    length = call["max_sequence_length"]
    negative, short = embeds("the sea in the sun", length), embeds("the sea", 7)
    given = dict(prompt_embeds=embeds("an old map", 20), negative_prompt_embeds=short)
    return {
        "negative": draw(pipe, call, prompt="an old map", guidance_scale=2.5, negative_prompt_embeds=negative),
        "embeddings": draw(pipe, call, guidance_scale=2.5, **given),
    }


def draw(pipe, call, **arguments):
    arguments = dict(num_inference_steps=2, guidance_scale=1.0) | arguments
    image = pipe(width=WIDTH, height=HEIGHT, generator=generator(SEED), output_type="pil", **call, **arguments)
    return np.asarray(image.images[0])


if __name__ == "__main__":
    main()
