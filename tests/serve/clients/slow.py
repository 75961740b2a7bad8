"""Clients that send or read slowly, or nothing, beside one that asks as usual.

    slow.py URL

The usual one waits at most twice as long as without them, and they are gone after 35 s.
"""

import http.client
import json
import socket
import sys
import time
from urllib.parse import urlparse

url = urlparse(sys.argv[1])
HEAD = b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connection(sent):
    client = socket.create_connection((url.hostname, url.port))
    client.sendall(sent)
    client.setblocking(False)
    return client


def worst(seconds):
    """The longest time until an image but for one of a hundred, in so many seconds."""
    times, begun = [], time.time()
    while time.time() - begun < seconds:
        start = time.time()
        client = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        body = json.dumps({"prompt": "x", "size": "64x64", "steps": 1, "seed": len(times)})
        client.request("POST", "/v1/images/generations", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        answer.read()
        client.close()
        assert answer.status == 200, answer.status
        times.append(time.time() - start)
    return sorted(times)[int(0.99 * (len(times) - 1))]


def is_open(client):
    try:
        return client.recv(65536) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


alone = worst(10)
kinds = {
    "nothing": b"",
    "part of a head": HEAD[:60],
    "part of a body": HEAD + b"Content-Length: 1000\r\n\r\n{",
}
slow = {kind: [connection(sent) for _ in range(330)] for kind, sent in kinds.items()}
begun = time.time()
beside = worst(10)
time.sleep(max(0, 36 - (time.time() - begun)))
left = {}
for kind, clients in slow.items():
    for client in clients:
        # An answer may come before the end.
        if is_open(client) and is_open(client):
            left[kind] = left.get(kind, 0) + 1
print(f"slow: an image takes {alone:.3f} s (p99) alone, {beside:.3f} s beside 990 slow clients; open after 36 s: {left or 'none'}")
sys.exit(0 if beside < 2 * alone + 0.1 and not left else "failed: slow")
