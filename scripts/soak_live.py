"""Frames through `flux live` for a while, in their order and each drawn.

    soak_live.py SECONDS FLUX [--side SIDE] [FLAG..]

FLUX is the program, and FLAG.. are more of `flux live`: a model, a device, `-s 1`. Frames come round, and so do images:
each must be the one that its frame had at first, to the byte, for none is lost or comes before another. What the program
holds after the first fifth it may hold at the end, and 16 MiB more, of the host's memory and of a GPU's. Each minute a line
on stderr says what it holds, so that growth can be told from warming up.
"""

import argparse
import hashlib
import subprocess
import sys
import threading
import time

from soaking import Held

parser = argparse.ArgumentParser()
parser.add_argument("seconds", type=float)
parser.add_argument("flux")
parser.add_argument("--side", type=int, default=128)
args, flags = parser.parse_known_args()
AROUND = 7
"""Frames that differ."""


def frame(number):
    """A disc that goes around on a slope of grey."""
    side, turn = args.side, number * args.side // AROUND
    pixels = bytearray()
    for y in range(side):
        for x in range(side):
            is_inside = (x - turn) ** 2 + (y - side // 2) ** 2 < (side // 5) ** 2
            pixels += bytes((210, 40, 40) if is_inside else (90 + x % 60, 150, 150 + y % 60))
    return bytes(pixels)


def send():
    number = 0
    try:
        while not ended.is_set():
            program.stdin.write(frames[number % AROUND])
            number += 1
        program.stdin.close()
    except BrokenPipeError:
        pass


frames = [frame(number) for number in range(AROUND)]
size = f"{args.side}x{args.side}"
command = [args.flux, "live", "--all", "--from", "rgb24", "--size", size, "-q", "-p", "an oil painting", "-S", "1"]
program = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
ended = threading.Event()
threading.Thread(target=send, daemon=True).start()
wrong, first, made = [], [], 0
begun = warm = end = None
minute = 0
while image := program.stdout.read(len(frames[0])):
    if len(image) < len(frames[0]):
        break
    digest = hashlib.sha256(image).digest()
    begun = begun or time.time()
    passed = time.time() - begun
    if len(first) < AROUND:
        first.append(digest)
    elif digest != first[made % AROUND]:
        wrong.append(f"image {made} is not the one of its frame")
        break
    made += 1
    if ended.is_set():
        continue
    if passed >= 60 * minute:
        print(f"minute {minute}: {made} images, {Held(program.pid)}", file=sys.stderr, flush=True)
        minute += 1
    if warm is None and passed > args.seconds / 5:
        warm = Held(program.pid)
    if passed > args.seconds:
        end = Held(program.pid)
        ended.set()
if wrong or end is None:
    ended.set()
    program.kill()
if program.wait() != 0 and not wrong:
    wrong.append(f"it ended with {program.returncode} before its time" if end is None else f"it ended with {program.returncode}")
elif end is None and not wrong:
    wrong.append("it ended before its time")
elif not wrong and len(set(first)) < AROUND:
    wrong.append("frames that differ have one image")
if end is not None:
    print(f"soak: {made} images in {time.time() - begun:.0f} s; {warm} after a fifth, {end} at the end")
    wrong += end.grown(warm)
sys.exit("failed: " + ", ".join(wrong) if wrong else 0)
