"""Sizes of the model, the data and the training: for the shipped model, and for a quick run of everything on a CPU."""

from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    work: Path  # where every phase leaves its files
    device: str
    shipped: Path = Path(__file__).resolve().parents[2] / "models/tiny"  # what the phase `start` reads
    before: Path | None = None  # model folder whose answers `refine` holds to, in place of those that it begins with

    # Images.
    size: int = 256  # pixels a side of the native size, which is drawn when no other is asked for
    concepts: int = 0  # how many of concepts.txt; 0 for all
    scenes: int = 150_000
    edits: int = 170_000
    workers: int = 16

    # Sizes, in tokens of 16 x 16 pixels: 128 to 512 pixels a side, up to 2 : 1.
    least_side: int = 8
    most_side: int = 32
    # Lengths of the image stream, references included: 144 is 12 x 12, 512 is 16 x 32 or two images of 16 x 16. Each is one CUDA graph.
    streams: tuple = (64, 144, 256, 320, 384, 400, 512, 576, 768, 1024, 1152, 2048)
    # Shares of the native size, which most images are asked for in, and of references of another size than the image.
    native_share: float = 0.45
    mixed_share: float = 0.2
    mixed_layouts: int = 40

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
    vae_images: int = 65_536  # of the native size, drawn once; of each other size so many that they have a quarter of the pixels
    vae_sizes: tuple = ((16, 16), (8, 8), (16, 24), (32, 32))  # the native first; each is compiled on its own
    vae_native_share: float = 0.55  # of steps; a step has as many pixels at every size
    vae_batch: int = 32  # images of the native size
    vae_seconds: float = 220.0
    kl_weight: float = 1e-3
    checked: int = 256  # scenes that are reconstructed, at each size

    # Transformer.
    hidden: int = 256
    head_dim: int = 32
    mlp_ratio: float = 2.0
    rope_axes: tuple = (4, 12, 12, 4)
    double_blocks: int = 2
    single_blocks: int = 6

    # Training of text encoder and transformer. A step is the sum of its parts, which weigh the same: images from text alone have one of
    # two in every step, so that learning to edit does not make them worse.
    parts: tuple = ("text", "edit")
    part_tokens: int = 46_080  # text and images: as many examples as fill them, so a step takes as long at every size
    empty_share: float = 0.1  # captions left out, for guidance
    changed_weight: float = 3.0  # what a token that an edit changes counts more than another in the loss: most of an image is to be copied
    base_seconds: float = 420.0
    tune_seconds: float = 420.0
    long_share: float = 0.1  # of parts, with `prompt_tokens`
    ema: float = 0.999

    # Distillation.
    guidance: float = 1.5
    teacher_steps: tuple = (2, 3, 4, 8)  # Euler steps of the teacher in each interval
    interval_weights: tuple = (1.0, 1.0, 1.0, 1.5)
    distill_seconds: float = 360.0
    distill_long_share: float = 0.4  # of parts that start from the student's own outputs: the others are short, as fewer graphs are captured so
    on_policy_share: float = 0.6
    refined_parts: tuple = ("text", "strength", "edit")
    refine_seconds: float = 600.0
    beyond: float = 0.0  # the part of what `refine` changed that `export` adds once more

    # Scores.
    scored: int = 512  # prompts of shapes; half as many of emoji
    scored_sizes: tuple = ((8, 8), (12, 12), (20, 20), (16, 24), (32, 32))  # beside the native one; the scorer needs multiples of 64 pixels
    scored_edits: int = 480  # at each of the sizes below, as many of each operation
    scored_edit_sizes: tuple = ((16, 16), (16, 24))
    checked_edits: int = 8  # of each operation, drawn before anything is trained

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
        settings, size=64, concepts=24, scenes=96, edits=96, workers=2, least_side=4, most_side=8, streams=(16, 32, 48, 64, 128), mixed_layouts=8,
        vocabulary=1024, prompt_tokens=96, text_hidden=32, text_layers=4, taps=(1, 2, 3), vae_channels=(16, 16, 32, 32), latent_channels=4,
        vae_images=64, checked=8, vae_sizes=((4, 4), (4, 8), (8, 8)), vae_batch=8, hidden=64, head_dim=16, rope_axes=(4, 4, 4, 4), double_blocks=1,
        single_blocks=2, part_tokens=512, ema=0.5, teacher_steps=(1, 1, 1, 2), scored=16, scored_sizes=((8, 8), (4, 8)),
        scored_edits=24, scored_edit_sizes=((8, 8),), checked_edits=2, compile=False, max_steps=6,
    )  # fmt: skip
