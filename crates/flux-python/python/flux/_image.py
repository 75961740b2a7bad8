"""Images in memory."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from flux import _flux
from flux._arrays import tensor
from flux._recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image
    from numpy.typing import NDArray


_log = logging.getLogger("flux")


class Pixels:
    """Pixels: uint8 [height, width, 3], RGB. `numpy.asarray` reads them without a copy."""

    __slots__ = ("__weakref__", "_picture")

    def __init__(self, picture: _flux.Picture) -> None:
        self._picture = picture

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self._picture.size

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.size[0]

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self.size[1]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._picture.__array_interface__

    def numpy(self) -> NDArray[np.uint8]:
        """Returns the pixels as a read-only array, uint8 [height, width, 3], without a copy."""
        import numpy as np

        return np.asarray(self, dtype=np.uint8)

    def pil(self) -> PIL.Image.Image:
        """Returns an image of Pillow, with a copy of the pixels."""
        import PIL.Image

        return PIL.Image.fromarray(self.numpy(), "RGB")

    def encode(self, format: str = "png", *, quality: int | None = None) -> bytes:
        """Returns the bytes of an image file: `png`, `jpeg` or `webp`. The quality of a JPEG is from 1 to 100."""
        return self._picture.encode(format, quality)

    def save(self, path: str | os.PathLike[str], *, quality: int | None = None) -> None:
        """Writes a PNG, JPEG or WebP, by the extension of the path. The file appears only when it is complete."""
        self._picture.save(os.fspath(path), quality)

    def _repr_png_(self) -> bytes:
        return self.encode()


class Image(Pixels):
    """A generated image. Its files have the recipe that reproduces it.

    An edited image is composited over the original.

    Attributes:
        latents: The final latents, float32 [1, channels, height / 16, width / 16], if `return_latents` was passed.
    """

    __slots__ = ("latents",)

    def __init__(self, picture: _flux.Picture, latents: _flux.Tensor | None = None) -> None:
        super().__init__(picture)
        for note in picture.notes():
            _log.warning(note)
        self.latents: NDArray[np.float32] | None = None if latents is None else tensor(latents)

    @property
    def seed(self) -> int:
        """The seed of the noise."""
        seed = self._picture.seed
        assert seed is not None
        return seed

    @property
    def recipe(self) -> Recipe:
        """The recipe with every choice made. Waits for the digests of the model.

        Input images in memory are in its `files`.
        """
        return dataclasses.replace(Recipe.from_json(self.metadata), files=self._picture.files())

    @property
    def metadata(self) -> str:
        """The recipe, the model and the device as JSON, as in the image's files."""
        return self._picture.recipe() or "{}"

    def __repr__(self) -> str:
        return f"<flux.Image {self.width}x{self.height}, seed {self.seed}>"


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Text features of a prompt, for `embeddings`.

    Attributes:
        prompt: float32 [tokens, features].
        negative: Features of the negative prompt, [tokens, features]; `None` without guidance.
    """

    prompt: NDArray[np.float32]
    negative: NDArray[np.float32] | None = None
