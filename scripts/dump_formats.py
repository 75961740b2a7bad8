#!/usr/bin/env python3
"""Writes tests/formats/*.gguf and *.safetensors, small tensors in every weight format, each file with its expected values.

    python3 scripts/dump_formats.py tests/formats

Needs numpy, torch, safetensors and gguf (0.19.0). The package gguf computes the values of GGUF blocks; those
of the other formats are computed here, in float32 and in the order of their formulas. Two runs produce the same bytes.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

RNG = np.random.default_rng(0)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Offsets of the float16 values in a block; the other bytes are arbitrary.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "IQ4_XS": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
FP4 = torch.tensor([0.0, 0.0052083334, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25, 0.0, -0.0052083334, -0.6666667, -1.0,
                    -0.33333334, -0.5, -0.16666667, -0.25])


def random_bytes(*shape):
    return torch.from_numpy(RNG.integers(0, 256, shape, dtype=np.uint8))


def scales(*shape):
    return torch.from_numpy(RNG.uniform(0.001, 0.1, shape).astype(np.float32))


def floats8(rows, cols, dtype):
    """All bit patterns except NaN."""
    values = random_bytes(rows, cols).view(dtype)
    bad = ~torch.isfinite(values.float())
    return torch.where(bad, torch.zeros(1), values.float()).to(dtype)


def declared(**what):
    return torch.tensor(list(json.dumps(what).encode()), dtype=torch.uint8)


def gguf_file(folder):
    writer = gguf.GGUFWriter(folder / "blocks.gguf", "flux")
    truth = {}
    for name in ["F32", "F16", "BF16", *HALVES]:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, cols = 2, max(block, 64 if block == 32 else 8)
        if block == 1:
            values = RNG.normal(size=(rows, cols)).astype(np.float32)
            raw = gguf.quants.quantize(values, kind)
        else:
            raw = RNG.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
            for place in HALVES[name]:
                d = (RNG.uniform(0.01, 1, len(raw)) * RNG.choice([-1, 1], len(raw))).astype(np.float16)
                raw[:, place : place + 2] = d[:, None].view(np.uint8)
            raw = raw.reshape(rows, -1)
        writer.add_tensor(name, raw, raw_dtype=kind)
        truth[name] = torch.from_numpy(gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(rows, cols).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save(folder / "blocks.truth.safetensors", truth)


def swizzled(values):
    """[rows, blocks] in tiles of 128 x 4, padded."""
    rows, blocks = values.shape
    tiles_down, tiles_across = -(-rows // 128), -(-blocks // 4)
    out = torch.zeros(tiles_down * tiles_across * 512, dtype=torch.uint8)
    for row in range(rows):
        for block in range(blocks):
            tile = row // 128 * tiles_across + block // 4
            out[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4] = values[row, block]
    return out.reshape(tiles_down * 128, tiles_across * 4)


def nvfp4(rows, blocks, is_official):
    packed, bits = random_bytes(rows, blocks * 8), random_bytes(rows, blocks) & 0x77
    first, second = (packed >> 4, packed & 15) if is_official else (packed & 15, packed >> 4)
    codes = torch.stack([first, second], -1).reshape(rows, blocks, 16)
    all_scale = torch.tensor(0.0123)
    truth = E2M1[codes.long()] * (bits.view(E4M3).float() * all_scale)[..., None]
    stored = swizzled(bits) if is_official else bits
    return {".weight": packed, ".weight_scale": stored.view(E4M3), ".weight_scale_2": all_scale}, truth.reshape(rows, -1)


def mxfp8(rows, blocks):
    values, bits = floats8(rows, blocks * 32, E4M3), torch.from_numpy(RNG.integers(110, 130, (rows, blocks), dtype=np.uint8))
    bits[0, 0] = 0
    scale = torch.where(bits == 0, torch.zeros(1), torch.exp2(bits.float() - 127))
    truth = (values.float().reshape(rows, blocks, 32) * scale[..., None]).reshape(rows, -1)
    return {".weight": values, ".weight_scale": swizzled(bits)}, truth


def fp8(rows, cols, dtype, scale):
    values = floats8(rows, cols, dtype)
    return {".weight": values, ".weight_scale": scale}, values.float() * (scale[:, None] if scale.ndim == 1 else scale)


def int8(rows, cols, scale, group=None):
    q = random_bytes(rows, cols).view(torch.int8)
    truth = q.float() * (scale if scale.ndim else scale.reshape(1, 1))
    if group:
        small = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])
        full = small
        while len(full) < group:
            full = torch.kron(full, small)
        truth = (truth.double().reshape(rows, -1, group) @ full.double() / group**0.5).float().reshape(rows, cols)
    return {".weight": q, ".weight_scale": scale}, truth


def nested(maxima_count):
    """Codes of maxima, and the maxima."""
    codes, table = random_bytes(maxima_count), torch.linspace(-1, 1, 256)
    block, offset = 4, 0.6
    inner = scales(-(-maxima_count // block)) * 5
    maxima = table[codes.long()] * inner.repeat_interleave(block)[:maxima_count] + torch.tensor(offset)
    companions = {".absmax": codes, ".nested_absmax": inner, ".nested_quant_map": table}
    return companions, maxima, {"nested_blocksize": block, "nested_dtype": "float32", "nested_offset": float(torch.tensor(offset))}


def four_bits(rows, cols, kind, is_nested, block=64):
    """Rows that do not begin at a block."""
    packed = random_bytes(rows * cols // 2, 1)
    codes = torch.stack([packed >> 4, packed & 15], -1).reshape(-1)
    count = -(-rows * cols // block)
    companions, maxima, state = nested(count) if is_nested else ({".absmax": (m := scales(count))}, m, {})
    table = NF4 if kind == "nf4" else FP4
    truth = table[codes.long()] * maxima.repeat_interleave(block)[: rows * cols]
    state |= {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [rows, cols]}
    parts = {"": packed, ".quant_map": table.clone(), f".quant_state.bitsandbytes__{kind}": declared(**state)}
    return parts | companions, truth.reshape(rows, cols)


def file(folder, name, layers, metadata=None, extra=()):
    """layers: layer or tensor -> (parts by name suffix, expected values)."""
    tensors, truth = dict(extra), {}
    for layer, (parts, meaning) in layers.items():
        tensors |= {layer + end: part.contiguous() for end, part in parts.items()}
        truth[layer if "" in parts else layer + ".weight"] = meaning.contiguous()
    save(folder / f"{name}.safetensors", tensors, metadata)
    save(folder / f"{name}.truth.safetensors", truth)


def save(path, tensors, metadata=None):
    save_file(tensors, path, metadata=metadata)
    path.chmod(0o644)


def said(layer, **what):
    parts, truth = layer
    return parts | {".comfy_quant": declared(**what)}, truth


def main():
    folder = Path(sys.argv[1])
    gguf_file(folder)
    number = lambda value: torch.tensor(value)
    bf16 = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    file(folder, "comfy", {
        "kept": ({".weight": bf16}, bf16.float()),
        "e4m3": said(fp8(2, 128, E4M3, number(0.0123)), format="float8_e4m3fn"),
        "e5m2": said(fp8(2, 128, E5M2, number(0.0123)), format="float8_e5m2", full_precision_matrix_mult=True),
        "nvfp4": said(nvfp4(34, 5, True), format="nvfp4"),
        "nvfp4_tall": said(nvfp4(130, 1, True), format="nvfp4"),
        "mxfp8": said(mxfp8(2, 5), format="mxfp8"),
        "int8": said(int8(2, 64, number(0.0123)), format="int8_tensorwise"),
        "int8_rows": said(int8(3, 64, scales(3, 1)), format="int8_tensorwise"),
        "convrot": said(int8(3, 128, scales(3, 1), 64), format="int8_tensorwise", convrot=True, convrot_groupsize=64),
    })
    layers = {"a": {"format": "float8_e4m3fn"}, "b": {"format": "nvfp4"}}
    a, b = fp8(2, 16, E4M3, number(0.5)), nvfp4(2, 1, True)
    a[0][".input_scale"], b[0][".input_scale"] = number(0.25), number(0.125)
    file(folder, "header", {"a": a, "b": b, "kept": ({".weight": bf16}, bf16.float())},
         {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})})
    (parts, truth) = fp8(2, 16, E4M3, number(0.5))
    older = {".weight": parts[".weight"], ".scale_weight": parts[".weight_scale"], ".scale_input": number(0.25)}
    file(folder, "older", {"a": (older, truth)}, extra={"scaled_fp8": torch.zeros(0, dtype=E4M3)})
    casts = {name: floats8(2, 16, dtype) for name, dtype in (("a", E4M3), ("b", E5M2))}
    file(folder, "cast", {name: ({".weight": values}, values.float()) for name, values in casts.items()})
    file(folder, "fp8r", {"a": fp8(3, 16, E4M3, scales(3))}, {"quantization": "fp8r"})
    file(folder, "nvfp4-script", {"a": nvfp4(3, 2, False)}, {"quantization": "nvfp4"})
    q, maxima = random_bytes(3, 16).view(torch.int8), scales(3)
    eight = ({".weight": q, ".SCB": maxima}, q.float() * maxima[:, None] * torch.tensor(7.874015718698502e-3))
    file(folder, "bitsandbytes", {
        "nf4.weight": four_bits(3, 96, "nf4", False),
        "nf4_nested.weight": four_bits(5, 128, "nf4", True),
        "fp4.weight": four_bits(2, 64, "fp4", False),
        "int8": eight,
    })


main()
