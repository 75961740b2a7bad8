"""The calls of docs/python.md."""

import dataclasses
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import flux
import numpy as np
import PIL.Image
import pytest


def test_an_image_is_an_array_without_a_copy_and_a_file(engine, tmp_path):
    image = engine.generate("a ghost", size=(96, 64), seed=1, steps=2)
    assert (image.size, image.width, image.height, image.seed) == ((96, 64), 96, 64, 1)
    pixels = np.asarray(image)
    assert (pixels.shape, pixels.dtype, pixels.flags.writeable) == ((64, 96, 3), np.uint8, False)
    assert pixels.ctypes.data == image.__array_interface__["data"][0]
    del image
    assert pixels.std() > 0  # the array keeps the image
    image = engine.generate("a ghost", size=(96, 64), seed=1, steps=2)
    assert (np.asarray(image.pil()) == pixels).all()
    image.save(tmp_path / "x.png")
    assert (np.asarray(PIL.Image.open(tmp_path / "x.png")) == pixels).all()
    assert image.encode("jpeg", quality=80)[:2] == b"\xff\xd8" and image.encode("webp")[:4] == b"RIFF"
    assert image._repr_png_() == image.encode()


def test_a_recipe_reproduces_its_image(engine, small, tmp_path):
    image = engine.generate("a ghost", **small)
    image.save(tmp_path / "x.png")
    recipe = flux.Recipe.from_image(tmp_path / "x.png")
    assert recipe == image.recipe == flux.Recipe.from_image(image.encode("webp"))
    assert (recipe.prompt, recipe.width, recipe.steps, recipe.seed) == ("a ghost", 64, 2, 7)
    again = engine.run(recipe)
    assert (again.numpy() == image.numpy()).all()
    other = engine.run(dataclasses.replace(recipe, seed=8))
    assert (other.numpy() != image.numpy()).any()
    assert pickle.loads(pickle.dumps(recipe)) == recipe == flux.Recipe.from_json(recipe.to_json())
    with pytest.raises(flux.FluxError, match="no recipe"):
        file = tmp_path / "y.png"
        PIL.Image.new("RGB", (8, 8)).save(file)
        flux.Recipe.from_image(file)


def test_recipes_have_all_fields_of_the_program(engine):
    with pytest.raises(flux.FluxError) as raised:
        engine._engine.submit({**flux._options._empty(), "recipe": '{"x": 1}'}, flux._flux.Flag())
    known = raised.value.what.split("expected one of ")[1].split(" at line")[0]
    own = {field.name for field in dataclasses.fields(flux.Recipe)} - {"place", "files"}
    aliases = {"negative_prompt", "num_inference_steps", "guidance_scale"}
    assert {name.strip("` ") for name in known.split(",")} - aliases == own
    options = set(flux.Options.__annotations__)
    assert own - {"prompt", "inputs"} <= options, "every field is a keyword"


