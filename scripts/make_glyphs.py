"""Renders the glyphs that `flux` draws into images: NotoSansMono-Regular.ttf -> crates/flux-media/src/lettering/NotoSansMono.png.

The font is from Debian's package fonts-noto-mono (20201225-1). Needs Pillow (created with 13.0).

Each size is a block of rows, 32 glyphs per row, in the order of RANGES, after the box for characters that the font lacks.
Grey in 16 levels: 0 is background, 15 is ink.
"""

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

# As in crates/flux-media/src/lettering/atlas.rs: first and last character.
RANGES = [
    (0x0020, 0x007E),
    (0x00A0, 0x017F),
    (0x0384, 0x03CE),
    (0x0400, 0x045F),
    (0x0490, 0x0491),
    (0x2010, 0x2027),
    (0x2030, 0x203A),
    (0x20AC, 0x20AC),
    (0x2190, 0x2193),
    (0x2212, 0x2212),
]
# Pixels of an em; a cell is [width, height] as in crates/flux-media/src/lettering/atlas.rs.
SIZES = [(15, (9, 21)), (20, (12, 28))]
COLUMNS = 32
LEVELS = 16


def box(cell: tuple[int, int], ascent: int) -> Image.Image:
    width, height = cell
    glyph = Image.new("L", cell)
    ImageDraw.Draw(glyph).rectangle([1, ascent // 4, width - 2, ascent], outline=255)
    return glyph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("font", type=Path, help="NotoSansMono-Regular.ttf")
    parser.add_argument("--out", type=Path, default=Path("crates/flux-media/src/lettering/NotoSansMono.png"))
    args = parser.parse_args()
    characters = [chr(code) for first, last in RANGES for code in range(first, last + 1)]
    rows = -(-(len(characters) + 1) // COLUMNS)
    width = COLUMNS * max(cell[0] for _, cell in SIZES)
    atlas = Image.new("L", (width, rows * sum(cell[1] for _, cell in SIZES)))
    top = 0
    for em, cell in SIZES:
        font = ImageFont.truetype(args.font, em)
        ascent, _ = font.getmetrics()
        missing = font.getmask("\uffff").getbbox(), bytes(font.getmask("\uffff"))
        for place, character in enumerate([None, *characters]):
            glyph = Image.new("L", cell)
            mask = None if character is None else font.getmask(character)
            if mask is None or (character != "\u00ad" and (mask.getbbox(), bytes(mask)) == missing):
                glyph = box(cell, ascent)
            else:
                ImageDraw.Draw(glyph).text((0, ascent), character, font=font, fill=255, anchor="ls")
            atlas.paste(glyph, (place % COLUMNS * cell[0], top + place // COLUMNS * cell[1]))
        top += rows * cell[1]
    # Pillow writes a palette of 16 colours with 4 bits per pixel, but grey with 8.
    step = 255 // (LEVELS - 1)
    palette = atlas.point(lambda value: round(value / step)).convert("L")
    indexed = Image.frombytes("P", palette.size, palette.tobytes())
    indexed.putpalette([level * step for level in range(LEVELS) for _ in range(3)])
    indexed.save(args.out, optimize=True, bits=4)


if __name__ == "__main__":
    main()
