"""Writes the expected prompts of templates: python3 scripts/dump_expansions.py tests/expand

An implementation of the definition in docs/prompts.md that shares no code with flux.
"""

import json
import pathlib
import re
import struct
import sys

FOLDER = pathlib.Path(sys.argv[1])

TEMPLATES = [
    "a {red|blue} heart",
    "{a|b|c|d|e|f|g|h}",
    "{0.25::rare|common}",
    "{10::ten|1::one|0::never}",
    "{2$$a|b|c}",
    "{1-3$$ and $$red|green|blue|black}",
    "{0-1$$, maybe a hat}",
    "{3$$|$$x|y|z}",
    "{2$$$$5::a|b|0.1::c}",
    "{a {small|{tiny|huge}} cat|{two|three} dogs} in {rain|snow}",
    "a __color__ star",
    "__animal__ and __animal__, {__color__|no colour}",
    "{2$$__color__}",
    "{1-2$$ + $$__animal__}",
    "in __place/city-1__, {morning|noon|night}",
    "\\{a|b\\} {c\\|d|e\\}f} \\__color__ back\\slash",
    "{a} { b } {} {{x|y}} {\"not\": json",
    'A cat <cat_1> [{"id": "cat_1", "bbox": [1,2,3,4], "desc": "{a|b}"}] {red|blue}',
    '{"subject": "a __color__ cat", "n": 1} {one|two}',
    "{ spaces | around | options }, {|empty}",
]
SEEDS = [0, 7, 2**32 + 5]


def chacha8(seed, stream):
    """Yields the outputs of 64 bits."""

    def rotated(x, n):
        return (x << n | x >> (32 - n)) & 0xFFFFFFFF

    counter = 0
    while True:
        key = list(struct.unpack("<8I", struct.pack("<Q", seed) + bytes(24)))
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key]
        start += [counter & 0xFFFFFFFF, counter >> 32, stream & 0xFFFFFFFF, stream >> 32]
        s = list(start)
        for _ in range(4):
            for a, b, c, d in [
                (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
            ]:
                for x, y, z, n in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)]:
                    s[x] = (s[x] + s[y]) & 0xFFFFFFFF
                    s[z] = rotated(s[z] ^ s[x], n)
        words = [(x + y) & 0xFFFFFFFF for x, y in zip(s, start)]
        for low, high in zip(words[::2], words[1::2]):
            yield high << 32 | low
        counter += 1


def end_of_brace(text, start):
    """Returns the index of the brace that closes the one at start, or None; and the bars between its options."""
    depth, at, bars = 0, start, []
    while at < len(text):
        c = text[at]
        if c == "\\" and text[at + 1 : at + 2] in list("{}|_"):
            at += 1
        elif c == "{":
            length = json_length(text, at)
            if length is not None:
                at += length - 1
            else:
                depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                return at, bars
        elif c == "|" and depth == 1:
            bars.append(at)
        at += 1
    return None, bars


def json_length(text, start):
    """Returns the length of what stays as it is because a quote or a brace follows the brace."""
    if text[start + 1 :].lstrip()[:1] not in ('"', "}"):
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[1] - start
    except ValueError:
        return 1


def weighted(text):
    text = text.strip()
    found = re.match(r"([0-9.]+)\s*::\s*", text)
    return (float(found[1]), text[found.end() :]) if found else (1.0, text)


def lines(name):
    text = (FOLDER / "wildcards" / f"{name}.txt").read_text(encoding="utf-8")
    kept = (line.strip() for line in text.splitlines())
    return [weighted(line) for line in kept if line and not line.startswith("#")]


def picked(options, least, most, random):
    options = [option for option in options if option[0] > 0]
    most = min(most, len(options))
    count = least if least >= most else least + int(random() * (most - least + 1))
    chosen = []
    for _ in range(count):
        point = random() * running(options)[-1]
        place = next(i for i, total in enumerate(running(options)) if point < total)
        chosen.append(options.pop(place)[1])
    return chosen


def running(options):
    total, totals = 0.0, []
    for weight, _ in options:
        total += weight
        totals.append(total)
    return totals


def expand(text, stream_of):
    """Expands a text; stream_of() returns the random numbers of the next choice."""
    out, at = "", 0
    while at < len(text):
        rest = text[at:]
        wildcard = re.match(r"__(\w(?:(?!__)[\w\-./])*)__", rest)
        if rest[0] == "\\" and rest[1:2] in list("{}|_"):
            out, at = out + rest[1], at + 2
        elif wildcard:
            random = stream_of()
            for chosen in picked(lines(wildcard[1]), 1, 1, random):
                out += expand(chosen, lambda: random)
            at += wildcard.end()
        elif rest[0] == "{":
            length = json_length(text, at)
            end, bars = end_of_brace(text, at)
            head = re.match(r"\{ *(\d+)(?: *- *(\d+))? *\$\$", rest)
            if length is not None:
                out, at = out + rest[:length], at + length
            elif not bars and not head:
                out, at = out + "{", at + 1
            else:
                least, most, separator, start = 1, 1, ", ", at + 1
                if head:
                    least, most = int(head[1]), int(head[2] or head[1])
                    start = at + head.end()
                    own = re.match(r"((?:[^{}$|]|(?<=\$\$)\s*\|\s*(?=\$\$))*)\$\$", text[start:])
                    own = own or re.match(r"(\s*\|\s*)\$\$", text[start:])
                    if own:
                        separator, start = own[1], start + own.end()
                edges = [start - 1] + [bar for bar in bars if bar >= start] + [end]
                options = [weighted(text[a + 1 : b]) for a, b in zip(edges, edges[1:])]
                only = re.fullmatch(r"__(\w[\w\-./]*)__", options[0][1]) if len(options) == 1 else None
                if only:
                    options = lines(only[1])
                random = stream_of()
                out += separator.join(expand(chosen, lambda: random) for chosen in picked(options, least, most, random))
                at = end + 1
        else:
            out, at = out + rest[0], at + 1
    return out


def prompt(template, seed):
    streams = iter(range(2**63, 2**64))

    def stream_of():
        numbers = chacha8(seed, next(streams))
        return lambda: (next(numbers) >> 11) / 2**53

    return expand(template, stream_of)


rows = [[template, seed, prompt(template, seed)] for template in TEMPLATES for seed in SEEDS]
text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
(FOLDER / "expected.json").write_text(text, encoding="utf-8")
