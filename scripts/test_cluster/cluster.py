"""A broker, a store and workers with the built-in model, and checks of them."""

import json
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import boto3
import pika
from broker import Broker
from processes import PACE, Kept
from store import BUCKET, Store


def fail(what):
    raise SystemExit(f"FAILED: {what}")


def check(holds, what):
    if not holds:
        fail(what)
    print(f"ok: {what}", flush=True)


class Cluster:
    def __init__(self, flux, venv, folder):
        self.flux = str(flux)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.broker = Broker(self.folder / "broker").start()
        self.store = Store(self.folder / "store", venv)
        self.environment = dict(
            os.environ,
            FLUX_QUEUE=self.broker.url,
            FLUX_STORE=f"s3://{BUCKET}/jobs",
            RAYON_NUM_THREADS="1",
            **self.store.environment,
        )
        # Bypasses the proxy, which may be down.
        self.objects = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.store.inner}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.workers = []
        self.started = 0

    def run(self, *words, code=0, **more):
        """Runs `flux` and returns its standard output and standard error."""
        done = subprocess.run(
            [self.flux, *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=900 * PACE, **more
        )
        if code is not None and done.returncode != code:
            fail(f"flux {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip(), done.stderr.strip()

    def worker(self, *flags, device="cpu", **environment):
        self.started += 1
        log = self.folder / f"worker-{self.started:02}.log"
        words = [self.flux, "worker", "--device", device, "--name", "tiny", "-v", *map(str, flags)]
        self.workers.append(Kept(words, self.environment | environment, log))
        return self.workers[-1]

    def end_workers(self):
        codes = [worker.end() for worker in self.workers]
        self.workers = []
        return codes

    def logs(self):
        return "".join(log.read_text(errors="replace") for log in sorted(self.folder.glob("worker-*.log")))

    def drawn(self):
        """The number of times that each result was generated, by hash."""
        return Counter(re.findall(r"^generated job [0-9a-f]+ ([0-9a-f]{64})", self.logs(), re.MULTILINE))

    def drawn_twice(self, batch, before=None):
        """The number of redundant images of a batch, since `drawn` returned `before`."""
        drawn = self.drawn() - (before or Counter())
        wanted = {job["key"].split("/")[-1].split(".")[0] for job in self.manifest(batch)}
        return sum(times - 1 for key, times in drawn.items() if key in wanted)

    def status(self, batch):
        return json.loads(self.run("queue", "status", batch, "--json")[0])

    def waiting(self, queue="flux.tiny.batch"):
        queues = json.loads(self.run("queue", "status", "--json")[0])["queues"]
        return sum(one["waiting"] for one in queues if one["queue"] == queue)

    def publish(self, message, queue, exchange="flux", **properties):
        """Sends a message that `flux submit` would not send."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.url)) as connection:
            connection.channel().basic_publish(exchange, queue, message, pika.BasicProperties(**properties))

    def begin(self, *words):
        """Starts `flux`, and captures its standard output and standard error."""
        return subprocess.Popen(
            [self.flux, *map(str, words)], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self, batch, seconds, every=1.0):
        """Waits until all jobs of a batch have ended."""
        end = time.monotonic() + seconds * PACE
        while True:
            done = subprocess.run(
                [self.flux, "queue", "status", batch, "--json"], env=self.environment, capture_output=True, text=True
            )
            status = json.loads(done.stdout) if done.returncode == 0 else None
            if status and status["done"] + status["failed"] + status["dead"] >= status["jobs"]:
                return status
            if time.monotonic() > end:
                fail(f"the batch did not end within {seconds} s: {status or done.stderr}")
            time.sleep(every)

    def object(self, name):
        return self.objects.get_object(Bucket=BUCKET, Key=f"jobs/{name}")["Body"].read()

    def manifest(self, batch):
        lines = self.object(f"batches/{batch}/manifest.jsonl").decode().splitlines()
        return [json.loads(line) for line in lines[1:]]

    def fetch(self, batch, folder, skip=()):
        """Writes the results of a batch, named by line."""
        folder.mkdir(parents=True, exist_ok=True)
        for job in self.manifest(batch):
            if job["line"] not in skip:
                (folder / f"{job['line']:05}.png").write_bytes(self.object(job["key"]))

    def compare(self, batch, prompts, skip=()):
        """Checks that the results of a batch have the pixels that `flux batch` generates from the same list."""
        fetched, drawn = self.folder / f"fetched-{batch}", self.folder / f"drawn-{batch}"
        self.fetch(batch, fetched, skip)
        lines = [line for number, line in enumerate(prompts.read_text().splitlines(), 1) if number not in skip]
        listed = self.folder / f"{batch}.jsonl"
        listed.write_text("".join(f"{line}\n" for line in lines))
        self.run("batch", listed, drawn, "--device", "cpu", "--name", "{index:05}.png", "-q")
        kept = sorted(fetched.glob("*.png"))
        for number, path in enumerate(kept, 1):
            path.rename(fetched / f"{number:05}.new")
        for path in fetched.glob("*.new"):
            path.rename(path.with_suffix(".png"))
        out, _ = self.run("compare", fetched, drawn)
        count = len(lines)
        check(f"\n{count} pairs, {count} equal:" in out, f"{count} results have the pixels of `flux batch`")

    def close(self):
        for worker in self.workers:
            worker.kill()
        self.store.stop()
        self.broker.stop()


def prompts(path, count, size=64, steps=1, first=0, **more):
    """Writes a list of `count` different images."""
    things = ["a red circle", "an owl", "a rocket", "a yellow star", "a cat", "a green tree", "a house", "a fish"]
    lines = [
        {"prompt": f"{things[n % len(things)]} on a blue background", "seed": first + n, "size": size, "steps": steps, **more}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
