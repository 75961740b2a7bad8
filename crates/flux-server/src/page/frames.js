// The WebSocket of live generation: sends one frame at a time, receives images, and reconnects.

import { SERVER } from './api.js';
import { kept } from './dom.js';

/** The time window of the figures. */
const WINDOW_MS = 3000;

const base64 = (text) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');

export class Frames {
  #socket = null;
  #settings = {};
  #number = 0;
  /** The number of the requested image, and the time of the request. */
  #asked = null;
  #made = [];
  #wait = 500;

  /**
   * Connects. `on` has the callbacks image(blob), wrong(message), state(isOpen), refused(), which is called if a retry
   * may succeed later, and free(), which is called when a frame may be sent.
   */
  constructor(on) {
    this.on = on;
    this.#connect();
  }

  #connect() {
    const key = kept.get('key', '');
    const protocols = key ? ['flux', `flux-key.${base64(key)}`] : ['flux'];
    const socket = new WebSocket(`${SERVER.replace('http', 'ws')}/v1/live`, protocols);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => {
      this.#socket = socket;
      this.#wait = 500;
      this.#asked = null;
      socket.send(JSON.stringify(this.#settings));
      this.on.state(true);
      this.on.free();
    };
    socket.onmessage = ({ data }) => (typeof data === 'string' ? this.#wrong(JSON.parse(data)) : this.#image(data));
    socket.onclose = () => {
      this.#socket = null;
      this.on.state(false);
      setTimeout(() => this.#connect(), this.#wait);
      this.#wait = Math.min(2 * this.#wait, 8000);
    };
  }

  #image(data) {
    const number = new DataView(data).getUint32(0);
    if (number !== this.#asked?.number) return;
    const now = performance.now();
    this.#made.push({ now, took: now - this.#asked.since });
    this.#asked = null;
    this.on.image(new Blob([data.slice(4)], { type: 'image/jpeg' }));
    this.on.free();
  }

  #wrong({ number, error, retry_after: retryAfter }) {
    this.on.wrong(error.message);
    if (number !== this.#asked?.number) return;
    // The cause may last for a while, such as too many requests.
    const { number: given } = this.#asked;
    setTimeout(() => {
      if (this.#asked?.number !== given) return;
      this.#asked = null;
      if (retryAfter) this.on.refused();
      this.on.free();
    }, 1000);
  }

  get isFree() {
    return this.#socket !== null && this.#asked === null;
  }

  /** Sets the fields of the following images. */
  set(settings) {
    this.#settings = settings;
    this.#socket?.send(JSON.stringify(settings));
  }

  /** Requests an image from the prompt alone, which replaces a running one. */
  draw() {
    if (!this.#socket) return;
    this.#ask();
    this.#socket.send(JSON.stringify({ draw: this.#asked.number }));
  }

  /** Sends a frame, once it is encoded. */
  async send(encoding) {
    if (!this.isFree) return;
    this.#ask();
    const { number } = this.#asked;
    const head = new DataView(new ArrayBuffer(4));
    head.setUint32(0, number);
    const bytes = await new Blob([head.buffer, await encoding]).arrayBuffer();
    if (this.#asked?.number === number) this.#socket?.send(bytes);
  }

  #ask() {
    this.#number = (this.#number + 1) % 2 ** 32;
    this.#asked = { number: this.#number, since: performance.now() };
  }

  /** Forgets the requested image and the figures. */
  forget() {
    this.#asked = null;
    this.#made = [];
  }

  /** Returns the images per second and the median latency of an image in ms, or null without images. */
  figures() {
    const since = performance.now() - WINDOW_MS;
    this.#made = this.#made.filter(({ now }) => now > since);
    if (this.#made.length === 0) return null;
    const took = this.#made.map(({ took }) => took).sort((a, b) => a - b);
    return { rate: (1000 * this.#made.length) / WINDOW_MS, ms: took[took.length >> 1] };
  }
}
