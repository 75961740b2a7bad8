"""Phase `data`: sprites, concepts and tokenizer in one archive. Phase `scenes`: the scenes for training, and the tokens of their texts."""

import dataclasses
import json
import multiprocessing
import zipfile
from random import Random

import numpy as np
from tokenizers import Tokenizer

from concepts import Concept, Name, read_concepts
from edits import TRAINED, Edits
from layouts import MAX_IMAGES, Layout, draw_layout
from report import left, log, phase
from scenes import Scene, Scenes, as_arrays
from settings import Settings
from sprites import Emoji, install_packages, premultiplied, shape_sprites
from tokens import encode, train_tokenizer

CHUNK = 2000  # number of examples per seed


def archive(settings: Settings) -> zipfile.ZipFile:
    return zipfile.ZipFile(left(settings, "data.zip"))


def load_tokenizer(settings: Settings) -> Tokenizer:
    return Tokenizer.from_str(archive(settings).read("tokenizer.json").decode())


def load_concepts(settings: Settings) -> list[Concept]:
    as_name = lambda fields: Name(**fields)  # noqa: E731
    return [
        Concept(c["label"], as_name(c["name"]), c["plural"], tuple(map(as_name, c["others"])))
        for c in json.loads(archive(settings).read("concepts.json"))
    ]


def load_sprites(settings: Settings) -> np.ndarray:
    """[shapes + 2 * concepts, 4, 256, 256] u8, premultiplied: the shapes, then every concept in 3D and flat."""
    packed = archive(settings)
    names = sorted(name for name in packed.namelist() if name.startswith("sprites/"))
    return np.concatenate([shape_sprites(), np.stack([premultiplied(packed.read(name)) for name in names])])


@phase
def data(settings: Settings) -> None:
    concepts = read_concepts(settings.concepts)
    emoji = Emoji(install_packages(settings.work / "npm"))
    tokenizer = train_tokenizer(concepts, settings.vocabulary, min(60_000, 4 * settings.scenes))
    unfinished = settings.work / "data.zip.part"
    with zipfile.ZipFile(unfinished, "w") as packed:
        for i, concept in enumerate(concepts):
            packed.writestr(f"sprites/{i:04}-0.webp", emoji.solid(concept))
            packed.writestr(f"sprites/{i:04}-1.webp", emoji.flat(concept))
        described = [dataclasses.asdict(concept) | {"emoji": emoji.character(concept)} for concept in concepts]
        packed.writestr("concepts.json", json.dumps(described, ensure_ascii=False), zipfile.ZIP_DEFLATED)
        packed.writestr("tokenizer.json", tokenizer.to_str(), zipfile.ZIP_DEFLATED)
    unfinished.rename(settings.work / "data.zip")
    log(f"{len(concepts)} concepts, {tokenizer.get_vocab_size()} tokens, {(settings.work / 'data.zip').stat().st_size / 2**20:.1f} MiB")


def replace_tokenizer(settings: Settings, text: str) -> None:
    """Replaces tokenizer.json in the archive by the one of trained weights."""
    unfinished = settings.work / "data.zip.part"
    with archive(settings) as old, zipfile.ZipFile(unfinished, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, text if entry.filename == "tokenizer.json" else old.read(entry), entry.compress_type)
    unfinished.rename(settings.work / "data.zip")


@dataclasses.dataclass
class Example:
    """The scenes of an image stream, the one to generate first, and its caption or instruction."""

    layout: Layout
    scenes: list[Scene]
    text: str


def draw_text(settings: Settings, rng: Random, scenes: Scenes) -> Example:
    scene = scenes.draw(rng)
    return Example(draw_layout(settings, 0, rng), [scene], scene.caption)


def draw_edit(settings: Settings, rng: Random, edits: Edits) -> Example:
    edit = edits.draw(rng)
    return Example(draw_layout(settings, len(edit.references), rng), [edit.expected, *edit.references], edit.instruction)


def stream_arrays(examples: list[Example]) -> dict[str, np.ndarray]:
    """Returns `as_arrays` of all scenes with an axis for the image in the stream, [examples, 3, ..], and sizes [examples, 3, 2] u8.
    Missing scenes are empty, with a size of 0."""
    nothing = Scene("nothing", "white", [], "")
    flat = as_arrays([scene for e in examples for scene in e.scenes + [nothing] * (MAX_IMAGES - len(e.scenes))])
    sizes = np.zeros((len(examples), MAX_IMAGES, 2), np.uint8)
    for i, example in enumerate(examples):
        sizes[i, : len(example.scenes)] = example.layout.sizes
    return {"sizes": sizes} | {key: value.reshape(-1, MAX_IMAGES, *value.shape[1:]) for key, value in flat.items()}


def draw_chunk(job: tuple[Settings, list[Concept], int, int, int]) -> tuple[dict, list[str]]:
    settings, concepts, seed, texts, edits = job
    rng, scenes, changes = Random(seed), Scenes(concepts), Edits(concepts, shares=TRAINED)
    drawn = [draw_text(settings, rng, scenes) for _ in range(texts)] + [draw_edit(settings, rng, changes) for _ in range(edits)]
    return stream_arrays(drawn), [example.text for example in drawn]


def by_stream(sizes: np.ndarray) -> np.ndarray:
    """Returns the order of examples, grouped by stream length, and within that by layout."""
    keys = [sizes[:, i, axis] for i in reversed(range(MAX_IMAGES)) for axis in (1, 0)]
    return np.lexsort((*keys, stream_lengths(sizes)))


def stream_lengths(sizes: np.ndarray) -> np.ndarray:
    return sizes.astype(int).prod(2).sum(1)


@phase
def scenes(settings: Settings) -> None:
    concepts, tokenizer = load_concepts(settings), load_tokenizer(settings)
    chunks = -(-(settings.scenes + settings.edits) // CHUNK)
    jobs = [(settings, concepts, 1000 + i, -(-settings.scenes // chunks), -(-settings.edits // chunks)) for i in range(chunks)]
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        drawn = pool.map(draw_chunk, jobs, chunksize=1)
    arrays = {key: np.concatenate([arrays[key] for arrays, _ in drawn]) for key in drawn[0][0]}
    ids, lengths = encode(tokenizer, [text for _, texts in drawn for text in texts], settings.caption_tokens)
    arrays |= {"ids": ids.astype(np.int16), "lengths": lengths.astype(np.int16)}
    order = by_stream(arrays["sizes"])
    unfinished = settings.work / "scenes.part.npz"
    np.savez(unfinished, **{key: value[order] for key, value in arrays.items()})
    unfinished.rename(settings.work / "scenes.npz")
    tokens = stream_lengths(arrays["sizes"]).sum()
    log(f"{len(ids)} examples, texts of {lengths.mean():.1f} tokens, max {lengths.max()}; images of {tokens / 1e6:.1f} M tokens")
