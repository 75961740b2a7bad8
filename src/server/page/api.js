// The server: requests with the key, its errors, and the events of jobs.

import { $, kept, open, pause } from './dom.js';

/** What the server says is wrong. */
export class ApiError extends Error {
  constructor(status, { message, param, code } = {}) {
    super(message ?? `the server answered ${status}`);
    Object.assign(this, { status, param, code });
  }
}

let key = kept.get('key', '');
let asking = null;

/** Whether the server asked for a key. */
export const hasKey = () => key !== '';

/** Asks for the key, once for all requests that wait for it. */
function askKey() {
  asking ??= (async () => {
    const text = $('key-text');
    $('key-error').textContent = key ? 'The server does not know this key.' : '';
    text.value = key;
    let given = false;
    $('key-form').onsubmit = (event) => {
      event.preventDefault();
      given = text.value.trim() !== '';
      if (given) $('key').close();
    };
    await open($('key'));
    if (given) kept.set('key', (key = text.value.trim()));
    return given;
  })().finally(() => (asking = null));
  return asking;
}

/** The answer to a request. Throws an ApiError, or a TypeError when the server cannot be reached. */
export async function call(path, options = {}) {
  for (;;) {
    const used = key;
    const authorization = used ? { Authorization: `Bearer ${used}` } : {};
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...authorization } });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    const error = new ApiError(response.status, body.error);
    // Another request may have brought the key meanwhile.
    if (response.status !== 401 || (used === key && !(await askKey()))) throw error;
  }
}

export const json = async (path, options) => (await call(path, options)).json();

/** Submits a job. The name of the request lets a retry find the job that was taken, if one was. */
export async function submit(body, name) {
  for (let tries = 1; ; tries++) {
    try {
      return await json('/v1/jobs', { method: 'POST', body, headers: { 'Idempotency-Key': name } });
    } catch (error) {
      if (error instanceof ApiError) throw error;
      if (tries === 4) throw new Error('the server cannot be reached: is `flux serve` running?', { cause: error });
      await pause(500 * 2 ** tries);
    }
  }
}

const LAST = ['done', 'failed', 'cancelled'];
/** The server says something at least every ten seconds. */
const SILENCE_MS = 30000;

/** The events of a job until its end, over as many connections as that takes. Throws an ApiError when there is no such job. */
export async function* events(id, signal, onLost) {
  let last;
  let wait = 500;
  for (;;) {
    try {
      const headers = last === undefined ? {} : { 'Last-Event-ID': last };
      const response = await call(`/v1/jobs/${id}/events`, { signal, headers });
      for await (const event of read(response.body.getReader())) {
        last = event.id ?? last;
        wait = 500;
        yield event;
        if (LAST.includes(event.type)) return;
      }
    } catch (error) {
      if (signal.aborted || (error instanceof ApiError && error.status < 500)) throw error;
    }
    onLost();
    await pause(wait);
    wait = Math.min(2 * wait, 8000);
  }
}

async function* read(reader) {
  const decoder = new TextDecoder();
  let text = '';
  try {
    for (;;) {
      const silent = pause(SILENCE_MS).then(() => ({ done: true }));
      const { done, value } = await Promise.race([reader.read(), silent]);
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split('\n\n');
      text = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const fields = {};
  for (const line of block.split('\n')) {
    const [, name, value] = line.match(/^([a-z]+): ?(.*)$/) ?? [];
    if (name) fields[name] = value;
  }
  return fields.event && { type: fields.event, id: fields.id, data: JSON.parse(fields.data) };
}
