"""Previews in notebooks."""

from __future__ import annotations

import base64
import html
import importlib
from collections.abc import Iterable

from flux._events import Done, Event, Preview, Progress
from flux._image import Pixels

# The longest side of a preview on the page, in pixels.
SIDE = 512


def show(events: Iterable[Event]) -> None:
    """Displays the progress and the preview of each image in one place, which the finished image replaces."""
    display = importlib.import_module("IPython.display")
    shown: dict[int, str] = {}
    status = "waiting"
    handle = display.display(display.HTML(_page(shown, status)), display_id=True)
    for event in events:
        if isinstance(event, Progress):
            status = f"{event.stage} {event.done} of {event.total}" if event.stage == "denoise" else event.stage
        elif isinstance(event, Preview):
            shown[event.index] = _tag(event.image)
            status = f"step {event.step} of {event.steps}"
        elif isinstance(event, Done):
            shown[event.index] = _tag(event.image)
        else:
            continue
        handle.update(display.HTML(_page(shown, status)))
    handle.update(display.HTML(_page(shown, "")))


def _page(shown: dict[int, str], status: str) -> str:
    return "".join(tag for _, tag in sorted(shown.items())) + (f"<p>{html.escape(status)}</p>" if status else "")


def _tag(image: Pixels) -> str:
    width, height = image.size
    scale = max(1.0, SIDE / max(width, height))
    data = base64.b64encode(image.encode()).decode()
    size = f'width="{round(width * scale)}" height="{round(height * scale)}"'
    return f'<img {size} src="data:image/png;base64,{data}">'
