"""`flux serve --queue`: requests that workers process, through the broker and the store."""

import base64
import json
import math
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from cluster import check, fail
from processes import PACE, free_port, wait_until
from store import BUCKET

GRAPHS = Path(__file__).parent.parent.parent / "tests" / "serve" / "graphs"
SMALL = {"prompt": "a red circle on a blue background", "size": "64x64", "steps": 2}
# Minutes for one thread.
LONG = {"prompt": "a red circle", "size": "512x512", "steps": 1000}


class Server:
    def __init__(self, cluster, name, *flags):
        self.port = free_port()
        self.log = cluster.folder / f"server-{name}.log"
        words = [cluster.flux, "serve", "--listen", f"127.0.0.1:{self.port}", *map(str, flags)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, env=cluster.environment, stdout=log, stderr=log)

    def request(self, method, path, body=None, headers=None, timeout=300):
        """Returns the status, headers and bytes of a response."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout * PACE) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()
        except OSError as error:
            return 0, {}, str(error).encode()

    def json(self, method, path, body=None, code=200):
        status, _, answer = self.request(method, path, body)
        if status != code:
            fail(f"{method} {path} returned {status}: {answer.decode(errors='replace')}\n{self.log.read_text()}")
        return json.loads(answer)

    def generate(self, **fields):
        answer = self.json("POST", "/v1/images/generations", SMALL | fields)
        return [base64.b64decode(one["b64_json"]) for one in answer["data"]], answer

    def refused(self, **fields):
        """Returns the status, code, Retry-After and seconds of a refused request."""
        began = time.monotonic()
        status, headers, answer = self.request("POST", "/v1/jobs", SMALL | fields)
        code = json.loads(answer).get("error", {}).get("code") if answer else None
        return status, code, headers.get("Retry-After"), time.monotonic() - began

    def submit(self, **fields):
        return self.json("POST", "/v1/jobs", SMALL | fields, code=202)["id"]

    def status(self, job):
        return self.json("GET", f"/v1/jobs/{job}")["status"]

    def end_of(self, job, seconds=120):
        wait_until(lambda: self.status(job) in ("done", "failed", "cancelled"), seconds, "the end of a job")
        return self.json("GET", f"/v1/jobs/{job}")

    def ready(self):
        status, _, answer = self.request("GET", "/readyz")
        return (status, json.loads(answer)["status"]) if status else (0, "")

    def wait_ready(self, seconds=60):
        wait_until(lambda: self.ready() == (200, "ready"), seconds, "a server that is ready")
        return self

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def events(server, job):
    """Returns the names of the events of a finished job."""
    _, _, text = server.request("GET", f"/v1/jobs/{job}/events")
    return [line.removeprefix("event: ") for line in text.decode().splitlines() if line.startswith("event: ")]


def drawn(cluster):
    return sum(cluster.drawn().values())


def equal(cluster, remote, local):
    """The images have the same bytes as those of a local server."""
    (images, answer), (wanted, of_local) = (server.generate(seed=5, n=2) for server in (remote, local))
    check(images == wanted and len(images) == 2, "images of /v1/images/generations equal those of a local server")
    check(answer["usage"] == of_local["usage"] and answer["size"] == of_local["size"], "and so are usage and size")
    check(
        answer["flux"]["recipes"] == of_local["flux"]["recipes"] and answer["flux"]["notes"] == of_local["flux"]["notes"],
        "and the recipes and notes",
    )
    before = drawn(cluster)
    again, answer = remote.generate(seed=5, n=2)
    check(again == wanted and drawn(cluster) == before, "a repeated request generates nothing")
    for fields in ({"output_format": "jpeg", "output_compression": 80}, {"output_format": "webp"}):
        check(remote.generate(seed=6, **fields)[0] == local.generate(seed=6, **fields)[0], f"equal bytes of {fields}")
    jobs = [server.submit(seed=7, size="128x128") for server in (remote, local)]
    ends = [server.end_of(job) for server, job in zip((remote, local), jobs, strict=True)]
    check([end["status"] for end in ends] == ["done", "done"], "a job of /v1/jobs is done")
    images = [server.request("GET", f"/v1/jobs/{job}/images/0")[2] for server, job in zip((remote, local), jobs, strict=True)]
    check(images[0] == images[1] and images[0][:4] == b"\x89PNG", "and its image equals that of a local server")
    told, of_local = (events(server, job) for server, job in zip((remote, local), jobs, strict=True))
    of_local = [event for event in of_local if event != "preview"]
    check(told == of_local and told[-1] == "done", "its events equal those of a local server, without previews")
    told = [server.json("POST", "/sdapi/v1/txt2img", {"prompt": "an owl", "seed": 8, "width": 64, "height": 64, "steps": 2})
            for server in (remote, local)]  # fmt: skip
    check(told[0]["images"] == told[1]["images"], "A1111's clients get the same images")
    told = [of_graph(server) for server in (remote, local)]
    check(told[0] == told[1], "and so do ComfyUI's")
    edits = [edit(server, images[0]) for server in (remote, local)]
    equal_pixels(cluster, "edit", *edits, "an edit")
    status, _, body = remote.request(
        "POST", "/v1/images/generations", SMALL | {"seed": 9, "stream": True, "partial_images": 2}
    )
    check(status == 200 and b"image_generation.completed" in body and b"has no effect" in body, "a stream reports unsupported options")
    status, _, answer = remote.request("POST", "/v1/images/generations", SMALL | {"size": "8192x8192"})
    check((status, json.loads(answer)["error"]["param"]) == (400, "size"), "images that are too large are refused")
    answer = remote.request("POST", "/v1/images/generations", SMALL | {"prompt": "\u20ac" * 21_800})
    check(answer[0] == 400 and b"shorten the prompt" in answer[2], "requests that are too large for a message are refused")


def equal_pixels(cluster, name, of_workers, of_local, what):
    """Compares images whose recipes name different files: those of the store, and those of the local server."""
    folders = [cluster.folder / f"{name}-{where}" for where in ("remote", "local")]
    for folder, image in zip(folders, (of_workers, of_local), strict=True):
        folder.mkdir()
        (folder / "image.png").write_bytes(image)
    out, _ = cluster.run("compare", *folders)
    check("1 pairs, 1 equal:" in out or "1 pair, 1 equal:" in out, f"{what} has the pixels of a local server's")


def pixels(png):
    """Returns the pixel chunks of a PNG unchanged."""
    return png[png.index(b"IDAT") :]


def of_graph(server):
    """Returns the image of a ComfyUI graph."""
    graph = json.loads((GRAPHS / "text_to_image_distilled.json").read_text())
    name = server.json("POST", "/prompt", {"prompt": graph})["prompt_id"]
    wait_until(lambda: server.json("GET", f"/history/{name}"), 120, "the image of a graph")
    outputs = server.json("GET", f"/history/{name}")[name]["outputs"].values()
    image = next(output["images"][0] for output in outputs)
    return server.request("GET", f"/view?{urllib.parse.urlencode(image)}")[2]


def edit(server, image):
    boundary = "edge"
    parts = [("prompt", b"make the circle green"), ("seed", b"3"), ("steps", b"2"), ("strength", b"0.7")]
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, value in parts
    )
    body += f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'.encode() + image
    body += f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    status, _, answer = server.request("POST", "/v1/images/edits", body, kind)
    if status != 200:
        fail(f"an edit returned {status}: {answer}")
    return base64.b64decode(json.loads(answer)["data"][0]["b64_json"])


def write_adapter(path):
    """A LoRA of one layer of the built-in model, in safetensors."""
    side, layer = 256, "transformer.single_transformer_blocks.0.attn.to_out"
    shapes = {f"{layer}.lora_A.weight": [1, 768], f"{layer}.lora_B.weight": [side, 1]}
    header, values = {}, b""
    for name, shape in shapes.items():
        bytes_ = struct.pack("<f", 0.2) * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(values), len(values) + len(bytes_)]}
        values += bytes_
    header = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    return path


def adapted(cluster, adapter):
    """Images with a LoRA of the server, which workers read from the store."""
    flags = ("--lora", f"ink={adapter}")
    remote = Server(cluster, "lora-remote", "--queue", cluster.broker.url, *flags)
    local = Server(cluster, "lora-local", "--device", "cpu", "--batch-exact", *flags)
    servers = [remote, local]
    try:
        for server in servers:
            server.wait_ready(120)
        plain = local.generate(seed=15)[0][0]
        for strength in (1.0, 0.5):
            loras = [{"name": "ink", "strength": strength}]
            of_workers, of_local = (server.generate(seed=15, loras=loras)[0][0] for server in servers)
            equal_pixels(cluster, f"lora-{strength}", of_workers, of_local, f"an image with a LoRA of strength {strength}")
            check(pixels(of_local) != pixels(plain), "which differ from the images without it")
        check([server.end() for server in servers] == [0, 0], "those servers end as usual")
    finally:
        for server in servers:
            server.process.kill()


def agents(remote, local):
    """The tools for agents, over HTTP."""
    images = []
    for server in (remote, local):
        drawn = tool(server, "generate_image", {"prompt": "a cat", "size": "64x64", "steps": 2, "seed": 16})
        link = drawn[2]["uri"]
        whole = server.request("GET", urllib.parse.urlparse(link).path)[2]
        edited = tool(server, "edit_image", {"prompt": "make it red", "images": [link], "steps": 2, "seed": 17, "size": "64x64"})
        images.append([drawn[0]["data"], whole, edited[0]["data"]])
    check(images[0] == images[1], "agents get the images and files of a local server")


def tool(server, name, arguments):
    """Returns the content of the result of a tool call."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    status, _, answer = server.request("POST", "/mcp", call, {"Accept": "application/json, text/event-stream"})
    lines = [line.removeprefix("data: ") for line in answer.decode().splitlines()]
    result = next((json.loads(line)["result"] for line in lines if '"result"' in line), None)
    if status != 200 or not result or result["isError"]:
        fail(f"a call of {name} returned {status}: {answer}")
    return result["content"]


