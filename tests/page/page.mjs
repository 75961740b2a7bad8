// Drives the page of `flux serve` in a browser, and fails when something of it does not work.
//
//   node page.mjs http://127.0.0.1:7860 [--shots FOLDER] [--chromium FILE] [--only WORD]
//
// It needs playwright-core and axe-core, found from the folder that it is run in, and a server with the built-in model:
//
//   PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install playwright-core axe-core

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
const [base] = positionals;
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

/** What the browser complained about, in all visits. */
const complaints = [];
let failures = 0;

const DESKTOP = { width: 1360, height: 860 };
const PHONE = { width: 390, height: 844 };

/** Opens the page as somebody who was never here. */
async function visit({
  viewport = DESKTOP,
  colorScheme = 'light',
  before = async () => {},
  expected = [],
  path = '/',
} = {}) {
  const context = await browser.newContext({
    viewport,
    colorScheme,
    hasTouch: viewport === PHONE,
    permissions: ['clipboard-read', 'clipboard-write', 'camera'],
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  const complain = (text) =>
    [...expected, 'willReadFrequently'].some((known) => text.includes(known)) || complaints.push(text);
  page.on(
    'console',
    (message) =>
      ['error', 'warning'].includes(message.type()) && complain(`console: ${message.text()} ${message.location().url}`),
  );
  page.on('pageerror', (error) => complain(`error: ${error.message}`));
  await page.exposeFunction('violated', (text) => complain(`policy: ${text}`));
  await page.addInitScript(() =>
    document.addEventListener('securitypolicyviolation', (event) =>
      window.violated(`${event.violatedDirective} ${event.blockedURI}`),
    ),
  );
  await before(page, context);
  await page.goto(new URL(path, base).href);
  await page.waitForFunction(
    () =>
      document.querySelector('#out, #all') ||
      document.querySelector('#model').options.length > 0 ||
      document.querySelector('#key').open ||
      document.querySelector('.toast'),
  );
  return page;
}

async function check(name, run) {
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

function assert(condition, what) {
  if (!condition) throw new Error(what);
}

function assertEqual(got, expected, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
  assert(a === b, `${what} is ${a}, expected ${b}`);
}

const shot = async (page, name, more = {}) =>
  options.shots && page.screenshot({ path: path.join(options.shots, `${name}.png`), ...more });

const tiles = (page) => page.locator('.tile');
const made = (page, count = 1) =>
  page.waitForFunction((count) => document.querySelectorAll('.tile:not(.waiting)').length >= count, count, {
    timeout: 120000,
  });
const idle = (page) => page.waitForFunction(() => !document.querySelector('.tile.waiting'), null, { timeout: 120000 });
const chip = (page, text) => page.locator('#presets button', { hasText: text });

/** Draws with settings that are fast. */
async function draw(page, { prompt, size = [128, 128], steps = 2, seed, n, wait = true } = {}) {
  const before = await page.locator('.tile:not(.waiting)').count();
  if (prompt !== undefined) await page.fill('#prompt', prompt);
  if (size) await setSize(page, size);
  await page.fill('#steps', String(steps));
  if (seed !== undefined) await page.fill('#seed', String(seed));
  if (n !== undefined) await page.fill('#n', String(n));
  await page.click('#draw');
  if (wait) await made(page, before + (n ?? 1));
}

async function setSize(page, [width, height]) {
  if (!(await page.locator('#free-size').isVisible())) await chip(page, '1:1').click();
  await page.fill('#width', String(width));
  await page.fill('#height', String(height));
}

/** The file of the image that is shown. */
async function shownFile(page) {
  const bytes = await page.evaluate(async () => [...new Uint8Array(await (await page_blob()).arrayBuffer())]);
  return Buffer.from(bytes);
}

/** Gives the page `page_blob`: the policy does not let it fetch what is shown, so that is read where it is kept. */
const KEPT = () => {
  window.page_blob = () =>
    new Promise((resolve, reject) => {
      const request = indexedDB.open('flux', 1);
      request.onerror = reject;
      request.onsuccess = () => {
        const all = request.result.transaction('images').objectStore('images').getAll();
        all.onsuccess = () => resolve(all.result.sort((a, b) => b.created - a.created || a.index - b.index)[0].blob);
      };
    });
};

const asFile = (buffer, name = 'image.png', mimeType = 'image/png') => ({ name, mimeType, buffer });

/** A PNG of one colour with a white square, made by the browser. */
async function picture(page, colour, [width, height] = [160, 128], type = 'image/png') {
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
async function drop(page, files) {
  const data = await page.evaluateHandle(
    (files) => {
      const data = new DataTransfer();
      for (const { bytes, name, mimeType } of files)
        data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, { type: mimeType }));
      return data;
    },
    files.map(({ buffer, name, mimeType }) => ({ bytes: buffer.toString('base64'), name, mimeType })),
  );
  await page.dispatchEvent('body', 'dragenter', { dataTransfer: data });
  await page.dispatchEvent('body', 'dragover', { dataTransfer: data });
  await page.dispatchEvent('body', 'drop', { dataTransfer: data });
}

const referenceNames = (page) =>
  page
    .locator('#references .thumb')
    .evaluateAll((all) => all.map((thumb) => thumb.title.replace(/^Reference \d+: /, '')));

/** The pixels of two files: how far they are apart at most, in two halves. */
async function apart(page, a, b) {
  return page.evaluate(
    async (files) => {
      const pixels = await Promise.all(
        files.map(async (text) => {
          const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]));
          const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
          const context = canvas.getContext('2d');
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

async function violations(page) {
  const found = await page.evaluate(async (axe) => {
    // The policy holds for the page; this is the test.
    const run = await window.axe.run(document, { resultTypes: ['violations'] });
    return run.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`);
  });
  return found;
}

async function assertAccessible(page, what) {
  await page.evaluate(axe);
  await page.evaluate(() =>
    Promise.all(
      document
        .getAnimations()
        .filter((one) => one.effect.getTiming().iterations !== Infinity)
        .map((one) => one.finished),
    ),
  );
  assertEqual(await violations(page), [], `axe of ${what}`);
}

// The first visit

await check('the first image is one click away', async () => {
  const page = await visit();
  assertEqual(await page.inputValue('#prompt'), 'a red circle on a blue background', 'the prompt');
  await shot(page, 'desktop-empty');
  await page.click('#draw');
  await made(page);
  await page.waitForSelector('#frame .zoom img');
  const alt = await page.getAttribute('#frame img', 'alt');
  assertEqual(alt, 'a red circle on a blue background', 'the text of the image');
  const width = await page.locator('#frame img').evaluate((img) => img.decode().then(() => img.naturalWidth));
  assert(width >= 128, 'the image is there');
  await idle(page);
});

await check('settings are used', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a green square on a white background', size: [192, 128], steps: 3, seed: 77, n: 2 });
  await idle(page);
  await page.waitForFunction(() => document.querySelector('#facts').textContent.includes('seed 77'));
  const facts = await page.textContent('#facts');
  for (const fact of ['192 × 128', 'seed 77', '3 steps'])
    assert(facts.includes(fact), `the facts are "${facts}", expected ${fact}`);
  assertEqual(await tiles(page).count(), 2, 'the number of tiles');
  assertEqual(await page.getAttribute('#lock', 'aria-pressed'), 'true', 'the lock of a seed that was typed');
  await page.click('#lock');
  await draw(page, { n: 1 });
  assert((await page.inputValue('#seed')) !== '77', 'an unlocked seed is a new one');
});

await check('sizes have presets and are free', async () => {
  const page = await visit();
  await chip(page, '16:9').click();
  const [width, height] = [await page.inputValue('#width'), await page.inputValue('#height')].map(Number);
  assert(width > height && width % 16 === 0 && Math.abs(width / height - 16 / 9) < 0.12, `16:9 is ${width}x${height}`);
  await page.fill('#width', String(height));
  await page.fill('#height', String(width));
  assertEqual(await chip(page, '9:16').getAttribute('aria-pressed'), 'true', '9:16 is chosen');
  await chip(page, 'Auto').click();
  assert(!(await page.locator('#free-size').isVisible()), 'auto has no sides');
});

await check('progress and previews are shown, and a job is cancelled', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a rocket on a beige background', size: [512, 512], steps: 30, wait: false });
  await page.waitForSelector('#frame img.preview');
  await page.waitForFunction(() => /Step \d+ of 30/.test(document.querySelector('#progress-text').textContent));
  await page.waitForTimeout(2500);
  await shot(page, 'desktop-drawing');
  await page.evaluate(axe);
  assertEqual(await violations(page), [], 'axe while drawing');
  const before = await (await page.request.get(`${base}/v1/jobs?limit=1`)).json();
  await page.click('#cancel');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 0);
  const after = await (await page.request.get(`${base}/v1/jobs/${before.data[0].id}`)).json();
  assertEqual(after.status, 'cancelled', 'the status of the job');
  // Escape does the same.
  await draw(page, { size: [512, 512], steps: 30, wait: false });
  await page.waitForSelector('#progress:not([hidden])');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 0);
});

await check('places in the queue are shown', async () => {
  const page = await visit();
  await draw(page, { size: [512, 512], steps: 20, wait: false });
  await page.waitForSelector('#progress:not([hidden])');
  for (let more = 0; more < 4; more++) {
    await page.click('#draw');
    await page.waitForFunction((count) => document.querySelectorAll('.tile').length === count, more + 2);
  }
  await page.waitForFunction(() => /ahead/.test(document.querySelector('#progress-text').textContent));
  for (let left = 5; left > 0; left--) {
    await page.click('#cancel');
    await page.waitForFunction((count) => document.querySelectorAll('.tile').length === count, left - 1);
  }
});

await check('a lost connection is taken up again', async () => {
  let cuts = 0;
  const page = await visit({
    expected: ['Failed to load resource'],
    before: (page) => page.route('**/events', (route) => (cuts++ < 2 ? route.abort() : route.continue())),
  });
  await draw(page);
  assert(cuts > 2, 'the events are asked for again');
});

await check('a request whose answer is lost draws once', async () => {
  let posts = 0;
  const names = new Set();
  const page = await visit({
    expected: ['Failed to load resource'],
    before: (page) =>
      page.route('**/v1/jobs', async (route) => {
        if (route.request().method() !== 'POST') return route.continue();
        names.add(route.request().headers()['idempotency-key']);
        if (posts++ > 0) return route.continue();
        await route.fetch();
        return route.abort();
      }),
  });
  const count = async () => (await (await page.request.get(`${base}/v1/jobs?limit=1000`)).json()).data.length;
  const before = await count();
  await draw(page);
  assertEqual([posts, names.size, (await count()) - before], [2, 1, 1], 'posts, names and jobs');
});

// References

await check('files are chosen, dropped and pasted', async () => {
  const page = await visit();
  await page.setInputFiles('#image-files', [asFile(await picture(page, 'teal'), 'chosen.png')]);
  await page.waitForSelector('#references li:nth-child(1)');
  await drop(page, [asFile(await picture(page, 'orange', [128, 128], 'image/jpeg'), 'dropped.jpg', 'image/jpeg')]);
  await page.waitForSelector('#references li:nth-child(2)');
  await page.evaluate(
    async (text) => {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      await navigator.clipboard.write([new ClipboardItem({ 'image/png': new Blob([bytes], { type: 'image/png' }) })]);
    },
    (await picture(page, 'purple')).toString('base64'),
  );
  await page.focus('#prompt');
  await page.keyboard.press('Control+V');
  await page.waitForSelector('#references li:nth-child(3)');
  assertEqual(await referenceNames(page), ['chosen.png', 'dropped.jpg', 'image.png'], 'the references');
  await drop(page, [asFile(Buffer.from('no image'), 'text.png')]);
  await page.waitForSelector('.toast.wrong');
  await shot(page, 'desktop-references');
  await page.fill('#prompt', 'make it green');
  await draw(page);
  // A reload keeps them.
  await page.reload();
  await page.waitForSelector('#references li:nth-child(3)');
  const most = Array.from({ length: 15 }, async (_, at) => asFile(await picture(page, 'black'), `${at}.png`));
  await page.setInputFiles('#image-files', await Promise.all(most));
  await page.waitForSelector('#references li:nth-child(16)');
  assertEqual(await page.locator('#references li').count(), 16, 'the most references');
});

await check('references are reordered by keys and by the pointer', async () => {
  const page = await visit();
  const files = [];
  for (const [at, colour] of ['red', 'green', 'blue'].entries())
    files.push(asFile(await picture(page, colour), `${at}.png`));
  await page.setInputFiles('#image-files', files);
  await page.waitForSelector('#references li:nth-child(3)');
  const thumb = (place) => page.locator('#references .thumb').nth(place);
  await thumb(0).focus();
  await page.keyboard.press('Alt+ArrowRight');
  assertEqual(await referenceNames(page), ['1.png', '0.png', '2.png'], 'after a key');
  assert(await thumb(1).evaluate((node) => node === document.activeElement), 'the focus goes with the reference');
  const [from, to] = [await thumb(2).boundingBox(), await thumb(0).boundingBox()];
  await page.mouse.move(from.x + 30, from.y + 30);
  await page.mouse.down();
  await page.mouse.move(from.x + 10, from.y + 20, { steps: 4 });
  await page.mouse.move(to.x + 25, to.y + 25, { steps: 8 });
  await page.mouse.up();
  assertEqual(await referenceNames(page), ['2.png', '1.png', '0.png'], 'after a drag');
  assert(!(await page.locator('#reference').evaluate((dialog) => dialog.open)), 'a drag is no click');
  await thumb(0).click();
  await page.click('#reference-later');
  assertEqual(await referenceNames(page), ['1.png', '2.png', '0.png'], 'after a button');
  await page.keyboard.press('Delete');
  assertEqual(await referenceNames(page), ['1.png', '0.png'], 'after a deletion');
});

await check('a mask is painted, undone, kept, and what is outside stays', async () => {
  const page = await visit({ before: (page) => page.addInitScript(KEPT) });
  await draw(page, { prompt: 'a red circle on a blue background', size: [256, 256], steps: 4, seed: 5 });
  await idle(page);
  const before = await shownFile(page);
  await page.click('#actions button:has-text("Use as reference")');
  await page.waitForSelector('#references li');
  await page.click('#mask-edit');
  await page.waitForSelector('#mask[open]');
  const covered = () =>
    page.locator('#mask-canvas').evaluate((canvas) => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.filter((value, at) => at % 4 === 3 && value > 127).length / (data.length / 4);
    });
  const box = await page.locator('#mask-canvas').boundingBox();
  const at = (x, y) => [box.x + x * box.width, box.y + y * box.height];
  const stroke = async (...points) => {
    await page.mouse.move(...at(...points[0]));
    await page.mouse.down();
    for (const point of points.slice(1)) await page.mouse.move(...at(...point), { steps: 6 });
    await page.mouse.up();
  };
  await page.fill('#mask-size', '40');
  await stroke([0.2, 0.2], [0.2, 0.8]);
  const first = await covered();
  assert(first > 0.03 && first < 0.5, `a stroke covers ${first}`);
  await stroke([0.3, 0.2], [0.3, 0.8]);
  assert((await covered()) > first, 'a second stroke covers more');
  await shot(page, 'mask-editor');
  await page.click('#mask-undo');
  assertEqual(await covered(), first, 'after undo');
  await page.click('#mask-erase');
  await stroke([0.2, 0.5], [0.21, 0.5]);
  assert((await covered()) < first, 'the eraser takes away');
  await page.keyboard.press('Control+z');
  assertEqual(await covered(), first, 'after Ctrl+Z');
  await page.click('#mask-brush');
  await page.click('#mask-invert');
  assert(Math.abs((await covered()) - (1 - first)) < 0.02, 'inverted');
  await page.click('#mask-undo');
  await page.click('#mask-clear');
  assertEqual(await covered(), 0, 'cleared');
  await page.click('#mask-undo');
  await page.focus('#mask-canvas');
  await page.keyboard.press('Space');
  assert((await covered()) > first, 'the keyboard paints');
  await page.click('#mask-undo');
  assertEqual(await covered(), first, 'all but the stroke is undone');
  await assertAccessible(page, 'the mask editor');
  await page.click('#mask-done');
  await page.waitForSelector('#references .masked');
  assert(await page.locator('#strength').isVisible(), 'a mask changes the first image');
  await page.fill('#strength', '1');
  assert(!(await page.locator('#presets').isVisible()), 'the size is that of the image');
  await draw(page, { prompt: 'a green square on a blue background', size: null, steps: 4, seed: 9 });
  await idle(page);
  const [inside, outside] = await apart(page, before, await shownFile(page));
  assert(inside > 30, `what is masked differs by ${inside}`);
  assertEqual(outside, 0, 'how far the other half is apart');
  // The mask is there for the next try, and after a reload.
  await page.reload();
  await page.waitForSelector('#references .masked');
  await page.click('#mask-edit');
  await page.waitForFunction(() => document.querySelector('#mask').open);
  assert(Math.abs((await covered()) - first) < 0.01, 'the mask is kept');
  await page.keyboard.press('Escape');
  await page.click('#mask-remove');
  await page.waitForFunction(() => !document.querySelector('#references .masked'));
});

// The gallery

await check('the gallery survives a reload, and a running job is found again', async () => {
  const page = await visit();
  await draw(page, { seed: 3 });
  await draw(page, { prompt: 'an owl on a beige background', size: [512, 512], steps: 12, n: 2, seed: 4, wait: false });
  await page.waitForSelector('#frame img.preview');
  await page.reload();
  await page.waitForSelector('.tile.waiting');
  assertEqual((await page.locator('.tile:not(.waiting)').count()) >= 1, true, 'the image is there');
  await made(page, 3);
  assertEqual(await tiles(page).count(), 3, 'the number of tiles');
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 3);
  assertEqual(await page.locator('.tile.waiting').count(), 0, 'nothing waits');
});

await check('recipes are reused, copied, downloaded and deleted', async () => {
  const page = await visit();
  const prompt = `a cat's "hat" on a white background`;
  await draw(page, { prompt, size: [128, 160], steps: 2, seed: 12345678 });
  await idle(page);
  await page.fill('#prompt', 'else');
  await chip(page, 'Auto').click();
  await page.fill('#seed', '');
  await page.fill('#steps', '');
  await page.click('#actions button:has-text("Reuse seed")');
  assertEqual(await page.inputValue('#seed'), '12345678', 'the seed');
  assertEqual(await page.inputValue('#prompt'), 'else', 'the prompt');
  await page.click('#actions button:has-text("Reuse all")');
  await page.waitForFunction((prompt) => document.querySelector('#prompt').value === prompt, prompt);
  const values = await Promise.all(['#width', '#height', '#steps', '#seed'].map((id) => page.inputValue(id)));
  assertEqual(values, ['128', '160', '2', '12345678'], 'what is reused');
  await page.click('#actions button:has-text("Copy as")');
  const texts = {};
  for (const kind of ['flux', 'curl', 'Python']) {
    await page.click(`#copy-kinds button:has-text("${kind}")`);
    texts[kind] = await page.textContent('#copy-text');
  }
  assertEqual(
    texts.flux,
    `flux -p 'a cat'\\''s "hat" on a white background' --size 128x160 -s 2 -S 12345678`,
    'the command',
  );
  assert(texts.curl.includes('/v1/images/generations') && texts.curl.includes('"seed":12345678'), texts.curl);
  assert(
    texts.Python.includes('client.images.generate(') &&
      texts.Python.includes('extra_body={"seed": 12345678, "steps": 2}'),
    texts.Python,
  );
  await shot(page, 'copy');
  await page.click('#copy-kinds button:has-text("flux")');
  await page.click('#copy-do');
  assertEqual(await page.evaluate(() => navigator.clipboard.readText()), texts.flux, 'the clipboard');
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.click('#actions button:has-text("Download")'),
  ]);
  assertEqual(download.suggestedFilename(), 'flux-12345678.png', 'the name of the file');
  await page.click('#actions button:has-text("Delete")');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 0);
  await page.click('.toast button:has-text("Undo")');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 1);
  await page.reload();
  await page.waitForSelector('.tile');
});

await check('an image is drawn from a result, compared with it, and its command names files', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a red circle on a blue background', size: [256, 256], steps: 4, seed: 5 });
  await page.click('#actions button:has-text("Use as reference")');
  await page.waitForSelector('#references li');
  await draw(page, { prompt: 'make the circle green', size: [256, 256], steps: 4, seed: 6 });
  await idle(page);
  await page.click('#actions button:has-text("Copy as")');
  await page.waitForSelector('#copy[open]');
  const text = await page.textContent('#copy-text');
  assert(text.includes('-i flux-5.png'), `the command is "${text}"`);
  await page.click('#copy-kinds button:has-text("curl")');
  const curl = await page.textContent('#copy-text');
  assert(curl.includes('/v1/images/edits') && curl.includes('image[]=@"flux-5.png"'), curl);
  await page.keyboard.press('Escape');
  await page.click('#actions button:has-text("Compare")');
  await page.waitForSelector('#compare[open]');
  const clip = () => page.locator('#compare-right').evaluate((image) => image.style.clipPath);
  const before = await clip();
  await page.keyboard.press('ArrowRight');
  assert((await clip()) !== before, 'the keyboard moves the line');
  const box = await page.locator('#compare-stage').boundingBox();
  await page.mouse.click(box.x + box.width * 0.35, box.y + box.height / 2);
  const [percent] = (await clip()).match(/[\d.]+(?=%)/);
  assert(Math.abs(percent - 35) < 3, `the line is at ${percent}`);
  await shot(page, 'compare');
  await assertAccessible(page, 'the comparison');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => !document.querySelector('#compare').open);
  // Its references come back with its recipe.
  await page.click('#references .remove');
  await page.click('#actions button:has-text("Reuse all")');
  await page.waitForSelector('#references li');
});

