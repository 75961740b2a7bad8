"""The sprites of scenes: shapes drawn here, and emoji from pinned npm packages."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from concepts import Concept
from report import UserError
from vocabulary import SHAPES

SIDE = 256  # pixels
HERE = Path(__file__).parent


def polygon_of(count: int, turn: float, radius: float, center: float = 0.5) -> list[tuple[float, float]]:
    angles = 2 * np.pi * np.arange(count) / count + turn
    return [(0.5 + radius * np.cos(a), center + radius * np.sin(a)) for a in angles]


def star() -> list[tuple[float, float]]:
    outer, inner = polygon_of(5, -np.pi / 2, 0.53, 0.54), polygon_of(5, -np.pi / 2 + np.pi / 5, 0.22, 0.54)
    return [point for pair in zip(outer, inner) for point in pair]


def heart() -> list[tuple[float, float]]:
    t = np.linspace(0, 2 * np.pi, 400)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return [*zip(0.5 + x / 33, 0.47 - y / 33)]


CROSS = [(0.34, 0), (0.66, 0), (0.66, 0.34), (1, 0.34), (1, 0.66), (0.66, 0.66),
         (0.66, 1), (0.34, 1), (0.34, 0.66), (0, 0.66), (0, 0.34), (0.34, 0.34)]  # fmt: skip
# Outlines in a unit square: a polygon, or ellipses (left, top, right, bottom) of which the second is cut out.
OUTLINES = {
    "circle": [(0, 0, 1, 1)],
    "square": [(0.04, 0.04), (0.96, 0.04), (0.96, 0.96), (0.04, 0.96)],
    "triangle": [(0.5, 0.06), (1, 0.94), (0, 0.94)],
    "rectangle": [(0, 0.24), (1, 0.24), (1, 0.76), (0, 0.76)],
    "oval": [(0, 0.2, 1, 0.8)],
    "diamond": [(0.5, 0), (0.92, 0.5), (0.5, 1), (0.08, 0.5)],
    "star": star(),
    "heart": heart(),
    "pentagon": polygon_of(5, -np.pi / 2, 0.52, 0.53),
    "hexagon": polygon_of(6, 0, 0.5),
    "cross": CROSS,
    "ring": [(0, 0, 1, 1), (0.24, 0.24, 0.76, 0.76)],
    "crescent": [(0.05, 0, 1.05, 1), (0.38, 0.02, 1.22, 0.86)],
    "arrow": [(0, 0.36), (0.55, 0.36), (0.55, 0.12), (1, 0.5), (0.55, 0.88), (0.55, 0.64), (0, 0.64)],
}


def shape_mask(name: str) -> np.ndarray:
    """Coverage of a shape, [SIDE, SIDE] u8, from 8 x 8 samples a pixel; 2 % of margin."""
    side, margin = SIDE * 8, 0.02
    mask = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(mask)
    outline = [tuple((margin + (1 - 2 * margin) * v) * side for v in points) for points in OUTLINES[name]]
    if len(outline[0]) == 2:
        draw.polygon(outline, fill=255)
    else:
        for ellipse, fill in zip(outline, (255, 0)):
            draw.ellipse(ellipse, fill=fill)
    return np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.BOX))


def install_packages(folder: Path) -> Path:
    """Downloads the packages in package-lock.json (npm checks the hashes); returns node_modules."""
    modules = folder / "node_modules"
    if not modules.exists():
        if not shutil.which("npm"):
            raise UserError("npm, which downloads the emoji, is not installed", "install Node.js, or copy a `data.zip` of the phase `data` into `--work`")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, folder / name)
        install = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, stdout=subprocess.DEVNULL)
        if install.returncode != 0:
            raise UserError("npm could not fetch the emoji", "see the output of npm above, and check the network")
    return modules


class Emoji:
    """The images of emoji: 3D as they come, flat drawn from SVG."""

    def __init__(self, modules: Path):
        labels = json.loads((modules / "emojibase-data/en/data.json").read_text())
        self.labels = {entry["label"]: entry for entry in labels}
        flat = modules / "@iconify-json/fluent-emoji-flat"
        self.icons, self.names = json.loads((flat / "icons.json").read_text()), json.loads((flat / "chars.json").read_text())
        self.assets = modules / "@lobehub/fluent-emoji-3d/assets"

    def character(self, concept: Concept) -> str:
        return self.labels[concept.label]["emoji"]

    def _codes(self, concept: Concept) -> list[str]:
        """Spellings of its code point: with and without the selector for colored glyphs."""
        code = self.labels[concept.label]["hexcode"].lower()
        return [code, code.replace("-fe0f", ""), code + "-fe0f"]

    def solid(self, concept: Concept) -> bytes:
        """The 3D look as WebP: the package's own file where it has the right size."""
        path = next(path for code in self._codes(concept) if (path := self.assets / f"{code}.webp").exists())
        image = Image.open(path)
        if image.size == (SIDE, SIDE) and image.mode == "RGBA":
            return path.read_bytes()
        return webp(image.convert("RGBA").resize((SIDE, SIDE), Image.Resampling.LANCZOS))

    def flat(self, concept: Concept) -> bytes:
        """The flat look as WebP."""
        import resvg_py  # the phase `data` alone needs it

        name = next(self.names[code] for code in self._codes(concept) if code in self.names)
        while name not in self.icons["icons"]:
            name = self.icons["aliases"][name]["parent"]
        body = self.icons["icons"][name]["body"]
        svg = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 32 32"'
        svg += f' width="{SIDE}" height="{SIDE}">{body}</svg>'
        return webp(Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg)))).convert("RGBA"))


def webp(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", lossless=True, method=6)
    return file.getvalue()


def shape_sprites() -> np.ndarray:
    """[shapes, 4, SIDE, SIDE] u8: white where the shape is, premultiplied."""
    return np.stack([np.stack([shape_mask(name)] * 4) for name in SHAPES])


def premultiplied(file: bytes) -> np.ndarray:
    """A WebP as [4, SIDE, SIDE] u8."""
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGBA"), np.float32)
    pixels = np.concatenate([pixels[..., :3] * pixels[..., 3:] / 255, pixels[..., 3:]], -1)
    return pixels.round().astype(np.uint8).transpose(2, 0, 1)