def presigned(cluster, wanted):
    """URLs of the store."""
    server = Server(cluster, "presigned", "--store", f"s3://{BUCKET}/jobs", "--presigned-urls").wait_ready()
    answer = server.json("POST", "/v1/images/generations", SMALL | {"seed": 5, "response_format": "url"})
    url = answer["data"][0]["url"]
    check(url.startswith("http") and "X-Amz-Expires=900" in url, "the response has a URL of the store")
    with urllib.request.urlopen(url) as found:
        check(found.read() == wanted, "and the image exists")
    check(server.end() == 0, "that server ends as usual")


def cancelled(cluster, remote):
    """Work without a client ends in every state."""
    job, waiting = remote.submit(**LONG, seed=1), remote.submit(seed=20)
    wait_until(lambda: remote.status(job) == "running", 60, "a job that runs")
    behind = remote.submit(**LONG, seed=2)
    began = time.monotonic()
    for one in (behind, job):
        check(remote.json("DELETE", f"/v1/jobs/{one}")["status"] == "cancelled", "a job is cancelled")
    check(remote.end_of(waiting)["status"] == "done", "and the next job is generated")
    with socket.create_connection(("127.0.0.1", remote.port)) as client:
        body = json.dumps(LONG | {"seed": 3}).encode()
        head = f"POST /v1/images/generations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: remote.json("GET", "/v1/models") and running(remote) == 1, 60, "a request that runs")
    images, _ = remote.generate(seed=21)
    check(len(images) == 1 and running(remote) == 0, "a disconnect ends the work")
    check(time.monotonic() - began < 120 * PACE, "all of that happens quickly")


