"""A server for a while at 80% of what it can do, by clients of which some go and which ask for two models in turn.

    soak_server.py URL PID SECONDS [--size SIZES]

What it holds after the first fifth it may hold at the end, and 16 MiB more, of the host's memory and of a GPU's; no request fails.
Each minute a line on stderr says what it holds, so that growth can be told from warming up.
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
parser.add_argument("--size", default="64x64,64x64,96x64", help="of which each request chooses one")
args = parser.parse_args()
url, pid, seconds, sizes = args.url, args.pid, args.seconds, args.size.split(",")
CLIENTS = 8
counts, lock = {}, threading.Lock()
chance = random.Random(1)


def ask(number, goes=False):
    body = {
        "prompt": f"a red circle, number {number % 200}",
        "model": "ab"[number // 200 % 2],
        "size": chance.choice(sizes),
        "steps": chance.choice([1, 2, 4]),
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


# What it can do.
begun = time.time()
numbers = iter(range(10**9))
made = 0
while time.time() - begun < min(10.0, seconds / 10):
    told = [None] * CLIENTS
    threads = [threading.Thread(target=lambda: count(ask(next(numbers)))) for _ in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    made += CLIENTS
rate = made / (time.time() - begun)

begun, warm, sent, threads = time.time(), None, 0, []
minute = 0
while (passed := time.time() - begun) < seconds:
    if passed >= 60 * minute:
        print(f"minute {minute}: {Held(pid)}", file=sys.stderr, flush=True)
        minute += 1
    if warm is None and passed > seconds / 5:
        warm = Held(pid)
    time.sleep(max(0.0, sent / (0.8 * rate) - passed))
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
    f"soak: {sent} requests in {time.time() - begun:.0f} s at {0.8 * rate:.1f} a second: {counts}; "
    f"{warm} after a fifth, {end} at the end"
)
wrong = []
if set(counts) - {"200", "gone"}:
    wrong.append("requests failed")
wrong += end.grown(warm)
if ready["running"] or ready["waiting"]:
    wrong.append(f"work is left: {ready}")
sys.exit("failed: " + ", ".join(wrong) if wrong else 0)
