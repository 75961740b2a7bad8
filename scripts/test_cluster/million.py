"""Very many jobs on the real broker, with fake workers that write an empty result and acknowledge the job."""

import json
import multiprocessing
import os
import resource
import subprocess
import time

from broker import Broker
from cluster import check

JOBS = int(os.environ.get("CLUSTER_JOBS", 1_000_000))
PROCESSES, CHANNELS = 4, 25
SECONDS, BYTES = 120, 2 << 30


def fake_workers(url, store, left):
    """CHANNELS fake workers on one connection."""
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for _ in range(CHANNELS):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=8)

            def draw(channel, method, _properties, body):
                path = store / json.loads(body)["key"]
                try:
                    path.touch()
                except FileNotFoundError:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
                channel.basic_ack(method.delivery_tag)
                with left.get_lock():
                    left.value -= 1

            channel.basic_consume("flux.fake.batch", draw)
        while left.value > 0:
            connection.process_data_events(time_limit=0.2)


def run(flux, folder):
    folder.mkdir(parents=True)
    store = folder / "store"
    broker = Broker(folder / "broker").start()
    try:
        environment = dict(os.environ, FLUX_QUEUE=broker.url, FLUX_STORE=f"file://{store}")

        def flux_says(*words):
            done = subprocess.run([flux, *words], env=environment, capture_output=True, text=True)
            check(done.returncode == 0, f"flux {words[0]}: {done.stderr.strip() or 'done'}")
            return done.stdout.strip(), done.stderr

        flux_says("worker", "--name", "fake", "--register")
        listed = folder / "million.txt"
        with open(listed, "w") as lines:
            lines.writelines(f"an image of the number {n} on a blue background\n" for n in range(JOBS))
        began = time.monotonic()
        batch, _ = flux_says("submit", str(listed), "-S", "1")
        submitted = time.monotonic() - began
        memory = broker.memory()
        # The peak memory of the programs that have ended, in KiB.
        own = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"million: {JOBS} jobs submitted in {submitted:.0f} s, load {os.getloadavg()[0]:.0f}", flush=True)
        print(f"million: broker {memory / 2**20:.0f} MiB, {broker.seconds():.0f} s of CPU time; submit {own / 1024:.0f} MiB", flush=True)
        left = multiprocessing.Value("q", JOBS)
        began = time.monotonic()
        workers = [multiprocessing.Process(target=fake_workers, args=(broker.url, store, left)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.start()
        most = memory
        while any(worker.is_alive() for worker in workers):
            most = max(most, broker.memory())
            time.sleep(1)
        check(all(worker.exitcode == 0 for worker in workers), f"{PROCESSES * CHANNELS} fake workers are done")
        worked = time.monotonic() - began
        print(f"million: {JOBS / worked:.0f} jobs delivered per second, load {os.getloadavg()[0]:.0f}", flush=True)
        print(f"million: broker max {most / 2**20:.0f} MiB, {broker.seconds():.0f} s of CPU time in total", flush=True)
        began = time.monotonic()
        _, told = flux_says("submit", str(listed), "-S", "1")
        print(f"million: repair took {time.monotonic() - began:.0f} s", flush=True)
        check(f" 0 sent, {JOBS} already done" in told, "repair finds nothing to do")
        check(submitted <= SECONDS * max(JOBS / 1e6, 0.1), f"submitted within {SECONDS} s per million")
        check(most < BYTES, "the broker had less than 2 GiB")
        print(flux_says("queue", "status", batch)[0], flush=True)
    finally:
        broker.stop()
