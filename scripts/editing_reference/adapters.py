"""Random adapters for the random model `tiny`, one file for each layout that the reference loads.

They cover some of the model's matrices only, so that files are small, but every kind of them: single ones, stacked queries,
keys and values, and the joined projections of single blocks.
"""

import json

import torch
from safetensors.torch import save_file

# Query, key and value have the same rows; the joined projection of a single block is larger. D, and mlp = 3 D.
DIM, MLP = 128, 384
RANK = 2


def write_adapters(folder):
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(0)
    write_peft(random, folder / "peft.safetensors")
    write_peft_metadata(random, folder / "peft-metadata.safetensors")
    write_bfl(random, folder / "bfl.safetensors")
    write_kohya(random, folder / "kohya.safetensors")
    write_lokr(random, folder / "lokr.safetensors")


def factors(random, out, inputs, rank=RANK, dtype=torch.float32):
    """down [rank, inputs] and up [out, rank], whose product is about half as large as a weight."""
    down = torch.randn(rank, inputs, generator=random) * inputs**-0.5
    up = torch.randn(out, rank, generator=random) * 0.5 * rank**-0.5
    return down.to(dtype), up.to(dtype)


def write_peft(random, path):
    """Names of diffusers; rows of its own for each of query, key and value; another rank in a single block."""
    tensors = {}
    for module, out, inputs, rank in [
        ("transformer_blocks.0.attn.to_q", DIM, DIM, RANK),
        ("transformer_blocks.0.attn.add_v_proj", DIM, DIM, RANK),
        ("transformer_blocks.1.ff.linear_in", 2 * MLP, DIM, RANK),
        ("single_transformer_blocks.0.attn.to_qkv_mlp_proj", 3 * DIM + 2 * MLP, DIM, 3),
        ("proj_out", DIM, DIM, 1),
    ]:
        down, up = factors(random, out, inputs, rank)
        tensors |= {f"transformer.{module}.lora_A.weight": down, f"transformer.{module}.lora_B.weight": up}
    save_file(tensors, path)


def write_peft_metadata(random, path):
    """Scales alpha / rank from the header, with a rank and an alpha of its own for one module."""
    modules = {"transformer_blocks.0.attn.to_k": 2, "single_transformer_blocks.1.attn.to_out": 4}
    tensors = {}
    for module, rank in modules.items():
        down, up = factors(random, DIM, DIM if rank == 2 else DIM + MLP, rank)
        tensors |= {f"transformer.{module}.lora_A.weight": down, f"transformer.{module}.lora_B.weight": up}
    config = dict(
        r=2,
        lora_alpha=3,
        rank_pattern={"single_transformer_blocks.1.attn.to_out": 4},
        alpha_pattern={"single_transformer_blocks.1.attn.to_out": 5},
        target_modules=sorted(modules),
    )
    text = json.dumps({f"transformer.{key}": value for key, value in config.items()})
    save_file(tensors, path, metadata={"format": "pt", "lora_adapter_metadata": text})


def write_bfl(random, path):
    """Names of the original code: query, key and value stacked in one matrix."""
    tensors = {}
    for module, out, inputs in [
        ("double_blocks.0.img_attn.qkv", 3 * DIM, DIM),
        ("double_blocks.1.txt_attn.qkv", 3 * DIM, DIM),
        ("double_blocks.1.img_attn.proj", DIM, DIM),
        ("double_blocks.0.txt_mlp.2", DIM, MLP),
        ("single_blocks.2.linear1", 3 * DIM + 2 * MLP, DIM),
        ("single_blocks.3.linear2", DIM, DIM + MLP),
    ]:
        down, up = factors(random, out, inputs)
        tensors |= {f"diffusion_model.{module}.lora_A.weight": down, f"diffusion_model.{module}.lora_B.weight": up}
    save_file(tensors, path)


def write_kohya(random, path):
    """Underscores, and a scale alpha / rank: one power of two, one not."""
    tensors = {}
    for module, out, inputs, alpha in [
        ("double_blocks_0_img_attn_qkv", 3 * DIM, DIM, 1.0),
        ("double_blocks_0_img_mlp_0", 2 * MLP, DIM, 3.0),
        ("single_blocks_1_linear2", DIM, DIM + MLP, 1.5),
    ]:
        down, up = factors(random, out, inputs)
        key = f"lora_unet_{module}"
        tensors |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(alpha)}
    save_file(tensors, path)


def write_lokr(random, path):
    """Kronecker products over stacked matrices; both factors are stored whole, so alpha says nothing."""
    tensors = {}
    for module, out, inputs in [("double_blocks.0.img_attn.qkv", 3 * DIM, DIM), ("single_blocks.0.linear2", DIM, DIM + MLP)]:
        key = f"diffusion_model.{module}"
        tensors[f"{key}.lokr_w1"] = torch.randn(8, 8, generator=random)
        tensors[f"{key}.lokr_w2"] = torch.randn(out // 8, inputs // 8, generator=random) * 0.5 * inputs**-0.5
        tensors[f"{key}.alpha"] = torch.tensor(3.0)
    save_file(tensors, path)
