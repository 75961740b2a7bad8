"""Tests scripts/slurm_batch.sh on a one-node Slurm, whose daemons are plain processes on loopback."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from cluster import check, prompts
from processes import free_port, wait_until

SCRIPT = Path(__file__).parent.parent / "slurm_batch.sh"
PARTS, COUNT = 4, 40


class Slurm:
    def __init__(self, folder):
        self.folder = Path(folder)
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir(parents=True)
        os.chmod(self.folder / "munge", 0o700)
        self.processes = []
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.socket = self.folder / "munge" / "socket"
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(
            f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/munge
AuthInfo=socket={self.socket}
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
CommunicationParameters=NoAddrCache
NodeName={host} NodeAddr=127.0.0.1 CPUs={PARTS} Boards=1 SocketsPerBoard=1 CoresPerSocket={PARTS} ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
SlurmdParameters=config_overrides
"""
        )
        self.environment = dict(os.environ, SLURM_CONF=str(self.conf))
        munged = shutil.which("munged") or "/usr/sbin/munged"
        self.start(
            [munged, "-F", "--force", f"--key-file={key}", f"--socket={self.socket}", f"--pid-file={self.folder}/munge/pid",
             f"--log-file={self.folder}/munge/log", f"--seed-file={self.folder}/munge/seed"]
        )  # fmt: skip
        wait_until(self.socket.exists, 20, "munged")
        self.start([shutil.which("slurmctld") or "/usr/sbin/slurmctld", "-D", "-c"])
        time.sleep(1)
        self.start([shutil.which("slurmd") or "/usr/sbin/slurmd", "-D", "-N", host])
        wait_until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t", may_fail=True), 60, "the node of Slurm")

    def start(self, words):
        log = open(self.folder / "daemons.log", "ab")
        self.processes.append(subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, start_new_session=True))

    def run(self, *words, may_fail=False):
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0 and not may_fail:
            raise SystemExit(f"FAILED: {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout.strip()

    def close(self):
        for process in reversed(self.processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def pids_of(flux):
    """Returns the processes of the third task."""
    found = subprocess.run(["pgrep", "-f", f"{flux} batch .*--shard 2/{PARTS}"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def run(flux, folder):
    slurm = Slurm(folder)
    try:
        images = folder / "images"
        listed = prompts(folder / "prompts.jsonl", COUNT, size=128, steps=8)
        environment = f"ALL,FLUX_BIN={flux},RAYON_NUM_THREADS=1"
        submit = [
            "sbatch", "--parsable", f"--array=0-{PARTS - 1}", f"--export={environment}", f"--output={folder}/task-%a.log",
            str(SCRIPT), str(listed), str(images), "--device", "cpu", "--name", "{index:05}.png",
        ]  # fmt: skip
        job = slurm.run(*submit)
        wait_until(lambda: len(list(images.glob("*.png"))) >= 2, 120, "the first images")
        wait_until(lambda: pids_of(flux), 60, "the third task")
        for pid in pids_of(flux):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: slurm.run("squeue", "-h", "-j", job, may_fail=True) == "", 300, "the end of the array")
        made = len(list(images.glob("*.png")))
        check(made < COUNT, f"one task of {PARTS} was killed: {made} of {COUNT} images exist")
        before = {path.name: path.stat().st_mtime_ns for path in images.glob("*.png")}
        job = slurm.run(*submit)
        wait_until(lambda: slurm.run("squeue", "-h", "-j", job, may_fail=True) == "", 300, "the end of the second array")
        after = {path.name: path.stat().st_mtime_ns for path in images.glob("*.png")}
        check(len(after) == COUNT, "the same command again generates the others")
        check(all(after[name] == time for name, time in before.items()), "and keeps the existing images")
    finally:
        slurm.close()
