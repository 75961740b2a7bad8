"""Scores of edits: the same number of held-out edits per operation, by group, at several sizes."""

from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import mean, median

import torch

from data import load_concepts
from edit_scorer import EditScorer, kept_psnr, shuffled
from edits import OPERATIONS, Edit, Edits
from layouts import Size, pixels, size_name
from painter import Painter
from report import log
from settings import Settings
from sheets import sheet

SEED = 124
SHOWN = 48
MAX_BY_CHANCE = 0.1
DRAWN: Size = (16, 16)  # what drawn images are read at; the toy's scorer reads no smaller ones

Tables = dict[str, dict[str, dict[str, float]]]


def scored_edits(settings: Settings, scorer: EditScorer) -> list[Edit]:
    """As many of each operation: what is changed is in a combination that is never trained on, and drawn it is read without an error."""
    rng, drawer = Random(SEED), Edits(load_concepts(settings), held=True)
    each = -(-settings.scored_edits // len(OPERATIONS))
    return [scorer.readable(drawer, rng, operation, DRAWN) for operation in OPERATIONS for _ in range(each)]


def edit_table(scorer: EditScorer, edits: list[Edit], images: torch.Tensor, size: Size) -> dict[str, dict[str, float]]:
    """By group of operations: share that is right, its parts, and the median of the PSNR where nothing was to change."""
    found = defaultdict(lambda: defaultdict(list))
    before, after = (scorer.drawn(scenes, size) for scenes in zip(*((edit.references[0], edit.expected) for edit in edits)))
    for edit, image, reference, expected in zip(edits, images, before, after):
        results = scorer.grade(edit, image, expected)
        if len(edit.references) == 1 and (decibels := kept_psnr(image, reference, expected)) is not None:
            results["kept_db"] = decibels
        for name, result in results.items():
            found[edit.group][name].append(result)
            found["all edits"][name].append(result)
    summary = {"kept_db": median}
    return {group: {name: summary.get(name, mean)(values) for name, values in row.items()} for group, row in found.items()}


def edit_sheet(scorer: EditScorer, edits: list[Edit], images: torch.Tensor, size: Size, path: Path) -> None:
    """Each reference beside what was made of it; a gray field where there is one reference."""
    nothing = torch.zeros(3, *pixels(size))
    references = [[*scorer.drawn(edit.references, size), nothing][:2] for edit in edits]
    rows = torch.stack([torch.cat([*pair, image], 2) for pair, image in zip(references, images)])
    sheet(rows, [edit.instruction for edit in edits], path, 4)


def score_edits(settings: Settings, scorer: EditScorer, edits: list[Edit], painter: Painter, weights: str, how: tuple) -> Tables:
    """Tables by size. Fails when the images pass for those of other instructions."""
    tables = {}
    for size in settings.scored_edit_sizes:
        name = f"{weights}, {size_name(size)}"
        images = painter.edit(scorer, edits, size, *how)
        tables[name] = edit_table(scorer, edits, images, size)
        others = shuffled(edits)
        drawn = scorer.drawn([edit.expected for edit in edits], size)
        chance = mean(scorer.grade(edits[j], images[i], drawn[j])["right"] for i, j in enumerate(others))
        log(f"edits, {name}: {tables[name]['all edits']['right']:.3f} right, {chance:.3f} with another instruction")
        if chance > MAX_BY_CHANCE:
            raise RuntimeError(f"{chance:.3f} of the images also pass with other instructions")
        shown = slice(None, None, max(1, len(edits) // SHOWN))
        edit_sheet(scorer, edits[shown], images[shown], size, settings.work / f"sheets/edits-{weights}-{size_name(size)}.png")
    return tables
