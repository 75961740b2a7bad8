"""The basic sections and `chaos`."""

import json
import os
import random
import signal
import subprocess
import threading
import time

from cluster import check, fail, prompts
from processes import PACE, wait_until

# More steps than any worker can compute within the seconds of POISON_LIMITS.
POISON = {"steps": 1000, "size": 512}
POISON_LIMITS = {"short": round(4 * PACE), "long": round(8 * PACE)}
# The number of jobs of `chaos`.
CHAOS_JOBS = int(os.environ.get("CLUSTER_CHAOS_JOBS", "2000"))


def basics(cluster, _short):
    """A batch from its list to its pixels; submitted again, cancelled, and refused."""
    _, told = cluster.run("submit", prompts(cluster.folder / "none.jsonl", 1), code=2)
    check("the store has no model" in told and "--register" in told, "without a worker, there is no model")
    cluster.run("worker", "--name", "tiny", "--register")
    listed = prompts(cluster.folder / "basics.jsonl", 20)
    batch, told = cluster.run("submit", listed)
    check("20 sent" in told, "20 jobs are sent")
    worker = cluster.worker()
    status = cluster.wait(batch, 120)
    check((status["done"], status["failed"], status["dead"]) == (20, 0, 0), "20 jobs are done")
    cluster.compare(batch, listed)
    again, told = cluster.run("submit", listed)
    check(again == batch and "0 sent, 20 already done" in told, "submitted again, nothing is sent")
    picture = cluster.folder / "picture.png"
    cluster.run("-p", "a cat", "-S", "1", "--size", "64", "-s", "1", "-o", picture, "--device", "cpu", "-q")
    edit = prompts(cluster.folder / "edit.jsonl", 2, inputs=[str(picture)])
    bad = cluster.folder / "bad.jsonl"
    bad.write_text('{"prompt": "too large", "size": 8192}\n{"prompt": "a cat", "seed": 5, "size": 64, "steps": 1}\n')
    edited, _ = cluster.run("submit", edit)
    failing, _ = cluster.run("submit", bad)
    check(cluster.wait(edited, 60)["done"] == 2, "edits are done")
    status = cluster.wait(failing, 60)
    check((status["done"], status["failed"]) == (1, 1), "a job that is too large fails alone")
    _, told = cluster.run("submit", bad)
    check("0 sent, 1 already done, 1 failed" in told, "a failed job is not sent again")
    _, told = cluster.run("submit", bad, "--retry-failed")
    check("1 sent" in told, "unless this is requested")
    check(worker.end() == 0 and "ended: " in cluster.logs(), "SIGTERM ends the worker with code 0")
    cluster.workers.clear()
    long = prompts(cluster.folder / "cancel.jsonl", 50, first=10_000)
    batch, _ = cluster.run("submit", long)
    cluster.run("queue", "cancel", batch)
    cluster.worker()
    wait_until(lambda: cluster.waiting() == 0, 60, "the end of a cancelled batch")
    check(cluster.status(batch)["done"] == 0, "a cancelled batch is not generated")
    _, told = cluster.run("submit", long)
    check("was cancelled" in told and cluster.wait(batch, 120)["done"] == 50, "submitted again, it is generated")
    cluster.end_workers()
    _, told = cluster.run("queue", "status", "--queue", "amqp://guest:guest@127.0.0.1", code=2)
    check("FLUX_QUEUE_PASSWORD" in told, "a password on the command line is refused")


def chaos(cluster, short):
    """Kills of workers, broker and store while jobs run, and five jobs that crash every worker."""
    count, poison = (100, 1) if short else (CHAOS_JOBS, 5)
    listed = prompts(cluster.folder / "chaos.jsonl", count, first=100_000)
    lines = listed.read_text().splitlines()
    poisoned = sorted(random.Random(7).sample(range(count), poison))
    for place in poisoned:
        lines[place] = json.dumps({"prompt": "poison", "seed": 900_000 + place, **POISON})
    listed.write_text("".join(f"{line}\n" for line in lines))
    limit = POISON_LIMITS["short" if short else "long"]
    workers = [cluster.worker("--job-timeout", limit, "--batch-max", "4") for _ in range(3)]
    before = cluster.drawn()
    over, kills = threading.Event(), {"worker": 0, "broker": 0, "store": 0, "stopped": 0}

    def killer(what, first, every, most):
        """Kills up to `most` of a kind, one at a time: the broker takes a while to start."""
        rng, due = random.Random(what), time.monotonic() + first
        while kills[what] < most and not over.wait(max(due - time.monotonic(), 0.2)):
            # A starting worker has no jobs to lose.
            hit = [worker for worker in workers if worker.said_since_start("generated job")] if what == "worker" else workers
            if not hit:
                continue
            kills[what] += 1
            due = time.monotonic() + every
            if what == "worker":
                rng.choice(hit).send(signal.SIGKILL)
            elif what == "broker":
                cluster.broker.kill()
                cluster.broker.start()
            elif what == "store":
                cluster.store.kill()
                time.sleep(3)
                cluster.store.start()
            else:
                worker = rng.choice(workers)
                worker.send(signal.SIGSTOP)
                threading.Timer(12, worker.send, [signal.SIGCONT]).start()

    every = {"worker": 2.0 * PACE, "broker": 30.0 * PACE, "store": 60.0 * PACE, "stopped": 25.0 * PACE}
    killing = []
    for at, (what, seconds) in enumerate(every.items()):
        first, most = (4.0 + at * 3.0, int(what != "stopped")) if short else (seconds, 10**6)
        killing.append(threading.Thread(target=killer, args=(what, first, seconds, most)))
    began = time.monotonic()
    for one in killing:
        one.start()
    try:
        while True:
            done = subprocess.run([cluster.flux, "submit", listed], env=cluster.environment, capture_output=True, text=True)
            if done.returncode == 0:
                break
            if time.monotonic() - began > 600:
                fail(f"submit: {done.stderr}")
        batch = done.stdout.strip()
        status = cluster.wait(batch, 3000, every=3)
    finally:
        over.set()
        for one in killing:
            one.join()
    check(min(kills["worker"], kills["broker"], kills["store"]) > 0, f"while {kills} were killed")
    if (status["done"], status["dead"]) != (count - poison, poison):
        print(cluster.run("queue", "dead", "list", batch)[0], flush=True)
        fail(f"{count - poison} of {count} jobs should be done, and {poison} dead: {status}")
    check(status["done"] == count - poison, f"{count - poison} of {count} jobs are done")
    check(status["dead"] == poison and status["failed"] == 0, f"{poison} jobs that crash every worker are dead")
    out, _ = cluster.run("queue", "dead", "list", batch, "--json")
    dead = [json.loads(line) for line in out.splitlines()]
    check(sorted({job["line"] for job in dead}) == [place + 1 for place in poisoned], "and they are the right jobs")
    check(all("delivery_limit" in job["reason"] for job in dead), "with their reason")
    twice = cluster.drawn_twice(batch, before)
    most = max(count // 100, 2) if short else count // 100
    check(twice <= most, f"{twice} of {count} were generated twice")
    cluster.compare(batch, listed, skip={place + 1 for place in poisoned})
    _, told = cluster.run("submit", listed, "--dry-run")
    check(f"{poison} to send" in told, "only the dead jobs remain")
    cluster.end_workers()
    cluster.run("queue", "dead", "drop", "--all")
    print(f"chaos: {count} jobs in {time.monotonic() - began:.0f} s, {twice} generated twice, {kills}", flush=True)
