// The tab of batches: lists of the browser, and batches of the server's queue.

import fs from 'node:fs';
import {
  PHONE,
  assert,
  assertAccessible,
  assertEqual,
  assertFits,
  check,
  openSettings,
  setSize,
  shot,
  visit,
} from './browser.mjs';

await check('a list is generated row by row, and downloaded', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await openSettings(page);
  await setSize(page, [128, 128]);
  await page.fill('#steps', '1');
  await page.click('#tabs a[data-tab=batches]');
  await page.click('#batch-start');
  assert((await page.textContent('#batch-error')).includes('empty'), 'an empty list');
  await page.fill('#batch-list', 'prompt,colour\na,b');
  await page.click('#batch-start');
  assert((await page.textContent('#batch-error')).includes('“colour”'), 'an unknown column');
  await page.fill('#batch-list', 'prompt,seed,size\n"a star, red, on ""white""",3,\na cat,4,128x160\nx,5,4x4');
  await page.click('#batch-start');
  await page.waitForFunction(() => document.querySelectorAll('#rows-body tr').length === 3);
  await page.waitForFunction(
    () => document.querySelectorAll('#rows-body tr:is([data-state=done], [data-state=failed])').length === 3,
    null,
    { timeout: 60000 },
  );
  assertEqual(await page.textContent('#rows-body tr td:nth-child(2)'), 'a star, red, on "white"', 'the first prompt');
  assert(
    (await page.textContent('#batch-text')).includes('3 of 3 done · 1 failed'),
    await page.textContent('#batch-text'),
  );
  await shot(page, 'batch');
  await assertAccessible(page, 'the list');
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#batch-save')]);
  const bytes = fs.readFileSync(await download.path());
  assertEqual(bytes.readUInt16LE(bytes.length - 12), 2, 'the files of the archive');
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('#rows-body tr').length === 3);
  await page.click('#batch-clear');
  await page.click('.toast button:has-text("Undo")');
  assertEqual(await page.locator('#rows-body tr').count(), 3, 'after undo');
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
    await page.route('**/v1/models', async (route) => {
      const models = await (await route.fetch()).json();
      await route.fulfill({ json: { ...models, flux: { ...models.flux, queue: true } } });
    });
    await page.route('**/v1/batches', (route) =>
      route.fulfill({ json: { object: 'list', data: lists.length > 1 ? lists.shift() : lists[0], others: 7 } }),
    );
  };

await check('batches of the queue are shown, and refreshed', async () => {
  const over = batch({
    id: `b-${'1'.repeat(32)}`,
    done: 1997,
    waiting: 0,
    images_per_second: null,
    eta_s: null,
    dead: null,
  });
  const later = batch({ done: 1000, waiting: 997, images_per_second: 20.4, eta_s: 90061, dead: 2 });
  const page = await visit({ path: '/batches', before: withBatches([batch(), over], [later, over]) });
  await page.waitForSelector('#all li:nth-child(2)');
  const texts = () => page.locator('#all li').first().innerText();
  const first = await texts();
  for (const text of ['500 of 2,000', '1,497', '4.13', '6 min 3 sec', 'in progress', 'tiny'])
    assert(first.includes(text), `${text}: ${first}`);
  await assertAccessible(page, 'the batches');
  await shot(page, 'batches-queue');
  const kept = await page.locator('#all li').first().elementHandle();
  await page.waitForFunction(() => document.querySelector('#all li').textContent.includes('1,000 of 2,000'));
  const second = await texts();
  for (const text of ['1 day 1 hr', '20', '997']) assert(second.includes(text), `${text}: ${second}`);
  assert(await kept.evaluate((item) => item.isConnected), 'the card is changed in place');
  assert((await page.textContent('#queue-text')).includes('7 batches are older'), 'the older ones');
  const overs = await page.locator('#all li').nth(1).innerText();
  assert(overs.includes('finished') && overs.includes('–'), `a batch that is over says ${overs}`);
  const phone = await visit({ path: '/batches', viewport: PHONE, colorScheme: 'dark', before: withBatches([batch()]) });
  await phone.waitForSelector('#all li');
  await assertFits(phone, 'the tab');
  await assertAccessible(phone, 'the batches on a phone');
  await shot(phone, 'batches-phone', { fullPage: true });
});