await check('a dropped image shows its recipe, which is reused', async () => {
  const page = await visit({ before: (page) => page.addInitScript(KEPT) });
  for (const format of ['png', 'webp', 'jpeg']) {
    await page.evaluate(() => (document.querySelector('#advanced').open = true));
    await page.selectOption('#output_format', format);
    const prompt = `“ünï” <b>&amp; 雪 ${format}`;
    await draw(page, { prompt, seed: 4294967295, steps: 1 });
    await idle(page);
    const file = asFile(await shownFile(page), `ours.${format}`, `image/${format}`);
    await page.fill('#prompt', 'else');
    await drop(page, [file]);
    await page.waitForSelector('#found[open]');
    const shown = await page.textContent('#found-recipe');
    assert(shown.includes(prompt) && shown.includes('4294967295'), `the recipe of a ${format} is "${shown}"`);
    if (format === 'png') {
      await shot(page, 'recipe');
      await assertAccessible(page, 'the recipe');
    }
    await page.click('#found-reuse');
    assertEqual(await page.inputValue('#prompt'), prompt, 'the prompt');
  }
});

// What goes wrong

await check('errors are shown beside their fields', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await page.fill('#prompt', '');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#prompt-error').textContent !== '');
  assertEqual(await page.getAttribute('#prompt', 'aria-invalid'), 'true', 'the prompt');
  assert(await page.locator('#prompt').evaluate((node) => node === document.activeElement), 'the field has the focus');
  await shot(page, 'error');
  await page.fill('#prompt', 'x');
  assertEqual(await page.textContent('#prompt-error'), '', 'the message after a change');
  await setSize(page, [8, 64]);
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#size-error').textContent.includes('64'));
  await setSize(page, [128, 128]);
  await page.fill('#seed', 'seven');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#seed-error').textContent !== '');
  await page.fill('#seed', '');
  await page.fill('#n', '11');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#n-error').textContent !== '');
  await page.fill('#n', '1');
  await page.fill('#steps', '0');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#steps-error').textContent !== '');
  assertEqual(await tiles(page).count(), 0, 'nothing is drawn');
});

