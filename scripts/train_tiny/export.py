"""Phase `export`: the model folder for the reference's pipeline and flux."""

import json
import shutil
from pathlib import Path

import diffusers
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from safetensors.torch import save_file

from batches import load_vae
from data import archive, load_concepts, load_tokenizer
from layouts import PIXELS
from models import load_text_encoder_and_transformer
from report import UserError, log, phase
from settings import Settings
from tokens import CHAT_TEMPLATE, END, PADDING, SPECIAL

MAX_FILE_BYTES, MAX_BYTES = 16 * 2**20, 32 * 2**20


def write_weights(path: Path, model: torch.nn.Module, leave_out: tuple = ()) -> None:
    tensors = {key: value.detach().cpu() for key, value in model.state_dict().items() if key not in leave_out}
    tensors = {key: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous() for key, value in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def write_json(path: Path, content: dict | list) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_tokenizer(settings: Settings, folder: Path) -> None:
    text = archive(settings).read("tokenizer.json").decode()
    (folder / "tokenizer.json").write_text(text)
    content = json.loads(text)
    write_json(folder / "vocab.json", content["model"]["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    added = {str(token["id"]): {key: token[key] for key in keys} for token in content["added_tokens"]}
    write_json(folder / "added_tokens.json", {token["content"]: int(number) for number, token in added.items()})
    others = SPECIAL[1:]
    write_json(folder / "special_tokens_map.json", {"eos_token": END, "pad_token": PADDING, "additional_special_tokens": others})
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": others, "bos_token": None,
        "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": END, "errors": "replace", "model_max_length": 1024,
        "pad_token": PADDING, "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    })  # fmt: skip


def without_origin(path: Path) -> None:
    """A config without the name of its source folder."""
    config = json.loads(path.read_text())
    config.pop("_name_or_path", None)
    write_json(path, config)


def check_sizes(folder: Path) -> None:
    """Prints the size of the weights, which the program embeds. Errors if they are too large."""
    total = 0
    for path in sorted(folder.rglob("*.safetensors")):
        size = path.stat().st_size
        total += size
        log(f"{path.relative_to(folder)}: {size / 2**20:.2f} MiB")
        if size > MAX_FILE_BYTES:
            raise UserError(f"`{path}` has {size / 2**20:.2f} MiB, the maximum for a shipped file is 16 MiB", "make the model smaller in settings.py")
    if total > MAX_BYTES:
        raise UserError(f"`{folder}` has {total / 2**20:.2f} MiB of weights, the maximum is 32 MiB", "make the model smaller in settings.py")


@torch.no_grad()
def extrapolate(settings: Settings, transformer: torch.nn.Module) -> None:
    """Extrapolates the change of `refine` by a part, like longer training in the same direction."""
    _, first = load_text_encoder_and_transformer(settings, "start")
    for weight, before in zip(transformer.parameters(), first.parameters(), strict=True):
        weight.add_(weight - before, alpha=settings.beyond)


@phase
def export(settings: Settings) -> None:
    (text_encoder, transformer), vae = load_text_encoder_and_transformer(settings, "final"), load_vae(settings)
    if settings.beyond:
        extrapolate(settings, transformer)
    folder, unfinished = settings.work / "model", settings.work / "model.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in ("transformer", "text_encoder", "vae", "tokenizer", "scheduler"):
        (unfinished / name).mkdir(parents=True)
    write_weights(unfinished / "transformer/diffusion_pytorch_model.safetensors", transformer)
    write_weights(unfinished / "text_encoder/model.safetensors", text_encoder, ("lm_head.weight",))
    write_weights(unfinished / "vae/diffusion_pytorch_model.safetensors", vae)
    for model, name in ((transformer, "transformer"), (vae, "vae")):
        model.save_config(unfinished / name)
        without_origin(unfinished / name / "config.json")
    text_encoder.config.dtype, text_encoder.config.architectures = torch.bfloat16, ["Qwen3ForCausalLM"]
    text_encoder.config.save_pretrained(unfinished / "text_encoder")
    scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=4096
    )
    scheduler.save_config(unfinished / "scheduler")
    write_tokenizer(settings, unfinished / "tokenizer")
    load_tokenizer(settings)  # as it was written
    write_json(unfinished / "model_index.json", {
        "_class_name": "Flux2KleinPipeline", "_diffusers_version": diffusers.__version__, "is_distilled": True,
        "image_sides": [PIXELS * settings.least_side, PIXELS * settings.most_side], "image_aspect_ratio": 2.0,  # as layouts.py draws them
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"], "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    })  # fmt: skip
    emoji = {entry["label"]: entry["emoji"] for entry in json.loads(archive(settings).read("concepts.json"))}
    write_json(unfinished / "concepts.json", [
        {"name": concept.name.words, "plural": concept.plural, "others": [other.words for other in concept.others], "emoji": emoji[concept.label]}
        for concept in load_concepts(settings)
    ])  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    check_sizes(folder)
