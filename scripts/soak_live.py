"""Runs frames through `flux live` for a while, and checks their order and images.

    soak_live.py SECONDS FLUX [--side SIDE] [FLAG..]

FLUX is the program, and FLAG.. are flags of `flux live`: a model, a device, `-s 1`. The frames repeat, and so must the
images: each must have the same bytes as the first image of its frame, so no frame is lost or reordered. From the first fifth
to the end, host and GPU memory may each grow by 16 MiB. A line on stderr each minute prints the memory, to tell growth
from warming up.
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
"""The number of different frames."""


def frame(number):
    """A disc that moves in a circle on a grey gradient."""
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
        wrong.append(f"image {made} differs from the first image of its frame")
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
    wrong.append(f"the program ended early with code {program.returncode}" if end is None else f"the program ended with code {program.returncode}")
elif end is None and not wrong:
    wrong.append("the program ended early")
elif not wrong and len(set(first)) < AROUND:
    wrong.append("different frames have the same image")
if end is not None:
    print(f"soak: {made} images in {time.time() - begun:.0f} s; {warm} after a fifth, {end} at the end")
    wrong += end.grown(warm)
sys.exit("failed: " + ", ".join(wrong) if wrong else 0)
