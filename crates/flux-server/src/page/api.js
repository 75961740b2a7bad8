// Requests with the API key, errors of the server, and events of jobs.

import { $, kept, open, pause } from './dom.js';
import { t } from './words.js';

/** The base URL of the server, which may include a path. */
export const SERVER = new URL('..', import.meta.url).href.slice(0, -1);

/** An error reported by the server. */
export class ApiError extends Error {
  constructor(status, { message, param, code, retry_after: retryAfter } = {}) {
    super(message ?? t('answered', { status }));
    Object.assign(this, { status, param, code, retryAfter });
  }
}

let key = kept.get('key', '');
let asking = null;

/** Returns true if the user has entered a key. */
export const hasKey = () => key !== '';

/** Asks the user for the key. All requests that need it share one dialog. */
function askKey() {
  asking ??= (async () => {
    const text = $('key-text');
    $('key-error').textContent = key ? t('key_wrong') : '';
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

const head = (headers) => ({ ...headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) });

/** Sends a request, again with another key if needed. Throws an ApiError, or a TypeError without a connection. */
async function authorized(send) {
  for (;;) {
    const used = key;
    const { ok, status, answer, body } = await send();
    if (ok) return answer;
    // Another request may have set the key meanwhile.
    if (status !== 401 || (used === key && !(await askKey()))) throw new ApiError(status, body?.error);
  }
}

/** Returns the response to a request. Throws as `authorized`. */
export const call = (path, options = {}) =>
  authorized(async () => {
    const answer = await fetch(SERVER + path, { ...options, headers: head(options.headers) });
    const { ok, status } = answer;
    return { ok, status, answer, body: ok ? null : await answer.json().catch(() => ({})) };
  });

export const json = async (path, options) => (await call(path, options)).json();

/** Posts a form, and reports the part that is sent. Only this old interface knows it. */
const post = (path, form, headers, onSent) =>
  authorized(
    () =>
      new Promise((done, fail) => {
        const request = new XMLHttpRequest();
        request.open('POST', SERVER + path);
        for (const [name, value] of Object.entries(head(headers))) request.setRequestHeader(name, value);
        request.upload.onprogress = ({ loaded, total }) => total > 0 && onSent(loaded / total, total);
        request.onerror = request.onabort = () => fail(new TypeError(t('unreachable')));
        request.onload = () => {
          let body = {};
          try {
            body = JSON.parse(request.responseText);
          } catch {
            // A proxy may answer otherwise.
          }
          done({ ok: request.status < 300, status: request.status, answer: body, body });
        };
        request.send(form);
      }),
  );

/** Submits a job. `name` is the idempotency key, so a retry finds a job that was accepted. */
export async function submit(form, name, onSent) {
  for (let tries = 1; ; tries++) {
    try {
      return await post('/v1/jobs', form, { 'Idempotency-Key': name }, onSent);
    } catch (error) {
      if (error instanceof ApiError || tries === 4) throw error;
      await pause(500 * 2 ** tries);
    }
  }
}

const LAST = ['done', 'failed', 'cancelled'];
/** The timeout of a silent stream. The server sends something at least every ten seconds. */
const SILENCE_MS = 30000;

/** Yields the events of a job until its end, reconnecting as needed. Throws an ApiError if there is no such job. */
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