await check('the key is asked for once', async () => {
  const page = await visit({
    expected: ['Failed to load resource'],
    before: (page) =>
      page.route('**/v1/**', (route) => {
        if (route.request().headers().authorization === 'Bearer right') return route.continue();
        const error = {
          message: 'an API key is required',
          type: 'authentication_error',
          param: null,
          code: 'invalid_api_key',
        };
        return route.fulfill({ status: 401, contentType: 'application/json', body: JSON.stringify({ error }) });
      }),
  });
  await page.waitForSelector('#key[open]');
  await shot(page, 'key');
  await assertAccessible(page, 'the question for the key');
  await page.fill('#key-text', 'wrong');
  await page.click('#key-use');
  await page.waitForFunction(() => document.querySelector('#key-error').textContent !== '');
  await page.fill('#key-text', '');
  await page.focus('#key-text');
  await page.keyboard.type('right');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  await draw(page);
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert(!(await page.locator('#key').evaluate((dialog) => dialog.open)), 'the key is kept');
});

await check('a job that the server forgot is said', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await page.evaluate(() => {
    const job = { id: 'gone', created: 1, asked: { prompt: 'gone' }, inputs: [], count: 1, saved: [], isResumed: true };
    localStorage.setItem('flux.job.gone', JSON.stringify(job));
  });
  await page.reload();
  await page.waitForSelector('.toast.wrong');
  assertEqual(await tiles(page).count(), 0, 'the number of tiles');
  assertEqual(await page.evaluate(() => localStorage.getItem('flux.job.gone')), null, 'what is kept of it');
});

