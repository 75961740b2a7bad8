"""A server under load."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from check import Check
from measure import Failed, Rows, Word, run, say

SECONDS = 12
"""The duration of the load, in seconds."""
SIZES = (256, 512, 1024)
CLIENTS = 16


def serve(check: Check) -> str:
    """Images per second under constant load, compared with the bench in the server's batch sizes; the latency of one client
    beyond the bench; the figures of oha with the same number of clients, if the bundle contains it; and how long the GPU
    works for a client that has disconnected."""
    check.needs_model()
    missed: list[str] = []
    figures = [serve_in(check, precision, missed) for precision in check.precisions()]
    if missed:
        raise Failed("; ".join([*missed, *figures]))
    return " ".join(figures)


def serve_in(check: Check, precision: str, missed: list[str]) -> str:
    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda", "--precision", precision]
    sizes = ",".join(map(str, SIZES))
    bench: list[Word] = ["stages/", *on, "--steps", 4, "--size", sizes]
    batches, alone = (Rows(check.bench_rows(*bench, "--batch", count).output) for count in (8, 1))
    told = []
    with server(check, on) as (url, _):
        for size in SIZES:
            engine = 8000 / batches.of_size(size).number("total_ms")
            # The bench encodes the prompt of each image in batches of 1, and once in batches of 8.
            one = load(check, url, size, "--clients", 1, "--prompts", 1000)
            many = load(check, url, size, "--clients", CLIENTS)
            share = f"{many['images_per_s'] / engine:.3f}"
            # The GPU may gain more from the pauses than the server costs.
            beyond = f"{max(1000 * one['p50_s'] - alone.of_size(size).number('total_ms'), 0.1):.1f}"
            missed += check.misses(f"{precision} {size} share of the engine's rate", share)
            missed += check.misses(f"{precision} {size} ms beyond the engine", beyond)
            steady = load(check, url, size, "--rate", round(0.8 * many["images_per_s"], 2))
            others = by_oha(check.bin / "oha", url, size) if (check.bin / "oha").exists() else ""
            say(f"{precision} {size}: {many['images_per_s']:.2f}/s of {engine:.2f}, {beyond} ms beyond the engine{others}")
            told.append(
                f"{size}: {many['images_per_s']:.2f} images a second, {share} of the engine's; one client {beyond} ms beyond "
                f"it, p99 {1000 * one['p99_s']:.0f} ms; at 80% p50 {1000 * steady['p50_s']:.0f}, p99 "
                f"{1000 * steady['p99_s']:.0f} ms{others};"
            )
        told.append(f"free {free_after(url):.2f} s after a client went")
    return f"{precision}: {' '.join(told)}"


KEYS = 10
"""The number of keys under constant load, each with one client more than the one before."""


def greedy(check: Check) -> str:
    """The share of each of ten keys. The first requests eight images at once, the last seventeen."""
    check.needs_model()
    keys, made = [f"key-{number}" for number in range(KEYS)], Counter[str]()
    is_over = threading.Event()

    def ask(url: str, key: str) -> None:
        body = json.dumps({"prompt": f"boats of {key}", "size": "512x512", "steps": 4}).encode()
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/images/generations", body, head)
        while not is_over.is_set():
            with urllib.request.urlopen(request) as answer:
                answer.read()
            if begun.is_set() and not is_over.is_set():
                made[key] += 1

    on: list[Word] = ["-d", check.klein_4b, "--device", "cuda"]
    with server(check, on, {"FLUX_API_KEYS": ",".join(keys)}) as (url, _):
        begun = threading.Event()
        clients = [
            threading.Thread(target=ask, args=(url, key))
            for number, key in enumerate(keys)
            for _ in range(8 + number)
        ]
        [client.start() for client in clients]
        time.sleep(10)
        begun.set()
        time.sleep(4 * SECONDS)
        is_over.set()
        [client.join() for client in clients]
    total = sum(made.values())
    shares = [100 * made[key] / total for key in keys]
    line = f"{total} images of ten keys, from {min(shares):.1f} to {max(shares):.1f}% each"
    missed = check.misses("% of the least", f"{min(shares):.1f}") + check.misses("% of the most", f"{max(shares):.1f}")
    if missed:
        raise Failed("; ".join([*missed, line]))
    return line


SOAK_SECONDS = 480


def soak(check: Check) -> str:
    """A server at 80% of its max rate, with clients that disconnect: host and GPU memory must not grow."""
    check.needs_model()
    model: list[Word] = ["--model", f"a={check.klein_4b}", "--model", f"b={check.klein_4b}", "--device", "cuda"]
    with server(check, [*model, "--keep-mib", 16]) as (url, process):
        command = check.script("soak_server.py", url, process.pid, SOAK_SECONDS, "--size", "512x512,768x512")
        ran = run(command, "the soak failed")
    return ran.output.strip().removeprefix("soak: ")


@contextmanager
def server(check: Check, on: list[Word], env: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Starts a server; yields its address and its process."""
    command = [str(word) for word in [check.flux, "serve", "--listen", "127.0.0.1:0", *on]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as process:
        try:
            url = ""
            for line in process.stderr or ():
                say(line.rstrip("\n"))
                if found := re.match(r"listening on (.*)", line):
                    url = found[1]
                if line.startswith("ready"):
                    break
            if not url:
                raise Failed("the server did not start")
            # Otherwise the server would block on its full log pipe.
            threading.Thread(target=lambda: [say(line.rstrip("\n")) for line in process.stderr or ()]).start()
            yield url, process
        finally:
            process.terminate()
            process.wait()


def load(check: Check, url: str, size: int, *flags: Word) -> dict[str, float]:
    command: list[Word] = [check.flux, "bench", "serve", "--url", url, "--size", size, "--steps", 4]
    row = json.loads(run([*command, *flags, "--seconds", SECONDS, "--json"], "the load test failed").output)
    if row["failed"]:
        raise Failed(f"requests failed: {row['failed']}")
    return row


def by_oha(oha: Path, url: str, size: int) -> str:
    """The figures of oha with this number of clients, if the bundle contains it."""
    body = json.dumps({"prompt": "a red circle", "size": f"{size}x{size}", "steps": 4, "seed": 1})
    # Responses in flight at the end count, as in `flux bench serve`.
    command: list[Word] = [oha, "-z", f"{SECONDS}s", "-w", "-c", CLIENTS, "--no-tui", "--output-format", "json"]
    command += ["-m", "POST", "-T", "application/json", "-d", body, f"{url}/v1/images/generations"]
    told = json.loads(run(command, "oha failed").output)
    if set(told["statusCodeDistribution"]) != {"200"} or told["errorDistribution"]:
        raise Failed(f"requests of oha failed: {told['statusCodeDistribution']} {told['errorDistribution']}")
    rate, times = told["summary"]["requestsPerSec"], told["latencyPercentiles"]
    return f"; oha {rate:.2f} images a second, p50 {1000 * times['p50']:.0f}, p99 {1000 * times['p99']:.0f} ms"


def free_after(url: str) -> float:
    """Seconds from a disconnect during a 1024 x 1024 image until the server is idle."""

    def running() -> int:
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            return json.load(answer)["running"]

    host, port = url.rsplit("/", 1)[1].split(":")
    body = json.dumps({"prompt": "boats on a lake", "size": "1024x1024", "steps": 200})
    head = "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while running() == 0:
            time.sleep(0.01)
        time.sleep(1)
    start = time.monotonic()
    while running():
        if time.monotonic() - start > 30:
            raise Failed("the GPU keeps working for a client that has disconnected")
        time.sleep(0.002)
    return time.monotonic() - start
