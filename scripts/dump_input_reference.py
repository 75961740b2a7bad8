#!/usr/bin/env python3
"""Writes tests/input/*.json: image files, and the results of Pillow and diffusers for them.

    python3 scripts/dump_input_reference.py tests/input

Needs Pillow 13.0.0, numpy, torch and diffusers 0.42.1, as in requirements-reference.txt. Two runs produce the same bytes.
"""

import io
import json
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from PIL import Image, ImageOps

WIDTH, HEIGHT = 13, 9


def noise(count, seed):
    """Bytes that the tests also generate."""
    x = (np.arange(count, dtype=np.uint64) + seed * 7919) * 2654435761 % 2**32
    x ^= x >> np.uint64(15)
    return ((x * 2246822519 % 2**32) >> np.uint64(24)).astype(np.uint8)


def pixels(shape, seed):
    return noise(int(np.prod(shape)), seed).reshape(shape)


def crc(array):
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(rows, depth):
    """The bytes of rows of samples, each row with filter 0."""
    lines = []
    for row in rows:
        row = np.asarray(row).reshape(-1)
        if depth == 16:
            lines.append(b"\0" + row.astype(">u2").tobytes())
        elif depth == 8:
            lines.append(b"\0" + row.astype(np.uint8).tobytes())
        else:
            bits = (row[:, None].astype(np.uint8) >> np.arange(depth - 1, -1, -1)) & 1
            lines.append(b"\0" + np.packbits(bits.reshape(-1)).tobytes())
    return b"".join(lines)


# First row and column, and the steps between them, of the seven passes of an interlaced PNG.
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def png(samples, color, depth, interlaced=False, before=(), after=()):
    """A PNG of samples [height, width, channels]; Pillow writes neither interlaced PNGs nor all 16-bit types."""
    height, width = samples.shape[:2]
    if interlaced:
        parts = [samples[y::step_y, x::step_x] for y, x, step_y, step_x in PASSES]
        data = b"".join(packed(part, depth) for part in parts if part.size)
    else:
        data = packed(samples, depth)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    chunks = [(b"IHDR", header), *before, (b"IDAT", zlib.compress(data, 9)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*parts) for parts in chunks)


