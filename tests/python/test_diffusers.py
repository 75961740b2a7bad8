"""The class of `flux.diffusers` compared with images of diffusers' `Flux2KleinPipeline` in float32."""

import importlib
import inspect
import json
import sys
from pathlib import Path

import flux
import numpy as np
import PIL.Image
import pytest
import torch_noise
from flux.diffusers import Flux2KleinPipeline

GOLDEN = Path(__file__).parents[1] / "golden/default-model"
INDEX = json.loads((GOLDEN / "index.json").read_text())["images"]


@pytest.fixture(scope="module")
def pipe(engine):
    return Flux2KleinPipeline(engine)


@pytest.mark.parametrize("golden", INDEX[:4] + [image for image in INDEX if image.get("references")][:2], ids=str)
def test_same_seeds_give_the_same_images_to_1_of_255(pipe, golden):
    references = [PIL.Image.open(GOLDEN / name).convert("RGB") for name in golden.get("references", [])]
    image = pipe(
        image=references or None,
        prompt=golden["prompt"],
        width=golden["width"],
        height=golden["height"],
        num_inference_steps=golden["steps"],
        generator=golden["seed"],
    ).images[0]
    expected = np.asarray(PIL.Image.open(GOLDEN / golden["file"]).convert("RGB")).astype(int)
    assert np.abs(np.asarray(image) - expected).max() <= 1


@pytest.fixture
def torch(monkeypatch):
    try:
        return importlib.import_module("torch")
    except ImportError:
        monkeypatch.setitem(sys.modules, "torch", torch_noise)
        return torch_noise


def test_generators_of_torch_are_read_as_diffusers_reads_them(pipe, torch):
    size = {"height": 64, "width": 64, "num_inference_steps": 2}

    def generator():
        return torch.Generator("cpu").manual_seed(5)

    one = np.asarray(pipe(prompt="a cat", generator=generator(), **size).images[0]).astype(int)
    assert (one == np.asarray(pipe(prompt="a cat", generator=5, **size).images[0])).all()
    shared = generator()
    pair = [np.asarray(pipe(prompt="a cat", generator=shared, **size).images[0]).astype(int) for _ in range(2)]
    assert (pair[0] == one).all() and (pair[1] != one).any(), "the second image continues the stream"
    two = pipe(prompt="a cat", num_images_per_prompt=2, generator=generator(), **size).images
    assert np.abs(np.asarray(two[0]).astype(int) - one).max() <= 1
    each = pipe(prompt=["a cat", "a cat"], generator=[generator(), generator()], **size).images
    assert np.abs(np.asarray(each[1]).astype(int) - one).max() <= 1


def test_callbacks_and_outputs(pipe):
    size = {"height": 64, "width": 64, "num_inference_steps": 3, "generator": 5}
    calls = []
    result = pipe(prompt="a cat", callback_on_step_end=lambda *given: calls.append(given), **size)
    assert [step for _, step, _, _ in calls] == [0, 1, 2] and calls[0][0] is pipe
    times = [time for _, _, time, _ in calls]
    assert times[0] == 1000 and times == sorted(times, reverse=True)
    [floats] = pipe(prompt="a cat", output_type="np", return_dict=False, **size)
    assert (np.rint(floats[0] * 255) == np.asarray(result.images[0])).all()

    def stop(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipe(prompt="a cat", callback_on_step_end=stop, **{**size, "num_inference_steps": 1000})
    for wrong in ({"output_type": "latent"}, {"attention_kwargs": {"scale": 1}}, {"text_encoder_out_layers": (1,)}):
        with pytest.raises(flux.FluxError):
            pipe(prompt="a cat", **{**size, **wrong})


def test_the_call_has_the_arguments_of_diffusers():
    names = (
        "image prompt height width num_inference_steps sigmas guidance_scale num_images_per_prompt generator latents "
        "prompt_embeds negative_prompt_embeds output_type return_dict attention_kwargs callback_on_step_end "
        "callback_on_step_end_tensor_inputs max_sequence_length text_encoder_out_layers"
    )
    assert list(inspect.signature(Flux2KleinPipeline.__call__).parameters)[1:] == names.split()


def test_a_pipeline_opens_late(tmp_path):
    pipe = Flux2KleinPipeline.from_pretrained(None, torch_dtype="torch.float32").to("cpu")
    image = pipe(prompt="a cat", height=32, width=32, num_inference_steps=1).images[0]
    assert image.size == (32, 32)
    with pytest.raises(flux.FluxError):
        pipe.to("cuda")
    pipe.engine.close()
    with pytest.raises(flux.FluxError, match="model"):
        Flux2KleinPipeline.from_pretrained(tmp_path / "none")(prompt="x")
