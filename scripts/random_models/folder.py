"""What a model folder is made of."""

from dataclasses import dataclass
from typing import NamedTuple

from random_models.tensors import Entry


class Part(NamedTuple):
    """A folder with weights. `stem` is how its files begin."""

    name: str
    stem: str
    entries: list[Entry]
    config: dict


@dataclass(frozen=True)
class Folder:
    """Parts in the order in which they are drawn, other files by their place, and the index.

    A file is JSON, text or bytes.
    """

    parts: list[Part]
    files: dict[str, dict | str | bytes]
    index: tuple[str, dict]
