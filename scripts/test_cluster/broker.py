"""RabbitMQ as a plain process, on loopback only."""

import os
import signal
import subprocess
import time
from pathlib import Path

from processes import free_port, wait_until

FOLDER = Path("/usr/lib/rabbitmq/bin")


class Broker:
    """A node with its own folders and ports. Its messages survive `kill`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, dist, epmd = free_port(), free_port(), free_port()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 50MB\nconsumer_timeout = 1800000\n")
        self.environment = dict(
            os.environ,
            HOME=str(self.folder),
            ERL_CRASH_DUMP=str(self.folder / "crash"),
            RABBITMQ_NODENAME="flux@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(dist),
            RABBITMQ_MNESIA_BASE=str(self.folder / "data"),
            RABBITMQ_LOG_BASE=str(self.folder / "log"),
            RABBITMQ_PID_FILE=str(self.folder / "pid"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.folder / "plugins"),
            RABBITMQ_CONFIG_FILE=str(self.folder / "rabbitmq.conf"),
            ERL_EPMD_PORT=str(epmd),
            ERL_EPMD_ADDRESS="127.0.0.1",
            # By default, the port between nodes listens on all addresses.
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
        )
        self.process = None

    @property
    def url(self):
        return f"amqp://127.0.0.1:{self.port}"

    def configure(self, text):
        """Adds lines to the configuration, and restarts the node."""
        with open(self.folder / "rabbitmq.conf", "a") as conf:
            conf.write(text)
        self.kill()
        self.start()

    def start(self):
        log = open(self.folder / "out", "ab")
        self.process = subprocess.Popen(
            [FOLDER / "rabbitmq-server"], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        wait_until(lambda: self.answers(), 120, "the broker")
        return self

    def answers(self):
        import pika

        try:
            pika.BlockingConnection(pika.URLParameters(self.url + "/%2f?heartbeat=10&socket_timeout=2")).close()
            return True
        except Exception:  # noqa: BLE001 - any error means that it does not answer yet
            return False

    def pid(self):
        return int((self.folder / "pid").read_text())

    def memory(self):
        """The memory of the node, in bytes."""
        status = Path(f"/proc/{self.pid()}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def send(self, which):
        os.kill(self.pid(), which)

    def kill(self):
        """Kills the process, like a power cut."""
        for stop in (lambda: os.kill(self.pid(), signal.SIGKILL), lambda: os.killpg(self.process.pid, signal.SIGKILL)):
            try:
                stop()
            except (ProcessLookupError, FileNotFoundError):
                pass
        self.process.wait()

    def seconds(self):
        """The CPU time of the node, in seconds."""
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def control(self, *words):
        done = subprocess.run(
            [FOLDER / "rabbitmqctl", "-q", *words], env=self.environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            raise SystemExit(f"rabbitmqctl {' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def stop(self):
        if self.process is None:
            return
        self.kill()
        # Ends the daemon for node names, if it still runs.
        subprocess.run(["epmd", "-port", self.environment["ERL_EPMD_PORT"], "-kill"], capture_output=True, check=False)
        time.sleep(0.1)
