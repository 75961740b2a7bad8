"""Generates images of several prompts in one batch, next to a stream of another with previews.

python asyncio_batch.py FOLDER
"""

import asyncio
import sys
from pathlib import Path

import flux


async def main(folder: Path) -> None:
    with flux.Engine() as engine:
        batch = asyncio.create_task(engine.agenerate(["a cat", "a dog"], batch=True, seed=1))
        async for event in engine.stream("a fox", steps=4, seed=1, previews=True):
            match event:
                case flux.Progress(stage="denoise", done=done, total=total):
                    print(f"step {done} of {total}")
                case flux.Preview(step=step, image=image):
                    image.save(folder / f"preview-{step}.png")
                case flux.Done(image=image):
                    image.save(folder / "fox.png")
        for index, image in enumerate(await batch):
            image.save(folder / f"{index}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
