"""Generates an image and writes it: `python text_to_image.py "a ghost" ghost.png [MODEL]`."""

import sys

import flux


def main() -> None:
    prompt, path, *model = sys.argv[1:]
    with flux.Engine(*model) as engine:
        image = engine.generate(prompt, seed=1)
    image.save(path)
    print(image.recipe.to_json())


if __name__ == "__main__":
    main()