def test_inputs_of_all_kinds_are_the_same_image(engine, small, tmp_path):
    image = engine.generate("a red circle", **small)
    image.save(tmp_path / "x.png")
    pixels = image.numpy()
    kinds = [
        tmp_path / "x.png",
        str(tmp_path / "x.png"),
        (tmp_path / "x.png").read_bytes(),
        image,
        image.pil(),
        pixels,
        pixels.astype(np.float32) / 255,
        pixels[:, ::-1][:, ::-1],
    ]
    edited = [engine.edit("make it blue", images=[kind], seed=1, steps=1) for kind in kinds]
    assert all((other.numpy() == edited[0].numpy()).all() for other in edited)
    # The recipe has the images in memory.
    assert (engine.run(edited[5].recipe).numpy() == edited[5].numpy()).all()
    gray = image.pil().convert("L")
    a, b = (engine.edit("a star", images=[kind], seed=1, steps=1).numpy() for kind in (gray, np.asarray(gray)))
    assert (a == b).all()
    mask = np.zeros((64, 64), np.uint8)
    mask[:, 32:] = 255
    masked = engine.edit("a star", images=[pixels], mask=mask, seed=1, steps=1).numpy()
    assert (masked[:, :30] == pixels[:, :30]).all() and (masked != pixels).any()
    for bad in (pixels.astype(int), pixels[None], np.full((4, 4, 3), np.nan), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(flux.FluxError):
            engine.edit("x", images=[bad])
    for bad in (b"", b"no image", tmp_path / "none.png"):
        with pytest.raises(flux.FluxError):
            engine.edit("x", images=[bad])


def test_events_previews_and_several_images(engine, small):
    events = list(engine.stream("a fox", previews=True, **{**small, "steps": 4}))
    steps = [event.step for event in events if isinstance(event, flux.Preview)]
    assert steps == [1, 2, 3]
    preview = next(event.image for event in events if isinstance(event, flux.Preview))
    assert np.asarray(preview).shape[2] == 3 and preview.pil().size == preview.size
    done = [event.image for event in events if isinstance(event, flux.Done)]
    single = engine.generate("a fox", **{**small, "steps": 4})
    assert (done[0].numpy() == single.numpy()).all()
    denoise = [event.done for event in events if isinstance(event, flux.Progress) and event.stage == "denoise"]
    assert denoise[-1] == 4 and sorted(denoise) == denoise
    with pytest.raises(flux.FluxError, match="8x8"):
        engine.edit("a star", images=[preview])


def test_batches_have_prompts_and_seeds_of_their_own(engine, small):
    prompts = ["a cat", "a dog", "a fox"]
    singles = [engine.generate(prompt, **{**small, "seed": 7 + place}) for place, prompt in enumerate(prompts)]
    for batch in (True, False):
        images = engine.generate(prompts, batch=batch, **small)
        assert [image.recipe.prompt for image in images] == prompts
        assert [image.seed for image in images] == [7, 8, 9]
        for image, single in zip(images, singles):
            assert np.abs(image.numpy().astype(int) - single.numpy()).max() <= (1 if batch else 0)
    images = engine.generate("a cat", count=2, **small)
    assert [image.seed for image in images] == [7, 8]
    words = engine.generate("a {red|blue} heart", expand="all", **small)
    assert [image.recipe.prompt for image in words] == ["a red heart", "a blue heart"]


def test_errors_have_a_field_and_a_hint(engine):
    for call, field in [
        (lambda: engine.generate("x", steps=0), "steps"),
        (lambda: engine.generate("x", size=(100, 7)), None),
        (lambda: engine.generate("x", strength=0.5), "strength"),
        (lambda: engine.generate("x", count=0), "count"),
        (lambda: engine.generate("x", adapters=["owner/none"]), "adapters"),
        (lambda: engine.generate("x", noise=np.zeros((1, 2, 3, 4))), None),
        (lambda: engine.generate("x", latents=np.zeros(3)), "latents"),
        (lambda: engine.generate("x", noise=np.full((1, 4, 4, 4), np.inf)), "noise"),
        (lambda: engine.generate("x", seed="y"), None),
        (lambda: engine.generate("x", seed=-1), None),
        (lambda: engine.generate("x", guidance=float("nan")), None),
        (lambda: engine.generate("x", size=7), "size"),
        (lambda: engine.generate("x", images="a.png"), "images"),
        (lambda: flux.Engine("there/is-none"), "model"),
        (lambda: flux.Engine(device="tpu"), "device"),
        (lambda: flux.Engine(device="cpu", precision="fp8"), "precision"),
        (lambda: flux.Engine(threads=3), "threads"),
    ]:
        with pytest.raises(flux.FluxError) as raised:
            call()
        error = raised.value
        assert field in (None, error.field), (field, error.field, str(error))
        assert error.kind == "usage" or error.hint, str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with pytest.raises(flux.FluxError, match="`strength` requires `images`"):
        engine.generate("x", strength=0.5)
    with pytest.raises(TypeError, match="stepz"):
        engine.generate("x", stepz=3)
    assert engine.generate("x", size=(32, 32), seed=1, steps=1).size == (32, 32), "the engine still works"


def test_latents_noise_and_features_go_in_and_out(engine, small):
    image = engine.generate("a cat", return_latents=True, **small)
    channels = engine.info()["channels"]
    assert (image.latents.shape, image.latents.dtype) == ((1, channels, 4, 4), np.float32)
    assert np.isfinite(np.from_dlpack(image.latents)).all()
    features = engine.encode("a cat")
    assert features.prompt.ndim == 2
    by_features = engine.generate(embeddings=features, **small)
    assert (by_features.numpy() == image.numpy()).all()

    class Exported:
        """As a tensor of another library."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    noise = np.random.default_rng(1).standard_normal((channels, 4, 4), np.float32)
    given = engine.generate("a cat", noise=noise, **small)
    exported = engine.generate("a cat", noise=Exported(noise), **small)
    assert (given.numpy() == exported.numpy()).all() and (given.numpy() != image.numpy()).any()
    assert (engine.run(given.recipe).numpy() == given.numpy()).all()
    two = engine.generate("a cat", count=2, noise=np.stack([noise, -noise]), **small)
    assert np.abs(two[0].numpy().astype(int) - given.numpy()).max() <= 1
    assert np.abs(engine.run(two[1].recipe).numpy().astype(int) - two[1].numpy()).max() <= 1


def test_two_engines_and_a_closed_one(small):
    with flux.Engine(device="cpu") as one, flux.Engine(device="cpu") as other:
        a, b = one.generate("a cat", **small), other.generate("a cat", **small)
        assert (a.numpy() == b.numpy()).all()
        assert one.devices()[0][0].lower().startswith("cpu") and one.memory() and one.stats()["made"] == 1
    with pytest.raises(flux.FluxError, match="closed"):
        one.generate("a cat")
    assert a.numpy().std() > 0


def _in_child(engine, queue):
    try:
        engine.generate("x")
    except flux.FluxError as error:
        queue.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_gets_an_error(engine):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(engine, queue))
    child.start()
    assert "parent process" in queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


def test_info_and_download(monkeypatch):
    facts = flux.info()
    assert facts["variant"] and facts["memory"][0]["bytes"] > 0
    for bad in ("no such model", "there/is-none:"):
        with pytest.raises(flux.FluxError):
            flux.download(bad, quiet=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(flux.FluxError, match="HF_HUB_OFFLINE"):
        flux.download("4b")


def test_the_command_line(tmp_path):
    script = Path(sys.executable).with_name("flux")
    for command in ([sys.executable, "-m", "flux"], [str(script)]):
        file = tmp_path / "x.png"
        flags = "-S 1 -W 64 -H 64 -s 1 -q --device cpu -o".split()
        subprocess.run([*command, "-p", "a ghost", *flags, str(file)], check=True, cwd=tmp_path)
        assert PIL.Image.open(file).size == (64, 64)
        wrong = subprocess.run([*command, "-p", "x", "--steps", "x"], capture_output=True, text=True)
        assert wrong.returncode == 2 and "error:" in wrong.stderr and "Traceback" not in wrong.stderr
        shown = subprocess.run([*command, "info", "--json", str(file)], capture_output=True, text=True, check=True)
        assert json.loads(shown.stdout)["recipe"]["seed"] == 1


def test_a_notebook_shows_previews_that_update(engine, small, monkeypatch):
    pages = []

    class Handle:
        def update(self, page):
            pages.append(page)

    def display(page, display_id):
        pages.append(page)
        return Handle()

    module = type(sys)("IPython.display")
    module.display, module.HTML = display, lambda text: text
    monkeypatch.setitem(sys.modules, "IPython", type(sys)("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    engine.stream("a fox", previews=True, **{**small, "steps": 4})._ipython_display_()
    assert pages[0] == "<p>waiting</p>" and "step 2 of 4" in "".join(pages)
    assert pages[-1].count("<img") == 1 and "<p>" not in pages[-1]


def test_threads_share_an_engine(engine, small):
    prompts = [f"{n} red squares" for n in range(8)]
    results = {}
    threads = [
        threading.Thread(target=lambda prompt=prompt: results.update({prompt: engine.generate(prompt, **small)}))
        for prompt in prompts
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for prompt in prompts[:3]:
        alone = engine.generate(prompt, **small)
        assert np.abs(results[prompt].numpy().astype(int) - alone.numpy()).max() <= 1


def test_the_examples(tmp_path):
    examples = Path(__file__).parents[2] / "examples/python"
    for arguments, files in [
        (["text_to_image.py", "a ghost", "ghost.png"], ["ghost.png"]),
        (["edit.py", "."], ["star.png", "blue.png", "half.png"]),
        (["asyncio_batch.py", "."], ["fox.png", "0.png", "1.png", "preview-2.png"]),
    ]:
        name, *rest = arguments
        subprocess.run([sys.executable, str(examples / name), *rest], check=True, cwd=tmp_path)
        assert all(PIL.Image.open(tmp_path / file).size for file in files)
