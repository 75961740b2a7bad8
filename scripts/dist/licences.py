"""Prints the licences of all that is in the program: of each crate that is linked, and of what it carries. Every text comes
once, with the crates that have it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = "x86_64-unknown-linux-gnu"
NAMES = ("license", "licence", "copying", "notice", "unlicense", "copyright")
CARRIED = {
    "the built-in model": ROOT / "models/tiny/LICENSES.txt",
    "the tokenizer of Qwen3": ROOT / "models/qwen3-tokenizer/LICENSE",
}
"""What the program carries beside its code."""


def linked() -> list[dict]:
    """The packages that the program is linked from, but not itself, by name and version."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--offline", f"--filter-platform={TARGET}"]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    root, seen = graph["resolve"]["root"], set()
    waiting = [root]
    while waiting:
        package = waiting.pop()
        if package not in seen:
            seen.add(package)
            edges = nodes[package]["deps"]
            waiting += [edge["pkg"] for edge in edges if any(kind["kind"] is None for kind in edge["dep_kinds"])]
    packages = [package for package in graph["packages"] if package["id"] in seen - {root}]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts_of(package: dict) -> list[str]:
    """The texts of the licence files of a package."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(NAMES)]
    if package["license_file"]:
        files.append(folder / package["license_file"])
    texts = {path.resolve(): path.read_text(encoding="utf-8", errors="replace").strip() for path in sorted(files)}
    return list(dict.fromkeys(text for text in texts.values() if text))


def main() -> int:
    packages = linked()
    owners: dict[str, tuple[str, list[str]]] = {}
    without = []
    print("flux is linked from these crates:\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see its text'}")
        texts = texts_of(package)
        for text in texts:
            # Texts whose lines end at other places are one.
            owners.setdefault(" ".join(text.split()), (text, []))[1].append(name)
        if not texts:
            without.append(f"{name}: {package['license']}, {package['repository'] or 'no address'}")
    if without:
        print("\nThese have no licence file in their packages; the texts of their licences are among those below:\n")
        print("\n".join(f"  {line}" for line in without))
    for name, path in CARRIED.items():
        text = path.read_text(encoding="utf-8").strip()
        owners.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    for text, names in owners.values():
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'-' * 80}\n{text}")
    return 0 if packages else 1


if __name__ == "__main__":
    sys.exit(main())
