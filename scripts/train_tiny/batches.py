"""The training data: scenes on the device, their images, latents and texts, by the length of the image stream."""

from math import prod
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2

from data import load_sprites, load_tokenizer, stream_lengths
from layouts import Layout, Size, pixels
from models import encode_image, latent_scale, load, make_vae, patchify, timesteps
from render import Sprites, render, to_bytes
from report import left, log
from settings import Settings
from tokens import PADDING, encode

TOKENS_AT_ONCE = 65_536  # images that are rendered and encoded together


class SceneSet:
    """The scenes of scenes.npz on the device, and the sprites to render them. A row has one to three scenes, according to `sizes`."""

    def __init__(self, settings: Settings):
        arrays = np.load(left(settings, "scenes.npz"))
        on_device = lambda key: torch.from_numpy(arrays[key]).to(settings.device)  # noqa: E731
        self.background, self.things, self.count = on_device("background"), on_device("things"), on_device("count")
        self.sizes = arrays["sizes"]
        self.sprites = Sprites(torch.from_numpy(load_sprites(settings)).to(settings.device))
        self.native = (settings.latent_side, settings.latent_side)

    def __len__(self) -> int:
        return len(self.background)

    def draw(self, rows: slice | np.ndarray, size: Size, image: int = 0) -> torch.Tensor:
        """Renders one image of each row, [rows, 3, height, width] in -1..1."""
        rows = torch.from_numpy(rows).to(self.background.device) if isinstance(rows, np.ndarray) else rows
        return render(self.sprites, self.background[rows, image], self.things[rows, image], self.count[rows, image], pixels(size))

    def some(self, count: int, seed: int) -> np.ndarray:
        """Random rows."""
        return np.random.default_rng(seed).choice(len(self), min(count, len(self)), replace=False)

    def draw_bytes(self, rows: np.ndarray, size: Size) -> torch.Tensor:
        """[rows, 3, height, width] u8."""
        return torch.cat([to_bytes(self.draw(part, size)) for part in in_parts(rows, size)])


