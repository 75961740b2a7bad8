#!/usr/bin/env python3
"""Checks the files of `flux convert` with other programs. Each format of a transformer and a text encoder is read by the
packages gguf, diffusers and transformers, or by the definition of its format, and compared with the values that flux reads
from the file.

    python3 scripts/check_converted.py FLUX MODEL WORK

FLUX     the program
MODEL    a model in the diffusers layout, such as models/tiny
WORK     a folder for the files, about 15 times the size of the model

Needs gguf (0.19.0) and the packages of scripts/requirements-reference.txt. Exits with 1 if something differs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import diffusers
import gguf
import numpy as np
import torch
from diffusers import Flux2Transformer2DModel, GGUFQuantizationConfig
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

GGUF = ["bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0"]
SAFETENSORS = ["bf16", "fp8", "int8", "mxfp8", "nvfp4"]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
# diffusers multiplies in float16, and flux in float32.
HALF = 2e-3
failed = []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("flux", "model", "work"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    diffusers.utils.logging.set_verbosity_error()
    args.work.mkdir(parents=True, exist_ok=True)
    for component in ("transformer", "text"):
        for ending, formats in ((".gguf", GGUF), (".safetensors", SAFETENSORS)):
            for name in formats:
                file = args.work / f"{component}-{name}{ending}"
                convert(args.flux, args.model, file, name, component)
                own = file if name == "bf16" and ending == ".safetensors" else file.with_name(f"{file.stem}-own.safetensors")
                if own != file:
                    convert(args.flux, file, own, "bf16", component)
                check(args, component, name, file, load_file(own))
    if failed:
        sys.exit(f"{len(failed)} checks failed: {', '.join(failed)}")


def convert(flux, source, target, name, component):
    command = [flux, "convert", source, target, "--format", name, "--component", component, "-q"]
    subprocess.run(command, check=True)


def check(args, component, name, file, own):
    """Compares the values of other readers of a file with those of flux, in bf16."""
    label = f"{component} {name} {file.suffix[1:]}"
    if file.suffix == ".gguf":
        read = read_gguf(file)
        names = {llama_name(key): key for key in own} if component == "text" else {key: key for key in own}
        report(f"{label}: gguf", {names[key]: value for key, value in read.items()}, own)
    else:
        report(f"{label}: its definition", read_safetensors(file), own)
    if component == "transformer" and (file.suffix == ".gguf" or name == "bf16"):
        check_diffusers(args, label, file, own)
    if component == "text" and file.suffix == ".gguf" and name != "bf16":
        check_transformers(args, label, file, own)


def report(label, read, own, bound=0.0):
    """The largest difference of a tensor relative to its largest magnitude."""
    missing = sorted(read.keys() ^ own.keys())
    apart = {}
    for key in read.keys() & own.keys():
        values, expected = read[key].float(), own[key].float()
        values = values.bfloat16().float() if bound == 0 else values
        same_shape = values.shape == expected.shape
        apart[key] = ((values - expected).abs().max() / expected.abs().max()).item() if same_shape else float("inf")
    worst = max(apart, key=apart.get)
    fine = not missing and apart[worst] <= bound
    print(f"{'ok  ' if fine else 'FAIL'} {label}: {len(apart)} tensors, {apart[worst]:.1e} apart {missing[:4] or ''}", flush=True)
    if not fine:
        failed.append(label)


def read_gguf(file):
    def values(tensor):
        shape = tuple(reversed(tensor.shape.tolist()))
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape))

    return {tensor.name: values(tensor) for tensor in gguf.GGUFReader(file).tensors}


def llama_name(key):
    """llama.cpp's own map."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 64)
    return names.get_name(key, try_suffixes=(".weight",))


