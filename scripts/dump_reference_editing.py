#!/usr/bin/env python3
"""Writes tests/golden/editing/ from the reference: edits, inpainting, cached references, adapters.

    python3 scripts/dump_reference_editing.py MODELS OUT [--only TEXT]

MODELS  folder with the random models `tiny`, `sharded`, `base`, `uneven` and `kv` (cargo run --example make_random_model)
OUT     output folder: tests/golden/editing
--only  generates only the images of cases whose name contains TEXT; prints the differences from those in OUT, and writes nothing

diffusers 0.42.1 in float32 on the CPU; the package versions are in requirements-reference.txt. tests/golden/README.md
describes each file. `make golden` creates the models and runs this script. Two runs on one machine produce the same bytes.
"""

import argparse
import json
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from PIL import Image

from dump_reference import save, save_png, write_json
from editing_reference.adapters import write_adapters
from editing_reference.cases import all_cases
from editing_reference.inputs import write_inputs
from editing_reference.pipelines import Models, draw
from editing_reference.tensors import kv_tensors, mask_tensors, preset_tensors

PRESETS = ("tiny", "sharded", "base", "uneven", "kv")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", metavar="TEXT")
    args = parser.parse_args()

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    models = Models(args.models)
    with torch.no_grad():
        if args.only:
            compare(models, [case for case in all_cases() if args.only in case.name], args.out)
        else:
            dump(models, args.out)


def dump(models, out):
    write_inputs(out / "inputs")
    write_adapters(out / "adapters")
    tensors = {preset: preset_tensors(models, preset, out / "inputs") for preset in PRESETS}
    tensors["kv"] |= kv_tensors(models, out / "inputs")
    tensors["tiny"] |= mask_tensors(models, out / "inputs")
    rows = []
    for case in all_cases():
        images = []
        for seed in range(case.seed, case.seed + case.count):
            latents, image = draw(models, case, out, seed)
            png = f"{case.name}.png" if case.count == 1 else f"{case.name}-{seed}.png"
            save_png(image, out / png)
            images.append(dict(seed=seed, png=png))
        if case.keep_latents:
            tensors[case.preset] |= {f"{case.name}.latents_step_{i + 1}": x for i, x in enumerate(latents)}
        rows.append(dict(name=case.name, preset=case.preset, flags=case.flags(), images=images))
        print(case.name, image.shape, f"clipped {float(((image == 0) | (image == 255)).mean()):.3f}", flush=True)
    for preset, of in tensors.items():
        save(out / f"{preset}.safetensors", of)
    write_json(out / "index.json", rows)


def compare(models, cases, out):
    images = {row["name"]: row["images"] for row in json.loads((out / "index.json").read_text())}
    for case in cases:
        for row in images[case.name]:
            _, image = draw(models, case, out, row["seed"])
            levels = np.abs(image.astype(int) - np.asarray(Image.open(out / row["png"])))
            print(case.name, row["seed"], f"max {levels.max()}, mean {levels.mean():.5f}", flush=True)


if __name__ == "__main__":
    main()
