"""Answers are what /openapi.json says of them. Usage: schema.py URL"""

import json
import pathlib
import sys
import time

import httpx
import jsonschema

url = sys.argv[1]
document = httpx.get(f"{url}/openapi.json").json()
checked = 0


def expect(method, path, template, **how):
    """Sends a request, and checks its answer against the schema of its status."""
    global checked
    answer = httpx.request(method, url + path, timeout=60, **how)
    operation = document["paths"][template][method.lower()]
    responses = operation["responses"]
    response = responses.get(str(answer.status_code), responses.get("default"))
    assert response, f"{method} {path}: status {answer.status_code} is not described"
    kind = answer.headers["content-type"].split(";")[0]
    described = response.get("content", {})
    assert kind in described or "image/*" in described, f"{method} {path}: {kind} is not described: {list(described)}"
    schema = described.get(kind, {}).get("schema")
    if kind == "application/json" and schema:
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
    checked += 1
    return answer


small = {"prompt": "a cat", "size": "64x64", "steps": 1, "seed": 5}
images, edits, jobs = "/v1/images/generations", "/v1/images/edits", "/v1/jobs"
image = expect("POST", images, images, json=small)
expect("POST", images, images, json={**small, "response_format": "url", "n": 2, "safety_identifier": "x"})
expect("POST", images, images, json={**small, "stream": True})
for wrong in [{}, {**small, "n": 0}, {**small, "what": 1}, {**small, "output_format": "gif"}]:
    assert expect("POST", images, images, json=wrong).status_code == 400
assert expect("POST", images, images, content=b"x", headers={"content-type": "text/plain"}).status_code == 415
file = httpx.post(url + images, json={**small, "response_format": "url"}).json()["data"][0]["url"].removeprefix(url)
png = expect("GET", file, "/v1/files/{name}").content
expect("POST", edits, edits, data={"prompt": "x", "steps": "1"}, files={"image": ("a.png", png)})
expect("POST", edits, edits, data={"prompt": "x"})
job = expect("POST", jobs, jobs, json={**small, "n": 2}).json()
one = f"{jobs}/{job['id']}"
expect("GET", one + "/result", jobs + "/{id}/result")
while expect("GET", one, jobs + "/{id}").json()["status"] != "done":
    time.sleep(0.05)
expect("GET", one + "/events", jobs + "/{id}/events")
expect("GET", one + "/result", jobs + "/{id}/result")
expect("GET", one + "/images/1", jobs + "/{id}/images/{image}")
expect("GET", one + "/images/9", jobs + "/{id}/images/{image}")
expect("GET", jobs + "?limit=1", jobs)
expect("DELETE", one, jobs + "/{id}")
expect("GET", jobs + "/none", jobs + "/{id}")
for path in ["/v1/models", "/v1/loras", "/health", "/healthz", "/readyz", "/metrics", "/openapi.json"]:
    expect("GET", path, path)
expect("GET", "/v1/models/tiny", "/v1/models/{name}")
expect("GET", "/v1/models/none", "/v1/models/{name}")
expect("GET", "/v1/batches", "/v1/batches")
expect("GET", "/v1/batches/none", "/v1/batches/{id}")

# ComfyUI's API.
graphs = pathlib.Path(__file__).parent.parent / "graphs"
graph = json.loads((graphs / "text_to_image_distilled.json").read_text())
taken = expect("POST", "/prompt", "/prompt", json={"prompt": graph, "client_id": "x"}).json()["prompt_id"]
for wrong in [{}, {"prompt": {}}, {"prompt": {"0": {"class_type": "None"}}}]:
    assert expect("POST", "/prompt", "/prompt", json=wrong).status_code == 400
bad = json.loads(json.dumps(graph))
bad["77:62"]["inputs"]["steps"] = 0
assert "77:62" in expect("POST", "/prompt", "/prompt", json={"prompt": bad}).json()["node_errors"]
while not (told := expect("GET", f"/history/{taken}", "/history/{id}").json()):
    expect("GET", "/queue", "/queue")
    time.sleep(0.05)
expect("GET", "/view", "/view", params=told[taken]["outputs"]["78"]["images"][0])
expect("GET", "/view", "/view", params={"filename": "none.png"})
upload = {"image": ("a.png", png)}
expect("POST", "/upload/image", "/upload/image", files=upload)
original = json.dumps({"filename": "a.png", "type": "input"})
expect("POST", "/upload/mask", "/upload/mask", files=upload, data={"original_ref": original})
expect("POST", "/upload/image", "/upload/image", data={"type": "input"})
expect("PUT", "/api/etn/image/0a", "/api/etn/image/{id}", content=png)
expect("GET", "/api/etn/image/0a", "/api/etn/image/{id}")
expect("GET", "/api/etn/model_info/diffusion_models?limit=8", "/api/etn/model_info/{folder}")
for path in ["/prompt", "/queue", "/history", "/object_info", "/system_stats", "/features", "/models", "/embeddings"]:
    expect("GET", path, path)
for path in ["/extensions", "/api/etn/languages"]:
    expect("GET", path, path)
expect("GET", "/object_info/KSampler", "/object_info/{class}")
expect("GET", "/models/loras", "/models/{folder}")
expect("GET", "/models/none", "/models/{folder}")
expect("GET", "/ws", "/ws")
for path in ["/queue", "/history", "/interrupt", "/free"]:
    expect("POST", path, path, json={})
    expect("POST", path, path, json={"what": 1})

# A1111's API.
sd = "/sdapi/v1/"
drawn = {"prompt": "a cat", "width": 64, "height": 64, "steps": 1}
first = expect("POST", sd + "txt2img", sd + "txt2img", json=drawn).json()["images"][0]
expect("POST", sd + "txt2img", sd + "txt2img", json={**drawn, "n_iter": 0})
expect("POST", sd + "img2img", sd + "img2img", json={**drawn, "init_images": [first]})
expect("POST", sd + "img2img", sd + "img2img", json=drawn)
expect("POST", sd + "png-info", sd + "png-info", json={"image": first})
expect("POST", sd + "options", sd + "options", json={"sd_model_checkpoint": "none"})
for path, operations in document["paths"].items():
    if path.startswith(sd) and "get" in operations:
        expect("GET", path, path)
    elif path.startswith(sd) and "requestBody" not in operations["post"]:
        expect("POST", path, path)

# Every field that is described is taken, and no other one.
described = document["components"]["schemas"]["Generation"]["properties"]
for field, schema in described.items():
    kinds = schema.get("type", [])
    if "null" in kinds:
        answer = httpx.post(url + images, json={**small, field: None}, timeout=60)
        assert answer.status_code == 200, (field, answer.text)
print(f"schema: {checked} answers as described, {len(described)} fields taken")
