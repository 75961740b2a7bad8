"""Phase `check`: compares edits, renderer and scorer before the training."""

from random import Random

import torch

from data import load_concepts, load_sprites
from edit_scorer import EditScorer, box, shuffled
from edits import OPERATIONS, Edit, Edits
from layouts import Size, layouts, size_name
from render import Sprites
from report import log, phase
from settings import Settings

CASES: list[tuple[Size, bool]] = [((16, 16), False), ((16, 24), True)]  # size in tokens, True if the edits are held out
LEAST_READ, MAX_BY_CHANCE = 0.9, 0.05


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"check: {what}")


@phase
def check(settings: Settings) -> None:
    for references, among in enumerate(layouts(settings)):
        expect(all(layout.stream in settings.streams for layout, _ in among), "a layout's stream has no graph")
        expect(bool(among), f"no layout has {references} references")
    sprites = Sprites(torch.from_numpy(load_sprites(settings)).to(settings.device))
    concepts, scorer = load_concepts(settings), EditScorer(sprites)
    for size, held in CASES:
        rng, drawer = Random(7), Edits(concepts, held)
        edits = [drawer.draw(rng, operation) for operation in OPERATIONS for _ in range(settings.checked_edits)]
        after = scorer.drawn([edit.expected for edit in edits], size)
        before = scorer.drawn([edit.references[0] for edit in edits], size)
        for edit, *images in zip(edits, before, after):
            check_rest(edit, *images)
        right = lambda shown, asked: [scorer.grade(edits[i], shown[j], after[i])["right"] for i, j in enumerate(asked)]  # noqa: E731
        same = [*range(len(edits))]
        read, unchanged, chance = right(after, same), right(before, same), right(after, shuffled(edits))
        shares = [sum(row) / len(row) for row in (read, unchanged, chance)]
        log("{}: rendered {:.3f} right, references {:.3f}, with another instruction {:.3f}".format(size_name(size), *shares))
        for edit, is_right in zip(edits, read):
            if not is_right:
                log(f"misread: {edit.instruction}")
        expect(shares[0] >= LEAST_READ, "the scorer misreads drawn images")
        expect(max(shares[1:]) <= MAX_BY_CHANCE, "references, or images of other instructions, pass")


def check_rest(edit: Edit, before: torch.Tensor, after: torch.Tensor) -> None:
    """Checks that everything that the instruction does not name has the same things and pixels."""
    first, expected = edit.references[0], edit.expected
    rest = [thing for i, thing in enumerate(expected.things) if i not in edit.changed]
    expect(all(thing in first.things for thing in rest), f"`{edit.instruction}` changes more than it names")
    if expected.background != first.background:
        return
    same = torch.ones(before.shape[1:], dtype=torch.bool)
    for thing in [*first.things, *expected.things]:
        if thing not in rest:
            top, bottom, left, right = box(thing, 1.05, before.shape[1:])
            same[top:bottom, left:right] = False
    expect(torch.equal(before[:, same], after[:, same]), f"`{edit.instruction}` changes pixels elsewhere")
