#!/usr/bin/env python3
"""Writes small upscalers with random weights, and what the reference (the package spandrel) makes of an image with each.

    python3 scripts/dump_upscalers.py tests/upscaler

Needs torch, safetensors, and spandrel 0.4 with torchvision and einops. NAME-golden.safetensors has `input` [3, H, W], `output`
[3, H * scale, W * scale], not clamped, and `tiled`, the average of overlapping tiles.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

GROWN = 32
WIDTH, HEIGHT, TILE, OVERLAP = 21, 18, 16, 8
Tensors = dict[str, torch.Tensor]


class Weights:
    """Random weights from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: Tensors = {}

    def random(self, *shape: int, gain: float) -> torch.Tensor:
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        return torch.randn(*shape, generator=self.generator) * gain / fan**0.5

    def conv(self, name: str, out: int, inputs: int, *, side: int = 3, gain: float = 1.0, bias: bool = True, at: float = 0.0) -> None:
        self.tensors[f"{name}.weight"] = self.random(out, inputs, side, side, gain=gain)
        if bias:
            self.tensors[f"{name}.bias"] = self.random(out, gain=0.05) + at


def rrdb(weights: Weights, keys: str, *, scale: int, unshuffle: int = 1, plus: bool = False, features: int = 8) -> None:
    """One block. `keys` is `old` (ESRGAN), `new` (BasicSR) or `bsrgan`."""
    ups = int(math.log2(scale * unshuffle))
    dense = {"old": "model.1.sub.0.RDB{}.conv{}.0", "new": "body.0.rdb{}.conv{}", "bsrgan": "RRDB_trunk.0.RDB{}.conv{}"}[keys]
    first, body, *after = {
        "old": ["model.0", "model.1.sub.1", *(f"model.{3 + 3 * up}" for up in range(ups)), f"model.{2 + 3 * ups}", f"model.{4 + 3 * ups}"],
        "new": ["conv_first", "conv_body", *(f"conv_up{up + 1}" for up in range(ups)), "conv_hr", "conv_last"],
        "bsrgan": ["conv_first", "trunk_conv", *(f"upconv{up + 1}" for up in range(ups)), "HRconv", "conv_last"],
    }[keys]
    weights.conv(first, features, 3 * unshuffle**2)
    for block in (1, 2, 3):
        for conv in range(1, 6):
            is_last = conv == 5
            weights.conv(dense.format(block, conv), features if is_last else GROWN, features + GROWN * (conv - 1), gain=0.4 if is_last else 0.8)
        if plus:
            weights.conv(f"model.1.sub.0.RDB{block}.conv1x1", GROWN, features, side=1, bias=False)
    weights.conv(body, features, features)
    for name in after[:-1]:
        weights.conv(name, features, features, gain=1.4)
    weights.conv(after[-1], 3, features, gain=0.25, at=0.5)


def compact(weights: Weights, *, scale: int, features: int, layers: int) -> None:
    weights.conv("body.0", features, 3)
    for layer in range(layers + 1):
        weights.tensors[f"body.{2 * layer + 1}.weight"] = torch.rand(features, generator=weights.generator) * 0.3
        if layer < layers:
            weights.conv(f"body.{2 * layer + 2}", features, features, gain=1.3)
    weights.conv(f"body.{2 * layers + 2}", 3 * scale**2, features, gain=0.3)


def span(weights: Weights, *, scale: int, features: int) -> None:
    """Each convolution is stored as three and a skip; `eval_conv`, their sum, is computed by `fused`."""

    def three(name: str, inputs: int) -> None:
        weights.conv(f"{name}.sk", features, inputs, side=1, gain=0.5)
        weights.conv(f"{name}.conv.0", 2 * inputs, inputs, side=1)
        weights.conv(f"{name}.conv.1", 2 * features, 2 * inputs)
        weights.conv(f"{name}.conv.2", features, 2 * features, side=1, gain=0.5)
        weights.tensors[f"{name}.eval_conv.weight"], weights.tensors[f"{name}.eval_conv.bias"] = fused(weights.tensors, name)

    three("conv_1", 3)
    for block in range(1, 7):
        for conv in ("c1_r", "c2_r", "c3_r"):
            three(f"block_{block}.{conv}", features)
    weights.conv("conv_cat", features, 4 * features, side=1)
    three("conv_2", features)
    weights.conv("upsampler.0", 3 * scale**2, features, gain=0.004, at=0.5)


