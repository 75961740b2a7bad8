"""A pipeline with the call of diffusers' `Flux2KleinPipeline`, so that a script changes one import.

>>> from flux.diffusers import Flux2KleinPipeline
>>> pipe = Flux2KleinPipeline.from_pretrained("black-forest-labs/FLUX.2-klein-4B")
>>> pipe(prompt="a ghost", generator=torch.Generator("cpu").manual_seed(1), num_inference_steps=4).images[0]

In float32 on the CPU, the same seeds give the same images, to 1 of 255. Noise comes from the passed generator of torch
itself, or for integers from this package's own version of torch's CPU generator.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flux._arrays import array
from flux._engine import Engine, Stream, _Work
from flux._errors import usage
from flux._events import Done, Progress
from flux._image import Image
from flux._options import request

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("flux")

# The default of diffusers, which the model's own number of tokens replaces.
MAX_SEQUENCE_LENGTH = 512
OUT_LAYERS = (9, 18, 27)
# The precision for the name of a dtype of torch.
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "auto"}


@dataclasses.dataclass
class Flux2PipelineOutput:
    """The images: of Pillow, or a float32 array [images, height, width, 3] from 0 to 1."""

    images: Any


class Flux2KleinPipeline:
    """A pipeline on an `Engine`, which is opened at the first call.

    Args:
        engine: An open engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._model: str | os.PathLike[str] | None = None
        self._device, self._precision = "auto", "auto"
        self._options: dict[str, Any] = {}

    @classmethod
    def from_pretrained(
        cls, model: str | os.PathLike[str] | None, *, torch_dtype: Any = None, dtype: Any = None, **options: Any
    ) -> Self:
        """Creates a pipeline from a folder, a name that `flux.download` knows, or `None` for the built-in model.

        Without a dtype, the CPU computes in float32 and a GPU in bfloat16. Other options are those of `Engine`.
        """
        pipe = cls.__new__(cls)
        pipe._engine, pipe._model, pipe._options = None, model, options
        pipe._device, pipe._precision = options.pop("device", "auto"), options.pop("precision", "auto")
        return pipe.to(dtype=torch_dtype if dtype is None else dtype)

    def to(self, device: Any = None, dtype: Any = None) -> Self:
        """Sets the device and the dtype, before the first call."""
        if device is not None and not str(device).startswith(("cpu", "cuda")):
            # diffusers takes a dtype in this place, too.
            device, dtype = None, device
        if self._engine is not None and (device is not None or dtype is not None):
            raise usage("the pipeline is already on its devices", "device", "call `to` before the first image")
        if device is not None:
            self._device = str(device)
        if dtype is not None:
            name = str(dtype).removeprefix("torch.")
            if name not in PRECISIONS:
                raise usage(f"`{dtype}` is not supported", "precision", "use float32 or bfloat16")
            self._precision = PRECISIONS[name]
        return self

    @property
    def engine(self) -> Engine:
        """The engine, which this opens if necessary."""
        if self._engine is None:
            device, precision = self._device, self._precision
            self._engine = Engine(self._model, device=device, precision=precision, **self._options)
        return self._engine

    def enable_model_cpu_offload(self, *_: Any, **__: Any) -> None:
        """Does nothing: the engine plans its memory by itself."""

    def set_progress_bar_config(self, **_: Any) -> None:
        """Does nothing: there is no progress bar."""

    def __call__(
        self,
        image: Any = None,
        prompt: str | list[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        sigmas: list[float] | None = None,
        guidance_scale: float = 4.0,
        num_images_per_prompt: int = 1,
        generator: Any = None,
        latents: Any = None,
        prompt_embeds: Any = None,
        negative_prompt_embeds: Any = None,
        output_type: str = "pil",
        return_dict: bool = True,
        attention_kwargs: dict[str, Any] | None = None,
        callback_on_step_end: Callable[[Any, int, Any, dict[str, Any]], Any] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        max_sequence_length: int = MAX_SEQUENCE_LENGTH,
        text_encoder_out_layers: tuple[int, ...] = OUT_LAYERS,
    ) -> Any:
        """Generates images, or edits them with `image`.

        Args:
            generator: A generator of torch, a list of them, a seed, or a list of seeds.
            latents: Noise, [images, channels, height / 16, width / 16].
            callback_on_step_end: Called with the pipeline, the step, its time from 1000 to 0, and no tensors. What it
                returns is ignored. If it raises, the work is cancelled.

        The other arguments are those of diffusers. Those that the engine lacks raise `FluxError`.
        """
        info = self.engine.info()
        self._check(output_type, attention_kwargs, text_encoder_out_layers)
        prompts = [prompt or ""] if prompt is None or isinstance(prompt, str) else list(prompt)
        prompts = [text for text in prompts for _ in range(num_images_per_prompt)]
        options: dict[str, Any] = {"steps": num_inference_steps}
        images = [] if image is None else list(image) if isinstance(image, (list, tuple)) else [image]
        if sigmas is not None:
            options["schedule"] = "sigmas:" + ",".join(str(float(level)) for level in sigmas)
            options["steps"] = len(sigmas)
        if info["variant"] == "base":
            options["guidance"] = guidance_scale
        if max_sequence_length != MAX_SEQUENCE_LENGTH:
            options["max_sequence_length"] = max_sequence_length
        if prompt_embeds is not None:
            options["embeddings"] = _features(prompt_embeds, negative_prompt_embeds)
        # A size that is left out is that of the first image, as in diffusers, or that of the model.
        planned = {**options, "width": width, "height": height}
        if not images:
            planned = {**options, "width": width or info["size"][0], "height": height or info["size"][1]}
        plan = json.loads(self.engine._engine.plan(request(prompts[0], images, planned)))
        options = {**planned, **self._start(generator, latents, len(prompts), info["channels"], plan)}
        made = self.engine._work(prompts if len(prompts) > 1 else prompts[0], images, None, True, options)
        done = self._generate(made, plan["timesteps"], callback_on_step_end)
        result = [each.pil() for each in done] if output_type == "pil" else _floats(done)
        return Flux2PipelineOutput(result) if return_dict else (result,)

    @staticmethod
    def _check(output_type: str, attention_kwargs: Any, layers: Any) -> None:
        if output_type not in ("pil", "np"):
            raise usage(f"`output_type={output_type!r}` is not supported", "output_type", "use `pil` or `np`")
        if attention_kwargs:
            raise usage("`attention_kwargs` is not supported", "attention_kwargs", "pass adapters to `Engine.generate`")
        if tuple(layers) != OUT_LAYERS:
            raise usage("other `text_encoder_out_layers` are not supported", "text_encoder_out_layers")

    def _start(
        self, generator: Any, latents: Any, count: int, channels: int, plan: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns the seed, or the noise of all images."""
        if latents is not None:
            return {"noise": latents}
        each = list(generator) if isinstance(generator, (list, tuple)) else [generator]
        if isinstance(generator, (list, tuple)) and len(each) != count:
            raise usage(f"{len(each)} generators were passed for {count} images", "seed", "pass one for each image")
        if each == [None]:
            return {}
        if len(each) == 1 and isinstance(each[0], int):
            return {"seed": each[0]}
        shape = (channels, plan["height"] // 16, plan["width"] // 16)
        return self._noise(each, count, shape)

    def _noise(self, generators: list[Any], count: int, shape: tuple[int, int, int]) -> dict[str, Any]:
        import importlib

        import numpy as np

        torch = importlib.import_module("torch")
        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float32
        if all(isinstance(each, int) for each in generators):
            generators = [torch.Generator("cpu").manual_seed(each) for each in generators]
        fresh = torch.Generator(generators[0].device).manual_seed(generators[0].initial_seed())
        is_fresh = bool(torch.equal(fresh.get_state(), generators[0].get_state()))
        images = count // len(generators)

        def draw(each: Any) -> Any:
            return array(torch.randn((images, *shape), generator=each, device=each.device, dtype=dtype))

        noise = np.concatenate([draw(each) for each in generators])
        if count == 1 and is_fresh and generators[0].device.type == "cpu" and dtype is torch.float32:
            # The recipe of the image then has the seed.
            return {"seed": generators[0].initial_seed()}
        return {"noise": noise}

    def _generate(self, made: _Work, timesteps: list[float], callback: Any) -> list[Image]:
        if callback is None:
            return made.images()
        images, called = {}, 0
        with Stream(self.engine._engine, made.requests[0]) as events:
            for event in events:
                if isinstance(event, Progress) and event.stage == "denoise":
                    while called < min(event.done, len(timesteps)):
                        callback(self, called, timesteps[called], {})
                        called += 1
                elif isinstance(event, Done):
                    images[event.index] = event.image
        return [images[index] for index in sorted(images)]


def _features(prompt: Any, negative: Any) -> Any:
    from flux._image import Features

    return Features(array(prompt), None if negative is None else array(negative))


def _floats(images: list[Image]) -> Any:
    import numpy as np

    return np.stack([image.numpy() for image in images]).astype(np.float32) / 255
