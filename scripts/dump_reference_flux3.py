#!/usr/bin/env python3
"""Writes tests/golden/flux3/ from the reference: diffusers' modular pipeline `flux3`, float32, on the CPU.

    python3 scripts/dump_reference_flux3.py MODEL BASE OUT [--only TEXT]

MODEL   a distilled model (make_full_size_model.py flux3-tiny)
BASE    the same with --base
OUT     output folder: tests/golden/flux3
--only  runs only the cases whose name contains TEXT; prints the differences from those in OUT, and writes nothing

The package versions are in requirements-reference.txt. tests/golden/README.md describes each file. `make golden` creates the
models and runs this script. Two runs on one machine produce the same bytes.
"""

import argparse
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from diffusers import ClassifierFreeGuidance, Flux3AutoBlocks, Flux3DistilledAutoBlocks
from PIL import Image
from safetensors.torch import load_file, save_file

from bench_reference_flux3 import Processor
from dump_reference import generator, save, save_png, write_json

DIM = 64
RANK = 2


@dataclass
class Case:
    """A case. Without guidance it uses the distilled model. References are the [width, height] of images from `picture`."""

    name: str
    prompt: str = "a red fox in the snow"
    negative: str | None = None
    guidance: float | None = None
    width: int | None = None
    height: int | None = None
    steps: int = 4
    seed: int = 0
    references: list = field(default_factory=list)
    adapter: str | None = None
    keeps_stages: bool = False
    """True if all stages are stored, else only the schedule and the final latents."""


# More tokens than one window.
LONG = "blurry, of low quality, with a watermark, cut off, out of focus, too dark, and too noisy"

