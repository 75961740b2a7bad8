"""Processes of the test, which end with it."""

import atexit
import os
import random
import signal
import socket
import subprocess
import threading
import time

# A factor for all timeouts, for busy machines.
PACE = float(os.environ.get("CLUSTER_PACE", "1"))

_given = set()


def free_port():
    """Returns a free port that was not returned before. It is below the ports of outgoing connections, which therefore
    cannot occupy it while its server is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


def wait_until(holds, seconds, what):
    end = time.monotonic() + seconds * PACE
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"FAILED: timed out after {seconds} s: {what}")
        time.sleep(0.2)


class Kept:
    """A program that is restarted whenever it ends, until it is stopped."""

    def __init__(self, words, environment, log):
        self.words, self.environment, self.log = words, environment, log
        self.starts, self.codes = 0, []
        self.stopping = False
        self.process = None
        self.begun = 0
        self.thread = threading.Thread(target=self._keep, daemon=True)
        atexit.register(self.kill)
        self.thread.start()

    def _keep(self):
        while not self.stopping:
            with open(self.log, "ab") as log:
                self.begun = log.tell()
                self.process = subprocess.Popen(self.words, env=self.environment, stdout=log, stderr=log)
            self.starts += 1
            self.codes.append(self.process.wait())
            time.sleep(0.1)

    def said_since_start(self, words):
        with open(self.log, "rb") as log:
            log.seek(self.begun)
            return words.encode() in log.read()

    def send(self, which):
        try:
            os.kill(self.process.pid, which)
        except (ProcessLookupError, AttributeError):
            pass

    def kill(self):
        self.stopping = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.thread.join(10)

    def end(self, seconds=60):
        """Sends SIGTERM, and returns the exit code."""
        self.stopping = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        self.thread.join(seconds)
        if self.thread.is_alive():
            self.send(signal.SIGKILL)
            raise SystemExit(f"FAILED: {self.words[0]} did not end within {seconds} s of SIGTERM")
        return self.codes[-1]
