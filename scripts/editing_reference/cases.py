"""The cases: one for each rule, small and of odd sizes.

A case names a random model, the input files in the order of `-i`, and all other settings of its image. `flags` returns the
case as a command line of this program.
"""

from dataclasses import dataclass, field


@dataclass
class Case:
    name: str
    preset: str = "tiny"
    prompt: str = "a cat on the moon"
    inputs: list = field(default_factory=list)
    mask: str | None = None
    strength: float | None = None
    self_reference: bool = True
    kv: bool = False
    loras: list = field(default_factory=list)  # (file, strength)
    width: int | None = None
    height: int | None = None
    steps: int = 4
    seed: int = 1
    count: int = 1
    guidance: float | None = None
    keep_latents: bool = False
    """True if the latents after each step are also stored in PRESET.safetensors."""

    def changes_an_image(self):
        """True if the first input is edited with a strength, and is not a reference."""
        return self.mask is not None or self.strength is not None

    def flags(self):
        flags = ["-p", self.prompt, "-s", str(self.steps), "-S", str(self.seed)]
        for file in self.inputs:
            flags += ["-i", f"inputs/{file}"]
        if self.mask:
            flags += ["--mask", f"inputs/{self.mask}", "--no-composite"]
        for file, strength in self.loras:
            flags += ["--lora", f"adapters/{file}" if strength == 1 else f"adapters/{file}:{strength}"]
        for flag, value in (("--strength", self.strength), ("-W", self.width), ("-H", self.height), ("-g", self.guidance)):
            flags += [flag, str(value)] if value is not None else []
        flags += ["-n", str(self.count)] if self.count > 1 else []
        flags += ["--kv"] if self.kv else []
        return flags + ([] if self.self_reference else ["--no-self-reference"])


def edits():
    three = ["rgb-16-bit.png", "lossless.webp", "alpha-interlaced.png"]
    return [
        Case("edit", inputs=["scene.png"], keep_latents=True),
        Case("edit-given-size", inputs=["palette.png", "rotated.jpg"], width=64, height=96),
        Case("edit-three", inputs=three, seed=2),
        Case("edit-one-side", inputs=["grey-4-bit.png", "grey-16-bit.png"], width=80, steps=3),
        Case("edit-over-a-megapixel", inputs=["large.png"], width=64, height=48, steps=2),
        Case("edit-order", inputs=["rotated.jpg", "palette.png"], width=64, height=96),
        Case("edit-seeds", inputs=["even.png"], width=64, height=64, seed=7, count=3),
        Case("edit-sharded", "sharded", inputs=["alpha-interlaced.png"], seed=3),
        Case("edit-uneven", "uneven", inputs=["rotated.jpg", "rgb-16-bit.png"], seed=4),
        Case("edit-base", "base", inputs=["scene.png"], width=64, height=64, steps=3, guidance=4.0, seed=5),
        Case("edit-base-two", "base", inputs=["rotated.jpg", "even.png"], steps=3, guidance=2.5, seed=6),
        Case("edit-base-unguided", "base", inputs=["even.png"], steps=2, guidance=1.0, seed=6),
    ]


def inpaints():
    scene = dict(inputs=["scene.png"], mask="mask-soft.png")
    return [
        *[Case(f"inpaint-{s}", **scene, strength=s, keep_latents=s == 0.75) for s in (0.25, 0.5, 0.75, 0.8, 1.0)],
        Case("inpaint-default-strength", **scene, steps=5),
        Case("inpaint-start-is-truncated", **scene, steps=5, strength=0.3),
        Case("inpaint-mask-of-other-size", inputs=["scene.png"], mask="mask-small.png", strength=1.0, seed=2),
        Case("inpaint-mask-1-bit", inputs=["scene.png"], mask="mask-1-bit.png", strength=1.0, seed=2),
        Case("inpaint-mask-rgb", inputs=["scene.png"], mask="mask-rgb.png", strength=0.75, seed=3),
        Case("inpaint-mask-white", inputs=["rotated.jpg"], mask="mask-white.png", strength=0.5, seed=4),
        Case("inpaint-references", inputs=["scene.png", "rotated.jpg", "palette.png"], mask="mask-soft.png", strength=1.0),
        Case("inpaint-no-self-reference", **scene, strength=0.75, self_reference=False),
        Case(
            "inpaint-other-reference-alone",
            inputs=["even.png", "rotated.jpg"],
            mask="mask-small.png",
            strength=1.0,
            self_reference=False,
        ),
        Case("inpaint-seeds", inputs=["even.png"], mask="mask-small.png", strength=0.75, seed=11, count=2),
        Case("inpaint-uneven", "uneven", inputs=["palette.png"], mask="mask-small.png", strength=0.75, seed=5),
        Case("inpaint-base", "base", **scene, strength=0.7, steps=5, guidance=4.0, seed=6),
        Case(
            "inpaint-base-reference",
            "base",
            inputs=["even.png", "rotated.jpg"],
            mask="mask-small.png",
            strength=1.0,
            steps=3,
            guidance=3.0,
            seed=7,
        ),
    ]


def images_to_images():
    return [
        Case("strength-0.5", inputs=["scene.png"], strength=0.5, seed=8),
        Case("strength-0.75-reference", inputs=["even.png", "rotated.jpg"], strength=0.75, seed=8),
        Case("strength-0.5-no-self-reference", inputs=["scene.png"], strength=0.5, seed=8, self_reference=False),
        Case("strength-1", inputs=["even.png"], strength=1.0, seed=9),
        Case("strength-base", "base", inputs=["even.png"], strength=0.75, steps=4, guidance=4.0, seed=10),
    ]


def cached():
    return [
        Case("kv-none", "kv", width=64, height=80),
        Case("kv-one", "kv", inputs=["scene.png"], seed=2, keep_latents=True),
        Case("kv-two", "kv", inputs=["rotated.jpg", "lossless.webp"], width=96, height=64, seed=3),
        Case("kv-seeds", "kv", inputs=["even.png", "alpha-interlaced.png"], seed=4, count=2, steps=3),
        Case("kv-by-flag", "tiny", inputs=["even.png"], kv=True, seed=5),
    ]


def adapted():
    size = dict(width=64, height=64, steps=2, seed=12)
    return [
        Case("lora-peft", loras=[("peft.safetensors", 1)], **size),
        Case("lora-peft-metadata", loras=[("peft-metadata.safetensors", 0.75)], **size),
        Case("lora-bfl", loras=[("bfl.safetensors", 1)], **size),
        Case("lora-kohya", loras=[("kohya.safetensors", 1)], **size),
        Case("lora-lokr", loras=[("lokr.safetensors", 1)], **size),
        Case("lora-negative", loras=[("peft.safetensors", -0.5)], **size),
        Case("lora-two", loras=[("bfl.safetensors", 0.5), ("kohya.safetensors", 1.25)], **size),
        Case("lora-edit", inputs=["even.png"], loras=[("kohya.safetensors", 1)], steps=3, seed=13),
        Case(
            "lora-inpaint",
            inputs=["even.png"],
            mask="mask-small.png",
            strength=0.75,
            loras=[("bfl.safetensors", 1)],
            seed=14,
        ),
    ]


def all_cases():
    cases = edits() + inpaints() + images_to_images() + cached() + adapted()
    assert len({case.name for case in cases}) == len(cases)
    return cases