def running(server):
    text = server.request("GET", "/metrics")[2].decode()
    return int(next(line for line in text.splitlines() if line.startswith("flux_images_running ")).split()[1])


def killed(cluster, remote, local, worker):
    """A worker that is killed during a job: the job is completed."""
    fields = {"seed": 30, "size": "256x256", "steps": 40}
    job = remote.submit(**fields)
    wait_until(lambda: remote.status(job) == "running", 60, "a job that runs")
    worker.send(signal.SIGKILL)
    check(remote.end_of(job)["status"] == "done" and worker.starts > 1, "a job whose worker was killed is done")
    wanted = local.generate(**fields)[0][0]
    check(remote.request("GET", f"/v1/jobs/{job}/images/0")[2] == wanted, "with the same bytes as on a local server")


def away(cluster, remote):
    """Unavailable broker and store: requests are refused quickly, and accepted when both are back."""
    cluster.broker.kill()
    wait_until(lambda: remote.ready() == (503, "broker_away"), 30, "a server that has lost its broker")
    status, code, after, took = remote.refused(seed=40)
    check((status, code) == (503, "broker_away") and after and took < 7 * PACE, "without a broker, a request is refused")
    cluster.broker.start()
    remote.wait_ready()
    check(len(remote.generate(seed=41)[0]) == 1, "and accepted when it is back")
    cluster.broker.control("set_disk_free_limit", "10000GB")
    status, code, after, took = remote.refused(seed=42)
    check((status, code) == (503, "broker_away") and after and took < 7 * PACE, "a broker without disk space counts as unavailable")
    wait_until(lambda: remote.ready() == (503, "broker_away"), 30, "a server that has noticed it")
    cluster.broker.control("set_disk_free_limit", "50MB")
    remote.wait_ready()
    check(len(remote.generate(seed=43)[0]) == 1, "and no longer when it has space again")
    job = remote.submit(seed=44, size="256x256", steps=20)
    wait_until(lambda: remote.status(job) == "running", 60, "a job that runs")
    cluster.store.kill()
    wait_until(lambda: remote.ready() == (503, "store_away"), 60, "a server that has lost its store")
    status, code, after, _ = remote.refused(seed=45)
    check((status, code) == (503, "store_away") and after, "without a store, a request is refused")
    cluster.store.start()
    remote.wait_ready()
    check(remote.end_of(job)["status"] == "done", "jobs that began before are completed when it is back")


