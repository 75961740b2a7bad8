"""The page, sockets and events through a proxy, at its root and below a path. Usage: proxied.py ROOT BELOW"""

import re
import sys
import time

import httpx
import websocket

root, below = sys.argv[1:]
small = {"prompt": "a red circle", "size": "64x64", "steps": 4, "seed": 5}

# Every file of the page is below the path, as the browser finds it.
for document in ["", "live", "batches"]:
    page = httpx.get(f"{below}/{document}")
    assert page.status_code == 200, (document, page.status_code)
    for name in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert not name.startswith("/"), name
        if name not in [".", "live", "batches"]:
            assert httpx.get(page.url.join(name)).status_code == 200, name

# Events come one by one.
body = {**small, "steps": 40, "size": "128x128", "stream": True, "partial_images": 3}
with httpx.stream("POST", f"{below}/v1/images/generations", json=body, timeout=60) as answer:
    times = [time.monotonic() for line in answer.iter_lines() if line.startswith("event:")]
assert len(times) == 4 and times[-1] - times[0] > 0.02, times

# Sockets are upgraded.
socket = websocket.create_connection(f"{below.replace('http', 'ws', 1)}/v1/live", timeout=60, subprotocols=["flux"])
socket.send('{"prompt": "a red circle", "size": "64x64", "steps": 1, "draw": 7}')
assert socket.recv()[:4] == bytes([0, 0, 0, 7])
socket.close()

# A browser at the proxy's address, and one of another site.
own = {"Origin": root, "Sec-Fetch-Site": "same-origin"}
assert httpx.post(f"{below}/v1/jobs", json=small, headers=own).status_code == 202
refused = httpx.post(f"{below}/v1/jobs", json=small, headers={"Origin": "https://evil.example"})
assert refused.json()["error"]["code"] == "forbidden_origin"

# Without any header of the proxy's own, as `proxy_pass` alone sends it.
assert httpx.post(f"{root}/v1/images/generations", json=small, timeout=60).status_code == 200
for path in ["/health", "/v1//models", "/v1/models/"]:
    assert httpx.get(root + path).status_code == 200, path
print("proxied: all as it should be")
