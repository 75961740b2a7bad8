"""What clients of ComfyUI ask for, and what they must get: by websocket-client as its own example does it, and by
aiohttp as Open WebUI does. Usage: comfy_client.py URL"""

import asyncio
import json
import pathlib
import sys
import urllib.parse
import urllib.request
import uuid

import aiohttp
import websocket

url = sys.argv[1]
ws_url = url.replace("http", "ws", 1)
graphs = pathlib.Path(__file__).parent.parent / "graphs"


def graph(name):
    return json.loads((graphs / f"{name}.json").read_text())


def get(path, **query):
    with urllib.request.urlopen(f"{url}/{path}?{urllib.parse.urlencode(query)}") as answer:
        return answer.read()


def post(path, body):
    request = urllib.request.Request(f"{url}/{path}", data=json.dumps(body).encode())
    return json.loads(urllib.request.urlopen(request).read())


def without_graph(png):
    """A PNG without the texts that ComfyUI writes."""
    kept, at = png[:8], 8
    while at < len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4])
        if not png[at + 4 :].startswith((b"tEXtprompt\0", b"tEXtworkflow\0")):
            kept += png[at:end]
        at = end
    return kept


def by_websocket_client():
    client_id = str(uuid.uuid4())
    socket = websocket.WebSocket()
    socket.connect(f"{ws_url}/ws?clientId={client_id}")
    prompt = graph("ksampler")
    prompt_id = post("prompt", {"prompt": prompt, "client_id": client_id})["prompt_id"]
    node, sent, steps = None, [], []
    while True:
        message = socket.recv()
        if isinstance(message, bytes):
            if node == "7":
                sent.append(message[8:])
            continue
        message = json.loads(message)
        if message["type"] == "progress":
            steps.append(message["data"]["value"])
        if message["type"] == "executing" and message["data"]["prompt_id"] == prompt_id:
            node = message["data"]["node"]
            if node is None:
                break
    socket.close()
    outputs = json.loads(get(f"history/{prompt_id}"))[prompt_id]["outputs"]
    images = [without_graph(get("view", **image)) for image in outputs["8"]["images"]]
    assert images == sent and len(images) == 2 and all(image.startswith(b"\x89PNG") for image in images)
    assert steps == sorted(steps) and steps[-1] == 8, steps
    return images[0]


async def by_aiohttp(image):
    headers = {"Authorization": "Bearer any"}
    async with aiohttp.ClientSession(headers=headers) as session:
        names = []
        for name in ["first.png", "second.png"]:
            form = aiohttp.FormData()
            form.add_field("image", image, filename=name, content_type="image/png")
            form.add_field("type", "input")
            async with session.post(f"{url}/api/upload/image", data=form) as answer:
                names.append((await answer.json())["name"])
        edit = graph("image_edit_several")
        edit["76"]["inputs"]["image"], edit["81"]["inputs"]["image"] = names
        client_id = str(uuid.uuid4())
        async with session.ws_connect(f"{ws_url}/ws?clientId={client_id}") as socket:
            async with session.post(f"{url}/prompt", json={"prompt": edit, "client_id": client_id}) as answer:
                prompt_id = (await answer.json())["prompt_id"]
            async for message in socket:
                if message.type == aiohttp.WSMsgType.TEXT:
                    message = json.loads(message.data)
                    data = message["data"]
                    if message["type"] == "executing" and data["node"] is None and data["prompt_id"] == prompt_id:
                        break
        async with session.get(f"{url}/history/{prompt_id}") as answer:
            output = (await answer.json())[prompt_id]["outputs"]["9"]["images"][0]
        async with session.get(f"{url}/view?{urllib.parse.urlencode(output)}") as answer:
            assert (await answer.read()).startswith(b"\x89PNG")
        async with session.post(f"{url}/prompt", json={"prompt": graph("krita_inpaint")}) as answer:
            told = await answer.json()
            assert answer.status == 400 and "19" in told["node_errors"], told


first = by_websocket_client()
asyncio.run(by_aiohttp(first))
known = json.loads(get("object_info"))
assert known["UNETLoader"]["input"]["required"]["unet_name"][0] == ["tiny"]
assert json.loads(get("queue")) == {"queue_running": [], "queue_pending": []}
print(f"ComfyUI: websocket-client {websocket.__version__}, aiohttp {aiohttp.__version__}: all as it should be")
