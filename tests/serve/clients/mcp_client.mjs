// What the official client for TypeScript asks for, over pipes and over HTTP. Usage: node mcp_client.mjs FLUX URL

import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [flux, url] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "flux-mcp-"));
const args = ["mcp", "--device", "cpu", "-o", folder];

const endless = { name: "generate_image", arguments: { prompt: "x", size: "512x512", steps: 1000 } };
const small = { prompt: "a red circle", size: "64x64", steps: 4, seed: 5 };

for (const connect of [
  () => new StdioClientTransport({ command: flux, args, stderr: "ignore" }),
  () => new StreamableHTTPClientTransport(new URL(`${url}/mcp`)),
]) {
  const client = new Client({ name: "test", version: "1" });
  const transport = connect();
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map(({ name }) => name), ["generate_image", "edit_image", "upscale_image", "list_models"]);
  assert.ok(tools.every(({ title, annotations, outputSchema }) => title && annotations && outputSchema));
  const told = [];
  const result = await client.callTool({ name: "generate_image", arguments: small }, undefined, {
    onprogress: ({ progress }) => told.push(progress),
  });
  assert.equal(result.content[0].type, "image");
  assert.ok(told.length > 0 && told.every((progress, place) => place === 0 || progress > told[place - 1]));
  const { images } = result.structuredContent;
  assert.deepEqual([images[0].seed, images[0].width, images[0].height], [5, 64, 64]);
  const { resources } = await client.listResources();
  assert.ok(resources.some(({ uri }) => uri === images[0].uri));
  const { contents } = await client.readResource({ uri: `flux://images/${images[0].name}` });
  assert.ok(contents[0].blob.startsWith("iVBOR"), "a whole PNG");
  assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 2);
  const gone = new AbortController();
  const call = client.callTool(endless, undefined, { signal: gone.signal });
  setTimeout(() => gone.abort(), 300);
  await assert.rejects(call);
  const start = performance.now();
  const again = await client.callTool({ name: "generate_image", arguments: { ...small, steps: 1 } });
  assert.ok(!again.isError && performance.now() - start < 8000, "what was cancelled has ended");
  if (transport instanceof StreamableHTTPClientTransport) {
    // What a closed stream leaves ends, too.
    const call = client.callTool(endless).catch(() => {});
    setTimeout(() => transport.terminateSession().then(() => client.close()), 300);
    await call;
    const next = new Client({ name: "test", version: "1" });
    await next.connect(connect());
    const again = await next.callTool({ name: "generate_image", arguments: { ...small, steps: 1 } });
    assert.ok(!again.isError, "what no client waits for has ended");
    await next.close();
  } else {
    await client.close();
  }
}
console.log("mcp for TypeScript: all as it should be");
