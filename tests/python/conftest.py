"""The built-in model, on the CPU, in float32."""

import sys
from collections.abc import Iterator

import flux
import pytest

sys.dont_write_bytecode = True

SMALL = {"size": (64, 64), "steps": 2, "seed": 7}


@pytest.fixture(scope="session")
def engine() -> Iterator[flux.Engine]:
    with flux.Engine(device="cpu", precision="f32") as engine:
        yield engine


@pytest.fixture
def small() -> dict:
    return dict(SMALL)
