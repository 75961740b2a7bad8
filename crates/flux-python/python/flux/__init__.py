"""Generate and edit images with FLUX.2-klein and FLUX.3-klein, on NVIDIA GPUs and CPUs.

>>> import flux
>>> engine = flux.Engine()  # the built-in model; flux.Engine("4b") opens a downloaded one
>>> image = engine.generate("a ghost", size=(256, 256), seed=1)
>>> image.save("ghost.png")

Start with `Engine`. Sizes are (width, height) in pixels, arrays of pixels are uint8 [height, width, 3].
"""

from __future__ import annotations

from flux._arrays import ImageLike, TensorLike
from flux._engine import Engine, Stream
from flux._errors import FluxError
from flux._events import Done, Event, Finished, Preview, Progress, Queued, Started
from flux._flux import __version__
from flux._hub import download, info
from flux._image import Features, Image, Pixels
from flux._options import Options
from flux._recipe import Adapter, Recipe

__all__ = [
    "Adapter",
    "Done",
    "Engine",
    "Event",
    "Features",
    "Finished",
    "FluxError",
    "Image",
    "ImageLike",
    "Options",
    "Pixels",
    "Preview",
    "Progress",
    "Queued",
    "Recipe",
    "Started",
    "Stream",
    "TensorLike",
    "__version__",
    "download",
    "info",
]