await check('models and LoRAs are offered', async () => {
  let body = '';
  const page = await visit({
    before: async (page) => {
      await page.route('**/v1/models', (route) => route.fulfill({ json: { data: [{ id: 'tiny' }, { id: 'other' }] } }));
      await page.route('**/v1/loras', (route) => route.fulfill({ json: { data: [{ id: 'ink' }, { id: 'oil' }] } }));
      await page.addInitScript(() => {
        const append = FormData.prototype.append;
        window.sent = [];
        FormData.prototype.append = function (name, value, ...rest) {
          window.sent.push([name, String(value)]);
          return append.call(this, name, value, ...rest);
        };
      });
      await page.route('**/v1/jobs', (route) => {
        body = 'sent';
        const error = { message: 'there is no LoRA `ink`', param: 'loras', code: 'invalid_value' };
        return route.fulfill({ status: 400, json: { error } });
      });
    },
    expected: ['Failed to load resource'],
  });
  await page.selectOption('#model', 'other');
  await page.check('#loras input[value=ink]');
  await page.fill('#loras input[aria-label="Weight of ink"]', '0.5');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#loras-error').textContent !== '');
  const sent = Object.fromEntries(await page.evaluate(() => window.sent));
  assertEqual([body, sent.model, sent.loras], ['sent', 'other', '[{"name":"ink","weight":0.5}]'], 'what is sent');
});

