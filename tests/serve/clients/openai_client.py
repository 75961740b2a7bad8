"""What OpenAI's own client for Python asks for, and what it must get. Usage: openai_client.py URL"""

import base64
import struct
import sys
import threading
import time

import httpx
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
SMALL = {"size": "64x64", "prompt": "a red circle"}


def png(data):
    file = base64.b64decode(data)
    assert file.startswith(b"\x89PNG"), file[:8]
    return file


def expect(kind, code, param, **fields):
    try:
        client.images.generate(**{**SMALL, **fields})
    except kind as error:
        assert (error.code, error.param) == (code, param), (error.code, error.param)
        assert len(error.request_id) == 32
    else:
        raise AssertionError(f"no error: {fields}")


answer = client.images.generate(**SMALL, model="gpt-image-1", n=2, quality="high", extra_body={"seed": 5, "steps": 1})
assert len(answer.data) == 2 and answer.usage.output_tokens == 32, answer.usage
image = png(answer.data[0].b64_json)
again = client.images.generate(**SMALL, response_format="b64_json", extra_body={"seed": 5, "steps": 1})
assert png(again.data[0].b64_json) == image
address = client.images.generate(**SMALL, response_format="url", extra_body={"seed": 5, "steps": 1}).data[0].url
assert address.startswith(url), address
assert httpx.get(address).content == image
for model in ["dall-e-2", "dall-e-3"]:
    address = client.images.generate(**SMALL, model=model, extra_body={"seed": 5, "steps": 1}).data[0].url
    assert httpx.get(address).content == image, model
answer = client.images.edit(image=image, prompt="x", response_format="url", extra_body={"steps": 1})
png(base64.b64encode(httpx.get(answer.data[0].url).content))
foreign = {"num_inference_steps": "1", "random_seed": "5", "width": 64, "height": 64}
assert png(client.images.generate(prompt=SMALL["prompt"], extra_body=foreign).data[0].b64_json) == image
data_url = "data:image/png;base64," + base64.b64encode(image).decode()
body = {"prompt": "x", "steps": 1, "images": [{"image_url": data_url}]}
edited = httpx.post(f"{url}/v1/images/edits", json=body, timeout=60)
assert edited.status_code == 200, edited.text

if int(openai.__version__.split(".")[0]) >= 2:
    events = list(client.images.generate(**SMALL, stream=True, partial_images=2, extra_body={"steps": 4}))
    kinds = [event.type.split(".")[1] for event in events]
    sizes = [struct.unpack(">II", png(event.b64_json)[16:24]) for event in events]
    assert sizes == [(64, 64)] * 3 and events[0].size == "64x64", sizes
    assert kinds == ["partial_image", "partial_image", "completed"], kinds
    events = list(client.images.edit(image=image, prompt="x", stream=True, extra_body={"steps": 1}))
    assert [event.type for event in events] == ["image_edit.completed"], events

one = client.images.edit(image=("a.png", image, "image/png"), prompt="make it green", extra_body={"steps": 1})
png(one.data[0].b64_json)
several = client.images.edit(image=[image] * 3, prompt="make it green", extra_body={"steps": 1, "seed": 1})
assert several.usage.input_tokens_details.image_tokens == 48, several.usage

expect(openai.BadRequestError, "invalid_value", "size", size="1x1")
expect(openai.BadRequestError, "invalid_value", "n", n=99)
expect(openai.BadRequestError, "unknown_parameter", "what", extra_body={"what": 1})
expect(openai.BadRequestError, "unsupported_value", "output_format", background="transparent", output_format="jpeg")
try:
    client.models.retrieve("none")
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
assert [model.id for model in client.models.list()] == ["tiny"]

# A client that gives up ends its work.
started = time.monotonic()
try:
    client.with_options(timeout=0.5).images.generate(prompt="x", size="512x512", extra_body={"steps": 1000})
except (openai.APITimeoutError, openai.RateLimitError):
    pass
while httpx.get(f"{url}/readyz").json()["running"]:
    assert time.monotonic() - started < 20, "it goes on"
    time.sleep(0.05)

answers = []
threads = [
    threading.Thread(target=lambda: answers.append(client.images.generate(**SMALL, extra_body={"steps": 1})))
    for _ in range(8)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(answers) == 8
print(f"openai {openai.__version__}: all as it should be")