def exif(orientation, big=False):
    e = ">" if big else "<"
    return (b"MM\0*" if big else b"II*\0") + struct.pack(e + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def blocks(channels, columns=4, rows=3):
    """Flat blocks of 8 x 8 pixels, which all JPEG decoders decode equally."""
    return pixels((rows, columns, channels), 5).repeat(8, 0).repeat(8, 1)


def png_files():
    shape = (HEIGHT, WIDTH)
    palette = (b"PLTE", pixels((256, 3), 1).tobytes())
    for depth in (1, 2, 4, 8):
        grey = pixels((*shape, 1), depth) >> (8 - depth)
        yield f"grey-{depth}.png", png(grey, 0, depth)
        yield f"palette-{depth}.png", png(grey, 3, depth, before=[(b"PLTE", palette[1][: 3 * 2**depth])])
        yield f"palette-{depth}-interlaced.png", png(grey, 3, depth, True, [(b"PLTE", palette[1][: 3 * 2**depth])])
    yield "palette-alpha.png", png(grey, 3, 8, before=[palette, (b"tRNS", bytes(range(0, 256, 2)))])
    wide = pixels((*shape, 4), 9).astype(np.uint16) * 256 + pixels((*shape, 4), 10)
    for name, color, channels in [("grey", 0, 1), ("grey-alpha", 4, 2), ("rgb", 2, 3), ("rgba", 6, 4)]:
        for depth, samples in [(8, wide[..., :channels] >> 8), (16, wide[..., :channels])]:
            yield f"{name}-{depth}-made.png", png(samples, color, depth)
            yield f"{name}-{depth}-interlaced.png", png(samples, color, depth, True)
    yield "rgb-trns.png", png(wide[..., :3] >> 8, 2, 8, before=[(b"tRNS", struct.pack(">3H", *(wide[0, 0, :3] >> 8)))])
    yield "grey-trns.png", png(grey, 0, 8, before=[(b"tRNS", struct.pack(">H", int(grey[0, 0, 0])))])
    rgb = pixels((*shape, 3), 3)
    for orientation in range(1, 9):
        yield f"upright-{orientation}.png", png(rgb, 2, 8, before=[(b"eXIf", exif(orientation))])
    yield "upright-6-big.png", png(rgb, 2, 8, before=[(b"eXIf", exif(6, True))])
    yield "upright-6-behind.png", png(rgb, 2, 8, after=[(b"eXIf", exif(6))])
    yield "upright-9.png", png(rgb, 2, 8, before=[(b"eXIf", exif(9))])
    bomb = zlib.compress(bytes(1 << 26), 9)
    beside = [(b"iCCP", b"x\0\0" + bomb), (b"zTXt", b"x\0\0" + bomb), (b"iTXt", b"x\0\1\0\0\0" + bomb)]
    yield "bombs.png", png(rgb, 2, 8, before=[(kind, data[: 1 << 10]) for kind, data in beside])
    yield "one-pixel.png", png(rgb[:1, :1], 2, 8)


def jpeg_files():
    best = dict(format="JPEG", quality=100, subsampling=0)
    for name, mode, channels in [("grey", "L", 1), ("rgb", "RGB", 3), ("cmyk", "CMYK", 4)]:
        image = Image.fromarray(blocks(channels).squeeze(), mode)
        yield f"{name}.jpg", saved(image, **best)
        yield f"{name}-progressive.jpg", saved(image, **best, progressive=True)
        yield f"{name}-restart.jpg", saved(image, **best, progressive=channels == 3, restart_marker_rows=1)
    for orientation in range(1, 9):
        image = Image.fromarray(blocks(3), "RGB")
        yield f"upright-{orientation}.jpg", saved(image, **best, exif=b"Exif\0\0" + exif(orientation))
    y, x = np.mgrid[0:21, 0:34]
    smooth = np.stack([x * 7, y * 11, 255 - x - y], -1).clip(0, 255).astype(np.uint8)
    for subsampling in (0, 1, 2):
        image = Image.fromarray(smooth)
        yield f"smooth-{subsampling}.jpg", saved(image, format="JPEG", quality=90, subsampling=subsampling)
        options = dict(format="JPEG", subsampling=subsampling)
        yield f"smooth-restart-{subsampling}.jpg", saved(image, **options, restart_marker_blocks=2)
    yield "smooth-progressive.jpg", saved(image, format="JPEG", quality=80, progressive=True)


def webp_files():
    rgb, rgba = pixels((HEIGHT, WIDTH, 3), 6), pixels((HEIGHT, WIDTH, 4), 7)
    lossy = Image.fromarray(rgb).resize((40, 24), Image.Resampling.BICUBIC)
    yield "lossy.webp", saved(lossy, format="WEBP", quality=60)
    lossy.putalpha(Image.fromarray(rgba[..., 3]).resize((40, 24)))
    yield "lossy-alpha.webp", saved(lossy, format="WEBP", quality=60)
    yield "lossless.webp", saved(Image.fromarray(rgb), format="WEBP", lossless=True)
    yield "lossless-alpha.webp", saved(Image.fromarray(rgba), format="WEBP", lossless=True, exact=True)
    for orientation in range(1, 9):
        options = dict(format="WEBP", lossless=True, exif=b"Exif\0\0" + exif(orientation))
        yield f"upright-{orientation}.webp", saved(Image.fromarray(rgb), **options)


def rgb_of(file):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    # Pillow clips 16-bit grey to 255, which leaves an almost white image. The high byte is expected.
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    return image.convert("RGB")


def images():
    rows = []
    for name, file in [*png_files(), *jpeg_files(), *webp_files()]:
        image = rgb_of(file)
        row = dict(name=name, width=image.width, height=image.height, file=file.hex(), crc=crc(np.asarray(image)))
        # JPEG decoders differ by a level or two.
        if name.startswith("smooth"):
            row["rgb"] = image.tobytes().hex()
        rows.append(row)
    return rows


def refused():
    """Invalid files, and words that the error must contain."""
    frames = [Image.fromarray(pixels((HEIGHT, WIDTH, 3), seed)) for seed in range(2)]
    animated = saved(frames[0], format="WEBP", save_all=True, append_images=frames[1:], lossless=True)
    nothing = np.zeros((0, 0, 3))
    claims = [(60000, 60000, "16384x16384"), (1, 30000, "16384x16384"), (16384, 8193, "134217728 pixels"), (0, 5, "")]
    rows = [(f"png of {w}x{h}", claiming(w, h), words) for w, h, words in claims]
    large = saved(Image.new("L", (8, 8)), format="JPEG")
    at = large.index(b"\xff\xc0") + 5
    for height, width, words in [(65535, 65535, "16384x16384"), (20000, 1, "16384x16384"), (0, 8, "JPEG")]:
        file = large[:at] + struct.pack(">HH", height, width) + large[at + 4 :]
        rows.append((f"jpeg of {width}x{height}", file, words))
    rows += [
        ("animated.webp", animated, "the WebP is animated"),
        ("image.gif", saved(frames[0], format="GIF"), "PNG, JPEG or WebP"),
        ("text", b"no image", "PNG, JPEG or WebP"),
        ("nothing", b"", "the file is empty"),
        ("empty.png", png(nothing, 2, 8), "PNG"),
    ]
    return [dict(name=name, file=file.hex(), words=words) for name, file, words in rows]


def claiming(width, height):
    """A PNG without the pixels that its header claims."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


# Channels, width and height before and after. The last five are just above or below the limit for scaling vertically first.
RESIZES = [
    (3, 70, 50, 35, 25), (3, 35, 25, 70, 50), (3, 70, 50, 70, 25), (3, 70, 50, 35, 50), (1, 64, 64, 64, 64),
    (1, 70, 50, 33, 29), (1, 1, 1, 5, 7), (3, 5, 7, 1, 1), (3, 300, 200, 16, 16), (3, 17, 200, 16, 192),
    (3, 203, 317, 192, 304), (1, 40, 90, 80, 60), (3, 2, 2, 640, 3), (3, 640, 3, 2, 300), (3, 128, 1024, 100, 800),
    (3, 100, 300, 100, 299), (3, 100, 300, 90, 280), (3, 100, 300, 90, 279), (1, 100, 300, 110, 299),
    (3, 30, 400, 33, 100),
]  # fmt: skip


def resizes():
    rows = []
    for channels, *sizes in RESIZES:
        width, height, out_width, out_height = sizes
        image = Image.fromarray(pixels((height, width, channels), width).squeeze(2) if channels == 1 else
                                pixels((height, width, channels), width))  # fmt: skip
        out = np.asarray(image.resize((out_width, out_height), Image.Resampling.LANCZOS))
        rows.append(dict(channels=channels, **{"from": [width, height]}, to=[out_width, out_height], crc=crc(out)))
    return rows


def blobs(width, height, seed):
    """A mask with a few white ellipses."""
    draw = random.Random(seed)
    y, x = np.mgrid[0:height, 0:width]
    mask = np.zeros((height, width), np.uint8)
    for _ in range(draw.randint(1, 3)):
        cx, cy, rx, ry = (draw.uniform(low, high) for low, high in
                          [(0, width), (0, height), (2, width / 3), (2, height / 3)])  # fmt: skip
        mask[((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1] = 255
    return mask


def mask_files():
    for seed, size in enumerate([(64, 48), (101, 77), (150, 40)]):
        grey = Image.fromarray(blobs(*size, seed))
        yield f"grey-{seed}", grey
        yield f"bits-{seed}", grey.convert("1")
        yield f"palette-{seed}", Image.fromarray(blobs(*size, seed) // 2 + blobs(*size, seed + 7) // 3).quantize(4)
    yield "soft", Image.fromarray(pixels((19, 23), 1))
    yield "color", Image.fromarray(pixels((23, 19, 3), 2))
    yield "red", Image.new("RGB", (32, 32), (255, 0, 0))


def masks():
    processor = Flux2ImageProcessor(
        vae_scale_factor=16, do_normalize=False, do_binarize=True, do_convert_rgb=False, do_convert_grayscale=True
    )
    rows = []
    for name, mask in mask_files():
        used = []
        for width, height in [(64, 48), (96, 112), (mask.width // 16 * 16, mask.height // 16 * 16)]:
            grey = np.asarray(processor.resize(mask, height, width).convert("L"))
            prepared = processor.preprocess(mask, height, width)
            cells = torch.nn.functional.interpolate(prepared, size=(height // 16, width // 16), mode="bilinear")
            used.append(dict(to=[width, height], grey=crc(grey), quarters=(cells.flatten() * 4).int().tolist()))
        rows.append(dict(name=name, file=saved(mask, format="PNG").hex(), used=used))
    return rows


def regions():
    rows = []
    for seed in range(120):
        draw = random.Random(seed)
        width, height = draw.randint(16, 200), draw.randint(16, 200)
        to = [draw.randint(1, 12) * 16, draw.randint(1, 12) * 16]
        mask = np.zeros((height, width), np.uint8)
        boxes = []
        for _ in range(draw.randint(1, 2)):
            left, top = draw.randrange(width), draw.randrange(height)
            right, bottom = draw.randint(left + 1, width), draw.randint(top + 1, height)
            mask[top:bottom, left:right] = draw.choice([1, 255])
            boxes.append([left, top, right, bottom])
        padding = draw.choice([0, 1, 8, 32, 300])
        found = Flux2ImageProcessor.get_crop_region(Image.fromarray(mask), *to, pad=padding)
        rows.append(dict(size=[width, height], boxes=boxes, padding=padding, to=to, region=list(found)))
    return rows


def main():
    out = Path(sys.argv[1])
    for made in (images, refused, resizes, masks, regions):
        rows = ",\n".join(json.dumps(row) for row in made())
        (out / f"{made.__name__}.json").write_text(f"[\n{rows}\n]\n")


main()