// Looks and keys

await check('the keyboard does everything', async () => {
  const page = await visit();
  await page.fill('#n', '3');
  await setSize(page, [128, 128]);
  await page.fill('#steps', '1');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('/');
  assert(await page.locator('#prompt').evaluate((node) => node === document.activeElement), '/ goes to the prompt');
  await page.keyboard.press('End');
  await page.keyboard.type(' and/or?');
  assertEqual(await page.inputValue('#prompt'), 'a red circle on a blue background and/or?', 'what is typed');
  await page.keyboard.press('Control+Enter');
  await made(page, 3);
  await idle(page);
  await page.evaluate(() => document.activeElement.blur());
  const selected = () =>
    page.locator('.tile').evaluateAll((all) => all.findIndex((tile) => tile.getAttribute('aria-selected') === 'true'));
  assertEqual(await selected(), 0, 'the selection');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  assertEqual(await selected(), 2, 'the selection after two arrows');
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#zoom[open]');
  await shot(page, 'zoom');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => !document.querySelector('#zoom').open);
  assertEqual(await selected(), 1, 'the selection after the full size');
  await page.keyboard.press('Delete');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 2);
  assert(
    await page.evaluate(() => document.activeElement.classList.contains('tile')),
    'the focus stays in the gallery',
  );
  await page.keyboard.press('?');
  await page.waitForSelector('#help[open]');
  await assertAccessible(page, 'the keys');
  await page.keyboard.press('Escape');
});

