"""Generates and edits images as the pipeline does."""

from collections.abc import Sequence

import torch

from batches import load_vae
from data import load_tokenizer
from edit_scorer import EditScorer
from edits import Edit
from layouts import PIXELS, Layout, Size
from models import Velocity, compute_dtype, decode, encode_text, latent_scale, load_text_encoder_and_transformer, patchify, sample
from settings import Settings
from tokens import encode

TOKENS_AT_ONCE = 65_536  # of image streams and texts


class Painter:
    """Prompts and references to images, with weights in bf16 on a GPU."""

    def __init__(self, settings: Settings, weights: str):
        self.settings = settings
        dtype = compute_dtype(settings)
        self.tokenizer = load_tokenizer(settings)
        self.text_encoder, transformer = load_text_encoder_and_transformer(settings, weights)
        self.text_encoder.to(dtype)
        self.velocity = Velocity(transformer.to(dtype))
        self.vae = load_vae(settings).to(dtype)

    @torch.no_grad()
    def text(self, prompts: list[str]) -> torch.Tensor:
        tokens = encode(self.tokenizer, prompts, self.settings.prompt_tokens)
        ids, lengths = (torch.from_numpy(array).to(self.settings.device) for array in tokens)
        return encode_text(self.settings, self.text_encoder, ids, lengths)

    @torch.no_grad()
    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, 3, height, width] in -1..1 -> normalised latents [batch, tokens, channels]."""
        dtype = next(self.vae.parameters()).dtype
        mode = self.vae.quant_conv(self.vae.encoder(images.to(self.settings.device, dtype))).float().chunk(2, 1)[0]
        return (patchify(mode) - self.vae.bn.running_mean) / latent_scale(self.vae)

    def paint(self, prompts: list[str], steps: int, guidance: float, size: Size | None = None, references: Sequence = ()) -> torch.Tensor:
        """[prompts, 3, height, width] in -1..1, on the CPU: of the native size or another. `references`: the first of each prompt, the second."""
        settings = self.settings
        size = size or (settings.latent_side, settings.latent_side)
        layout = Layout((size, *((images.shape[2] // PIXELS, images.shape[3] // PIXELS) for images in references)))
        ids, channels = layout.ids().to(settings.device), 4 * settings.latent_channels
        noise = torch.randn(len(prompts), layout.tokens, channels, generator=torch.Generator().manual_seed(1))
        empty = self.text([""])
        at_once = max(1, TOKENS_AT_ONCE // (layout.stream + settings.prompt_tokens))
        images = []
        for first in range(0, len(prompts), at_once):
            part = slice(first, first + at_once)
            text, start = self.text(prompts[part]), noise[part].to(settings.device)
            clean = torch.cat([start[:, :0], *(self.encode(reference[part]) for reference in references)], 1)
            images.append(decode(self.vae, sample(self.velocity, text, start, clean, ids, steps, guidance, empty), size).cpu())
        return torch.cat(images)

    def edit(self, scorer: EditScorer, edits: list[Edit], size: Size, steps: int, guidance: float) -> torch.Tensor:
        """The edited images, whose references have the same size."""
        results: dict[int, torch.Tensor] = {}
        for count in sorted({len(edit.references) for edit in edits}):
            rows = [i for i, edit in enumerate(edits) if len(edit.references) == count]
            references = [scorer.drawn([edits[i].references[k] for i in rows], size) for k in range(count)]
            results |= dict(zip(rows, self.paint([edits[i].instruction for i in rows], steps, guidance, size, references)))
        return torch.stack([results[i] for i in range(len(edits))])
