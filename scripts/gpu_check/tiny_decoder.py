"""A decoder of TAEF2's sizes with random weights."""

from __future__ import annotations

from pathlib import Path

LATENTS, CHANNELS = 32, 64
POOLED, PLAIN, UPSAMPLED = (3, 4, 5), (8, 9, 10, 13, 14, 15, 18), (7, 12, 17)


def write_tiny_decoder(path: Path) -> Path:
    """Writes the file with the tensor names of the reference's standalone decoder. Returns `path`."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}

    def conv(name: str, out: int, channels: int, side: int, has_bias: bool = True) -> None:
        weight = torch.randn(out, channels, side, side, generator=generator) / (channels * side * side) ** 0.5
        tensors[f"{name}.weight"] = weight.half()
        if has_bias:
            tensors[f"{name}.bias"] = torch.zeros(out).half()

    conv("1", CHANNELS, LATENTS, 3)
    for block in (*POOLED, *PLAIN):
        for number in (0, 2, 4):
            conv(f"{block}.conv.{number}", CHANNELS, CHANNELS, 3)
    for block in POOLED:
        conv(f"{block}.pool.0", 4 * CHANNELS, CHANNELS, 1, has_bias=False)
        tensors[f"{block}.pool.1.weight"] = torch.ones(4 * CHANNELS).half()
        tensors[f"{block}.pool.1.bias"] = torch.zeros(4 * CHANNELS).half()
        conv(f"{block}.pool.3", CHANNELS, 4 * CHANNELS, 1, has_bias=False)
    for upsampled in UPSAMPLED:
        conv(str(upsampled), CHANNELS, CHANNELS, 3, has_bias=False)
    conv("19", 3, CHANNELS, 3)
    save_file(tensors, path)
    return path