CASES = [
    Case("distilled-64x64", width=64, height=64, keeps_stages=True),
    Case("distilled-ref", "make it night", references=[[100, 70]], keeps_stages=True),
    Case("distilled-two-refs", "the first in the light of the second", references=[[100, 70], [45, 70]], keeps_stages=True),
    Case("base-96x64", negative="blurry", guidance=3.5, width=96, height=64, keeps_stages=True),
    Case("base-ref", "make it night", LONG, 2.5, steps=2, seed=7, references=[[100, 70]], keeps_stages=True),
    Case("distilled-odd-ref", "make it night", seed=1, references=[[45, 70]]),
    Case("distilled-sized-ref", "make it night", width=96, references=[[45, 70]]),
    Case("distilled-1", "an old map", width=64, height=48, steps=1),
    Case("distilled-8", "an old map", width=64, height=48, steps=8),
    Case("distilled-16", "an old map", width=64, height=48, steps=16),
    Case("base-50", "an old map", "blurry", 3.5, 48, 64, steps=50, seed=2**32 - 1),
    Case("distilled-lora", width=64, height=48, adapter="diffusers.safetensors"),
    Case("distilled-lora-bfl", width=64, height=48, adapter="bfl.safetensors"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", metavar="TEXT")
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    with torch.no_grad():
        if args.only:
            compare(args, [case for case in CASES if args.only in case.name])
        else:
            dump(args)


def dump(args):
    write_adapters(args.out / "adapters")
    shutil.copy(args.base / "transformer/config.json", args.out / "base-transformer-config.json")
    rows = []
    for case in CASES:
        row, tensors, image = draw(args, case)
        save(args.out / f"{case.name}.safetensors", tensors)
        save_png(image, args.out / f"{case.name}.png")
        rows.append(row)
        print(case.name, image.shape, f"clipped {float(((image == 0) | (image == 255)).mean()):.3f}", flush=True)
    write_json(args.out / "index.json", rows)


def compare(args, cases):
    for case in cases:
        _, tensors, image = draw(args, case)
        before = load_file(args.out / f"{case.name}.safetensors")
        levels = np.abs(image.astype(int) - np.asarray(Image.open(args.out / f"{case.name}.png")))
        apart = {name: float((tensors[name] - before[name]).abs().max()) for name in before}
        print(case.name, f"max {levels.max()} levels;", *(f"{name} {most:.1e}" for name, most in apart.items() if most))


def write_adapters(folder):
    """The same layers by the names of diffusers and of Black Forest Labs, with other numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(0)
    layers = [
        ("mode_blocks.image.0.attn.to_q", "content_mode_blocks.image.0.q_proj", DIM, DIM),
        ("txt_mode_blocks.1.attn.to_out.0", "txt_mode_blocks.1.attn_out", DIM, DIM),
        ("single_transformer_blocks.0.attn.to_v", "single_blocks.0.v_proj", DIM, DIM),
        ("single_transformer_blocks.1.ff.linear_in", "single_blocks.1.mlp_in", 6 * DIM, DIM),
        ("single_transformer_blocks.2.ff.linear_out", "single_blocks.2.mlp_out", DIM, 3 * DIM),
    ]
    for file, prefix, column in (("diffusers", "transformer", 0), ("bfl", "diffusion_model", 1)):
        tensors = {}
        for layer in layers:
            rows, cols = layer[2:]
            name = f"{prefix}.{layer[column]}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, cols, generator=random) * cols**-0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, RANK, generator=random) * 0.5 * RANK**-0.5
        save_file(tensors, folder / f"{file}.safetensors")


def ids(pipe, text):
    """The tokens of a prompt with its template."""
    messages = [{"role": "user", "content": text}]
    templated = pipe.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return pipe.tokenizer.tokenizer(templated)["input_ids"]


def load(args, case):
    folder = args.model if case.guidance is None else args.base
    blocks = Flux3DistilledAutoBlocks() if case.guidance is None else Flux3AutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")
    pipe = blocks.init_pipeline(str(folder))
    pipe.update_components(tokenizer=Processor(folder / "tokenizer"))
    pipe.load_components(["text_encoder", "vae", "transformer", "scheduler"], dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    if case.guidance is not None:
        pipe.update_components(guider=ClassifierFreeGuidance(guidance_scale=case.guidance))
    if case.adapter:
        pipe.load_lora_weights(args.out / "adapters" / case.adapter)
    return pipe


def picture(width, height):
    """Smooth colours and hard edges from integers only, so that any program can reproduce them."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([(x * 5 + y * 3) % 256, (x * y) % 256, 255 * ((x // 8 + y // 8) % 2)], -1).astype("uint8"))


class Recorder:
    """The inputs and outputs of the transformer, and the latents after each step."""

    def __init__(self, pipe):
        self.calls, self.velocities, self.guided, self.latents = [], [], [], []
        pipe.transformer.register_forward_pre_hook(lambda module, args, call: self.calls.append(call), with_kwargs=True)
        pipe.transformer.register_forward_hook(lambda module, args, output: self.velocities.append(output[0]))
        scheduler_step = pipe.scheduler.step

        def step(velocity, *args, **options):
            after = scheduler_step(velocity, *args, **options)
            self.guided.append(velocity)
            self.latents.append(after[0])
            return after

        pipe.scheduler.step = step


def draw(args, case):
    """The row of the index, the stored tensors, and the image."""
    pipe = load(args, case)
    recorder = Recorder(pipe)
    config = pipe.text_encoder.config.text_config
    outputs = pipe.transformer.config.joint_attention_dim // config.hidden_size
    layers = tuple(config.num_hidden_layers * i // (outputs + 1) for i in range(1, outputs + 1))
    call = dict(prompt=case.prompt, num_inference_steps=case.steps, generator=generator(case.seed))
    call |= {name: value for name, value in (("width", case.width), ("height", case.height)) if value}
    if case.negative is not None:
        call["negative_prompt"] = case.negative
    if case.references:
        images = [picture(*size) for size in case.references]
        call["image"] = images if len(images) > 1 else images[0]
    state = pipe(**call, text_encoder_out_layers=layers, output_type="pil")
    image = np.asarray(state.get("images")[0])

    per_step = len(recorder.calls) // case.steps
    assert per_step == (1 if case.guidance is None else 2) and len(recorder.calls) == per_step * case.steps
    firsts = recorder.calls[::per_step]
    tensors = dict(sigmas=pipe.scheduler.sigmas, timesteps=torch.cat([one["timestep"] for one in firsts]))
    if case.guidance is None:
        tensors["target_timesteps"] = torch.cat([one["target_timestep"] for one in firsts])
    negative = recorder.calls[1]["encoder_hidden_states"] if case.guidance is not None else None
    texts = {"prompt_embeds": (firsts[0]["encoder_hidden_states"], case.prompt)}
    if negative is not None:
        texts["negative_prompt_embeds"] = negative, case.negative
    if case.keeps_stages:
        tensors |= stages(pipe, recorder, texts)
    else:
        tensors[f"latents_{case.steps}"] = recorder.latents[-1]
    row = dict(
        name=case.name,
        prompt=case.prompt,
        negative=case.negative,
        guidance=case.guidance,
        width=case.width,
        height=case.height,
        steps=case.steps,
        seed=case.seed,
        references=case.references,
        adapter=case.adapter,
        keeps_stages=case.keeps_stages,
        text_rows=texts["prompt_embeds"][0].shape[1],
        negative_rows=None if negative is None else negative.shape[1],
    )
    return row, tensors, image


def stages(pipe, recorder, texts):
    first = recorder.calls[0]
    tensors = dict(
        token_ids=torch.tensor(ids(pipe, texts["prompt_embeds"][1]), dtype=torch.int32),
        noise=first["hidden_states"],
        img_ids=first["img_ids"],
        txt_ids=first["txt_ids"],
        velocity_0=recorder.velocities[0],
    )
    for name, (features, text) in texts.items():
        # All rows of padding are the same.
        real = len(ids(pipe, text))
        assert (features[:, real:] == features[:, real : real + 1]).all()
        tensors[name] = features[:, : real + 1]
    if "negative_prompt_embeds" in texts:
        tensors["guided_velocity_0"] = recorder.guided[0]
    if first.get("image_cond_hidden_states") is not None:
        tensors |= dict(reference_tokens=first["image_cond_hidden_states"], reference_ids=first["image_cond_ids"])
    return tensors | {f"latents_{step + 1}": latents for step, latents in enumerate(recorder.latents)}


if __name__ == "__main__":
    main()
