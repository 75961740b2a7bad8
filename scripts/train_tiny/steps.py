"""Training for a fixed time: steps as CUDA graphs, and the learning rate over the time of a phase."""

import time
from collections.abc import Callable, Iterable

import torch
import torch.fx.experimental._config

from report import log
from settings import Settings

WARM_UP = 2  # runs before a graph is captured: compilation, lazy allocations
RATE_WARM_UP = 0.02  # of the time


class GraphedStep:
    """A function without arguments as one CUDA graph; without CUDA it is called as it is.

    A step of these small models is thousands of short kernels: launching them costs more than running them. All graphs are captured on one
    stream and share a pool: memory that one graph was done with serves the next, which it would not on another stream. So one replays at a time.
    """

    pool = stream = None

    def __init__(self, run: Callable[[], None], device: str):
        self.replay = run
        if not device.startswith("cuda"):
            return
        from_s = time.monotonic()
        stream = GraphedStep.stream = GraphedStep.stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=GraphedStep.pool, stream=stream):
            run()
        GraphedStep.pool = graph.pool()
        self.graph, self.replay = graph, graph.replay
        torch.cuda.synchronize()
        log(f"captured in {time.monotonic() - from_s:.1f} s, {torch.cuda.memory_reserved() / 2**30:.1f} GiB reserved")


def compile_blocks(settings: Settings, blocks: Iterable[torch.nn.Module]) -> None:
    """For any number of tokens and examples: a compilation for each of the many lengths of streams would take longer than the training."""
    if not settings.compile:
        return
    torch._dynamo.config.recompile_limit = 128
    torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal once are not always
    torch._dynamo.config.accumulated_recompile_limit = 1024
    for block in blocks:
        block.compile(dynamic=True)


def trapezoid(part: float, hold: float) -> float:
    """Rate at a part (0..1) of the time: up, level, down to zero."""
    if part < RATE_WARM_UP:
        return part / RATE_WARM_UP
    return 1.0 if part < hold else (1 - part) / (1 - hold)


def train(
    seconds: float,
    max_steps: int,
    step: Callable[[float], int],
    rate: torch.Tensor,
    schedule: Callable[[float], float],
    describe: Callable[[], tuple[str, torch.Tensor]],
) -> None:
    """Calls `step(part)` with the part (0..1) of the time that has passed until `seconds`, or `max_steps` where that is not 0, are over. It returns
    how many images it learned from."""
    from_s, done, images = time.monotonic(), 0, 0
    while True:
        part = (time.monotonic() - from_s) / seconds
        if max_steps:
            part = max(part, done / max_steps)
        if part >= 1:
            break
        rate.fill_(schedule(part))
        images += step(part)
        done += 1
        if rate.is_cuda and done % 10 == 0:
            torch.cuda.synchronize()  # replays are queued faster than they run: the clock would end hundreds of them too late
        if done % 100 == 0 or done == max_steps:
            text, loss = describe()  # waits for the device, so that the clock counts work that is done
            log(f"step {done} {text}, rate {schedule(part):.3f}, {images / (time.monotonic() - from_s):.0f} images/s")
            if not torch.isfinite(loss).all():
                raise RuntimeError("the loss is not finite")
    log(f"{done} steps in {time.monotonic() - from_s:.0f} s")
