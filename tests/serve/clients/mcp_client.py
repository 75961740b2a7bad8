"""What the official client for Python asks for, over pipes and over HTTP. Usage: mcp_client.py FLUX URL"""

import asyncio
import base64
import sys
import tempfile

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

try:
    from mcp.client.streamable_http import streamable_http_client as over_http
except ImportError:  # before version 2
    from mcp.client.streamable_http import streamablehttp_client as over_http

SMALL = {"prompt": "a red circle", "size": "64x64", "steps": 4, "seed": 5}


def field(value, snake, camel):
    """A field, as version 2 of the client names it or as version 1 does."""
    return getattr(value, snake) if hasattr(value, snake) else getattr(value, camel)


def is_error(result):
    return field(result, "is_error", "isError")


async def use(session):
    await session.initialize()
    tools = (await session.list_tools()).tools
    assert [tool.name for tool in tools] == ["generate_image", "edit_image", "upscale_image", "list_models"]
    assert all(tool.title and field(tool, "output_schema", "outputSchema") for tool in tools)
    told = []

    async def hear(progress, total, message):
        told.append((progress, total, message))

    result = await session.call_tool("generate_image", SMALL, progress_callback=hear)
    assert not is_error(result), result
    image = next(part for part in result.content if part.type == "image")
    assert base64.b64decode(image.data)[:2] == b"\xff\xd8"
    # The client checks it against the schema of the tool.
    made = field(result, "structured_content", "structuredContent")["images"][0]
    assert (made["seed"], made["width"], made["height"]) == (5, 64, 64), made
    resources = (await session.list_resources()).resources
    assert made["uri"] in [str(resource.uri) for resource in resources], resources
    read = await session.read_resource(f"flux://recipes/{made['name']}")
    assert "a red circle" in read.contents[0].text
    assert told and told == sorted(told, key=lambda line: line[0]), told
    again = await session.call_tool("edit_image", {"prompt": "make it green", "images": [image.data], "steps": 1})
    assert not is_error(again), again
    wrong = await session.call_tool("generate_image", {"prompt": "x", "size": "1x1"})
    assert is_error(wrong) and "size" in wrong.content[0].text


async def main(flux, url):
    with tempfile.TemporaryDirectory() as folder:
        server = StdioServerParameters(command=flux, args=["mcp", "--device", "cpu", "-o", folder])
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await use(session)
    async with over_http(f"{url}/mcp") as (read, write, *_), ClientSession(read, write) as session:
        await use(session)
    print("mcp for Python: all as it should be")


asyncio.run(main(*sys.argv[1:]))
