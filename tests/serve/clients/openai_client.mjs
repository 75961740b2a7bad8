// What OpenAI's own client for Node asks for, and what it must get. Usage: node openai_client.mjs URL

import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "any", maxRetries: 0 });
const small = { prompt: "a red circle", size: "64x64", steps: 1, seed: 5 };
const png = (data) => {
  const file = Buffer.from(data, "base64");
  assert.equal(file.subarray(1, 4).toString(), "PNG");
  return file;
};

const answer = await client.images.generate({ ...small, model: "gpt-image-1", n: 2 });
assert.equal(answer.data.length, 2);
const image = png(answer.data[0].b64_json);

const kinds = [];
for await (const event of await client.images.generate({ ...small, steps: 4, stream: true, partial_images: 2 })) {
  kinds.push(event.type);
}
assert.deepEqual(kinds.map((kind) => kind.split(".")[1]), ["partial_image", "partial_image", "completed"]);

const file = () => toFile(image, "a.png", { type: "image/png" });
png((await client.images.edit({ image: await file(), prompt: "make it green", steps: 1 })).data[0].b64_json);
const several = await client.images.edit({ image: [await file(), await file()], prompt: "x", n: 1, steps: 1 });
assert.equal(several.usage.input_tokens_details.image_tokens, 32);

for (const model of ["dall-e-2", "dall-e-3"]) {
  const [{ url }] = (await client.images.generate({ ...small, model })).data;
  assert.ok(url.startsWith(process.argv[2]), url);
  assert.deepEqual(Buffer.from(await (await fetch(url)).arrayBuffer()), image, model);
}
const byUrl = await client.images.edit({ image: await file(), prompt: "x", steps: 1, response_format: "url" });
assert.ok((await fetch(byUrl.data[0].url)).ok);

await assert.rejects(client.images.generate({ ...small, n: 99 }), (error) => error.status === 400 && error.param === "n");
assert.deepEqual((await client.models.list()).data.map((model) => model.id), ["tiny"]);
console.log("openai for Node: all as it should be");
