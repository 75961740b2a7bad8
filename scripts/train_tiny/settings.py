"""Sizes of the model, the data and the training: one for the model that is shipped, one for a quick run of everything on a CPU."""

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    work: Path  # where every phase leaves its files
    device: str

    # Images.
    size: int = 256  # pixels a side
    concepts: int = 0  # how many of concepts.txt; 0 for all
    scenes: int = 600_000
    workers: int = 16

    # Text.
    vocabulary: int = 3072
    caption_tokens: int = 64  # most training steps: the longest caption has fewer
    prompt_tokens: int = 512  # what the pipeline pads a prompt to
    text_hidden: int = 96
    text_layers: int = 28
    taps: tuple = (9, 18, 27)

    # VAE.
    vae_channels: tuple = (32, 64, 128, 128)
    latent_channels: int = 8
    norm_groups: int = 8
    vae_images: int = 65_536  # drawn once, batches are taken from them
    vae_batch: int = 32
    vae_seconds: float = 220.0
    kl_weight: float = 1e-3

    # Transformer.
    hidden: int = 256
    head_dim: int = 32
    rope_axes: tuple = (4, 12, 12, 4)
    double_blocks: int = 2
    single_blocks: int = 6

    # Training of text encoder and transformer.
    batch: int = 256
    empty_share: float = 0.1  # captions left out, for guidance
    base_seconds: float = 515.0
    base_long_share: float = 0.1  # of steps, with `prompt_tokens`
    ema: float = 0.999

    # Distillation.
    guidance: float = 1.5
    teacher_steps: tuple = (2, 3, 4, 8)  # Euler steps of the teacher in each interval
    interval_weights: tuple = (1.0, 1.0, 1.0, 1.5)
    distill_seconds: float = 300.0
    distill_long_share: float = 0.25
    on_policy_share: float = 0.6

    # Scores.
    scored: int = 512  # prompts of shapes; half as many of emoji

    compile: bool = True
    max_steps: int = 0  # of a training phase; 0: only its time counts

    @property
    def latent_side(self) -> int:
        """Tokens along a side: 8 pixels per latent, 2 x 2 latents per token."""
        return self.size // 16

    @property
    def steps(self) -> int:
        """Sampling steps of the distilled model."""
        return len(self.teacher_steps)


def toy(settings: Settings) -> Settings:
    """Every phase in seconds on a CPU: shows that the code runs, not that anything is learned."""
    return replace(
        settings, size=64, concepts=24, scenes=512, workers=2, vocabulary=1024, prompt_tokens=96,
        text_hidden=32, text_layers=4, taps=(1, 2, 3), vae_channels=(16, 16, 32, 32), latent_channels=4, vae_images=128,
        vae_batch=8, hidden=64, head_dim=16, rope_axes=(4, 4, 4, 4), double_blocks=1, single_blocks=2, batch=16, ema=0.5,
        teacher_steps=(1, 1, 1, 2), scored=16, compile=False, max_steps=6,
    )  # fmt: skip
