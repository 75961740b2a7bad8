// Looks, keys, languages, prefixes and speed.

import http from 'node:http';
import {
  PHONE,
  action,
  assert,
  assertAccessible,
  assertEqual,
  assertFits,
  base,
  check,
  draw,
  idle,
  made,
  openSettings,
  ready,
  setSize,
  shot,
  visit,
} from './browser.mjs';

await check('the keyboard does everything', async () => {
  const page = await visit();
  await openSettings(page);
  await page.fill('#n', '3');
  await setSize(page, [128, 128]);
  await page.fill('#steps', '2');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('/');
  await page.keyboard.type('a red circle on a blue background');
  await page.keyboard.press('Control+Enter');
  await made(page, 3);
  await idle(page);
  const selected = () =>
    page.locator('.tile').evaluateAll((all) => all.findIndex((tile) => tile.getAttribute('aria-selected') === 'true'));
  await page.focus('.tile[aria-selected=true]');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  assertEqual(await selected(), 2, 'the selection after two arrows');
  await page.keyboard.press('ArrowUp');
  await page.waitForSelector('#frame .zoom img');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#zoom[open]');
  await shot(page, 'zoom');
  await page.keyboard.press('Escape');
  await page.keyboard.press('f');
  assertEqual(
    await page.getAttribute('#actions button[aria-label=Favourite]', 'aria-pressed'),
    'true',
    'the favourite',
  );
  await page.keyboard.press('Delete');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 2);
  assert(await page.evaluate(() => document.activeElement.classList.contains('tile')), 'the focus stays in the strip');
  await page.keyboard.press('e');
  await page.waitForSelector('#references li');
  assert(await page.locator('#prompt').evaluate((node) => node === document.activeElement), 'e edits');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('2');
  await page.waitForSelector('#gallery:not([hidden])');
  await page.keyboard.press('?');
  await page.waitForSelector('#help[open]');
  await shot(page, 'keys');
  await assertAccessible(page, 'the keys');
});

for (const colorScheme of ['light', 'dark']) {
  await check(`nothing is wrong for screen readers, at 1440, 2560 and 390 pixels: ${colorScheme}`, async () => {
    const page = await visit({ colorScheme });
    await shot(page, `${colorScheme}-empty`);
    await draw(page, { prompt: 'an owl on a beige background', size: [256, 256], steps: 4, seed: 7 });
    await action(page, 'Edit').click();
    await page.fill('#prompt', 'change the background to light pink');
    await page.click('#draw');
    await made(page, 2);
    await page.waitForSelector('.compare');
    for (const [width, height] of [
      [1440, 900],
      [2560, 1440],
      [390, 844],
    ]) {
      await page.setViewportSize({ width, height });
      await page.waitForTimeout(250);
      await assertFits(page, `${width} pixels`);
      await shot(page, `${colorScheme}-${width}`);
      if (width !== 2560) await assertAccessible(page, `${width} pixels`);
    }
    for (const tab of ['gallery', 'live', 'batches']) {
      await page.click(`#tabs a[data-tab=${tab}]`);
      await page.waitForSelector(`#${tab}:not([hidden])`);
      await page.waitForTimeout(300);
      await assertFits(page, tab);
      await shot(page, `${colorScheme}-390-${tab}`);
      if (colorScheme === 'dark') await assertAccessible(page, `${tab} on a phone`);
    }
  });
}

await check('dark mode is toggled and kept', async () => {
  const page = await visit();
  const brightness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] / 255);
  assert((await brightness()) > 0.8, 'the page is light');
  await page.click('#theme');
  await page.reload();
  assert((await brightness()) < 0.3, 'the page stays dark');
});

await check('a phone shows the first visit, settings and the mask', async () => {
  const page = await visit({ viewport: PHONE });
  await assertFits(page, 'the first visit');
  await shot(page, 'phone-empty');
  await page.fill('#prompt', 'a red circle on a blue background');
  await page.click('#draw');
  await made(page);
  await idle(page);
  await shot(page, 'phone-image');
  await openSettings(page);
  await assertFits(page, 'the settings');
  await shot(page, 'phone-settings', { fullPage: true });
  await page.click('#settings-close');
  await action(page, 'Mask').click();
  await page.waitForSelector('#mask-canvas');
  await assertFits(page, 'the mask');
  await shot(page, 'phone-mask');
  await assertAccessible(page, 'the mask on a phone');
});

await check('the page speaks German, and Arabic from right to left', async () => {
  const german = await visit({ locale: 'de-DE' });
  assertEqual(await german.locator('#tabs a').allTextContents(), ['Bilder', 'Galerie', 'Live', 'Stapel'], 'the tabs');
  await shot(german, 'german');
  await Promise.all([german.waitForEvent('load'), german.selectOption('#language', 'ar')]);
  await ready(german);
  assertEqual(
    await german.evaluate(() => [document.documentElement.lang, document.dir]),
    ['ar', 'rtl'],
    'the document',
  );
  await draw(german, { prompt: 'a red circle', size: null, steps: 1, n: undefined }).catch(async () => {
    // The chips of sizes have other names.
    await made(german);
  });
  await german.waitForSelector('#frame .zoom img');
  await assertFits(german, 'the page from right to left');
  await assertAccessible(german, 'the page from right to left');
  await shot(german, 'arabic');
});

await check('nothing moves with reduced motion', async () => {
  const page = await visit({ reducedMotion: 'reduce' });
  await page.fill('#prompt', 'a red circle');
  await page.click('#draw');
  await page.waitForSelector('.tile');
  assertEqual(await page.evaluate(() => document.getAnimations().length), 0, 'the animations');
  await made(page);
});

await check('the page works below a path of a proxy, and when the server restarts', async () => {
  let isAway = false;
  const target = new URL(base);
  const proxy = http.createServer((request, response) => {
    if (isAway || !request.url.startsWith('/studio/')) return request.destroy();
    // The host stays, which the server compares with the origin.
    const { method, headers } = request;
    const onward = http.request(
      { host: target.hostname, port: target.port, path: request.url.slice(7), method, headers },
      (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      },
    );
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  await new Promise((done) => proxy.listen(0, '127.0.0.1', done));
  const page = await visit({
    root: `http://127.0.0.1:${proxy.address().port}/studio`,
    expected: ['Failed to load resource'],
  });
  await draw(page);
  isAway = true;
  proxy.closeAllConnections();
  await page.waitForFunction(() => document.querySelector('#status').textContent === 'server is away', null, {
    timeout: 15000,
  });
  await shot(page, 'away');
  isAway = false;
  await page.waitForFunction(() => document.querySelector('#status').textContent !== 'server is away', null, {
    timeout: 15000,
  });
  await draw(page);
  await page.click('#tabs a[data-tab=gallery]');
  assert(page.url().endsWith('/studio/gallery'), page.url());
  await page.reload();
  await page.waitForSelector('.piece');
  proxy.close();
});

await check('the first paint is quick', async () => {
  const times = [];
  for (let run = 0; run < 3; run++) {
    const page = await visit();
    times.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime));
  }
  const best = Math.min(...times);
  console.log(`      first paint: ${times.map((ms) => ms.toFixed(0)).join(', ')} ms`);
  assert(best < 300, `the first paint takes ${best} ms`);
});
