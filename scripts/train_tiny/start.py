"""Phase `start`: the models that are shipped, in place of the phase `vae` and of random weights for `base`."""

import shutil

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from data import load_tokenizer
from models import make_text_encoder, make_transformer, make_vae, save
from report import UserError, log, phase
from settings import Settings

EMBEDDING = "model.embed_tokens.weight"
FILES = {
    "vae": "vae/diffusion_pytorch_model.safetensors", "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
}  # fmt: skip


@phase
def start(settings: Settings) -> None:
    models = {"vae": make_vae(settings), "transformer": make_transformer(settings), "text_encoder": make_text_encoder(settings)}
    for name, model in models.items():
        path = settings.shipped / FILES[name]
        weights = load_file(path)
        expected = {key: value.shape for key, value in model.state_dict().items() if key != "lm_head.weight"}
        if expected != {key: value.shape for key, value in weights.items()}:
            raise UserError(f"`{path}` has other shapes than the {name} in settings.py", "leave out the phase `start`, and train a VAE")
        if name == "text_encoder":
            old = Tokenizer.from_file(str(settings.shipped / "tokenizer/tokenizer.json"))
            weights[EMBEDDING] = embeddings(weights[EMBEDDING].float(), old, load_tokenizer(settings))
        model.load_state_dict(weights, strict=False)
    save(settings.work / "vae", {"vae": models.pop("vae")})
    save(settings.work / "start", models)
    for name in ("base", "tune", "carried", "final"):  # of other weights
        shutil.rmtree(settings.work / name, ignore_errors=True)


def embeddings(rows: torch.Tensor, old: Tokenizer, new: Tokenizer) -> torch.Tensor:
    """Rows for the tokens of the new tokenizer: of the same token where the old one has it, else the mean over the old tokens of its text."""
    known, result, same = old.get_vocab(), torch.empty(new.get_vocab_size(), rows.shape[1]), 0
    for token, number in new.get_vocab().items():
        if token in known:
            result[number], same = rows[known[token]], same + 1
        else:
            result[number] = rows[old.encode(new.decode([number]), add_special_tokens=False).ids].mean(0)
    log(f"{same} of {len(result)} tokens are the shipped tokenizer's")
    return result