for (const colorScheme of ['light', 'dark']) {
  await check(`nothing is wrong for screen readers: ${colorScheme}`, async () => {
    const page = await visit({ colorScheme });
    await assertAccessible(page, 'the empty page');
    await page.evaluate(() => (document.querySelector('#advanced').open = true));
    const prompts = [
      'a red circle on a blue background',
      'an owl on a beige background',
      'a rocket on a beige background',
      'a green tree on a yellow background',
    ];
    for (const prompt of prompts) await draw(page, { prompt, size: [256, 256], steps: 4, seed: 7 });
    await draw(page, { prompt: 'a house beside a tree on a blue background', size: [320, 192], steps: 4, n: 4 });
    await idle(page);
    await page.click('#actions button:has-text("Use as reference")');
    await page.waitForSelector('#references li');
    await page.check('#changes');
    await assertAccessible(page, 'the whole page');
    await page.evaluate(() => (document.querySelector('#advanced').open = false));
    await page.waitForTimeout(300);
    await shot(page, colorScheme === 'light' ? 'desktop-gallery' : 'dark-gallery');
    if (colorScheme === 'dark') {
      await page.setViewportSize(PHONE);
      await shot(page, 'phone-dark', { fullPage: true });
    }
  });
}

await check('dark mode is toggled and kept', async () => {
  const page = await visit({ colorScheme: 'light' });
  const brightness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] / 255);
  assert((await brightness()) > 0.8, 'the page is light');
  await page.click('#theme');
  assert((await brightness()) < 0.3, 'the page is dark');
  await page.reload();
  assert((await brightness()) < 0.3, 'the page stays dark');
  assertEqual(await page.getAttribute('#theme', 'aria-pressed'), 'true', 'the state of the button');
});

await check('a phone needs no sideways scroll', async () => {
  const page = await visit({ viewport: PHONE });
  const fits = async (what) => {
    const [scroll, width] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert(scroll <= width, `${what} is ${scroll} wide`);
  };
  await fits('the empty page');
  await shot(page, 'phone-empty');
  await page.click('#draw');
  await made(page);
  await idle(page);
  await fits('the page with an image');
  await page.waitForTimeout(700);
  await shot(page, 'phone-image');
  await page.evaluate(() => document.querySelectorAll('details').forEach((details) => (details.open = true)));
  await chip(page, '1:1').click();
  await fits('the page with all settings');
  await page.click('#actions button:has-text("Use as reference")');
  await page.waitForSelector('#references li');
  await shot(page, 'phone-all', { fullPage: true });
  await page.click('#mask-edit');
  await page.waitForSelector('#mask[open]');
  await fits('the mask editor');
  await shot(page, 'phone-mask');
  await page.keyboard.press('Escape');
  await assertAccessible(page, 'the phone');
});

