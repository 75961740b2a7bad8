"""The sections: time limits, descriptions, and bounds of their figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Mapping

from check import Check
from measure import RUNS, Bound, at_least, at_most
from sections import compare, cpu, flux3, live, memory, models, recipes, reference, sanitizers, serve, several, speed, tests


@dataclass(frozen=True)
class Section:
    name: str
    limit_s: int
    run: Callable[[Check], str]
    words: str
    in_all: bool = True
    bounds: Mapping[str, Bound] = field(default_factory=dict)


# The time of two GPUs relative to one.
TOGETHER = {
    "bf16 512x512 step": at_most(0.70),
    "bf16 1024x1024 step": at_most(0.60),
    "bf16 1024x1024 decode": at_most(0.68),
    "bf16 1024x1024 image": at_most(0.66),
    "bf16 2048x2048 step": at_most(0.56),
    "bf16 2048x2048 decode": at_most(0.60),
    "bf16 edit-1024x1024+1 step": at_most(0.57),
    "fp8 1024x1024 step": at_most(0.66),
    "bf16 with guidance 1024x1024 step": at_most(0.53),
    "bf16 through the host 1024x1024 step": at_most(1),
    "start to PNG at 2048 x 2048 by two GPUs, beside one": at_most(1),
    "dB of two GPUs beside one": at_least(45),
}
# The throughput of two GPUs relative to one.
REPLICAS = {f"the factor of {size} by {batch}": at_least(1.95) for size in (512, 1024) for batch in (1, 4)}

# In the order of `all`, then the others.
SECTIONS = [
    Section("parity", 300, tests.parity, "every op against the CPU and its composition, images against the reference"),
    Section("image", 30, speed.image, "one image of the default model through the command line"),
    Section("machine", 90, tests.machine, "the output of `flux devices` and `flux selftest` for the first GPU"),
    Section("model", 90, models.model, "writes the 4B model with random weights, unless it exists"),
    Section("bench", 90, speed.bench, "every op at the sizes of a 1024 x 1024 image of klein 4B"),
    Section("stages", 90, speed.stages, "the stages of warm images of the 4B model: 256, 512, 1024, 2048"),
    Section("fp8", 90, speed.fp8, "the stages in fp8; needs a Hopper GPU"),
    Section(
        "half",
        120,
        tests.half,
        "the parity tests and images in fp16, for GPUs without bf16: of the default model against the reference, and of "
        "the 4B model at 512 and 1024, without clamped values and NaN",
    ),
    Section(
        "adapters",
        60,
        speed.adapters,
        "a step with a LoRA of rank 32, and switching between adapters, at 1024 with the 4B model, in bf16 and fp8",
    ),
    Section("warm", 60, speed.warm, f"the command line from start to PNG at 1024 x 1024, {RUNS} times"),
    Section(
        "cold",
        150,
        speed.cold,
        "the same with the model evicted from the page cache, compared with reads of the same files alone",
        bounds={"share of the rate of reads": at_least(0.9)},
    ),
    Section(
        "lists",
        90,
        speed.lists,
        "images per second of `flux batch` at 512 x 512 including files, compared with the bench",
        bounds={f"{precision} share of the bench's rate": at_least(0.97) for precision in ("bf16", "fp8")},
    ),
    Section(
        "previews",
        90,
        speed.previews,
        "the cost of a preview of each step at 1024 x 1024, by the linear map and by a decoder of TAEF2's sizes",
        bounds={f"ms of a preview by {name}": at_most(5) for name in ("map", "TAEF2")},
    ),
    Section("recipes", 60, recipes.recipes, "images, alone and in a batch, reproduced byte for byte by `flux again`"),
    Section(
        "memory",
        90,
        memory.memory,
        "the same image within 12, 8, 6, 4 and 3 GiB of GPU memory, and within 1 GiB, which must be refused",
        bounds={"MiB of context": at_most(640), "MiB beside a limit": at_most(640)},
    ),
    Section("streaming", 90, speed.streaming, "the stages of warm images at 1024 x 1024 within 4, 6, 8 and 10.5 GiB"),
    Section(
        "formats",
        300,
        memory.formats,
        "quantized weights: distance of the final latents from float32, steps, resident and streamed, and the memory "
        "with all weights in Q4_K",
    ),
    Section(
        "reference",
        120,
        reference.reference,
        "speed of the reference (diffusers) at 512, 1024, 2048, and its cold start at 1024",
    ),
    Section(
        "fidelity",
        120,
        tests.fidelity,
        "final latents at 512 and 1024 of flux and of the reference in bf16, against the reference in float32",
    ),
    Section(
        "cpu",
        180,
        cpu.cpu,
        "images of the 4B model on 2 cores in f32 and bf16, the reference in bf16, and the tests of the tile unit; needs "
        "AMX-BF16",
    ),
    Section("memcheck", 480, sanitizers.memcheck, "the parity tests at small sizes under compute-sanitizer"),
    Section("racecheck", 480, sanitizers.racecheck, "the same with racecheck"),
    Section("initcheck", 480, sanitizers.initcheck, "the same with initcheck"),
    Section(
        "nine",
        180,
        models.nine,
        "writes the 9B model unless it exists, generates one image with all memory and within 5 GiB, deletes the model",
    ),
    Section(
        "edits",
        90,
        speed.edits,
        "edits with one and two references by the 4B model at 512 and 1024, also in fp8 on a Hopper GPU, and encoding at "
        "1024, 2048",
        in_all=False,
    ),
    Section(
        "kv",
        200,
        models.kv,
        "edits by the 9B model with cached keys and values of 1, 2 and 4 references, compared with none; writes and deletes "
        "the model as `nine`",
        in_all=False,
    ),
    Section(
        "flux3",
        200,
        flux3.flux3,
        "writes FLUX.3-klein with random weights unless it exists; its steps and images in bf16 and fp8, also with references",
        bounds={
            **{f"bf16 step {size}": at_most(ms) for size, ms in ((512, 18), (1024, 68), (2048, 390))},
            **{f"bf16 step + {count}": at_most(ms) for count, ms in ((1, 152), (2, 252))},
            **{f"bf16 {steps} steps": at_most(ms) for steps, ms in ((16, 1120), (4, 310))},
            **{f"fp8 step {size}": at_most(ms) for size, ms in ((512, 13), (1024, 44), (2048, 245))},
            **{f"fp8 {steps} steps": at_most(ms) for steps, ms in ((16, 760), (4, 220))},
        },
        in_all=False,
    ),
    Section(
        "flux3_reference",
        200,
        flux3.flux3_reference,
        "the same with the reference (diffusers) on the same machine, in bf16",
        in_all=False,
    ),
    Section(
        "flux3_compile",
        500,
        flux3.flux3_compile,
        "steps of the reference with torch.compile; takes minutes",
        in_all=False,
    ),
    Section(
        "flux3_fidelity",
        240,
        flux3.flux3_fidelity,
        "final latents of FLUX.3-klein by flux and by the reference in bf16, against the reference in float32",
        in_all=False,
    ),
    Section(
        "flux3_memory",
        240,
        flux3.flux3_memory,
        "FLUX.3-klein from start to PNG at 1024 x 1024, and the same image within 4 GiB, and in Q4_K within 3 GiB",
        in_all=False,
        bounds={"s from start to PNG": at_most(1.6), "MiB beside a limit": at_most(640)},
    ),
    Section(
        "serve",
        500,
        serve.serve,
        "`flux serve` under load at 256, 512 and 1024, compared with the bench, in bf16 and fp8",
        in_all=False,
        bounds={
            **{f"{of} {size} share of the engine's rate": at_least(0.97) for of in ("bf16", "fp8") for size in serve.SIZES},
            **{f"{of} {size} ms beyond the engine": at_most(12) for of in ("bf16", "fp8") for size in serve.SIZES},
        },
    ),
    Section(
        "greedy",
        90,
        serve.greedy,
        "the share of each of ten API keys on an overloaded server",
        in_all=False,
        bounds={"% of the least": at_least(8), "% of the most": at_most(12)},
    ),
    Section(
        "soak",
        540,
        serve.soak,
        "a server for 8 minutes at 80% of its max rate, with clients that disconnect; memory and descriptors must not grow",
        in_all=False,
    ),
    Section(
        "live",
        120,
        live.live,
        "frames per second of `flux bench live`, and the time from frame to image: 512 with the frame as reference, 256 edited "
        "with a strength, and new prompts",
        in_all=False,
        bounds={
            **{f"{row.figure}: frames a second": at_least(row.least) for row in live.ROWS},
            live.OWN_TIME: at_most(1.5),
        },
    ),
    Section(
        "live-soak",
        540,
        live.soak,
        "frames for 500 seconds: their order, equal images for equal frames; memory and descriptors must not grow",
        in_all=False,
    ),
    Section(
        "live-two",
        60,
        live.in_turn,
        "alternating frames on two GPUs, compared with one",
        in_all=False,
        bounds={live.IN_TURN: at_least(1.95)},
    ),
    Section(
        "gpus",
        240,
        several.gpus_together,
        "several ranks on one GPU and on two: collectives and images; then the stages of warm images on two GPUs compared "
        "with one, also with a reference and in fp8, and images from start to PNG; needs two GPUs",
        in_all=False,
        bounds=TOGETHER,
    ),
    Section(
        "exchange",
        120,
        several.exchange,
        "the exchanges of two GPUs in a block of klein 4B at 512, 1024, 2048, compared with NCCL, with and without peer "
        "access; needs two GPUs",
        in_all=False,
        bounds={"ours / NCCL": at_most(1)},
    ),
    Section(
        "compile",
        420,
        reference.compile,
        "speed of the reference with torch.compile at 512, 1024; takes minutes, so not part of `all`",
        in_all=False,
    ),
    Section(
        "editing",
        120,
        reference.editing,
        "editing with the reference: encoding at 512, 1024, 2048, steps with references at 512, 1024",
        in_all=False,
    ),
    Section(
        "compile_editing",
        420,
        reference.compile_editing,
        "the same with torch.compile; takes minutes",
        in_all=False,
    ),
    Section(
        "replicas",
        180,
        several.replicas,
        "images of the 4B model on two GPUs and on one: 512 and 1024, cold starts, bytes; needs two GPUs",
        in_all=False,
        bounds={**REPLICAS, "start to PNG of two GPUs, beside one": at_most(1.15)},
    ),
    Section(
        "compare",
        200,
        compare.compare,
        f"A/B of another program and this one, {RUNS} times each: stages at 512 and 1024, in fp8 at 1024, cold starts",
        in_all=False,
    ),
]

BY_NAME = {section.name: section for section in SECTIONS}
# Names for several sections.
GROUPS = {
    "all": [section for section in SECTIONS if section.in_all],
    "sanitize": [BY_NAME[name] for name in ("memcheck", "racecheck", "initcheck")],
}
