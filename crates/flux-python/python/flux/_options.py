"""The options of an image, and the request that they become."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union

from flux._arrays import image_input, values
from flux._errors import usage
from flux._image import Features
from flux._recipe import Adapter, Recipe

if TYPE_CHECKING:
    from flux._arrays import ImageLike, TensorLike

    AdapterLike = Union[str, os.PathLike[str], tuple[Union[str, os.PathLike[str]], float], Adapter]


class Options(TypedDict, total=False):
    """The options of an image. The model chooses omitted options, and a random seed is chosen."""

    size: tuple[int, int]
    """Width and height in pixels, multiples of 16."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""
    seed: int
    """Seed of the noise. Seeds of several images count up."""
    steps: int
    """Denoising steps."""
    guidance: float
    """Guidance scale, the strength of the prompt."""
    negative: str
    """The negative prompt, for models with guidance."""
    schedule: str
    """Noise levels: `flow`, `linear`, `power:A` or `sigmas:1,0.8,..`."""
    rng: str
    """Generator of the noise: `torch` (the default) or `portable`, which is similar at all sizes."""
    max_sequence_length: int
    """Number of tokens that prompts are truncated or padded to."""
    boxes: Sequence[Mapping[str, Any]]
    """Places of objects, for FLUX.3; see `Recipe.boxes`."""
    regions: Sequence[Mapping[str, Any]]
    """Texts for parts of the image, for FLUX.2; see `Recipe.regions`."""
    controls: Sequence[Mapping[str, Any]]
    """Images that show a property of the result; see `Recipe.controls`."""
    variation: str
    """Image of another seed that is varied, and the distance from it: `42:0.2`."""
    transparent: bool | str
    """True to remove the background by comparing two images, or `key` to remove it by its colour."""
    variety: str | float
    """Noise on the text features of the first steps: `0.3` or `X:PERCENT:UNTIL`."""
    input_weights: Sequence[float]
    """Strength of each image as a reference, from 0 to 2."""
    template: str
    """The template that the prompt was expanded from, for the recipe."""
    upsampled: Mapping[str, Any]
    """The request from which a language model wrote the prompt, for the recipe."""
    expand: bool | str
    """True to expand choices and wildcards in the prompt by the seed; `all` for all combinations."""
    wildcards: str | os.PathLike[str]
    """The folder of wildcards."""
    expand_seed: int
    """The seed of the words, in place of the seed of each image."""
    resize: str | int
    """Size of the first image before it is edited: `512` for the longest side, `512x`, `x512` or `512x384`."""
    mask: ImageLike
    """White in the area to regenerate."""
    strength: float
    """Strength of the change to the first image, from 0 to 1."""
    extend: Mapping[str, int]
    """Growth of the first image in pixels: `left`, `top`, `right`, `bottom`."""
    mask_padding: int
    """Pixels around the mask that the model sees."""
    feather: int
    """Pixels over which the generated area fades."""
    no_composite: bool
    """True if the result is not composited over the first image."""
    full_size: bool
    """True if a result without a mask is scaled to the size of the first image."""
    no_self_reference: bool
    """True if the image to edit is not a reference as well."""
    sparse: bool
    """True if steps after the first compute only the masked area."""
    noise: str | os.PathLike[str] | TensorLike
    """Noise in place of the seed's: a file, or floats [images, channels, height / 16, width / 16]."""
    latents: str | os.PathLike[str] | TensorLike
    """Latents to begin with: a file, or floats [images, channels, height / 16, width / 16]."""
    embeddings: str | os.PathLike[str] | Features | TensorLike
    """Text features in place of a prompt: a file, `Features`, or floats [tokens, features]."""
    adapters: Sequence[AdapterLike] | Mapping[str, float]
    """Adapters (LoRA): files or names, each with a strength: `{"owner/name": 0.8}`."""
    tile: int
    """Side in pixels of the tiles of a large image; 0 is without tiles."""
    tile_overlap: int
    """Pixels that two neighbouring tiles share."""
    hires: Mapping[str, Any] | float | str
    """Second pass at a larger size: a factor, `1024x1024`, or a mapping; see `Recipe.hires`."""
    embed_inputs: bool
    """True to embed input images in the files of the image."""
    return_latents: bool
    """True to keep the final latents in `Image.latents`."""


