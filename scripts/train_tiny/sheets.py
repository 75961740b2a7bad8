"""Contact sheets: pictures in rows, with what was asked for under each."""

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from render import to_bytes


def sheet(pictures: torch.Tensor, captions: list[str], path: Path, columns: int = 8) -> None:
    """pictures [n, 3, height, width] in -1..1."""
    pictures = to_bytes(pictures).permute(0, 2, 3, 1).cpu().numpy()
    _, height, width, _ = pictures.shape
    line = 28 if any(captions) else 2
    image = Image.new("RGB", (columns * (width + 4), math.ceil(len(pictures) / columns) * (height + line)), "white")
    draw = ImageDraw.Draw(image)
    letters = max(10, width // 6)
    for i, (picture, caption) in enumerate(zip(pictures, captions)):
        x, y = i % columns * (width + 4), i // columns * (height + line)
        image.paste(Image.fromarray(picture), (x, y))
        draw.text((x, y + height), caption[:letters] + "\n" + caption[letters : 2 * letters], fill="black", spacing=0)
    path.parent.mkdir(exist_ok=True)
    image.save(path)
