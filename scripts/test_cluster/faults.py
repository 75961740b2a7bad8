"""Faults other than a killed process: a full disk or queue, an unavailable store, clock jumps, and hangs."""

import json
import os
import signal
import time
from pathlib import Path

from cluster import check, prompts
from processes import PACE, wait_until

# More steps than any worker can compute within HANG_LIMIT seconds.
ENDLESS = {"steps": 1000, "size": 512}
HANG_LIMIT = 4


def alarms(cluster, _short):
    """A broker without free disk space."""
    queued = prompts(cluster.folder / "queued.jsonl", 20, first=20_000)
    batch, _ = cluster.run("submit", queued)
    cluster.broker.control("set_disk_free_limit", "10000GB")
    cluster.worker()
    check(cluster.wait(batch, 90)["done"] == 20, "without disk space, the broker delivers its jobs, and workers generate them")
    listed = prompts(cluster.folder / "alarm.jsonl", 30, first=30_000)
    submitting = cluster.begin("submit", listed)
    time.sleep(40)
    check(submitting.poll() is None, "the broker confirms nothing, and submit waits")
    cluster.broker.control("set_disk_free_limit", "50MB")
    out, told = submitting.communicate(timeout=120 * PACE)
    check(submitting.returncode == 0 and "trying again" in told, "submit reports that, and continues when there is space")
    check(cluster.wait(out.strip(), 120)["done"] == 30, "all 30 are done")
    check(cluster.end_workers() == [0], "the worker ends as usual")


def full(cluster, _short):
    """A full queue."""
    count, room = 100, 40
    listed = prompts(cluster.folder / "full.jsonl", count, first=40_000)
    # The queue of a model refuses beyond 2,000,000 jobs; the lower of the two limits holds.
    cluster.broker.control("set_policy", "--apply-to", "queues", "small", "^flux[.]tiny", json.dumps({"max-length": room}))
    # Messages in flight are still accepted when the queue becomes full.
    cluster.run("submit", prompts(cluster.folder / "filling.jsonl", room + 10, first=39_000))
    _, told = cluster.run("submit", listed, "--wait", "3", code=1)
    check("the queue is full; waiting" in told and "start workers, and run the command again" in told, "a full queue ends submit")
    check(cluster.waiting() == room + 10, "and none of its jobs is in the queue")
    submitting = cluster.begin("submit", listed)
    time.sleep(5)
    check(submitting.poll() is None, "run again, submit waits for room")
    submitting.send_signal(signal.SIGINT)
    _, told = submitting.communicate(timeout=60)
    check(submitting.returncode == 130, "Ctrl-C ends submit")
    cluster.worker()
    batch, told = cluster.run("submit", listed)
    check("sent" in told, "with a worker, submit continues")
    check(cluster.wait(batch, 240)["done"] == count, f"all {count} are done")
    check(cluster.drawn_twice(batch) == 0, "jobs that were sent twice were generated once")
    _, told = cluster.run("submit", listed, "--dry-run")
    check("0 to send" in told, "nothing is left to do")
    check(cluster.end_workers() == [0], "the worker ends as usual")


def away(cluster, _short):
    """A store that does not answer while workers generate images."""
    count, heartbeat = 200, cluster.folder / "heartbeat"
    listed = prompts(cluster.folder / "away.jsonl", count, first=50_000)
    worker = cluster.worker("--heartbeat", heartbeat)
    batch, _ = cluster.run("submit", listed)
    wait_until(lambda: len(cluster.drawn()) >= 10 and heartbeat.exists(), 120, "the first images")
    cluster.store.kill()
    wait_until(lambda: "the worker keeps its jobs" in cluster.logs(), 60, "the worker's message about the store")
    time.sleep(12)
    check(time.time() - heartbeat.stat().st_mtime > 7, "without the store, the heartbeat stops")
    _, told = cluster.run("submit", listed, code=1)
    check("check that the store is reachable" in told, "submit reports that the store is unavailable")
    cluster.store.start()
    check(cluster.wait(batch, 240)["done"] == count, f"once it is back, all {count} are done")
    check((worker.starts, cluster.drawn_twice(batch)) == (1, 0), "the worker kept running, and generated no image twice")
    check(time.time() - heartbeat.stat().st_mtime < 7, "the heartbeat continues")
    check(cluster.end_workers() == [0], "the worker ends as usual")