def in_parts(rows: np.ndarray, size: Size) -> list[np.ndarray]:
    at_once = max(1, TOKENS_AT_ONCE // prod(size))
    return [rows[first : first + at_once] for first in range(0, len(rows), at_once)]


def channels_last(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def load_vae(settings: Settings) -> AutoencoderKLFlux2:
    vae = make_vae(settings)
    load(left(settings, "vae"), {"vae": vae}, settings.device)
    return vae.eval()


def layout_rows(sizes: np.ndarray) -> list[tuple[Layout, int, int]]:
    """Layouts in the order of the rows, each with its range of rows."""
    changes = np.flatnonzero((sizes[1:] != sizes[:-1]).any((1, 2))) + 1
    firsts = [0, *map(int, changes)]
    as_layout = lambda row: Layout(tuple((int(h), int(w)) for h, w in sizes[row] if h))  # noqa: E731
    return [(as_layout(first), first, last) for first, last in zip(firsts, [*firsts[1:], len(sizes)])]


@torch.no_grad()
def encode_rows(vae: AutoencoderKLFlux2, scenes: SceneSet, first: int, last: int) -> torch.Tensor:
    """Normalised latents of the image streams of some rows of one length, [rows, stream, channels] bf16."""
    mean, scale = vae.bn.running_mean, latent_scale(vae)
    length = int(stream_lengths(scenes.sizes[first : first + 1])[0])
    latents = torch.empty(last - first, length, len(mean), dtype=torch.bfloat16, device=mean.device)
    for layout, begin, end in layout_rows(scenes.sizes[first:last]):
        start = 0
        for image, size in enumerate(layout.sizes):
            for rows in in_parts(np.arange(begin, end), size):
                encoded = patchify(encode_image(vae, channels_last(scenes.draw(rows + first, size, image))))
                latents[rows[0] : rows[-1] + 1, start : start + prod(size)] = ((encoded - mean) / scale).to(torch.bfloat16)
            start += prod(size)
    return latents


class Texts:
    """Tokens of all captions and instructions on the device."""

    def __init__(self, settings: Settings):
        arrays = np.load(left(settings, "scenes.npz"))
        self.ids, self.lengths = (torch.from_numpy(arrays[key]).to(settings.device) for key in ("ids", "lengths"))
        tokenizer = load_tokenizer(settings)
        self.padding = tokenizer.token_to_id(PADDING)
        ids, lengths = encode(tokenizer, [""], settings.caption_tokens)
        self.empty_ids, self.empty_length = torch.from_numpy(ids).to(settings.device), int(lengths[0])

    def pad(self, ids: torch.Tensor, length: int) -> torch.Tensor:
        return F.pad(ids, (0, length - ids.shape[1]), value=self.padding) if length > ids.shape[1] else ids

    def of(self, rows: torch.Tensor, length: int, empty_share: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids [rows, length] and lengths [rows]; a random share uses the empty prompt."""
        ids, lengths = self.ids[rows].long(), self.lengths[rows].long()
        if empty_share:
            empty = torch.rand(len(rows), device=rows.device) < empty_share
            ids = torch.where(empty[:, None], self.empty_ids, ids)
            lengths = torch.where(empty, self.empty_length, lengths)
        return self.pad(ids, length), lengths


class Bucket:
    """Examples with image streams of the same length. A CUDA graph reads the bucket's tensors, and `use` fills them with a layout."""

    def __init__(self, settings: Settings, stream: int, first: int, layouts: list[tuple[Layout, int, int]], texts: Texts):
        device = settings.device
        self.stream, self.first, self.texts, self.changed_weight = stream, first, texts, settings.changed_weight
        self.layouts = [(layout, begin - first, end - first) for layout, begin, end in layouts]
        # On the device, so that replays do not wait for the host.
        self.contents = {
            layout: [part.to(device) for part in (layout.ids(), layout.drawn(), layout.opposite(), torch.tensor(timesteps(layout.tokens, settings.steps)))]
            for layout, _, _ in layouts
        }
        self.latents = torch.load(left(settings, "latents") / f"{stream:04}.pt", map_location=device)
        self.begin, self.count = torch.zeros((), dtype=torch.int64, device=device), torch.ones((), device=device)
        self.ids = torch.zeros(stream, 4, dtype=torch.int64, device=device)
        self.drawn = torch.ones(stream, 1, device=device)  # 1 for tokens of the generated image
        self.opposite = torch.zeros(stream, dtype=torch.int64, device=device)  # `Layout.opposite`
        self.times = torch.zeros(settings.steps + 1, device=device)  # the times of the distilled model's steps at this size
        self.use(Random(0), edit=self.weight(edit=False) == 0)

    def weight(self, edit: bool) -> int:
        """The number of examples that are edits, or are not."""
        return sum(end - begin for layout, begin, end in self.layouts if (len(layout.sizes) > 1) == edit)

    def use(self, rng: Random, edit: bool) -> None:
        """Sets the next batches to one layout, with or without references."""
        among = [(layout, begin, end) for layout, begin, end in self.layouts if (len(layout.sizes) > 1) == edit]
        layout, begin, end = rng.choices(among, [end - begin for _, begin, end in among])[0]
        self.begin.fill_(begin)
        self.count.fill_(end - begin)
        for tensor, content in zip((self.ids, self.drawn, self.opposite, self.times), self.contents[layout]):
            tensor.copy_(content)

    def choose(self, batch: int) -> torch.Tensor:
        """Random rows of the bucket."""
        return self.begin + (torch.rand(batch, device=self.count.device) * self.count).long()

    def text(self, rows: torch.Tensor, length: int, empty_share: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        return self.texts.of(self.first + rows, length, empty_share)

    def mean(self, errors: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        """[batch, stream, channels] -> [batch]: the loss over the generated image. `clean`, the latents without noise, shows the tokens that
        an edit changes: those count more."""
        changed = (clean - clean[:, self.opposite]).square().mean(2)
        weights = self.drawn[:, 0] * (1 + self.changed_weight * changed / (changed + 1))
        return (errors.mean(2) * weights).sum(1) / weights.sum(1)


class Buckets:
    """All buckets, sampled in proportion to their number of examples."""

    def __init__(self, settings: Settings):
        self.settings, self.texts = settings, Texts(settings)
        rows = layout_rows(np.load(left(settings, "scenes.npz"))["sizes"])
        self.all = []
        for stream in sorted({layout.stream for layout, _, _ in rows}):
            members = [row for row in rows if row[0].stream == stream]
            self.all.append(Bucket(settings, stream, members[0][1], members, self.texts))
        log("streams of " + ", ".join(f"{bucket.stream} ({len(bucket.latents)})" for bucket in self.all))

    def batch(self, bucket: Bucket, length: int) -> int:
        """The number of examples with this number of text tokens that fill a part of a step."""
        return max(1, self.settings.part_tokens // (bucket.stream + length))

    def draw(self, rng: Random, part: str) -> Bucket:
        """Returns a bucket that is set to a layout for this part of a step."""
        edit = part == "edit"
        bucket = rng.choices(self.all, [bucket.weight(edit) for bucket in self.all])[0]
        bucket.use(rng, edit)
        return bucket
