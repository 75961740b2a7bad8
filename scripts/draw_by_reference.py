#!/usr/bin/env python3
"""Generates the images of FOLDER/index.json with the reference: diffusers' Flux2KleinPipeline, float32, on the CPU.

    python3 scripts/draw_by_reference.py MODEL FOLDER

MODEL   model folder
FOLDER  contains index.json, with file, prompt, seed, width, height and steps of every image; edits also have `references`, the files of
        earlier images. The images are written to this folder.

The package versions are in requirements-reference.txt. Two runs on one machine produce the same bytes.
"""

import argparse
import json
from pathlib import Path

import torch
from diffusers import Flux2KleinPipeline
from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(description="Generates the images of FOLDER/index.json with the reference, in float32 on the CPU.")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    pipeline = Flux2KleinPipeline.from_pretrained(arguments.model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    for image in json.loads((arguments.folder / "index.json").read_text())["images"]:
        references = [Image.open(arguments.folder / name).convert("RGB") for name in image.get("references", [])]
        result = pipeline(
            image=references or None,
            prompt=image["prompt"],
            width=image["width"],
            height=image["height"],
            num_inference_steps=image["steps"],
            generator=torch.Generator("cpu").manual_seed(image["seed"]),
        )
        result.images[0].save(arguments.folder / image["file"])
        print(image["file"], image["prompt"])


if __name__ == "__main__":
    main()
