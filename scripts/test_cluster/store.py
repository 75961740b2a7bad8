"""moto as S3, behind a proxy that can be killed, because moto loses its data when it ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from processes import free_port, wait_until

BUCKET = "flux"


class Store:
    def __init__(self, folder, venv):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.inner, self.port = free_port(), free_port()
        log = open(self.folder / "moto.log", "wb")
        self.moto = subprocess.Popen(
            [Path(venv) / "bin/moto_server", "-H", "127.0.0.1", "-p", str(self.inner)], stdout=log, stderr=log
        )
        self.proxy = None
        self.start()
        wait_until(self.answers, 60, "the store")
        request = urllib.request.Request(f"http://127.0.0.1:{self.inner}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def answers(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.inner}/moto-api/", timeout=2).close()
            return True
        except OSError:
            return False

    def start(self):
        """Makes the store available."""
        self.proxy = subprocess.Popen([sys.executable, __file__, str(self.port), str(self.inner)])

    def kill(self):
        """Makes the store unavailable, even during requests."""
        self.proxy.send_signal(signal.SIGKILL)
        self.proxy.wait()

    def stop(self):
        self.kill()
        self.moto.kill()
        self.moto.wait()


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def proxy(port, inner):
    with socket.create_server(("127.0.0.1", port), reuse_port=False) as server:
        while True:
            client, _ = server.accept()
            try:
                upstream = socket.create_connection(("127.0.0.1", inner))
            except OSError:
                client.close()
                continue
            for ends in ((client, upstream), (upstream, client)):
                threading.Thread(target=copy, args=ends, daemon=True).start()


if __name__ == "__main__":
    if os.getppid() == 1:
        sys.exit("error: run scripts/test_cluster.sh instead")
    proxy(int(sys.argv[1]), int(sys.argv[2]))