def clock(cluster, _short):
    """Clocks that jump by days, on the worker only."""
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), *Path("/usr/lib64").glob("faketime/libfaketimeMT.so.1")]
    if not libraries:
        print("skipped: libfaketime is not installed", flush=True)
        return
    times = cluster.folder / "time"
    times.write_text("+0")
    fake = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(times),
        "FAKETIME_NO_CACHE": "1",
        # Behave like a real clock that jumps.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    count = 120
    listed = prompts(cluster.folder / "clock.jsonl", count, first=60_000)
    worker = cluster.worker("--job-timeout", "30", **fake)
    batch, _ = cluster.run("submit", listed)
    for jump, drawn in (("+3d", 10), ("-30d", 40), ("+400d", 70), ("+0", 90)):
        wait_until(lambda least=drawn: len(cluster.drawn()) >= least, 120, f"{drawn} images")
        times.write_text(jump)
    check(cluster.wait(batch, 240)["done"] == count, f"while the worker's clock jumps, all {count} are done")
    check((worker.starts, cluster.drawn_twice(batch)) == (1, 0), "it kept running, and generated no image twice")
    check(cluster.end_workers() == [0], "it ends as usual")
    dated = prompts(cluster.folder / "dated.jsonl", 3, first=61_000)
    batch, _ = cluster.run("submit", dated)
    cluster.broker.control("purge_queue", "flux.tiny.batch")
    worker, jobs = cluster.worker(**fake), cluster.manifest(batch)

    def ask(place, jump, seconds):
        """Delivers a job with a time limit to a worker whose clock is wrong."""
        times.write_text(jump)
        job = {
            "v": 1, "job": f"{place:032x}", "key": jobs[place]["key"], "recipe": jobs[place]["recipe"], "model": "tiny",
            "format": {"type": "png"}, "priority": "online", "deadline": int(time.time()) + seconds, "submitted": 1,
        }  # fmt: skip
        cluster.publish(json.dumps(job).encode(), "flux.tiny.online")

    ask(0, "+3d", 3600)
    wait_until(lambda: f"job {0:032x} is past its deadline" in cluster.logs(), 60, "the end of a job that is past its deadline at the worker")
    ask(1, "-3d", -3600)
    ask(2, "+0", 3600)
    done = lambda: cluster.status(batch)["done"]  # noqa: E731
    wait_until(lambda: done() == 2, 60, "jobs that are within their deadline")
    check(worker.starts == 1, "deadlines are relative to the worker's clock when the job arrives")
    check(cluster.end_workers() == [0], "the worker ends as usual")


def hangs(cluster, _short):
    """A worker, a broker and a store that hang, and a job that never ends."""
    count = 150
    listed = prompts(cluster.folder / "stopped.jsonl", count, first=70_000)
    stopped, other = cluster.worker("--batch-max", "4"), cluster.worker("--batch-max", "4")
    batch, _ = cluster.run("submit", listed)
    wait_until(lambda: len(cluster.drawn()) >= 10, 120, "the first images")
    stopped.send(signal.SIGSTOP)
    check(cluster.wait(batch, 240)["done"] == count, "another worker generates the jobs of a stopped worker")
    stopped.send(signal.SIGCONT)
    time.sleep(3)
    check(cluster.drawn_twice(batch) <= 4, "the stopped worker repeated at most its running images")
    more = prompts(cluster.folder / "more.jsonl", count, first=71_000)
    batch, _ = cluster.run("submit", more)
    before = len(cluster.drawn())
    wait_until(lambda: len(cluster.drawn()) >= before + 10, 120, "more images")
    cluster.broker.send(signal.SIGSTOP)
    time.sleep(35)
    cluster.broker.send(signal.SIGCONT)
    check(cluster.wait(batch, 240)["done"] == count, "after the broker hung, all are done")
    more = prompts(cluster.folder / "again.jsonl", count, first=72_000)
    batch, _ = cluster.run("submit", more)
    before = len(cluster.drawn())
    wait_until(lambda: len(cluster.drawn()) >= before + 10, 120, "more images")
    cluster.store.proxy.send_signal(signal.SIGSTOP)
    time.sleep(15)
    cluster.store.proxy.send_signal(signal.SIGCONT)
    check(cluster.wait(batch, 240)["done"] == count, "after the store hung, all are done")
    check((stopped.starts, other.starts) == (1, 1), "both workers kept running")
    check(cluster.end_workers() == [0, 0], "the workers end as usual")
    worker = cluster.worker("--job-timeout", HANG_LIMIT)
    endless = cluster.folder / "endless.jsonl"
    lines = [{"prompt": "no end", "seed": 1, **ENDLESS}, *({"prompt": "an end", "seed": n, "size": 64, "steps": 1} for n in range(9))]
    endless.write_text("".join(json.dumps(line) + "\n" for line in lines))
    batch, _ = cluster.run("submit", endless)
    status = cluster.wait(batch, 240)
    check((status["done"], status["dead"]) == (9, 1), "the job that never ends is dead, and the others are done")
    check(set(worker.codes) == {75} and len(worker.codes) >= 5, "the worker exited with code 75 each time")
    reasons = [json.loads(line)["reason"] for line in cluster.run("queue", "dead", "list", batch, "--json")[0].splitlines()]
    check(len(reasons) == 1 and "delivery_limit" in reasons[0], "the dead letter has the reason")
    cluster.end_workers()


def devices(cluster, _short):
    """A worker with two devices: on the CPU, or those in CLUSTER_DEVICE."""
    count, device = 60, os.environ.get("CLUSTER_DEVICE", "cpu")
    names = ["cpu:0", "cpu:1"] if device == "cpu" else [f"cuda:{gpu}" for gpu in device.removeprefix("cuda:").split(",")]
    listed = prompts(cluster.folder / "devices.jsonl", count, first=80_000)
    worker = cluster.worker("--batch-max", "4", device=device, FLUX_CPU_DEVICES="2")
    wait_until(lambda: f"on {len(names)} devices" in cluster.logs(), 120, "a worker with all devices")
    batch, _ = cluster.run("submit", listed)
    wait_until(lambda: len(cluster.drawn()) >= 10, 120, "the first images")
    worker.send(signal.SIGKILL)
    check(cluster.wait(batch, 240)["done"] == count, f"a worker with {len(names)} devices, killed once, completes all {count}")
    per = {name: cluster.logs().count(f" on {name} in ") for name in names}
    check(min(per.values()) >= count // 10, f"all devices generated images: {per}")
    check(cluster.drawn_twice(batch) <= 4 * len(names), "at most the running images were generated twice")
    if device == "cpu":
        cluster.compare(batch, listed)
    check(cluster.end_workers() == [0], "the worker ends as usual")
