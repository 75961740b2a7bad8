"""Phase `data`: sprites, concepts and tokenizer in one archive. Phase `scenes`: scenes and their captions' tokens."""

import dataclasses
import json
import multiprocessing
import zipfile
from random import Random

import numpy as np
from tokenizers import Tokenizer

from concepts import Concept, Name, read_concepts
from report import left, log, phase
from scenes import Scene, Scenes, as_arrays
from settings import Settings
from sprites import Emoji, install_packages, premultiplied, shape_sprites
from tokens import encode, train_tokenizer

CHUNK = 2000  # scenes from one seed


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
    tokenizer = train_tokenizer(concepts, settings.vocabulary, min(60_000, settings.scenes))
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


def draw_chunk(job: tuple[list[Concept], int, int]) -> tuple[dict, list[str]]:
    concepts, seed, count = job
    rng, scenes = Random(seed), Scenes(concepts)
    drawn: list[Scene] = [scenes.draw(rng) for _ in range(count)]
    return as_arrays(drawn), [scene.caption for scene in drawn]


@phase
def scenes(settings: Settings) -> None:
    concepts, tokenizer = load_concepts(settings), load_tokenizer(settings)
    chunk = min(CHUNK, settings.scenes)
    jobs = [(concepts, 1000 + i, chunk) for i in range(-(-settings.scenes // chunk))]
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        chunks = pool.map(draw_chunk, jobs, chunksize=1)
    arrays = {key: np.concatenate([arrays[key] for arrays, _ in chunks]) for key in chunks[0][0]}
    ids, lengths = encode(tokenizer, [text for _, texts in chunks for text in texts], settings.caption_tokens)
    unfinished = settings.work / "scenes.part.npz"
    np.savez(unfinished, ids=ids.astype(np.int16), lengths=lengths.astype(np.int16), **arrays)
    unfinished.rename(settings.work / "scenes.npz")
    log(f"{len(ids)} scenes, captions of {lengths.mean():.1f} tokens, at most {lengths.max()}")
