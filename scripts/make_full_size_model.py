#!/usr/bin/env python3
"""Writes a model folder of the size of FLUX.2-klein or FLUX.3-klein with random weights, to test speed, memory and parity
without a download.

    python3 scripts/make_full_size_model.py 4b /tmp/klein-4b

Files, names, shapes and dtypes are those of the published models. The images are meaningless, but the weights are scaled so
that activations stay in the range of a trained network. 4b needs 16 GB of disk, 9b 35 GB and flux3 20 GB; `mini` and
`flux3-mini` have all parts in 70 and 110 MB. `flux3-tiny`, the model of tests/golden/flux3, has them in 2 MB with a byte
tokenizer, and is the only one of these small models with the vision half of the text encoder. `small-decoder` is only a VAE
with the small decoder. A seed produces the same weights on every GPU, and different ones on a CPU; the small models are the
same everywhere. Needs torch; uses the GPU if there is one.
"""

import argparse
import math
import shutil
import sys
from pathlib import Path

import torch

from random_models import flux2, flux3, vae
from random_models.tensors import write_json, write_weights

TOKENIZER = Path(__file__).resolve().parent.parent / "tests/golden/qwen3-tokenizer.json.gz"
# The max bytes of a model that is generated on the CPU, so that it is the same on every machine.
SMALL = 1e9
FAMILIES = {size: family for family in (flux2, flux3, vae) for size in family.SIZES}


def write_model(args):
    family, folder = FAMILIES[args.size], args.folder
    model = family.folder(family.SIZES[args.size], args.base, args.tokenizer)
    needed = sum(entry.bytes for part in model.parts for entry in part.entries)
    device = "cuda" if needed > SMALL and torch.cuda.is_available() else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < needed:
        sys.exit(f"error: the model needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free\n  in: {folder}")
    for name, content in model.files.items():
        write_file(folder / name, content)
    torch.manual_seed(args.seed)
    for part in model.parts:
        write_json(folder / part.name / "config.json", part.config)
        shards = args.text_encoder_shards if part.name == "text_encoder" else 1
        write_weights(folder / part.name, part.stem, part.entries, shards, device)
        print(f"{part.name}: {sum(math.prod(entry.shape) for entry in part.entries):,} parameters", flush=True)
    # Last, because it marks a complete folder.
    name, index = model.index
    write_json(folder / name, index)
    print(f"{folder}: {needed / 1e9:.1f} GB, generated on {device}")


def write_file(path, content):
    if isinstance(content, dict):
        write_json(path, content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=FAMILIES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", action="store_true", help="an undistilled model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text-encoder-shards", type=int, default=2, metavar="N", help="number of text encoder files [default: 2]")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=TOKENIZER,
        metavar="FILE",
        help="Qwen3's tokenizer.json, plain or .gz [default: the one in tests/golden]",
    )
    args = parser.parse_args()
    with torch.no_grad():
        write_model(args)


if __name__ == "__main__":
    main()
