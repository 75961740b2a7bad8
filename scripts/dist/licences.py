"""Prints the licences of the program: of each linked crate, and of the embedded files. Every text is printed once, with the
crates that use it."""

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
"""The files that the program embeds."""


def linked() -> list[dict]:
    """The linked packages by name and version, without the crates of the project."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--offline", f"--filter-platform={TARGET}"]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    own = {package["id"]: package["name"] for package in graph["packages"] if package["id"] in graph["workspace_members"]}
    waiting, seen = [package for package, name in own.items() if name == "flux-cli"], set()
    while waiting:
        package = waiting.pop()
        if package not in seen:
            seen.add(package)
            edges = nodes[package]["deps"]
            waiting += [edge["pkg"] for edge in edges if any(kind["kind"] is None for kind in edge["dep_kinds"])]
    packages = [package for package in graph["packages"] if package["id"] in seen - set(own)]
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
    print("flux is linked with these crates:\n")
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see the text'}")
        texts = texts_of(package)
        for text in texts:
            # Texts that differ only in line breaks are the same.
            owners.setdefault(" ".join(text.split()), (text, []))[1].append(name)
        if not texts:
            without.append(f"{name}: {package['license']}, {package['repository'] or 'no repository'}")
    if without:
        print("\nThese packages have no licence file; the texts of their licences are among those below:\n")
        print("\n".join(f"  {line}" for line in without))
    for name, path in CARRIED.items():
        text = path.read_text(encoding="utf-8").strip()
        owners.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    for text, names in owners.values():
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'-' * 80}\n{text}")
    return 0 if packages else 1


if __name__ == "__main__":
    sys.exit(main())
