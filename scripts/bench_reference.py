#!/usr/bin/env python3
"""Measures the reference, diffusers' Flux2KleinPipeline, on a GPU, for comparison with this program on the same machine.

    python3 scripts/bench_reference.py MODEL [--size 512 1024] [--compile] [--editing] | [--cold | --fidelity]

Without a mode: the times of the stages of an image in bf16 after loading. Medians, timed by device events; `total_ms` is the
sum of text, steps and decode, `image_ms` is the wall-clock time of a whole pipeline call.

  --compile   the same with torch.compile, the fastest setting of the reference
  --editing   the additional stages of editing instead: the VAE encoder at each size (`encode_ms`), and a step with one reference
              of the image's size (`step_1_ms`), at 1024 also with two (`step_2_ms`)
  --cold      one image from the command line: from the start of the process to the written PNG; `image_s` is the part from the
              prompt to the image
  --fidelity  one image of each size in bf16 and in float32 from the same noise, and at the first size also with the reference
              image OUT/reference.png. Writes the final latents of both to OUT/diffusers_latents_SIZE.safetensors and
              OUT/diffusers_latents_SIZE_edited.safetensors (tensors `bf16` and `f32`), and all images

One JSON line for each row. Float32 is never computed as TF32. Needs torch, transformers and diffusers.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import diffusers
import torch
import transformers
from diffusers import Flux2KleinPipeline
from PIL import Image
from safetensors.torch import save_file

PROMPT = "A cat holding a sign that says hello world"
SEED = 42
TEXT_TOKENS = 512
# About the number of real tokens of the prompt in its template; the rest is padding.
PROMPT_TOKENS = 40
WARM_UP, RUNS = 3, 8
# The numbers of reference images for measured steps, by size. Each is compiled separately.
REFERENCES = {512: (1,), 1024: (1, 2)}


def main():
    args = parse_arguments()
    import_s = process_age_s()
    set_up(args)
    with torch.no_grad():
        if args.cold:
            measure_cold(args, import_s)
        elif args.fidelity:
            measure_fidelity(args)
        else:
            measure_stages(args)


def set_up(args):
    """Settings for every measurement: only rows are printed, and float32 is never computed as TF32."""
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder in the diffusers layout")
    parser.add_argument("--size", type=int, nargs="+", default=[1024], help="squares in pixels [default: 1024]")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda", help="cuda or cpu [default: cuda]")
    parser.add_argument("--out", type=Path, default=Path("."), help="output folder [default: the current folder]")
    for name in ("compile", "editing"):
        parser.add_argument(f"--{name}", action="store_true")
    mode = parser.add_mutually_exclusive_group()
    for name in ("cold", "fidelity"):
        mode.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    if (args.compile or args.editing) and (args.cold or args.fidelity):
        parser.error("--compile and --editing cannot be used with --cold or --fidelity")
    return args


def process_age_s():
    """Seconds since the start of this process, in steps of 10 ms, including the start of Python."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def measure_cold(args, import_s):
    pipe, load_s = load(args, torch.bfloat16)
    size = args.size[0]
    start = time.perf_counter()
    image = pipe(**request(args, size), generator=generator()).images[0]
    image_s = round(time.perf_counter() - start, 2)
    image.save(args.out / f"diffusers_cold_{size}.png")
    times = dict(cold_s=round(process_age_s(), 2), import_s=round(import_s, 2), load_s=load_s, image_s=image_s)
    print_row(dict(size=size, **times, peak_gib=peak_gib(args)))


def measure_fidelity(args):
    # Final latents by the size, and by whether there is a reference image.
    cases = {str(size): (size, {}) for size in args.size}
    cases[f"{args.size[0]}_edited"] = (args.size[0], dict(image=reference_image(args)))
    latents = {name: {} for name in cases}
    for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        pipe, _ = load(args, dtype)
        for case, (size, more) in cases.items():
            noise = torch.randn(1, pipe.transformer.config.in_channels, size // 16, size // 16, generator=generator())
            final = pipe(**request(args, size), **more, latents=noise.to(dtype), output_type="latent").images
            latents[case][name] = final.float().cpu().contiguous()
            pixels = pipe.vae.decode(final, return_dict=False)[0]
            pipe.image_processor.postprocess(pixels)[0].save(args.out / f"diffusers_{name}_{case}.png")
        # Both models at once may not fit.
        del pipe
    for case, of in latents.items():
        save_file(of, args.out / f"diffusers_latents_{case}.safetensors")
        error = ((of["bf16"] - of["f32"]).norm() / of["f32"].norm()).item()
        print_row(dict(size=cases[case][0], edited=case.endswith("edited"), bf16_error=round(error, 5)))


def reference_image(args):
    """An image with edges and slopes, whose sides are not multiples of 16."""
    height, width = 500, 440
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None, :]
    inside = (rows // 60 + columns // 90) % 2
    channels = [40 + 160 * inside + 0 * columns, (rows + 0 * columns) % 256, (2 * columns + 0 * rows) % 256]
    image = Image.fromarray(torch.stack(channels, -1).to(torch.uint8).numpy())
    image.save(args.out / "reference.png")
    return image


def measure_stages(args):
    pipe, load_s = load(args, torch.bfloat16)
    versions = dict(torch=torch.__version__, diffusers=diffusers.__version__, transformers=transformers.__version__)
    print_row(dict(device=device_name(args), **versions, compile=args.compile, load_s=load_s))
    embeds, text_ids = pipe.encode_prompt(PROMPT, text_encoder_out_layers=text_layers(args.model))
    if args.compile:
        compile_models(pipe)
    if args.editing:
        measure_editing(args, pipe, embeds, text_ids)
        return
    text_ms = time_text(args, pipe)
    for size in args.size:
        step_ms = time_step(args, pipe, size, embeds, text_ids)
        decode_ms = time_decode(args, pipe, size)
        # The shapes differ here, which would compile the modules again.
        image_ms = None if args.compile else time_image(args, pipe, size)
        total_ms = round(text_ms + args.steps * step_ms + decode_ms, 2)
        times = dict(text_ms=text_ms, step_ms=step_ms, decode_ms=decode_ms, total_ms=total_ms, image_ms=image_ms)
        print_row(dict(size=size, **times, peak_gib=peak_gib(args)))


def measure_editing(args, pipe, embeds, text_ids):
    for size in args.size:
        times = dict(encode_ms=time_encode(args, pipe, size))
        for count in REFERENCES.get(size, ()):
            times[f"step_{count}_ms"] = time_step(args, pipe, size, embeds, text_ids, references=count)
        print_row(dict(size=size, **times, peak_gib=peak_gib(args)))


def compile_models(pipe):
    pipe.text_encoder.model = torch.compile(pipe.text_encoder.model, dynamic=False)
    pipe.transformer = torch.compile(pipe.transformer, dynamic=False)
    pipe.vae.to(memory_format=torch.channels_last)
    pipe.vae.decode = torch.compile(pipe.vae.decode, dynamic=False)
    pipe.vae.encode = torch.compile(pipe.vae.encode, dynamic=False)


def time_text(args, pipe):
    ids = torch.arange(TEXT_TOKENS, device=args.device)[None]
    mask = (ids < PROMPT_TOKENS).long()
    model = pipe.text_encoder.model
    return median_ms(args, lambda: model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False))


