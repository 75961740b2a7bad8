"""Random tensors and their files. Each tensor is generated, written and freed before the next."""

import json
import math
from collections.abc import Callable
from typing import NamedTuple

import torch

SAFETENSORS_NAMES = {torch.bfloat16: "BF16", torch.int64: "I64"}


class Entry(NamedTuple):
    """A tensor to write. `make` gets the device for the generation."""

    name: str
    shape: tuple[int, ...]
    make: Callable
    dtype: torch.dtype = torch.bfloat16

    @property
    def bytes(self):
        return math.prod(self.shape) * self.dtype.itemsize


def normal(name, shape, std, mean=0.0):
    def make(device):
        return torch.randn(*shape, device=device).mul_(std).add_(mean).to(torch.bfloat16)

    return Entry(name, shape, make)


def matrix(name, *shape, gain=1.0):
    """A weight that keeps the size of its input when `gain` is 1: [out, in] or [out, in, kernel, kernel]."""
    return normal(name, shape, gain / math.prod(shape[1:]) ** 0.5)


def scale(name, dim):
    """The weight of a norm, around 1."""
    return normal(name, (dim,), 0.1, mean=1.0)


def bias(name, dim):
    return normal(name, (dim,), 0.1)


def linear(prefix, rows, cols):
    yield matrix(f"{prefix}.weight", rows, cols)
    yield bias(f"{prefix}.bias", rows)


def norm(prefix, dim):
    """A norm with a bias."""
    yield scale(f"{prefix}.weight", dim)
    yield bias(f"{prefix}.bias", dim)


def write_weights(folder, stem, entries, shards, device):
    """One .safetensors file, or `shards` of them with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_safetensors(folder / f"{stem}.safetensors", entries, device)
        return
    per_shard = math.ceil(len(entries) / shards)
    weight_map = {}
    for shard in range(shards):
        name = f"{stem}-{shard + 1:05}-of-{shards:05}.safetensors"
        part = entries[shard * per_shard : (shard + 1) * per_shard]
        write_safetensors(folder / name, part, device)
        weight_map |= {entry.name: name for entry in part}
    total = sum(entry.bytes for entry in entries)
    write_json(folder / f"{stem}.safetensors.index.json", dict(metadata=dict(total_size=total), weight_map=weight_map))


def write_safetensors(path, entries, device):
    """Tensors lie in the file as the library of that name lays them: wide values first, then by name."""
    header, places, end = {"__metadata__": {"format": "pt"}}, {}, 0
    for entry in sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name)):
        places[entry.name], end = end, end + entry.bytes
        span = [places[entry.name], end]
        header[entry.name] = dict(dtype=SAFETENSORS_NAMES[entry.dtype], shape=entry.shape, data_offsets=span)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            tensor = entry.make(device).cpu()
            assert tensor.shape == entry.shape and tensor.dtype == entry.dtype, entry.name
            file.seek(8 + len(text) + places[entry.name])
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
