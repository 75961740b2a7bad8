"""The emoji that the model knows, read from concepts.txt.

A line: LABEL[=NAME][~PLURAL][|OTHER NAME]...
LABEL is the emoji's label in emojibase, NAME is its name in captions if that differs, `~-` means no plural, and a `!` before
a name means no article ("fire").
"""

from dataclasses import dataclass
from pathlib import Path

from vocabulary import OWN_COLOR, plural


@dataclass(frozen=True)
class Name:
    words: str
    article: bool


@dataclass(frozen=True)
class Concept:
    label: str
    name: Name
    plural: str | None
    others: tuple[Name, ...]

    @property
    def tintable(self) -> bool:
        return self.name.article and not OWN_COLOR & set(self.name.words.split())


def parse_name(text: str) -> Name:
    return Name(text.removeprefix("!").lower(), not text.startswith("!"))


def parse_line(line: str) -> Concept:
    first, *others = line.split("|")
    first, _, several = first.partition("~")
    label, _, name = first.partition("=")
    name = parse_name(name or label)
    several = several or plural(name.words)
    return Concept(label, name, several.lower() if name.article and several != "-" else None, tuple(map(parse_name, others)))


def read_concepts(count: int = 0) -> list[Concept]:
    """The first `count` (0: all) and always the last, which represents unknown words. Errors if two share a name."""
    lines = Path(__file__).with_name("concepts.txt").read_text().splitlines()
    concepts = [parse_line(line) for line in lines if line and not line.startswith("#")]
    names = [concept.name.words for concept in concepts]
    if len(set(names)) < len(names):
        raise ValueError(f"concepts.txt: duplicate names: {sorted({name for name in names if names.count(name) > 1})}")
    taken = set(names)
    concepts = [
        Concept(c.label, c.name, c.plural, tuple(other for other in c.others if other.words == c.name.words or other.words not in taken))
        for c in concepts
    ]
    return concepts[: count - 1] + concepts[-1:] if count else concepts