def time_step(args, pipe, size, embeds, text_ids, references=0):
    """The time of a step with this number of reference images, each of the image's size."""
    channels = pipe.transformer.config.in_channels // 4
    latents, latent_ids = pipe.prepare_latents(1, channels, size, size, embeds.dtype, args.device, generator())
    if references:
        # The values do not matter for the time, so noise is enough.
        grids = [torch.empty(1, 4 * channels, size // 16, size // 16)] * references
        reference_ids = pipe._prepare_image_ids(grids).to(args.device)
        latents, latent_ids = torch.cat([latents] * (1 + references), 1), torch.cat([latent_ids, reference_ids], 1)
    inputs = dict(
        hidden_states=latents,
        timestep=torch.tensor([0.7], device=args.device, dtype=embeds.dtype),
        guidance=None,
        encoder_hidden_states=embeds,
        txt_ids=text_ids,
        img_ids=latent_ids,
        return_dict=False,
    )
    return median_ms(args, lambda: pipe.transformer(**inputs))


def time_encode(args, pipe, size):
    pixels = torch.rand(1, 3, size, size, device=args.device, dtype=torch.bfloat16) * 2 - 1
    if args.compile:
        pixels = pixels.to(memory_format=torch.channels_last)
    return median_ms(args, lambda: pipe.vae.encode(pixels, return_dict=False))


def time_decode(args, pipe, size):
    channels = pipe.vae.config.latent_channels
    latents = torch.randn(1, channels, size // 8, size // 8, device=args.device, dtype=torch.bfloat16)
    if args.compile:
        latents = latents.to(memory_format=torch.channels_last)
    return median_ms(args, lambda: pipe.vae.decode(latents, return_dict=False))


def time_image(args, pipe, size, runs=3):
    """Wall-clock seconds from the call to the image on the host; the stages are already warm."""
    times = []
    for _ in range(1 + runs):
        start = time.perf_counter()
        pipe(**request(args, size), generator=generator())
        times.append(time.perf_counter() - start)
    return round(statistics.median(times[1:]) * 1e3, 2)


def median_ms(args, run):
    for _ in range(WARM_UP):
        run()
    return round(statistics.median(elapsed_ms(args, run) for _ in range(RUNS)), 3)


def elapsed_ms(args, run):
    if args.device == "cpu":
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


def load(args, dtype):
    """The pipeline on the device, and the seconds to load it."""
    start = time.perf_counter()
    pipe = Flux2KleinPipeline.from_pretrained(args.model, dtype=dtype).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    if args.device != "cpu":
        torch.cuda.synchronize()
    return pipe, round(time.perf_counter() - start, 2)


def request(args, size):
    layers = text_layers(args.model)
    return dict(prompt=PROMPT, height=size, width=size, num_inference_steps=args.steps, text_encoder_out_layers=layers)


def text_layers(model):
    """The text encoder layers for the transformer, as in this program: 9, 18 and 27 if there are more than 27, else quarters."""
    count = json.loads((model / "text_encoder/config.json").read_text())["num_hidden_layers"]
    return (9, 18, 27) if count > 27 else (count // 4, 2 * count // 4, 3 * count // 4)


def generator():
    return torch.Generator("cpu").manual_seed(SEED)


def device_name(args):
    return "cpu" if args.device == "cpu" else torch.cuda.get_device_name(args.device)


def peak_gib(args):
    return None if args.device == "cpu" else round(torch.cuda.max_memory_allocated(args.device) / 2**30, 2)


def print_row(row):
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
