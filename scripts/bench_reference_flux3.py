#!/usr/bin/env python3
"""Measures the reference of FLUX.3, diffusers' Flux3 blocks, on a GPU, for comparison with this program on the same machine.

    python3 scripts/bench_reference_flux3.py MODEL [--size 512 1024] [--compile] [--editing] [--steps 4 16] | [--fidelity]

Without a mode: a transformer step for each size in bf16, and with --steps whole images of 1024 x 1024. Medians; steps are
timed by device events, images by wall clock.

  --compile   the steps with torch.compile, the fastest setting of the reference
  --editing   also steps of the size 1024 with one and two references of 1024 x 1024
  --fidelity  one image of each size in bf16 and in float32 from the same noise, and at the first size also with the reference
              image OUT/reference.png. Writes the final latents of both to OUT/diffusers_latents_SIZE.safetensors and
              OUT/diffusers_latents_SIZE_edited.safetensors (tensors `bf16` and `f32`)

One JSON line for each row. Float32 is never computed as TF32. Needs torch, transformers and diffusers.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import diffusers
import torch
import transformers
from bench_reference import PROMPT, SEED, device_name, median_ms, peak_gib, print_row, reference_image, set_up
from PIL import Image
from safetensors.torch import save_file

# With the template, between 240 and 320 tokens; the model reads 320.
CAPTION = " ".join(["boat"] * 290)
IMAGE_SIZE, IMAGES = 1024, 3


def main():
    args = parse_arguments()
    set_up(args)
    with torch.no_grad():
        measure_fidelity(args) if args.fidelity else measure_speed(args)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder in the diffusers layout")
    parser.add_argument("--size", type=int, nargs="+", default=[1024], help="squares in pixels [default: 1024]")
    parser.add_argument("--steps", type=int, nargs="+", default=[], help="numbers of steps for whole images")
    parser.add_argument("--device", default="cuda", help="cuda or cpu [default: cuda]")
    parser.add_argument("--out", type=Path, default=Path("."), help="output folder [default: the current folder]")
    for name in ("compile", "editing", "fidelity"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def measure_speed(args):
    pipe = load(args, torch.bfloat16)
    versions = dict(torch=torch.__version__, diffusers=diffusers.__version__, transformers=transformers.__version__)
    print_row(dict(device=device_name(args), **versions, compile=args.compile))
    inputs = {(size, 0): step_inputs(args, pipe, size) for size in args.size}
    if args.editing:
        inputs |= {(IMAGE_SIZE, count): step_inputs(args, pipe, IMAGE_SIZE, count) for count in (1, 2)}
    if args.compile:
        pipe.transformer.compile(dynamic=False)
    for (size, references), of_step in inputs.items():
        step_ms = median_ms(args, lambda: pipe.transformer(**of_step))
        tokens = of_step["encoder_hidden_states"].shape[1]
        print_row(dict(size=size, references=references, text_tokens=tokens, step_ms=step_ms, peak_gib=peak_gib(args)))
    for steps in args.steps:
        print_row(dict(size=IMAGE_SIZE, steps=steps, image_ms=time_image(args, pipe, steps)))


def step_inputs(args, pipe, size, references=0):
    """The arguments of the transformer in the first of two steps."""
    kept = []
    hook = pipe.transformer.register_forward_pre_hook(lambda _model, _args, words: kept.append(words), with_kwargs=True)
    draw(args, pipe, CAPTION, size, 2, [noise(size)] * references)
    hook.remove()
    return kept[0]


def time_image(args, pipe, steps):
    times = []
    for _ in range(1 + IMAGES):
        start = time.perf_counter()
        draw(args, pipe, CAPTION, IMAGE_SIZE, steps)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times[1:]) * 1e3, 2)


def measure_fidelity(args):
    # Final latents by the size, and by whether there is a reference image.
    cases = {str(size): (size, []) for size in args.size}
    cases[f"{args.size[0]}_edited"] = (args.size[0], [reference_image(args)])
    latents = {name: {} for name in cases}
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        pipe = load(args, dtype)
        for case, (size, images) in cases.items():
            latents[case][name] = final_latents(args, pipe, size, images)
        # Both models at once may not fit.
        del pipe
    for case, of in latents.items():
        save_file(of, args.out / f"diffusers_latents_{case}.safetensors")
        error = ((of["bf16"] - of["f32"]).norm() / of["f32"].norm()).item()
        print_row(dict(size=cases[case][0], edited=case.endswith("edited"), bf16_error=round(error, 5)))


def final_latents(args, pipe, size, images):
    """The input of the VAE decoder: [1, channels, size / 8, size / 8]."""
    kept, decode = [], pipe.vae.decode

    def keep(latents, **words):
        kept.append(latents.float().cpu().contiguous())
        return decode(latents, **words)

    pipe.vae.decode = keep
    draw(args, pipe, PROMPT, size, 4, images)
    pipe.vae.decode = decode
    return kept[0]


def noise(size):
    """Noise, because the values do not matter for the time."""
    return Image.effect_noise((size, size), 64).convert("RGB")


def draw(args, pipe, prompt, size, steps, images=()):
    of_encoder = json.loads((args.model / "text_encoder/config.json").read_text())["text_config"]
    read = json.loads((args.model / "transformer/config.json").read_text())["joint_attention_dim"] // of_encoder["hidden_size"]
    layers = tuple(of_encoder["num_hidden_layers"] * i // (read + 1) for i in range(1, read + 1))
    words = dict(image=images if len(images) > 1 else images[0]) if images else {}
    generator = torch.Generator("cpu").manual_seed(SEED)
    words |= dict(prompt=prompt, height=size, width=size, num_inference_steps=steps, generator=generator)
    return pipe(**words, text_encoder_out_layers=layers, output_type="pil").get("images")[0]


class Processor:
    """Replaces AutoProcessor, which needs torchvision: the parts that the blocks call."""

    def __init__(self, folder):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def apply_chat_template(self, messages, **words):
        return self.tokenizer.apply_chat_template(messages, **words)


def load(args, dtype):
    """The blocks with all models on the device."""
    is_distilled = json.loads((args.model / "transformer/config.json").read_text())["flow_map"]
    blocks = diffusers.Flux3DistilledAutoBlocks() if is_distilled else diffusers.Flux3AutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")
    pipe = blocks.init_pipeline(str(args.model))
    pipe.update_components(tokenizer=Processor(args.model / "tokenizer"))
    pipe.load_components(["text_encoder", "vae", "transformer", "scheduler"], dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(args.device)


if __name__ == "__main__":
    main()
