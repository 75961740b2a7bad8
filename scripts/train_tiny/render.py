"""Renders scenes on the device, many at once."""

import torch
import torch.nn.functional as F

from scenes import FILLED, OWN
from vocabulary import SHAPES

LEVELS = (256, 128, 64, 32)  # sides of the mip maps
LUMA = (0.299, 0.587, 0.114)


class Sprites:
    """All sprites on the device at four sizes; `sprites` [count, 4, 256, 256] u8, premultiplied."""

    def __init__(self, sprites: torch.Tensor):
        self.levels = {256: sprites}
        for side in LEVELS[1:]:
            larger = self.levels[2 * side]
            self.levels[side] = torch.cat([F.avg_pool2d(part.float(), 2).round().to(torch.uint8) for part in larger.split(128)])
        middle = self.levels[64].float() / 255
        self.luma_weights = torch.tensor(LUMA, device=sprites.device).view(1, 3, 1, 1)
        self.luma = (middle[:, :3] * self.luma_weights).sum((1, 2, 3)) / middle[:, 3].sum((1, 2)).clamp(min=1)

    def emoji(self, side: int) -> torch.Tensor:
        """The emoji in 3D, [concepts, 4, side, side] in 0..1."""
        return self.levels[side][len(SHAPES) :: 2].float() / 255

    def colored(self, things: torch.Tensor, level: int) -> torch.Tensor:
        """things [n, 8] -> premultiplied pixels [n, 4, level, level] in 0..1: own colors, filled, or a ramp of the tint over the luma."""
        sprite = things[:, 0].long()
        texture = self.levels[level][sprite].float() / 255
        rgb, alpha = texture[:, :3], texture[:, 3:]
        mode, color = things[:, 4].view(-1, 1, 1, 1), (things[:, 5:8] / 255).view(-1, 3, 1, 1)
        luma = (rgb * self.luma_weights).sum(1, keepdim=True) / alpha.clamp(min=1 / 255)
        light = ((luma - self.luma[sprite].view(-1, 1, 1, 1)) * 0.9 + 0.5).clamp(0, 1)
        dark = color * (0.25 + 1.5 * light)
        bright = color + (0.85 * (1 - color)) * ((light - 0.5) * 2).clamp(0, 1)
        tinted = torch.where(light < 0.5, dark, bright) * alpha
        return torch.cat([torch.where(mode == OWN, rgb, torch.where(mode == FILLED, color * alpha, tinted)), alpha], 1)


def render(sprites: Sprites, background: torch.Tensor, things: torch.Tensor, count: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """background [n, 3] u8, things [n, 6, 8], count [n], size (height, width) -> images [n, 3, height, width] in -1..1.

    The first thing lies lowest. Centers scale with height and width, the sides of things with the shorter of the two.
    """
    n, (height, width) = len(background), size
    shorter = min(size)
    out = (background.float() / 255).view(n, 3, 1, 1).expand(n, 3, height, width).clone()
    for layer in range(int(count.max())):
        thing = things[:, layer]
        pixels = thing[:, 3] * shorter
        level = 32 * 2 ** torch.bucketize(pixels, torch.tensor([35.0, 70.0, 140.0], device=pixels.device))
        for side in LEVELS:
            rows = ((count > layer) & (level == side)).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            part = thing[rows]
            scale = torch.tensor([width, height], device=part.device) / (part[:, 3:4] * shorter)  # of the image, in sides of the thing
            place = torch.zeros(len(rows), 2, 3, device=part.device)
            place[:, 0, 0], place[:, 1, 1] = scale.unbind(1)
            place[:, :, 2] = (1 - 2 * part[:, 1:3]) * scale
            grid = F.affine_grid(place, [len(rows), 4, height, width], align_corners=False)
            drawn = F.grid_sample(sprites.colored(part, side), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            out[rows] = out[rows] * (1 - drawn[:, 3:]) + drawn[:, :3]
    return out.clamp(0, 1) * 2 - 1


def to_bytes(images: torch.Tensor) -> torch.Tensor:
    """-1..1 -> 0..255 u8."""
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