def full(cluster, remote):
    """A full queue."""
    cluster.end_workers()
    cluster.broker.control(
        "set_policy", "small", "^flux\\.tiny\\.online$", '{"max-length": 2, "overflow": "reject-publish"}', "--apply-to", "queues"
    )
    jobs, answers = [], []

    def refused():
        status, _, answer = remote.request("POST", "/v1/jobs", SMALL | {"seed": 50 + len(answers)})
        answers.append((status, json.loads(answer)))
        jobs.extend([answers[-1][1]["id"]] if status == 202 else [])
        return status == 503

    wait_until(refused, 60, "a queue that is full")
    check(answers[-1][1]["error"]["code"] == "queue_full" and jobs, f"after {len(jobs)} jobs the queue is full")
    check(remote.refused(seed=49, n=3)[1] == "queue_full", "the images of a request are accepted all or none")
    cluster.broker.control("clear_policy", "small")
    worker = cluster.worker("--batch-max", "1")
    check({remote.end_of(job)["status"] for job in jobs} == {"done"}, "the accepted jobs are done")
    return worker


def hostile(cluster, remote, worker):
    """Invalid messages on the online queue, and invalid events."""
    import pika

    key = "out/00/" + "0" * 64 + ".png"
    job = {
        "v": 1, "job": "1" * 32, "key": key, "model": "tiny", "priority": "online",
        "recipe": {"prompt": "x", "seed": 1}, "format": {"type": "png"}, "submitted": 1,
    }  # fmt: skip
    with pika.BlockingConnection(pika.URLParameters(cluster.broker.url)) as connection:
        channel = connection.channel()
        messages = (b"", b"\xff" * 1000, b"null", json.dumps(job).encode(), json.dumps(job | {"priority": "batch"}).encode())
        for message in messages:
            channel.basic_publish("flux", "flux.tiny.online", message)
        for name in ("started", "step", "done", "failed"):
            for told in (b"", b"{}", b"\xff", json.dumps({"v": 1, "job": "1" * 32, "event": name, "key": key}).encode()):
                channel.basic_publish("flux.events", f"{'1' * 32}.{name}", told)
    check(len(remote.generate(seed=60)[0]) == 1, "after hostile messages and events, a request is completed")
    check(worker.starts == 1 and remote.process.poll() is None, "worker and server keep running")
    # The store describes another model, so workers refuse its jobs.
    word = "jobs/models/tiny.json"
    true = cluster.objects.get_object(Bucket="flux", Key=word)["Body"].read()
    cluster.objects.put_object(Bucket="flux", Key=word, Body=json.dumps(json.loads(true) | {"quantize": "q8_0"}).encode())
    other = Server(cluster, "other", "--queue", cluster.broker.url, "--model", "tiny").wait_ready()
    status, _, answer = other.request("POST", "/v1/images/generations", SMALL | {"seed": 61})
    check((status, json.loads(answer)["error"]["code"]) == (500, "job_dead"), "a job that workers refuse gets a response")
    check(b"its key does not match its recipe" in answer, "with the reason")
    cluster.objects.put_object(Bucket="flux", Key=word, Body=true)
    check(other.end() == 0, "that server ends as usual")
    cluster.run("queue", "dead", "drop", "--all")


def together(cluster, remote):
    """Many requests at once."""
    answers = []
    asking = [threading.Thread(target=lambda seed=seed: answers.append(remote.generate(seed=seed)[0])) for seed in range(70, 90)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    check(len(answers) == 20 and all(answers), "20 requests at once are completed")


def run(cluster, _short):
    _, told = cluster.run("serve", "--queue", cluster.broker.url, "--model", "none", code=2)
    check("the store has no model `none`" in told, "a model without a worker is reported at once")
    worker = cluster.worker("--batch-max", "1")
    remote = Server(cluster, "remote", "--queue", cluster.broker.url, "-v")
    local = Server(cluster, "local", "--device", "cpu", "--batch-exact")
    servers = [remote.wait_ready(), local.wait_ready(120)]
    try:
        equal(cluster, remote, local)
        agents(remote, local)
        adapted(cluster, write_adapter(cluster.folder / "ink.safetensors"))
        presigned(cluster, local.generate(seed=5)[0][0])
        cancelled(cluster, remote)
        together(cluster, remote)
        killed(cluster, remote, local, worker)
        away(cluster, remote)
        worker = full(cluster, remote)
        hostile(cluster, remote, worker)
        check(remote.end() == 0, "the server ends as usual")
    except BaseException:
        print(remote.log.read_text()[-4000:])
        raise
    finally:
        for server in servers:
            server.process.kill()
    cluster.end_workers()