# Options that are not fields of a recipe.
OTHERS = ("size", "expand", "wildcards", "expand_seed", "embed_inputs", "return_latents")


def request(prompt: str, images: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a prompt with its input images and options, as the extension takes it."""
    options = {name: value for name, value in options.items() if value is not None}
    unknown = options.keys() - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"unknown option `{min(unknown)}`; flux.Options lists all")
    fields: dict[str, Any] = {name: options[name] for name in options if name not in OTHERS}
    tensors = {name: fields.pop(name) for name in ("noise", "latents", "embeddings") if name in fields}
    mask = fields.pop("mask", None)
    if "size" in options:
        fields["width"], fields["height"] = _size(options["size"])
    if "resize" in fields:
        fields["resize"] = str(fields["resize"])
    if "adapters" in fields:
        fields["adapters"] = [used.fields() for used in _adapters(fields["adapters"])]
    made = _empty()
    for name, value in tensors.items():
        if isinstance(value, (str, os.PathLike)):
            fields[name] = os.fspath(value)
        elif isinstance(value, Features):
            made["embeddings"] = values(value.prompt)
            made["negative_embeddings"] = None if value.negative is None else values(value.negative)
        else:
            made[name] = values(value)
    made["images"] = [image_input(image) for image in _listed(images)]
    made["mask"] = [] if mask is None else [image_input(mask)]
    made["embed_inputs"] = bool(options.get("embed_inputs", False))
    made["keep_latents"] = bool(options.get("return_latents", False))
    expand = options.get("expand", "wildcards" in options or "expand_seed" in options)
    if expand:
        wildcards = options.get("wildcards")
        folder = None if wildcards is None else os.fspath(wildcards)
        made["expand"] = (folder, options.get("expand_seed"), expand == "all")
    made["recipe"] = _json({"prompt": prompt, **fields})
    return made


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Returns the request of a recipe."""
    made = _empty()
    made["recipe"] = _json(recipe.fields())
    made["files"] = dict(recipe.files)
    made["of"] = recipe.place
    return made


def _empty() -> dict[str, Any]:
    return {
        "recipe": "{}",
        "images": [],
        "mask": [],
        "noise": None,
        "latents": None,
        "embeddings": None,
        "negative_embeddings": None,
        "files": {},
        "prompts": [],
        "count": 1,
        "of": None,
        "expand": None,
        "embed_inputs": False,
        "previews": False,
        "keep_latents": False,
        "keep_embeddings": False,
        "alone": False,
    }


def _json(fields: Mapping[str, Any]) -> str:
    try:
        # Numbers of numpy are numbers, too.
        return json.dumps(fields, allow_nan=False, default=lambda value: value.item())
    except (TypeError, ValueError, AttributeError) as error:
        raise usage(f"an option has a value of the wrong type: {error}", hint="flux.Options has the types") from None


def _size(size: Any) -> tuple[Any, Any]:
    try:
        width, height = size
    except (TypeError, ValueError):
        raise usage(f"`{size}` is not a size", "size", "pass (width, height) in pixels") from None
    return width, height


def _listed(images: Any) -> Sequence[Any]:
    if isinstance(images, (list, tuple)):
        return images
    raise usage("`images` is not a list", "images", "pass a list, as in `images=[image]`")


def _adapters(adapters: Any) -> list[Adapter]:
    if isinstance(adapters, (str, os.PathLike, Adapter)):
        raise usage("`adapters` is not a list", "adapters", 'pass a list, or strengths by name: `{"style": 0.8}`')
    if isinstance(adapters, Mapping):
        adapters = list(adapters.items())

    def adapter(used: Any) -> Adapter:
        if isinstance(used, Adapter):
            return used
        file, strength = (used, 1.0) if isinstance(used, (str, os.PathLike)) else used
        return Adapter(os.fspath(file), float(strength))

    return [adapter(used) for used in adapters]
