"""What `flux.diffusers` calls of torch, for tests without torch: the noise of its CPU generator in float32."""

import types

import numpy as np

float32, bfloat16 = "float32", "bfloat16"


class Generator:
    """MT19937."""

    def __init__(self, device: object = "cpu") -> None:
        self.device = types.SimpleNamespace(type="cpu")
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> "Generator":
        self.seed = seed
        self.random = np.random.RandomState(seed & 0xFFFFFFFF)
        return self

    def initial_seed(self) -> int:
        return self.seed

    def get_state(self) -> np.ndarray:
        _, words, position, *_ = self.random.get_state()
        return np.append(words, position)


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one == other).all())


def randn(shape: tuple[int, ...], generator: Generator, device: object, dtype: str) -> np.ndarray:
    """Uniforms of 24 bits, and Box-Muller over blocks of 16."""
    count = int(np.prod(shape))
    assert count % 16 == 0 and dtype == float32
    bits = generator.random.randint(0, 2**32, size=count, dtype=np.uint64) & 0xFFFFFF
    uniform = (bits.astype(np.float32) / np.float32(1 << 24)).reshape(-1, 16)
    radius = np.sqrt(-2 * np.log(1 - uniform[:, :8]))
    angle = np.float32(2 * np.pi) * uniform[:, 8:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(shape).astype(np.float32)
