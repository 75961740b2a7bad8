"""The GIL, Ctrl-C, asyncio, memory and speed."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import flux
import pytest


def idle(engine, seconds=20):
    """Waits until the engine has no work, and returns the time."""
    start = time.monotonic()
    while engine.stats()["running"] + engine.stats()["waiting"] > 0:
        assert time.monotonic() - start < seconds
        time.sleep(0.005)
    return time.monotonic() - start


def test_the_gil_is_free_while_devices_work(engine):
    ticks, done = [], threading.Event()

    def count():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=count)
    thread.start()
    start = time.monotonic()
    engine.generate("a cat", size=(256, 256), steps=12, seed=1)
    taken = time.monotonic() - start
    done.set()
    thread.join()
    inside = [tick for tick in ticks if start < tick < start + taken]
    gaps = [b - a for a, b in zip(inside, inside[1:])]
    assert len(inside) > 10 and max(gaps) < max(0.3, taken / 3), (len(inside), max(gaps), taken)


def test_ctrl_c_cancels_within_a_step(engine):
    start = time.monotonic()
    engine.generate("a cat", size=(256, 256), steps=8, seed=1)
    step = (time.monotonic() - start) / 8
    for call in (
        lambda: engine.generate("a cat", size=(256, 256), steps=1000, seed=1),
        lambda: list(engine.stream("a cat", size=(256, 256), steps=1000, seed=1)),
    ):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - start < 0.5 + 0.5 + 3 * step
        assert idle(engine) < 0.5 + 3 * step
        timer.join()
    assert engine.generate("a cat", size=(32, 32), steps=1, seed=1).size == (32, 32)


def test_streams_are_cancelled_by_leaving_them(engine):
    stream = engine.stream("a cat", steps=1000, seed=1)
    for event in stream:
        if isinstance(event, flux.Progress):
            break
    stream.cancel()
    with pytest.raises(flux.FluxError) as raised:
        stream.images()
    assert raised.value.kind == "cancelled"
    for event in engine.stream("a cat", steps=1000, seed=1):
        if isinstance(event, flux.Progress):
            break
    gc.collect()
    idle(engine)


def test_asyncio(engine):
    small = {"size": (64, 64), "steps": 2}

    async def run():
        images = await engine.agenerate(["a cat", "a dog"], batch=True, seed=3, **small)
        assert [image.seed for image in images] == [3, 4]
        many = await asyncio.gather(*(engine.agenerate("a cat", seed=seed, **small) for seed in range(8)))
        assert [images[0].seed for images in many] == list(range(8))
        edited = await engine.aedit("make it blue", [images[0]], seed=1, steps=1)
        assert edited.size == (64, 64)
        steps = [event.step async for event in engine.stream("a fox", previews=True, seed=1, size=(64, 64), steps=4)
                 if isinstance(event, flux.Preview)]
        assert steps == [1, 2, 3]
        task = asyncio.create_task(engine.agenerate("a cat", steps=1000))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(flux.FluxError):
            await engine.agenerate("x", steps=0)

    asyncio.run(run())
    idle(engine)


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_500_images_leak_nothing(engine):
    pixels = engine.generate("a cat", size=(64, 64), steps=1, seed=1).numpy()

    def images(count):
        for seed in range(count):
            if seed % 10 == 0:
                engine.edit("x", images=[pixels], size=(64, 64), steps=1, seed=seed).recipe
            elif seed % 10 == 1:
                list(engine.stream("x", size=(64, 64), steps=2, seed=seed, previews=True))
            else:
                engine.generate("a cat", size=(64, 64), steps=1, seed=seed, return_latents=True).encode()
        gc.collect()

    images(100)
    before = resident()
    images(500)
    grown = resident() - before
    print(f"resident memory grew by {grown:.1f} MiB")
    assert grown < 24, f"{grown:.1f} MiB"


def test_a_call_takes_at_most_3_ms_more_than_in_rust(engine):
    recipe = flux.Recipe("a cat", width=512, height=512, steps=1, seed=1)
    engine.run(recipe)
    here, rust = [], []
    for _ in range(5):
        rust.extend(engine._engine.measure(recipe.to_json(), 1))
        start = time.perf_counter()
        engine.generate("a cat", size=(512, 512), steps=1, seed=1)
        here.append(time.perf_counter() - start)
    difference = 1000 * (min(here) - min(rust))
    print(f"Rust {1000 * min(rust):.1f} ms, Python {1000 * min(here):.1f} ms, difference {difference:.2f} ms")
    # The least of both; a machine that does other work differs by more than the call.
    assert difference < 3 + 0.05 * 1000 * min(rust)


def test_the_process_ends_with_work_left():
    program = (
        "import flux, threading, time\n"
        "engine = flux.Engine(device='cpu')\n"
        "stream = engine.stream('a cat', steps=1000)\n"
        "next(stream)\n"
        "threading.Thread(target=lambda: engine.generate('x', steps=1000), daemon=True).start()\n"
        "time.sleep(0.3)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
