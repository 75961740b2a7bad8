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
  assert.deepEqual(tools.map(({ name }) => name), ["generate_image", "edit_image", "list_models"]);
  const told = [];
  const result = await client.callTool({ name: "generate_image", arguments: small }, undefined, {
    onprogress: ({ progress }) => told.push(progress),
  });
  assert.equal(result.content[0].type, "image");
  assert.ok(told.length > 0 && told.every((progress, place) => place === 0 || progress > told[place - 1]));
  if (transport instanceof StdioClientTransport) {
    const gone = new AbortController();
    const call = client.callTool(endless, undefined, { signal: gone.signal });
    setTimeout(() => gone.abort(), 300);
    await assert.rejects(call);
    const again = await client.callTool({ name: "generate_image", arguments: { ...small, steps: 1 } });
    assert.ok(!again.isError, "what was cancelled has ended");
    await client.close();
  } else {
    // There are no sessions, so a call ends with its connection.
    const call = client.callTool(endless).catch(() => {});
    setTimeout(() => client.close(), 300);
    await call;
    const next = new Client({ name: "test", version: "1" });
    await next.connect(connect());
    const again = await next.callTool({ name: "generate_image", arguments: { ...small, steps: 1 } });
    assert.ok(!again.isError, "what nobody waits for has ended");
    await next.close();
  }
}
console.log("mcp for TypeScript: all as it should be");
