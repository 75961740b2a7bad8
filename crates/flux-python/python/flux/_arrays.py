"""Images and tensors of other libraries."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Protocol, Union

from flux import _flux
from flux._errors import usage

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image
    from numpy.typing import NDArray

    from flux._image import Pixels


class SupportsDLPack(Protocol):
    """A tensor of any library that exports DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


if TYPE_CHECKING:
    ImageLike = Union[str, os.PathLike[str], bytes, Pixels, PIL.Image.Image, NDArray[Any], SupportsDLPack]
    """A path, the bytes of a file, an image of this package or of Pillow, or an array: uint8 or floats from 0 to 1,
    [height, width] or [height, width, 1, 3 or 4]."""
    TensorLike = Union[NDArray[Any], SupportsDLPack]
    """A tensor of floats of numpy, torch, or any library with DLPack."""
else:
    ImageLike = Any
    TensorLike = Any


def array(value: Any) -> NDArray[Any]:
    """Returns a tensor as an array on the host, without a copy if possible."""
    import numpy as np

    if hasattr(value, "detach"):
        # A tensor of torch may need gradients, be on a GPU, or be in bfloat16, which numpy lacks.
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float()
    if isinstance(value, np.ndarray) or hasattr(value, "__array_interface__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def values(value: TensorLike) -> tuple[tuple[int, ...], bytes]:
    """Returns the shape of a tensor, and its values in float32."""
    import numpy as np

    found = np.ascontiguousarray(array(value), dtype=np.float32)
    return found.shape, found.tobytes()


def image_input(image: Any) -> Any:
    """Returns an image as the extension takes it."""
    from flux._image import Pixels

    if isinstance(image, Pixels):
        return _pixels(image.numpy()) if image._picture.is_preview else image._picture
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if hasattr(image, "mode") and hasattr(image, "tobytes"):
        return _of_pillow(image)
    return _of_array(array(image))


def _pixels(pixels: NDArray[np.uint8]) -> tuple[int, int, bytes]:
    height, width, _ = pixels.shape
    return width, height, pixels.tobytes()


def _of_pillow(image: PIL.Image.Image) -> Any:
    if image.mode == "RGB":
        return image.width, image.height, image.tobytes()
    if image.mode not in ("1", "L", "LA", "P", "RGBA", "I;16"):
        return image.width, image.height, image.convert("RGB").tobytes()
    # The file keeps transparency and 16 bits, which are read as those of any PNG.
    file = io.BytesIO()
    image.save(file, "png", compress_level=1)
    return file.getvalue()


def _of_array(pixels: NDArray[Any]) -> Any:
    import numpy as np

    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise usage(
            f"an image has shape {list(pixels.shape)}, expected [height, width, 3]",
            hint="pass one image, with its channels last",
        )
    if np.issubdtype(pixels.dtype, np.floating):
        if not bool(np.isfinite(pixels).all()):
            raise usage("an image has values that are not finite", hint="pass floats from 0 to 1")
        pixels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise usage(f"an image has dtype {pixels.dtype}", hint="pass uint8, or floats from 0 to 1")
    if pixels.shape[2] == 4:
        import PIL.Image

        return _of_pillow(PIL.Image.fromarray(np.ascontiguousarray(pixels), "RGBA"))
    return _pixels(np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))))


def tensor(value: _flux.Tensor) -> NDArray[np.float32]:
    """Returns a tensor of the extension as an array, without a copy."""
    import numpy as np

    return np.asarray(value, dtype=np.float32)
