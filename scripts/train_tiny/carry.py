"""Phase `carry`: an earlier student for its tuned teacher, without training.

What `tune` changed in the teacher is added to the student that was distilled from that teacher before: student + (tune - base). Both
descend from `base` and are still near it, so their differences add up. Source: task arithmetic (Ilharco et al., 2023).
"""

import torch

from models import load_text_encoder_and_transformer, save
from report import UserError, log, phase
from settings import Settings


@phase
@torch.no_grad()
def carry(settings: Settings) -> None:
    if not (path := settings.work / "student").exists():
        raise UserError(f"`{path}` is missing", "put the `final` of the run before there, under this name")
    (text_encoder, tuned), (_, before) = (load_text_encoder_and_transformer(settings, name) for name in ("tune", "base"))
    _, student = load_text_encoder_and_transformer(settings, "student")
    distilled, learned, norm = (torch.zeros((), device=settings.device) for _ in range(3))
    for own, new, old in zip(student.parameters(), tuned.parameters(), before.parameters()):
        distilled += (own - old).square().sum()
        learned += (new - old).square().sum()
        norm += old.square().sum()
        own += new - old
    log(f"of the norm of `base`, distillation had changed {(distilled / norm).sqrt():.3f}, `tune` {(learned / norm).sqrt():.3f}")
    save(settings.work / "carried", {"transformer": student, "text_encoder": text_encoder})
