"""Trains the default model. `python3 scripts/train_tiny --help`"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import base
import check
import data
import distill
import export
import score
import start
import vae
from report import UserError
from settings import Settings, toy

PHASES = {
    "data": data.data, "check": check.check, "scenes": data.scenes, "vae": vae.vae, "latents": vae.latents, "base": base.base, "tune": base.tune,
    "distill": distill.distill, "score": score.score, "export": export.export, "start": start.start, "refine": distill.refine,
}  # fmt: skip
APART = ("start", "refine")  # phases that are not part of `all`


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is not a number above 0")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="train_tiny", description="Trains the default model in phases. Each phase reads the output of earlier phases in WORK."
    )
    parser.add_argument(
        "phases", nargs="+", choices=["all", *PHASES], metavar="PHASE", help=f"all (except {', '.join(APART)}), or some of: {', '.join(PHASES)}"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that the phases leave")
    parser.add_argument("--seconds", type=seconds, help="how long vae, base, tune, distill or refine trains, in place of its own time")
    parser.add_argument("--scenes", type=int, help="how many images from text alone are drawn to train on")
    parser.add_argument("--edits", type=int, help="how many edits are drawn to train on")
    parser.add_argument("--shipped", type=Path, help="model folder for the phase start, instead of models/tiny")
    parser.add_argument("--before", type=Path, help="model folder of an earlier student, whose answers refine holds to, in place of the first weights'")
    parser.add_argument("--beyond", type=float, help="the part of what refine changed that export adds once more")
    parser.add_argument("--toy", action="store_true", help="a few steps of a smaller model at 64 x 64 to 128 x 128, to test that everything runs")
    arguments = parser.parse_args()
    try:
        arguments.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot create the folder of `--work`: {error}")
    settings = Settings(arguments.work, "cuda" if torch.cuda.is_available() else "cpu")
    if arguments.toy:
        settings = toy(settings)
    given = {name: value for name in ("scenes", "edits", "shipped", "before", "beyond") if (value := getattr(arguments, name))}
    settings = replace(settings, **given)
    if arguments.seconds:
        names = ("vae_seconds", "base_seconds", "tune_seconds", "distill_seconds", "refine_seconds")
        settings = replace(settings, **dict.fromkeys(names, arguments.seconds))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    for name in [name for name in PHASES if name not in APART] if "all" in arguments.phases else arguments.phases:
        torch.manual_seed(list(PHASES).index(name))
        PHASES[name](settings)
    print((arguments.work / "phases.txt").read_text(), end="")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
