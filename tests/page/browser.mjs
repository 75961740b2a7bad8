// The browser of the page's tests, and helpers.

import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { parseArgs } from 'node:util';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const { chromium } = require('playwright-core');
const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    shots: { type: 'string' },
    chromium: { type: 'string', default: '/usr/bin/chromium' },
    only: { type: 'string', default: '' },
  },
});
export const [base] = positionals;
if (!base) {
  console.error('usage: node page.mjs URL [--shots FOLDER] [--chromium FILE] [--only WORD]');
  process.exit(2);
}
if (options.shots) fs.mkdirSync(options.shots, { recursive: true });

const browser = await chromium.launch({
  executablePath: options.chromium,
  args: [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--use-fake-device-for-media-stream',
    '--use-fake-ui-for-media-stream',
  ],
});

/** Errors, warnings and policy violations in all visits. */
export const complaints = [];
let failures = 0;

export const DESKTOP = { width: 1440, height: 900 };
export const PHONE = { width: 390, height: 844 };

/** Opens the page in a new profile. Samples are not drawn, unless asked for. */
export async function visit({
  viewport = DESKTOP,
  colorScheme = 'light',
  before = async () => {},
  expected = [],
  path = '/',
  samples = false,
  root = base,
  ...more
} = {}) {
  const context = await browser.newContext({
    viewport,
    colorScheme,
    locale: 'en-US',
    hasTouch: viewport.width < 500,
    permissions: ['clipboard-read', 'clipboard-write', 'camera'],
    ...more,
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  const complain = (text) => expected.some((known) => text.includes(known)) || complaints.push(text);
  page.on(
    'console',
    (message) =>
      ['error', 'warning'].includes(message.type()) && complain(`console: ${message.text()} ${message.location().url}`),
  );
  page.on('pageerror', (error) => complain(`error: ${error.message}`));
  await page.exposeFunction('violated', (text) => complain(`policy: ${text}`));
  await page.addInitScript((samples) => {
    if (!samples) localStorage.setItem('flux.no_samples', 'true');
    document.addEventListener('securitypolicyviolation', (event) =>
      window.violated(`${event.violatedDirective} ${event.blockedURI}`),
    );
  }, samples);
  await before(page, context);
  await page.goto(new URL(path.slice(1), `${root}/`).href);
  await ready(page);
  return page;
}

export const ready = (page) =>
  page.waitForFunction(
    () =>
      document.querySelector('#model').options.length > 0 ||
      document.querySelector('#key').open ||
      document.querySelector('.toast'),
  );

export async function check(name, run) {
  if (!name.includes(options.only)) return;
  const start = performance.now();
  try {
    await run();
    console.log(`ok    ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures++;
    console.log(`FAIL  ${name}: ${error.message.split('\n').slice(0, 4).join(' | ')}`);
  }
  for (const context of browser.contexts()) await context.close();
}

export async function finish() {
  await browser.close();
  console.log(failures === 0 ? 'all is well' : `${failures} failed`);
  process.exit(failures === 0 ? 0 : 1);
}

export function assert(condition, what) {
  if (!condition) throw new Error(what);
}

export function assertEqual(got, expected, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
  assert(a === b, `${what} is ${a}, expected ${b}`);
}

export const shot = async (page, name, more = {}) =>
  options.shots && page.screenshot({ path: path.join(options.shots, `${name}.png`), ...more });

export const tiles = (page) => page.locator('.tile');
export const made = (page, count = 1) =>
  page.waitForFunction((count) => document.querySelectorAll('.tile:not(.waiting)').length >= count, count, {
    timeout: 120000,
  });
export const idle = (page) =>
  page.waitForFunction(() => !document.querySelector('.tile.waiting'), null, { timeout: 120000 });
export const chip = (page, text) => page.locator('#presets button', { hasText: text });
export const action = (page, text) => page.locator('#actions > button', { hasText: text });

/** Chooses an item of a menu of the shown image. */
export async function choose(page, menu, item) {
  await page.click(`#actions summary:has-text("${menu}")`);
  await page.click(`#actions .menu[open] button:has-text("${item}")`);
}

export async function openSettings(page) {
  if (!(await page.locator('#settings').isVisible())) await page.click('#settings-open');
}

/** Generates with settings that are fast. */
export async function draw(page, { prompt, size = [128, 128], steps = 2, seed, n, wait = true } = {}) {
  const before = await page.locator('.tile:not(.waiting)').count();
  if (prompt !== undefined) await page.fill('#prompt', prompt);
  else if (!(await page.inputValue('#prompt'))) await page.fill('#prompt', 'a red circle on a blue background');
  await openSettings(page);
  if (size) await setSize(page, size);
  await page.fill('#steps', String(steps));
  if (seed !== undefined) await page.fill('#seed', String(seed));
  if (n !== undefined) await page.fill('#n', String(n));
  await page.click('#draw');
  if (wait) await made(page, before + (n ?? 1));
}

export async function setSize(page, [width, height]) {
  if (!(await page.locator('#free-size').isVisible())) await chip(page, 'Custom').click();
  await page.fill('#width', String(width));
  await page.fill('#height', String(height));
}

/** Adds `stored`, which reads the file of the newest image: the policy does not let a test fetch what is shown. */
export const STORED = () => {
  window.stored = () =>
    new Promise((resolve, reject) => {
      const request = indexedDB.open('flux');
      request.onerror = reject;
      request.onsuccess = () => {
        const stores = request.result.transaction(['images', 'files']);
        stores.objectStore('images').getAll().onsuccess = ({ target: { result } }) => {
          const [newest] = result.sort((a, b) => b.created - a.created || a.index - b.index);
          stores.objectStore('files').get(newest.id).onsuccess = ({ target }) => resolve(target.result.blob);
        };
      };
    });
};

/** Returns the file of the newest image. */
export async function newestFile(page) {
  return Buffer.from(await page.evaluate(async () => [...new Uint8Array(await (await window.stored()).arrayBuffer())]));
}

export const asFile = (buffer, name = 'image.png', mimeType = 'image/png') => ({ name, mimeType, buffer });

/** Returns an image of one colour with a white square, made by the browser. */
export async function picture(page, colour, [width, height] = [160, 128], type = 'image/png') {
  const url = await page.evaluate(
    ([colour, width, height, type]) => {
      const canvas = document.createElement('canvas');
      [canvas.width, canvas.height] = [width, height];
      const context = canvas.getContext('2d');
      context.fillStyle = colour;
      context.fillRect(0, 0, width, height);
      context.fillStyle = 'white';
      context.fillRect(width / 4, height / 4, width / 4, height / 4);
      return canvas.toDataURL(type);
    },
    [colour, width, height, type],
  );
  return Buffer.from(url.split(',')[1], 'base64');
}

/** Drops files on the page, as a file manager does. */
export async function drop(page, files) {
  const data = await page.evaluateHandle(
    (files) => {
      const data = new DataTransfer();
      for (const { bytes, name, mimeType } of files)
        data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, { type: mimeType }));
      return data;
    },
    files.map(({ buffer, name, mimeType }) => ({ bytes: buffer.toString('base64'), name, mimeType })),
  );
  for (const type of ['dragenter', 'dragover', 'drop']) await page.dispatchEvent('body', type, { dataTransfer: data });
}

export const referenceNames = (page) =>
  page
    .locator('#references .thumb')
    .evaluateAll((all) => all.map((thumb) => thumb.title.replace(/^Image \d+: /, '').replace(/ · .*/, '')));

/** Moves the pointer along points of a node, as parts of its size, with the button down. */
export async function drag(page, node, ...points) {
  const box = await node.boundingBox();
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  await page.mouse.move(...at(points[0]));
  await page.mouse.down();
  for (const point of points.slice(1)) await page.mouse.move(...at(point), { steps: 6 });
  await page.mouse.up();
}

/** Returns the largest differences of two files in their left and right halves. */
export async function apart(page, a, b) {
  return page.evaluate(
    async (files) => {
      const pixels = await Promise.all(
        files.map(async (text) => {
          const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]));
          const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
          context.drawImage(bitmap, 0, 0);
          return context.getImageData(0, 0, bitmap.width, bitmap.height);
        }),
      );
      const [{ width, data }, other] = pixels;
      const most = [0, 0];
      for (let at = 0; at < data.length; at++) {
        const half = (at / 4) % width < width / 2 ? 0 : 1;
        most[half] = Math.max(most[half], Math.abs(data[at] - other.data[at]));
      }
      return most;
    },
    [a, b].map((file) => file.toString('base64')),
  );
}

export async function assertAccessible(page, what) {
  await page.evaluate(axe);
  // Not by the promise `finished`, which Chromium does not fulfil where it draws no other frame.
  await page.waitForFunction(() =>
    document
      .getAnimations()
      .every((one) => one.playState === 'finished' || one.effect.getTiming().iterations === Infinity),
  );
  const found = await page.evaluate(async () => {
    const run = await window.axe.run(document, { resultTypes: ['violations'] });
    return run.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
  });
  assertEqual(found, [], `axe of ${what}`);
}

export async function assertFits(page, what) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(wide <= 0, `${what} is ${wide} pixels too wide`);
}
