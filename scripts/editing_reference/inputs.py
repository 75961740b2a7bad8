"""The input images and masks: one of each format that readers often misread, small, of odd sizes.

Shapes have hard edges, so that files are small. The JPEG consists of even blocks of 8x8 pixels, without chroma subsampling
and at quality 100: for other content, decoders differ by a level or two.
"""

import struct
import zlib

import numpy as np
from PIL import Image, ImageDraw, ImageOps

ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
GREY, RGB, PALETTE, RGBA = 0, 2, 3, 6


def write_inputs(folder):
    """Writes all of them to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    scene(random, 101, 83).save(folder / "scene.png", optimize=True)
    scene(random, 80, 64).save(folder / "even.png", optimize=True)
    scene(random, 1100, 2300).save(folder / "large.png", optimize=True)
    write_palette(random, folder / "palette.png")
    write_deep(random, folder / "rgb-16-bit.png")
    write_grey(random, folder)
    write_alpha(random, folder / "alpha-interlaced.png")
    write_rotated_jpeg(random, folder / "rotated.jpg")
    write_webp(random, folder / "lossless.webp")
    write_masks(random, folder)


def read(path):
    """As this program reads a file: turned as its EXIF orientation says, alpha dropped, 16 bits cut to the high byte."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        # The reference clips these to 255, which leaves a white image.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def scene(random, width, height):
    """Ellipses on a background of bars."""
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for left in range(0, width, 13):
        draw.rectangle((left, 0, left + 12, height), fill=color(random))
    for _ in range(9):
        x, y = random.integers(0, width), random.integers(0, height)
        rx, ry = random.integers(5, width // 3), random.integers(5, height // 3)
        draw.ellipse((x - rx, y - ry, x + rx, y + ry), fill=color(random))
    return image


def color(random):
    return tuple(int(v) for v in random.integers(0, 256, 3))


def write_palette(random, path):
    """17 colors in 8 bits, two of them transparent, which says nothing."""
    image = scene(random, 97, 71).quantize(17, dither=Image.Dither.NONE)
    pixels, palette = np.asarray(image), bytes(image.getpalette()[: 3 * 17])
    write_png(path, pixels[:, :, None], PALETTE, 8, chunks=((b"PLTE", palette), (b"tRNS", bytes([0, 128]))))


def write_deep(random, path):
    """16 bits a channel; the low bytes are noise."""
    high = np.asarray(scene(random, 90, 70)).astype(np.uint16)
    write_png(path, high << 8 | random.integers(0, 256, high.shape, dtype=np.uint16), RGB, 16)


def write_grey(random, folder):
    levels = np.asarray(scene(random, 77, 99).convert("L"))[:, :, None]
    write_png(folder / "grey-4-bit.png", levels >> 4, GREY, 4)
    write_png(folder / "grey-16-bit.png", levels.astype(np.uint16) << 8 | 0x5A, GREY, 16)


def write_alpha(random, path):
    """Interlaced, with colors under an alpha of 0."""
    pixels = np.asarray(scene(random, 85, 67).convert("RGBA")).copy()
    pixels[:, :, 3] = np.linspace(0, 255, 85).astype(np.uint8)[None]
    pixels[20:40, :, 3] = 0
    write_png(path, pixels, RGBA, 8, interlaced=True)


def write_rotated_jpeg(random, path):
    """Stored 88x72 and lying on its side: 72x88 once it is turned."""
    blocks = random.integers(0, 256, (9, 11, 3), dtype=np.uint8)
    image = Image.fromarray(blocks.repeat(8, 0).repeat(8, 1))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, quality=100, subsampling=0, exif=exif)


def write_webp(random, path):
    """Transparent at the left, where the colors stay what they are."""
    image = scene(random, 83, 101)
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (0, 0, 30, 101))
    image.putalpha(alpha)
    image.save(path, lossless=True, exact=True)


def write_masks(random, folder):
    """White is to be repainted; of sizes other than the images' where the name says so."""
    # Waves narrower than a cell of 16 pixels, so that cells are repainted in part.
    waves = np.sin(np.add.outer(0.33 * np.arange(83), 0.55 * np.arange(101)))
    Image.fromarray(np.round(127.5 + 127.5 * waves).astype(np.uint8)).save(folder / "mask-soft.png", optimize=True)
    ellipse = Image.new("L", (61, 47))
    ImageDraw.Draw(ellipse).ellipse((9, 7, 44, 38), fill=255)
    ellipse.save(folder / "mask-small.png", optimize=True)
    # Large and noisy: the nearest pixel is not the mean of pixels.
    Image.fromarray(random.integers(0, 2, (90, 140)) == 1).save(folder / "mask-1-bit.png", optimize=True)
    colored = Image.new("RGB", (101, 83), (255, 0, 0))
    ImageDraw.Draw(colored).rectangle((21, 17, 82, 63), fill=(255, 255, 90))
    colored.save(folder / "mask-rgb.png", optimize=True)
    Image.new("L", (40, 30), 255).save(folder / "mask-white.png", optimize=True)


def write_png(path, pixels, color_type, depth, interlaced=False, chunks=()):
    """pixels [height, width, channels]. What Pillow does not write: 16 bits a channel, 4 bits of grey, interlacing."""
    height, width, _ = pixels.shape
    passes = [pixels[y::dy, x::dx] for x, y, dx, dy in ADAM7] if interlaced else [pixels]
    data = b"".join(b"\0" + row(line, depth) for part in passes for line in part if part.size)
    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, interlaced)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, content in ((b"IHDR", header), *chunks, (b"IDAT", zlib.compress(data, 9)), (b"IEND", b"")):
            file.write(struct.pack(">I", len(content)) + name + content)
            file.write(struct.pack(">I", zlib.crc32(name + content)))


def row(line, depth):
    """The bytes of a row [width, channels]."""
    if depth == 16:
        return line.astype(">u2").tobytes()
    if depth == 8:
        return line.tobytes()
    assert depth == 4 and line.shape[1] == 1
    padded = np.append(line[:, 0], [0] * (len(line) % 2)).reshape(-1, 2)
    return (padded[:, 0] << 4 | padded[:, 1]).astype(np.uint8).tobytes()