/** Waits for so many more images of the tab of live images. */
const live = async (page, more = 1) => {
  const images = () => Number(document.querySelector('#out').dataset.images ?? 0);
  const before = await page.evaluate(images);
  await page.waitForFunction(
    (least) => Number(document.querySelector('#out').dataset.images ?? 0) >= least,
    before + more,
    { timeout: 120000 },
  );
};

/** The mean colour of a canvas. */
const mean = (page, id) =>
  page.evaluate((id) => {
    const canvas = document.getElementById(id);
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const sum = [0, 0, 0];
    for (let at = 0; at < data.length; at += 4) for (const color of [0, 1, 2]) sum[color] += data[at + color];
    return sum.map((color) => (4 * color) / data.length);
  }, id);

await check('live: words are drawn while they are typed', async () => {
  const page = await visit();
  await Promise.all([page.waitForURL('**/live'), page.click('header a[href="live"]')]);
  await page.selectOption('#side', '128');
  await page.selectOption('#steps', '1');
  await live(page);
  await page.fill('#prompt', '');
  await page.locator('#prompt').pressSequentially('a white star on a red background', { delay: 20 });
  await live(page);
  await page.waitForFunction(() => /\d images per second . \d+ ms/.test(document.querySelector('#figures').textContent));
  // What was typed last is what is shown.
  await page.waitForTimeout(3000);
  const [red, green, blue] = await mean(page, 'out');
  assert(red > green + 30 && red > blue + 30, `the mean colour is ${[red, green, blue]}`);
  await shot(page, 'live-words');
  await assertAccessible(page, 'the words');
  await page.reload();
  await live(page);
  assertEqual(await page.inputValue('#prompt'), 'a white star on a red background', 'the prompt after a reload');
});

await check('live: what was refused for a while is drawn later', async () => {
  const refusals = { left: 0 };
  const page = await visit({
    path: '/live',
    before: (page) =>
      page.routeWebSocket('**/v1/live', (socket) => {
        const server = socket.connectToServer();
        socket.onMessage((data) => {
          const { draw: number } = typeof data === 'string' ? JSON.parse(data) : {};
          if (number === undefined || refusals.left === 0) {
            server.send(data);
            return;
          }
          refusals.left -= 1;
          const error = { message: 'too many requests are already waiting', code: 'queue_full' };
          socket.send(JSON.stringify({ number, error, retry_after: 1 }));
        });
      }),
  });
  await page.selectOption('#side', '128');
  await page.selectOption('#steps', '1');
  await live(page);
  await page.waitForTimeout(1500);
  refusals.left = 1;
  await page.fill('#prompt', 'a white star on a red background');
  await live(page);
  assertEqual(refusals.left, 0, 'the refusals that are left');
});

await check('live: a sketch is drawn from', async () => {
  const page = await visit({ path: '/live' });
  await page.selectOption('#side', '128');
  await page.selectOption('#steps', '1');
  await page.click('#ways button:has-text("Sketch")');
  await live(page);
  await page.fill('#prompt', 'keep it as it is');
  await page.waitForTimeout(1500);
  const before = await mean(page, 'sketch');
  const box = await page.locator('#sketch').boundingBox();
  await page.mouse.move(box.x + 30, box.y + 30);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width - 30, box.y + box.height - 30, { steps: 12 });
  await page.mouse.up();
  await live(page);
  const after = await mean(page, 'sketch');
  assert(before.every((color) => color > 250) && after[1] < before[1] - 5, `the sketch is ${before}, then ${after}`);
  await page.selectOption('#start', 'strength');
  assert(await page.locator('#strength').isVisible(), 'the strength is there');
  await live(page);
  await page.locator('#sketch').focus();
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('Space');
  await live(page);
  await page.click('#clear');
  assert((await mean(page, 'sketch'))[1] > 250, 'the sketch is white again');
  await shot(page, 'live-sketch');
  await assertAccessible(page, 'the sketch');
});

await check('live: the camera is drawn from, and a lost connection is made again', async () => {
  const lost = { sockets: [] };
  const page = await visit({
    path: '/live',
    expected: ['WebSocket'],
    before: (page) =>
      page.routeWebSocket('**/v1/live', (socket) => {
        lost.sockets.push(socket);
        socket.connectToServer();
      }),
  });
  await page.selectOption('#side', '128');
  await page.selectOption('#steps', '1');
  await page.click('#ways button:has-text("Camera")');
  await live(page, 3);
  const told = await page.textContent('#figures');
  assert(/\d images per second · \d+ ms from frame to image/.test(told), `the figures are ${told}`);
  await shot(page, 'live-camera');
  const count = lost.sockets.length;
  await lost.sockets.at(-1).close();
  await page.waitForFunction(() => document.querySelector('#figures').textContent.startsWith('Connecting'));
  await live(page, 2);
  assert(lost.sockets.length > count, 'it connected again');
  await page.click('#ways button:has-text("Text")');
  await live(page);
  assert(await page.evaluate(() => document.querySelector('#video').srcObject.getTracks()[0].readyState === 'ended'));
  await assertAccessible(page, 'the camera');
});

