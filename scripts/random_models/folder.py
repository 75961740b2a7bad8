"""The parts of a model folder."""

from dataclasses import dataclass
from typing import NamedTuple

from random_models.tensors import Entry


class Part(NamedTuple):
    """A folder with weights. `stem` is the prefix of its files."""

    name: str
    stem: str
    entries: list[Entry]
    config: dict


@dataclass(frozen=True)
class Folder:
    """Parts in the order of generation, other files by path, and the index.

    A file is JSON, text or bytes.
    """

    parts: list[Part]
    files: dict[str, dict | str | bytes]
    index: tuple[str, dict]
