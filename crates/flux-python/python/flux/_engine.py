"""The engine: a model on its devices."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union, overload

from flux import _flux
from flux._arrays import tensor
from flux._errors import usage
from flux._events import Done, Event, event
from flux._image import Features, Image
from flux._options import Options, of_recipe, request
from flux._recipe import Recipe
from flux._threads import in_thread

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from flux._arrays import ImageLike

    Prompts = Union[list[str], tuple[str, ...]]

_log = logging.getLogger("flux")


class Engine:
    """A model on its devices. Many threads may use an engine, which combines waiting images into batches.

    Args:
        model: A folder, the file of a transformer, or a name such as `4b`; `flux.download` downloads names. The
            built-in model by default, which generates small images of a few kinds of things.
        device: `auto`, `cpu`, `cuda`, `cuda:N`, `cuda:0,1` or `cuda:all`.
        precision: `auto`, `fast`, `native`, `f32`, `bf16`, `fp8`, `int8` or `w4a8`.
        attention: `auto`, `bf16`, `fp8` or `int8`.
        parallel: Number of GPUs that generate an image together, `auto` or `off`.
        quantize: Formats to quantize weights to, such as `q8_0`, or `transformer=q4_k,text=q8_0`.
        gpu_memory: Bytes to use on each GPU.
        text_encoder: Another text encoder than the model's: a file or a folder.
        vae: Another VAE: a file or a folder.
        tokenizer: Another tokenizer: a file or a folder.
        variant: `distilled`, `base` or `kv`, if the files do not say.
        preview_decoder: A file of TAEF2, which decodes previews in place of a linear map.
        adapters: Adapters to open with the model, so that errors in them are reported at once.
        kv: True to compute keys and values of reference images once for all steps.
        threads: Number of CPU threads of the process; only the first engine can set it.

    Opening checks all files. Weights are loaded for the first image. Raises `FluxError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        precision: str = "auto",
        attention: str = "auto",
        parallel: str | int = "auto",
        quantize: str | None = None,
        gpu_memory: int | None = None,
        text_encoder: str | os.PathLike[str] | None = None,
        vae: str | os.PathLike[str] | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        variant: str | None = None,
        preview_decoder: str | os.PathLike[str] | None = None,
        adapters: Sequence[str | os.PathLike[str]] = (),
        kv: bool = False,
        threads: int | None = None,
    ) -> None:
        options = {
            "model": model,
            "device": device,
            "precision": precision,
            "attention": attention,
            "parallel": str(parallel),
            "quantize": quantize,
            "gpu_memory": gpu_memory,
            "text_encoder": text_encoder,
            "vae": vae,
            "tokenizer": tokenizer,
            "variant": variant,
            "preview_decoder": preview_decoder,
            "adapters": list(adapters),
            "caches_references": kv,
            "threads": threads,
        }
        self._engine, notes = _flux.Engine.open(options)
        for note in notes:
            _log.info(note)

    @overload
    def generate(
        self, prompt: str = ..., *, images: Sequence[ImageLike] = ..., count: None = ..., **options: Unpack[Options]
    ) -> Image: ...

    @overload
    def generate(
        self,
        prompt: str = ...,
        *,
        images: Sequence[ImageLike] = ...,
        count: int,
        batch: bool = ...,
        **options: Unpack[Options],
    ) -> list[Image]: ...

    @overload
    def generate(
        self, prompt: Prompts, *, images: Sequence[ImageLike] = ..., batch: bool = ..., **options: Unpack[Options]
    ) -> list[Image]: ...

    def generate(
        self,
        prompt: str | Prompts = "",
        *,
        images: Sequence[ImageLike] = (),
        count: int | None = None,
        batch: bool = True,
        **options: Unpack[Options],
    ) -> Image | list[Image]:
        """Generates an image, or a list of images of several prompts or of `count` seeds, and waits for them.

        The GIL is free meanwhile. Ctrl-C cancels the work within a step.

        Args:
            prompt: The prompt, or a list of prompts, whose seeds count up.
            images: Reference images; see `edit`.
            count: Number of images with consecutive seeds.
            batch: False to generate each image on its own: images in a batch may differ from it by rounding.
            options: See `flux.Options`.

        Raises `FluxError`.
        """
        work = self._work(prompt, images, count, batch, options)
        return work.images() if work.is_list else work.image()

    async def agenerate(
        self,
        prompt: str | Prompts = "",
        *,
        images: Sequence[ImageLike] = (),
        count: int | None = None,
        batch: bool = True,
        **options: Unpack[Options],
    ) -> list[Image]:
        """Generates images as `generate` does, always as a list, without blocking the event loop.

        Cancelling the task cancels the work.
        """
        work = self._work(prompt, images, count, batch, options)
        return await in_thread(work.images, work.cancel)

    def edit(self, prompt: str, images: Sequence[ImageLike], **options: Unpack[Options]) -> Image:
        """Edits an image: the model sees the images as references, and follows the prompt.

        The result has the proportions of the first image. With `mask`, `strength` or `extend`, the first image is
        changed in place. See `flux.Options`. Raises `FluxError`.
        """
        return self.generate(prompt, images=images, **options)

    async def aedit(self, prompt: str, images: Sequence[ImageLike], **options: Unpack[Options]) -> Image:
        """Edits an image as `edit` does, without blocking the event loop."""
        return (await self.agenerate(prompt, images=images, **options))[0]

    def run(self, recipe: Recipe, *, return_latents: bool = False) -> Image:
        """Generates the image of a recipe, such as `Recipe.from_image("x.png")`, and waits for it.

        With the same model, device and version, the image is the same. Raises `FluxError`.
        """
        made = of_recipe(recipe)
        made["keep_latents"] = return_latents
        return _Work(self._engine, [made], is_list=False).image()

    def stream(
        self,
        prompt: str | Prompts = "",
        *,
        images: Sequence[ImageLike] = (),
        count: int | None = None,
        previews: bool = False,
        **options: Unpack[Options],
    ) -> Stream:
        """Returns the events of generating images, for `for` or `async for`.

        The work begins at the first event. Leaving the loop and dropping the stream cancels it. As the last value of
        a notebook's cell, the stream displays the previews and then the images.

        Args:
            prompt: The prompt, or a list of prompts, whose seeds count up.
            images: Reference images; see `edit`.
            count: Number of images with consecutive seeds.
            previews: True for a small image of each step.
            options: See `flux.Options`.
        """
        [made] = self._work(prompt, images, count, True, options).requests
        made["previews"] = previews
        return Stream(self._engine, made)

    def encode(
        self,
        prompt: str,
        *,
        negative: str | None = None,
        guidance: float | None = None,
        max_sequence_length: int | None = None,
    ) -> Features:
        """Returns the text features of a prompt, for `embeddings`. Raises `FluxError`."""
        options = {"negative": negative, "guidance": guidance, "max_sequence_length": max_sequence_length}
        made = request(prompt, (), options)
        made["keep_embeddings"] = True
        flag = _flux.Flag()
        ticket = self._engine.submit(made, flag)
        while (parts := ticket.next_event()) is not None:
            if parts[0] == "features":
                flag.cancel()
                return Features(tensor(parts[1]), None if parts[2] is None else tensor(parts[2]))
        raise usage("the model has no text encoder")

    def devices(self, count: int = 1) -> list[tuple[str, str]]:
        """Returns the devices that generate `count` images, each with the type of its arithmetic."""
        return self._engine.devices(count)

    def memory(self) -> list[tuple[str, int, int | None]]:
        """Returns each device, the bytes that the engine uses, and the bytes that are left, if known."""
        return self._engine.memory()

    def stats(self) -> dict[str, int]:
        """Returns the numbers of images that are `waiting`, `running` and `made`."""
        return dict(zip(("waiting", "running", "made"), self._engine.stats()))

    def info(self) -> dict[str, Any]:
        """Returns the model: `name`, `variant`, `channels` of latents, and default `size` in pixels, `steps` and
        `guidance`."""
        facts: dict[str, Any] = json.loads(self._engine.info())
        return facts

    def close(self) -> None:
        """Cancels all work, and frees the devices."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, prompt: str | Prompts, images: Any, count: int | None, batch: bool, options: Any) -> _Work:
        if isinstance(prompt, str):
            made = request(prompt, images, options)
            made["count"] = 1 if count is None else count
            if batch or made["count"] <= 1:
                return _Work(self._engine, [made], is_list=count is not None or options.get("expand") == "all")
            prompts = [prompt] * made["count"]
        else:
            prompts = list(prompt)
            if count is not None or not prompts:
                raise usage("a list of prompts has one image for each", "count", "leave out `count`")
            if "expand" in options:
                raise usage("a list of prompts is not expanded", "prompt", "leave out `expand`, or pass one prompt")
        seed = options.get("seed")
        seed = secrets.randbits(32) if seed is None else seed
        if batch:
            made = request(prompts[0], images, {**options, "seed": seed})
            made["prompts"] = prompts
            return _Work(self._engine, [made], is_list=True)
        each = [request(text, images, {**options, "seed": seed + place}) for place, text in enumerate(prompts)]
        for made in each:
            made["alone"] = True
        return _Work(self._engine, each, is_list=True)


class _Work:
    """Requests, and the wait for their images."""

    def __init__(self, engine: _flux.Engine, requests: list[dict[str, Any]], *, is_list: bool) -> None:
        self.engine = engine
        self.requests = requests
        self.is_list = is_list
        self.flag = _flux.Flag()

    def cancel(self) -> None:
        self.flag.cancel()

    def image(self) -> Image:
        """Waits for the only image."""
        return self.images()[0]

    def images(self) -> list[Image]:
        """Waits for all images."""
        try:
            tickets = [self.engine.submit(made, self.flag) for made in self.requests]
            return [Image(*made) for ticket in tickets for made in ticket.wait()]
        except BaseException:
            # The others are of no use.
            self.flag.cancel()
            raise


class Stream:
    """The events of a job; see `Engine.stream`. Events before the end of the job are lost if nobody iterates."""

    def __init__(self, engine: _flux.Engine, made: dict[str, Any]) -> None:
        self._engine = engine
        self._request = made
        self._flag = _flux.Flag()
        self._ticket: _flux.Ticket | None = None

    def cancel(self) -> None:
        """Cancels the work: within about a step, the next event raises `FluxError` of the kind `cancelled`."""
        self._flag.cancel()

    def images(self) -> list[Image]:
        """Waits for the end, and returns the images that are not finished yet."""
        return [event.image for event in self if isinstance(event, Done)]

    def _next(self) -> Event | None:
        if self._ticket is None:
            self._ticket = self._engine.submit(self._request, self._flag)
        while (parts := self._ticket.next_event()) is not None:
            found = event(parts)
            if found is not None:
                return found
        return None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        found = self._next()
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        found = await in_thread(self._next, self.cancel)
        if found is None:
            raise StopAsyncIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _ipython_display_(self) -> None:
        from flux._jupyter import show

        show(self)