await check('live: a camera that is not wanted any more is off', async () => {
  const page = await visit({
    path: '/live',
    before: (page) =>
      page.addInitScript(() => {
        const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        window.opened = [];
        navigator.mediaDevices.getUserMedia = async (wanted) => {
          // As long as somebody thinks about it.
          await new Promise((done) => setTimeout(done, 500));
          const stream = await open(wanted);
          window.opened.push(stream);
          return stream;
        };
      }),
  });
  const areOff = async (count) => {
    await page.waitForFunction((count) => window.opened.length === count, count);
    await page.waitForTimeout(200);
    return page.evaluate(() => window.opened.map((stream) => stream.getTracks()[0].readyState === 'ended'));
  };
  const press = (name) => page.click(`#ways button:has-text("${name}")`);
  await press('Camera');
  await press('Text');
  assertEqual(await areOff(1), [true], 'whether cameras are off');
  await press('Camera');
  await press('Camera');
  assertEqual(await areOff(3), [true, true, false], 'whether cameras are off');
});

await check('live: a phone needs no sideways scroll', async () => {
  const page = await visit({ viewport: PHONE, path: '/live' });
  await page.selectOption('#side', '128');
  await page.click('#ways button:has-text("Sketch")');
  await live(page);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(wide <= 0, `it is ${wide} pixels too wide`);
  await shot(page, 'live-phone', { fullPage: true });
});

/** A batch as /v1/batches has it. */
const batch = (more) => ({
  id: `b-${'0'.repeat(32)}`,
  object: 'batch',
  model: 'tiny',
  created: 1790000000,
  jobs: 2000,
  submitted: 2000,
  done: 500,
  failed: 3,
  dead: 0,
  waiting: 1497,
  cancelled: false,
  images_per_second: 4.125,
  eta_s: 363,
  ...more,
});

/** Gives the page a server that has a queue, and these batches, one list after the other. */
const withBatches =
  (...lists) =>
  async (page) => {
    const answer = (route, body) => route.fulfill({ json: body });
    await page.route('**/v1/models', async (route) => {
      const models = await (await route.fetch()).json();
      await answer(route, { ...models, flux: { queue: true } });
    });
    await page.route('**/v1/batches', (route) =>
      answer(route, { object: 'list', data: lists.length > 1 ? lists.shift() : lists[0], others: 7 }),
    );
  };

await check('batches: the tab is there where the server has a queue', async () => {
  const without = await visit();
  await without.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert(await without.locator('#batches').isHidden(), 'no tab without a queue');
  const page = await visit({ before: withBatches([batch()]) });
  await Promise.all([page.waitForURL('**/batches'), page.click('#batches')]);
  await page.waitForSelector('#all li');
});

await check('batches: how far they are is shown, and refreshed', async () => {
  const over = batch({ id: `b-${'1'.repeat(32)}`, done: 1997, waiting: 0, images_per_second: null, eta_s: null, dead: null });
  const later = batch({ done: 1000, waiting: 997, images_per_second: 20.4, eta_s: 90061, dead: 2 });
  const page = await visit({ path: '/batches', before: withBatches([batch(), over], [later, over]) });
  await page.waitForSelector('#all li:nth-child(2)');
  const texts = () => page.locator('#all li').first().innerText();
  const first = await texts();
  for (const text of ['500 of 2,000', '1,497', '4.13', '6 min 3 s', 'in progress', 'tiny'])
    assert(first.includes(text), `${text}: ${first}`);
  await assertAccessible(page, 'the batches');
  await shot(page, 'batches');
  const kept = await page.locator('#all li').first().elementHandle();
  await page.waitForFunction(() => document.querySelector('#all li').textContent.includes('1,000 of 2,000'));
  const second = await texts();
  for (const text of ['1 d 1 h', '20', '997']) assert(second.includes(text), `${text}: ${second}`);
  assert(await kept.evaluate((item) => item.isConnected), 'what is shown is changed in place');
  const told = await page.textContent('#told');
  assert(told.includes('7 are older'), `it says ${told}`);
  const values = await page.locator('#all progress').evaluateAll((all) => all.map(({ value, max }) => [value, max]));
  assertEqual(values, [[1000, 2000], [1997, 2000]], 'the bars');
  const overs = await page.locator('#all li').nth(1).innerText();
  assert(overs.includes('finished') && overs.includes('–'), `of one that is over it says ${overs}`);
});

await check('batches: a server without a queue says so, and a phone needs no sideways scroll', async () => {
  const page = await visit({ path: '/batches', expected: ['404'] });
  await page.waitForFunction(() => document.querySelector('#wrong').textContent.includes('has no queue'));
  const phone = await visit({ path: '/batches', viewport: PHONE, colorScheme: 'dark', before: withBatches([batch()]) });
  await phone.waitForSelector('#all li');
  const wide = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(wide <= 0, `it is ${wide} pixels too wide`);
  await assertAccessible(phone, 'the batches on a phone');
  await shot(phone, 'batches-phone', { fullPage: true });
});

await check('the browser complained about nothing', async () => {
  assertEqual(complaints, [], 'what it said');
});

await browser.close();
console.log(failures === 0 ? 'all is well' : `${failures} failed`);
process.exit(failures === 0 ? 0 : 1);
