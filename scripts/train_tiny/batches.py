"""What training reads: scenes on the device, images of them, their latents and captions."""

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2

from data import load_sprites, load_tokenizer
from models import encode_image, latent_scale, load, make_vae, patchify
from render import Sprites, render, to_bytes
from report import left
from settings import Settings
from tokens import PADDING, encode

ENCODED_AT_ONCE = 256


class SceneSet:
    """The scenes of scenes.npz on the device, and the sprites to draw them with."""

    def __init__(self, settings: Settings):
        arrays = np.load(left(settings, "scenes.npz"))
        on_device = lambda key: torch.from_numpy(arrays[key]).to(settings.device)  # noqa: E731
        self.background, self.things, self.count = on_device("background"), on_device("things"), on_device("count")
        self.sprites = Sprites(torch.from_numpy(load_sprites(settings)).to(settings.device))
        self.size = settings.size

    def __len__(self) -> int:
        return len(self.background)

    def draw(self, first: int, last: int) -> torch.Tensor:
        """Images [last - first, 3, size, size] in -1..1."""
        rows = slice(first, last)
        return render(self.sprites, self.background[rows], self.things[rows], self.count[rows], self.size)

    def draw_bytes(self, count: int) -> torch.Tensor:
        """The first `count` images, [count, 3, size, size] u8."""
        return torch.cat([to_bytes(self.draw(first, min(count, first + 256))) for first in range(0, count, 256)])


def channels_last(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def load_vae(settings: Settings) -> AutoencoderKLFlux2:
    vae = make_vae(settings)
    load(left(settings, "vae.safetensors"), {"vae": vae}, settings.device)
    return vae.eval()


@torch.no_grad()
def encode_scenes(settings: Settings, vae: AutoencoderKLFlux2, scenes: SceneSet) -> torch.Tensor:
    """Normalised latents of all scenes, [scenes, tokens, channels] bf16."""
    latents = torch.empty(len(scenes), settings.latent_side**2, 4 * settings.latent_channels, dtype=torch.bfloat16, device=settings.device)
    encode_batch = torch.compile(encode_image, dynamic=False) if settings.compile else encode_image
    mean, scale = vae.bn.running_mean, latent_scale(vae)
    for first in range(0, len(scenes), ENCODED_AT_ONCE):
        last = min(len(scenes), first + ENCODED_AT_ONCE)
        images = scenes.draw(first, last)
        if last - first < ENCODED_AT_ONCE:  # compiled for one size only
            encoded = encode_image(vae, channels_last(images))
        else:
            encoded = encode_batch(vae, channels_last(images))
        latents[first:last] = ((patchify(encoded) - mean) / scale).to(torch.bfloat16)
    return latents


class Examples:
    """Latents of all scenes and tokens of their captions, on the device."""

    def __init__(self, settings: Settings):
        self.latents = torch.load(left(settings, "latents.pt"), map_location=settings.device)
        arrays = np.load(left(settings, "scenes.npz"))
        self.ids, self.lengths = (torch.from_numpy(arrays[key]).to(settings.device) for key in ("ids", "lengths"))
        tokenizer = load_tokenizer(settings)
        self.padding = tokenizer.token_to_id(PADDING)
        ids, lengths = encode(tokenizer, [""], settings.caption_tokens)
        self.empty_ids, self.empty_length = torch.from_numpy(ids).to(settings.device), int(lengths[0])

    def choose(self, count: int) -> torch.Tensor:
        """Rows of scenes, at random."""
        return torch.randint(len(self.latents), (count,), device=self.latents.device)

    def pad(self, ids: torch.Tensor, length: int) -> torch.Tensor:
        return F.pad(ids, (0, length - ids.shape[1]), value=self.padding) if length > ids.shape[1] else ids

    def captions(self, rows: torch.Tensor, length: int, empty_share: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [rows, length] and lengths [rows]; a share of them, at random, of the empty prompt."""
        ids, lengths = self.ids[rows].long(), self.lengths[rows].long()
        if empty_share:
            empty = torch.rand(len(rows), device=rows.device) < empty_share
            ids = torch.where(empty[:, None], self.empty_ids, ids)
            lengths = torch.where(empty, self.empty_length, lengths)
        return self.pad(ids, length), lengths
