"""Loads a server at 80% of its max rate for a while, with clients that disconnect and two alternating models.

    soak_server.py URL PID SECONDS [--size SIZES] [--rate RATE] [--new-prompts] [--steps STEPS]

From the first fifth to the end, host and GPU memory may each grow by 16 MiB, and no request may fail. A line on stderr each
minute prints the memory, to tell growth from warming up. With --new-prompts every prompt is new, so that all prompt and word
caches fill up: the first fifth must be long enough for that.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from urllib.parse import urlparse

from soaking import Held

parser = argparse.ArgumentParser()
parser.add_argument("url", type=urlparse)
parser.add_argument("pid", type=int)
parser.add_argument("seconds", type=float)
parser.add_argument("--size", default="64x64,64x64,96x64", help="sizes; each request uses one of them")
parser.add_argument("--rate", type=float, help="requests per second [default: 80%% of the max rate]")
parser.add_argument("--new-prompts", action="store_true", help="use every prompt only once")
parser.add_argument("--steps", default="1,2,4", help="numbers of steps; each request uses one of them")
args = parser.parse_args()
url, pid, seconds, sizes = args.url, args.pid, args.seconds, args.size.split(",")
steps = [int(count) for count in args.steps.split(",")]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CLIENTS = 8
counts, lock = {}, threading.Lock()
chance = random.Random(1)


def prompt(number):
    if not args.new_prompts:
        return f"a red circle, number {number % 200}"
    words = ("".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(chance.randint(3, 60)))
    return " ".join([str(number), *words])


def ask(number, goes=False):
    body = {
        "prompt": prompt(number),
        "model": "ab"[number // 200 % 2],
        "size": chance.choice(sizes),
        "steps": chance.choice(steps),
        "seed": number,
        "stream": number % 3 == 0,
    }
    if body["stream"]:
        body["partial_images"] = 2
    client = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    try:
        client.request("POST", "/v1/images/generations", json.dumps(body), {"Content-Type": "application/json"})
        if goes:
            time.sleep(chance.random() * 0.1)
            return "gone"
        answer = client.getresponse()
        text = answer.read()
        whole = b"completed" in text if body["stream"] else b"b64_json" in text
        return str(answer.status) if whole or answer.status != 200 else "200 without an image"
    except OSError as error:
        return f"{type(error).__name__}"
    finally:
        client.close()


def count(told):
    with lock:
        counts[told] = counts.get(told, 0) + 1


# Measure the max rate.
begun = time.time()
numbers = iter(range(10**9))
made = 0
while args.rate is None and time.time() - begun < min(10.0, seconds / 10):
    told = [None] * CLIENTS
    threads = [threading.Thread(target=lambda: count(ask(next(numbers)))) for _ in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    made += CLIENTS
rate = args.rate or 0.8 * made / (time.time() - begun)

begun, warm, sent, threads = time.time(), None, 0, []
minute = 0
while (passed := time.time() - begun) < seconds:
    if passed >= 60 * minute:
        print(f"minute {minute}: {Held(pid)}", file=sys.stderr, flush=True)
        minute += 1
    if warm is None and passed > seconds / 5:
        warm = Held(pid)
    time.sleep(max(0.0, sent / rate - passed))
    sent += 1
    number, goes = next(numbers), chance.random() < 0.1
    thread = threading.Thread(target=lambda number=number, goes=goes: count(ask(number, goes)))
    thread.start()
    threads = [thread for thread in threads if thread.is_alive()] + [thread]
[thread.join() for thread in threads]
for _ in range(100):
    client = http.client.HTTPConnection(url.hostname, url.port)
    client.request("GET", "/readyz")
    ready = json.load(client.getresponse())
    client.close()
    if ready["running"] == ready["waiting"] == 0:
        break
    time.sleep(0.1)
time.sleep(1)
end = Held(pid)
print(
    f"soak: {sent} requests in {time.time() - begun:.0f} s at {rate:.1f} per second: {counts}; "
    f"{warm} after a fifth, {end} at the end"
)
wrong = []
if set(counts) - {"200", "gone"}:
    wrong.append("requests failed")
wrong += end.grown(warm)
if ready["running"] or ready["waiting"]:
    wrong.append(f"unfinished work: {ready}")
sys.exit("failed: " + ", ".join(wrong) if wrong else 0)
