"""Models by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flux import _flux
from flux._errors import usage


def download(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    verify: bool = False,
    quiet: bool = False,
) -> Path:
    """Downloads a model or an adapter from Hugging Face, or completes it, and returns its path.

    Args:
        name: A short name such as `4b`, `owner/name`, or `owner/name:FILE`.
        folder: A plain folder in place of the cache that other tools share.
        revision: A branch, tag or commit.
        verify: True to compute the checksums of existing files again.
        quiet: True to print no progress on stderr.

    Ctrl-C stops the download and keeps the bytes that were received. Raises `FluxError`.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise usage("HF_HUB_OFFLINE forbids network access", hint="unset it to download")
    return Path(_flux.download(name, None if folder is None else os.fspath(folder), revision, verify, quiet))


def info(model: str | os.PathLike[str] | None = None, *, quantize: str | None = None) -> dict[str, Any]:
    """Returns facts about a model: components, sizes, default steps, memory in bytes.

    Args:
        model: A path or a name; the built-in model by default.
        quantize: The formats to compute the memory for, as in `Engine`.

    The keys are those of `flux info --json`. Raises `FluxError`.
    """
    facts: dict[str, Any] = json.loads(_flux.info(None if model is None else os.fspath(model), quantize))
    return facts
