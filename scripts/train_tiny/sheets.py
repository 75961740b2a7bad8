"""Contact sheets: images in rows, with their prompts below."""

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from render import to_bytes


def sheet(images: torch.Tensor, captions: list[str], path: Path, columns: int = 8) -> None:
    """images [n, 3, height, width] in -1..1."""
    images = to_bytes(images).permute(0, 2, 3, 1).cpu().numpy()
    _, height, width, _ = images.shape
    line = 28 if any(captions) else 2
    page = Image.new("RGB", (columns * (width + 4), math.ceil(len(images) / columns) * (height + line)), "white")
    draw = ImageDraw.Draw(page)
    letters = max(10, width // 6)
    for i, (image, caption) in enumerate(zip(images, captions)):
        x, y = i % columns * (width + 4), i // columns * (height + line)
        page.paste(Image.fromarray(image), (x, y))
        draw.text((x, y + height), caption[:letters] + "\n" + caption[letters : 2 * letters], fill="black", spacing=0)
    path.parent.mkdir(exist_ok=True)
    page.save(path)
