// The gallery: migration, a thousand images, search, selection, archives.

import fs from 'node:fs';
import {
  assert,
  assertAccessible,
  assertEqual,
  check,
  draw,
  made,
  picture,
  ready,
  shot,
  tiles,
  visit,
} from './browser.mjs';

/** Stores images of the page's first version, before the page opens. */
async function fill(page, count, file, version = 2) {
  await page.evaluate(
    async ([count, bytes, version]) => {
      const blob = new Blob([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], { type: 'image/png' });
      const names = version === 1 ? ['images', 'inputs'] : ['images', 'files', 'thumbs'];
      const db = await new Promise((done) => {
        const request = indexedDB.open('flux', version);
        request.onupgradeneeded = () =>
          names.forEach((name) => request.result.createObjectStore(name, { keyPath: 'id' }));
        request.onsuccess = () => done(request.result);
      });
      const stores = db.transaction(version === 1 ? ['images'] : names, 'readwrite');
      for (let at = 0; at < count; at++) {
        const id = `old-${at}`;
        const recipe = {
          prompt: `${at % 10 === 0 ? 'a red fox' : 'a lamp'} number ${at}`,
          seed: String(at),
          width: 160,
          height: 128,
        };
        const image = {
          id,
          index: 0,
          created: Date.now() - at * 3600e3,
          width: 160,
          height: 128,
          recipe,
          asked: {},
          inputs: [],
          notes: [],
        };
        if (version === 1) stores.objectStore('images').put({ ...image, blob, thumb: blob });
        else {
          stores.objectStore('images').put({ ...image, root: id, bytes: blob.size, type: 'image/png' });
          for (const name of ['files', 'thumbs']) stores.objectStore(name).put({ id, blob });
        }
      }
      await new Promise((done) => (stores.oncomplete = done));
      db.close();
    },
    [count, file.toString('base64'), version],
  );
}

await check('images of the page before are kept', async () => {
  const page = await visit({ expected: ['favicon.ico'] });
  const file = await picture(page, 'teal');
  await page.goto(new URL('favicon.svg', page.url()).href);
  await page.evaluate(() => new Promise((done) => (indexedDB.deleteDatabase('flux').onsuccess = done)));
  await fill(page, 3, file, 1);
  await page.goBack();
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.tile img[src]').length === 3);
  assertEqual(await tiles(page).count(), 3, 'the images');
  await page.waitForSelector('#frame .zoom img');
});

await check('a gallery of 1,000 images is quick, and is searched, selected, starred, packed and deleted', async () => {
  const page = await visit();
  await fill(page, 1000, await picture(page, 'teal'));
  await page.reload();
  await ready(page);
  await page.click('#tabs a[data-tab=gallery]');
  await page.waitForSelector('.piece img[src]');
  assert((await page.locator('.piece').count()) < 150, 'only the tiles in view exist');
  await page.waitForTimeout(300);
  const times = await page.evaluate(async () => {
    const times = [];
    for (const text of ['f', 'fo', 'fox', '']) {
      const start = performance.now();
      const search = document.querySelector('#search');
      search.value = text;
      search.dispatchEvent(new Event('input', { bubbles: true }));
      times.push(performance.now() - start);
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    }
    return times;
  });
  assert(Math.max(...times.slice(1)) < 50, `a search takes ${times.map(Math.round)} ms`);
  console.log(`      search in 1,000 images: ${times.map((ms) => ms.toFixed(0)).join(', ')} ms`);
  await page.fill('#search', 'red fox');
  await page.waitForFunction(() => document.querySelectorAll('.piece').length <= 100);
  await shot(page, 'gallery-search');
  await assertAccessible(page, 'the gallery');
  await page.locator('.piece').first().hover();
  await page.locator('.piece input').first().click();
  await page
    .locator('.piece .opener')
    .nth(3)
    .click({ modifiers: ['Shift'] });
  assertEqual(await page.textContent('#picked-count'), '4 selected', 'the selection');
  await shot(page, 'gallery-selected');
  await page.click('#picked-star');
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#picked-save')]);
  const bytes = fs.readFileSync(await download.path());
  assertEqual(
    [download.suggestedFilename(), bytes.readUInt32LE(0), bytes.readUInt16LE(bytes.length - 12)],
    ['flux-images.zip', 0x04034b50, 4],
    'the archive',
  );
  await page.click('#picked-delete');
  await page.fill('#search', '');
  assert((await page.textContent('#fullness')).startsWith('996 images'), 'after the deletion');
  await page.click('.toast button:has-text("Undo")');
  await page.waitForFunction(() => document.querySelector('#fullness').textContent.startsWith('1,000 images'));
  await page.click('#starred');
  await page.waitForFunction(() => document.querySelectorAll('.piece').length === 4);
  await page.click('#starred');
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.opener')].some((node) => node.dataset.id === 'old-999'),
  );
  await page.focus('.opener[data-id="old-999"]');
  await page.keyboard.press('Home');
  await page.waitForFunction(() => document.activeElement.dataset.id === 'old-0');
  await page.keyboard.press('Enter');
  await page.waitForFunction(
    () => !document.querySelector('#images').hidden && document.querySelector('#facts').textContent.includes('seed 0'),
  );
});

await check('the gallery is exported and imported', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a red circle on a blue background', seed: 3 });
  await page.click('#tabs a[data-tab=gallery]');
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
  const file = { name: 'gallery.zip', mimeType: 'application/zip', buffer: fs.readFileSync(await download.path()) };
  const other = await visit({ path: '/gallery' });
  assert((await other.textContent('#wall-empty')).includes('will be here'), 'an empty gallery says so');
  await shot(other, 'gallery-empty');
  await other.setInputFiles('#import-files', [
    file,
    { name: 'plain.png', mimeType: 'image/png', buffer: await picture(other, 'red') },
  ]);
  await other.waitForFunction(() => document.querySelectorAll('.piece').length === 2);
  await other.reload();
  await other.waitForFunction(() => document.querySelectorAll('.piece').length === 2);
  assert(await other.locator('.opener[aria-label*="a red circle"]').isVisible(), 'the prompt');
});

await check('a running job is found again after a reload', async () => {
  const page = await visit();
  await draw(page, { seed: 3 });
  await draw(page, { prompt: 'an owl on a beige background', size: [256, 256], steps: 8, n: 2, seed: 4, wait: false });
  await page.waitForSelector('.waiting img[src]');
  await page.reload();
  await page.waitForSelector('.tile.waiting');
  await made(page, 3);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 3);
});
