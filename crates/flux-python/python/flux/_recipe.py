"""Recipes: how to generate an image, as data."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flux import _flux
from flux._errors import usage

if TYPE_CHECKING:
    from flux._image import Image


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter (LoRA): a file, a PEFT folder, or a name as `flux.download` takes it.

    A strength of 1 is that of its training. `blocks` multiplies it by block of the transformer, as in
    `single=0.5,double0-2=0`.
    """

    file: str
    strength: float = 1.0
    blocks: str = ""

    def fields(self) -> dict[str, Any]:
        """Returns the adapter as in the JSON of a recipe."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != ""}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that reproduces an image with one model. The model chooses fields that are `None`.

    Recipes can be pickled, compared, and changed with `dataclasses.replace`.

    Attributes:
        prompt: The prompt.
        template: The template that the prompt was expanded from.
        boxes: Places of objects in thousandths of the image, for FLUX.3: `{"id", "bbox": [top, left, bottom, right],
            "desc"}`.
        regions: Texts for parts of the image, for FLUX.2: `{"box": [top, left, bottom, right], "prompt"}` in
            thousandths of the image, or `{"mask": FILE, "prompt"}`.
        controls: Inputs that show a property of the result: `{"kind": "depth", "input": 0}`, counted from 0; `"make"`
            is true if the model sees the edges in the input.
        upsampled: The request from which a language model wrote the prompt.
        negative: The negative prompt, for models with guidance.
        width: Width in pixels, a multiple of 16.
        height: Height in pixels, a multiple of 16.
        steps: Denoising steps.
        seed: Seed of the noise.
        variation: Image of another seed that is varied, and the distance from it: `42:0.2`.
        variety: Noise on the text features of the first steps: `X:PERCENT:UNTIL`.
        guidance: Guidance scale, the strength of the prompt.
        schedule: Noise levels: `flow`, `linear`, `power:A` or `sigmas:1,0.8,..`.
        rng: Generator of the noise: `torch` (the default) or `portable`.
        max_sequence_length: Number of tokens that prompts are truncated or padded to.
        inputs: Files of the reference images. With a mask, a strength or an extension, the first one is edited.
        input_weights: Strength of each input as a reference, from 0 to 2.
        resize: Size of the first input before it is edited: `512`, `512x`, `x512` or `512x384` pixels.
        mask: File of the mask, white in the area to regenerate.
        strength: Strength of the change to the first input, from 0 to 1.
        extend: Growth of the first input in pixels: `left`, `top`, `right`, `bottom`.
        mask_padding: Pixels around the mask that the model sees.
        feather: Pixels over which the generated area fades.
        no_composite: True if the result is not composited over the first input.
        full_size: True if a result without a mask is scaled to the size of the first input.
        no_self_reference: True if the image to edit is not a reference as well.
        sparse: True if steps after the first compute only the masked area.
        transparent: How to remove the background: `edit`, `key`, or False.
        noise: File of noise in place of the seed's noise.
        latents: File of latents to begin with.
        embeddings: File of text features in place of a prompt.
        adapters: Adapters of the transformer.
        tile: Side in pixels of the tiles of a large image; 0 is without tiles.
        tile_overlap: Pixels that two neighbouring tiles share.
        hires: Second pass at a larger size: a factor, `1024x1024`, or `by` or `size` with `upscaler`, `strength`, `steps`,
            `prompt` and `no_reference`.
        place: Index of the image among the images of its files of noise or latents, and their number.
        files: Files in memory by their names in the recipe. They are not compared.
    """

    prompt: str = ""
    _: dataclasses.KW_ONLY
    template: str | None = None
    boxes: tuple[Mapping[str, Any], ...] = ()
    regions: tuple[Mapping[str, Any], ...] = ()
    controls: tuple[Mapping[str, Any], ...] = ()
    upsampled: Mapping[str, Any] | None = None
    negative: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    seed: int = 0
    variation: str | None = None
    variety: str | float | None = None
    guidance: float | None = None
    schedule: str | None = None
    rng: str | None = None
    max_sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    input_weights: tuple[float, ...] = ()
    resize: str | None = None
    mask: str | None = None
    strength: float | None = None
    extend: Mapping[str, int] | None = None
    mask_padding: int | None = None
    feather: int = 0
    no_composite: bool = False
    full_size: bool = False
    no_self_reference: bool = False
    sparse: bool = False
    transparent: bool | str = False
    noise: str | None = None
    latents: str | None = None
    embeddings: str | None = None
    adapters: tuple[Adapter, ...] = ()
    tile: int | None = None
    tile_overlap: int | None = None
    hires: Mapping[str, Any] | float | str | None = None
    place: tuple[int, int] | None = None
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_image(cls, image: str | os.PathLike[str] | bytes | Image) -> Recipe:
        """Reads the recipe in an image file of flux: a path, or the bytes of the file.

        Input images that the file embeds are in `files`. Raises `FluxError` if the image has no recipe.
        """
        from flux._image import Image

        if isinstance(image, Image):
            return image.recipe
        if isinstance(image, (str, os.PathLike)):
            image = Path(image).read_bytes()
        text, files = _flux.recipe_in(image)
        return dataclasses.replace(cls.from_json(text), files=files)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Reads a recipe: the JSON of a recipe, or of `flux info --json IMAGE`.

        Raises `FluxError` if it is not one.
        """
        try:
            fields = json.loads(text)
            place = fields.get("of")
            if "recipe" in fields:
                fields = fields["recipe"]
                if place:
                    fields["place"] = (place["place"], place["count"])
            fields["adapters"] = tuple(Adapter(**adapter) for adapter in fields.get("adapters", ()))
            for name in ("inputs", "boxes", "regions", "controls", "input_weights"):
                fields[name] = tuple(fields.get(name, ()))
            return cls(**fields)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise usage(f"the recipe cannot be read: {error}", hint="use the JSON of a recipe") from None

    def to_json(self) -> str:
        """Returns the recipe as JSON, as the command line reads it."""
        return json.dumps(self.fields())

    def fields(self) -> dict[str, Any]:
        """Returns the fields that are not their defaults, and the seed."""
        fields = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_default = value == field.default and field.name != "seed"
            if not is_default and field.name not in ("files", "place"):
                fields[field.name] = value
        if self.adapters:
            fields["adapters"] = [adapter.fields() for adapter in self.adapters]
        return fields