def read_safetensors(file):
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        declared = json.loads((opened.metadata() or {}).get("_quantization_metadata", '{"layers": {}}'))["layers"]
    values = {}
    for key, weight in tensors.items():
        layer = key.removesuffix(".weight")
        if not key.endswith((".weight", "_norm.scale")):
            continue
        beside = tensors.get(f"{layer}.comfy_quant")
        what = json.loads(beside.numpy().tobytes()) if beside is not None else declared.get(layer)
        scale = tensors.get(f"{layer}.weight_scale")
        match what and what["format"]:
            case "float8_e4m3fn" | "int8_tensorwise":
                values[key] = weight.float() * scale
            case "mxfp8":
                blocks = unswizzled(scale, len(weight), weight.shape[1] // 32).int()
                values[key] = weight.float() * torch.exp2(blocks - 127.0).repeat_interleave(32, 1)
            case "nvfp4":
                codes = torch.stack([weight >> 4, weight & 15], -1).flatten(1).long()
                blocks = unswizzled(scale.float(), len(weight), codes.shape[1] // 16)
                blocks = blocks * tensors[f"{layer}.weight_scale_2"]
                values[key] = E2M1[codes] * blocks.repeat_interleave(16, 1)
            case _:
                values[key] = weight.float()
    return values


def unswizzled(scales, rows, blocks):
    """Tiles of 128 rows and 4 blocks, as tensor cores read them, to [rows, blocks]."""
    tiles = scales.reshape(-(-rows // 128), -(-blocks // 4), 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-(-rows // 128) * 128, -1)[:rows, :blocks]


def check_diffusers(args, label, file, own):
    config = args.model / "transformer"
    quantized = file.suffix == ".gguf"
    more = {"quantization_config": GGUFQuantizationConfig(compute_dtype=torch.float32)} if quantized else {}
    load = Flux2Transformer2DModel.from_single_file
    model = load(file, config=str(config), torch_dtype=torch.float32, **more)
    exact = Flux2Transformer2DModel.from_pretrained(config, torch_dtype=torch.float32)
    loaded = model.state_dict(keep_vars=True)
    if quantized:
        from diffusers.quantizers.gguf.utils import dequantize_gguf_tensor

        loaded = {key: dequantize_gguf_tensor(value) if hasattr(value, "quant_type") else value for key, value in loaded.items()}
    # The same tensors as read by flux, loaded into diffusers.
    of_flux = load(own_file(file), config=str(config), torch_dtype=torch.float32).state_dict()
    report(f"{label}: diffusers, weights", {key: value.detach() for key, value in loaded.items()}, of_flux, HALF + 2**-8)
    with torch.no_grad():
        out, expected = velocity(model), velocity(exact)
    error = ((out - expected).square().mean() / expected.square().mean()).sqrt().item()
    fine = error < (0.01 if "bf16" in label else 0.5)
    print(f"{'ok  ' if fine else 'FAIL'} {label}: diffusers, velocity {error:.4f} from the original", flush=True)
    if not fine:
        failed.append(label)


def own_file(file):
    return file if file.suffix == ".safetensors" else file.with_name(f"{file.stem}-own.safetensors")


def velocity(model):
    """The velocity of some latents and text features, [1, tokens, channels]."""
    generator = torch.Generator().manual_seed(1)
    config, tokens, words = model.config, 64, 32
    image = torch.randn(1, tokens, config.in_channels, generator=generator)
    text = torch.randn(1, words, config.joint_attention_dim, generator=generator)
    ids = torch.cartesian_prod(torch.arange(1), torch.arange(8), torch.arange(8), torch.arange(1)).float()[None]
    words_ids = torch.cartesian_prod(torch.arange(1), torch.arange(1), torch.arange(1), torch.arange(words)).float()[None]
    time = torch.tensor([0.7])
    return model(image, text, time, ids, words_ids, guidance=None, return_dict=False)[0]


def check_transformers(args, label, file, own):
    # The GGUF reader of transformers assumes 128 features per head, as in the published models.
    config = AutoConfig.from_pretrained(args.model / "text_encoder")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, config=config, dtype=torch.float32)
    loaded = {key: value for key, value in model.state_dict().items() if key in own}
    report(f"{label}: transformers", loaded, own)
    original = AutoTokenizer.from_pretrained(args.model / "tokenizer")
    vocabulary = gguf.GGUFReader(file).fields
    tokens = vocabulary["tokenizer.ggml.tokens"].contents()
    ids = {token: index for index, token in enumerate(tokens)}
    fine = all(ids.get(token) == index for token, index in original.get_vocab().items())
    print(f"{'ok  ' if fine else 'FAIL'} {label}: tokens of the vocabulary, {len(original.get_vocab())} of {len(tokens)}", flush=True)
    if not fine:
        failed.append(label)


if __name__ == "__main__":
    main()