def fused(tensors: Tensors, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    (w1, b1), (w2, b2), (w3, b3) = ((tensors[f"{name}.conv.{i}.weight"].double(), tensors[f"{name}.conv.{i}.bias"].double()) for i in range(3))
    weight, bias = torch.einsum("ohyx,hi->oiyx", w2, w1[:, :, 0, 0]), torch.einsum("ohyx,h->o", w2, b1) + b2
    weight, bias = torch.einsum("oh,hiyx->oiyx", w3[:, :, 0, 0], weight), w3[:, :, 0, 0] @ bias + b3
    weight[:, :, 1, 1] += tensors[f"{name}.sk.weight"].double()[:, :, 0, 0]
    return weight.float(), (bias + tensors[f"{name}.sk.bias"].double()).float()


def write(path: Path, tensors: Tensors, dtype: torch.dtype, wrap: str | None) -> None:
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    if path.suffix != ".pth":
        save_file(tensors, path)
        return
    torch.save({wrap: tensors} if wrap else tensors, path, _use_new_zipfile_serialization=not path.name.endswith(".legacy.pth"))


def image() -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    return torch.stack([(5 * x + 3 * y) % 256, (x * y) % 256, 255 * ((x // 8 + y // 8) % 2)]).float() / 255


def starts(length: int) -> list[int]:
    count = -(-(length - OVERLAP) // (TILE - OVERLAP))
    return [0] if length <= TILE else [i * (length - TILE) // (count - 1) for i in range(count)]


def ramp(start: int, length: int, scale: int) -> torch.Tensor:
    weights, rise = torch.ones(TILE * scale), (torch.arange(OVERLAP * scale) + 0.5) / (OVERLAP * scale)
    if start > 0:
        weights[: OVERLAP * scale] = rise
    if start + TILE < length:
        weights[-OVERLAP * scale :] = torch.minimum(weights[-OVERLAP * scale :], rise.flip(0))
    return weights


def tiled(model: torch.nn.Module, x: torch.Tensor, scale: int) -> torch.Tensor:
    sums, total = torch.zeros(3, HEIGHT * scale, WIDTH * scale), torch.zeros(HEIGHT * scale, WIDTH * scale)
    for top in starts(HEIGHT):
        for left in starts(WIDTH):
            part = model(x[None, :, top : top + TILE, left : left + TILE])[0]
            weight = ramp(top, HEIGHT, scale)[:, None] * ramp(left, WIDTH, scale)[None]
            place = (slice(top * scale, (top + TILE) * scale), slice(left * scale, (left + TILE) * scale))
            sums[:, *place] += part * weight
            total[place] += weight
    return sums / total


@torch.no_grad()
def golden(path: Path) -> None:
    from spandrel import ModelLoader

    described = ModelLoader(device="cpu").load_from_file(path)
    model, x = described.model.float().eval(), image()
    tensors = {"input": x, "output": model(x[None])[0].contiguous(), "tiled": tiled(model, x, described.scale)}
    save_file(tensors, path.with_name(f"{path.name.split('.')[0]}-golden.safetensors"))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    for seed, (name, dtype, wrap, make) in enumerate(
        [
            ("rrdb-old-4x.legacy.pth", f16, None, lambda w: rrdb(w, "old", scale=4)),
            ("rrdb-new-2x.pth", f16, "params_ema", lambda w: rrdb(w, "new", scale=2, unshuffle=2)),
            ("rrdb-bsrgan-1x.safetensors", bf16, None, lambda w: rrdb(w, "bsrgan", scale=1)),
            ("rrdb-plus-2x.safetensors", f16, None, lambda w: rrdb(w, "old", scale=2, plus=True)),
            ("compact-3x.pth", f32, "params", lambda w: compact(w, scale=3, features=12, layers=3)),
            ("compact-1x.safetensors", f32, None, lambda w: compact(w, scale=1, features=8, layers=2)),
            ("span-2x.safetensors", f32, None, lambda w: span(w, scale=2, features=6)),
        ]
    ):
        weights = Weights(seed)
        make(weights)
        write(folder / name, weights.tensors, dtype, wrap)
        golden(folder / name)


if __name__ == "__main__":
    main()
