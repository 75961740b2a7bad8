// The tab of live generation.

import fs from 'node:fs';
import {
  PHONE,
  assert,
  assertAccessible,
  assertEqual,
  assertFits,
  check,
  drag,
  shot,
  tiles,
  visit,
} from './browser.mjs';

/** Waits for so many more images. */
const live = async (page, more = 1) => {
  const before = await page.evaluate(() => Number(document.querySelector('#out').dataset.images ?? 0));
  await page.waitForFunction(
    (least) => Number(document.querySelector('#out').dataset.images ?? 0) >= least,
    before + more,
    { timeout: 120000 },
  );
};
const fast = async (page) => {
  await page.selectOption('#side', '128');
  await page.selectOption('#live-steps', '1');
};
const press = (page, way) => page.click(`#ways button[data-way=${way}]`);

/** The mean colour of a canvas. */
const mean = (page, id) =>
  page.evaluate((id) => {
    const canvas = document.getElementById(id);
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const sum = [0, 0, 0];
    for (let at = 0; at < data.length; at += 4) for (const color of [0, 1, 2]) sum[color] += data[at + color];
    return sum.map((color) => (4 * color) / data.length);
  }, id);

await check('live: words are drawn while they are typed, saved, and sent to Images', async () => {
  const page = await visit();
  await Promise.all([page.waitForURL('**/live'), page.click('#tabs a[data-tab=live]')]);
  await fast(page);
  await live(page);
  await page.fill('#live-prompt', '');
  await page.locator('#live-prompt').pressSequentially('a white star on a red background', { delay: 20 });
  await live(page);
  await page.waitForFunction(() =>
    /\d images a second . [\d,]+ ms/.test(document.querySelector('#figures').textContent),
  );
  await page.waitForTimeout(2500);
  const [red, green, blue] = await mean(page, 'out');
  assert(red > green + 30 && red > blue + 30, `the mean colour is ${[red, green, blue]}`);
  await shot(page, 'live-words');
  await assertAccessible(page, 'the words');
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.click('#live-actions button:has-text("Download")'),
  ]);
  assertEqual(download.suggestedFilename(), 'flux-live.jpg', 'the file');
  await page.click('#live-actions button:has-text("Copy command")');
  assert((await page.evaluate(() => navigator.clipboard.readText())).includes("-p 'a white star"), 'the command');
  await page.click('#live-actions button:has-text("To Images")');
  await page.waitForSelector('#frame .zoom img');
  assertEqual(await tiles(page).count(), 1, 'the image in Images');
  await page.goto(new URL('live', page.url()).href);
  await live(page);
  assertEqual(await page.inputValue('#live-prompt'), 'a white star on a red background', 'the prompt after a reload');
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
          if (number === undefined || refusals.left === 0) return server.send(data);
          refusals.left -= 1;
          const error = { message: 'too many requests are already waiting', code: 'queue_full' };
          socket.send(JSON.stringify({ number, error, retry_after: 1 }));
        });
      }),
  });
  await fast(page);
  await live(page);
  await page.waitForTimeout(1000);
  refusals.left = 1;
  await page.fill('#live-prompt', 'a white star on a red background');
  await live(page);
  assertEqual(refusals.left, 0, 'the refusals that are left');
});

await check('live: a sketch is painted, erased, undone, and takes colours', async () => {
  const page = await visit({ path: '/live' });
  await fast(page);
  await press(page, 'paint');
  await live(page);
  await page.fill('#live-prompt', 'keep it as it is');
  const sketch = page.locator('#sketch');
  const before = await mean(page, 'sketch');
  await drag(page, sketch, [0.1, 0.1], [0.9, 0.9]);
  await live(page);
  const after = await mean(page, 'sketch');
  assert(before.every((color) => color > 250) && after[1] < before[1] - 5, `the sketch is ${before}, then ${after}`);
  await page.selectOption('#start', 'strength');
  assert(await page.locator('#follow').isVisible(), 'follow the sketch or the words');
  await live(page);
  await shot(page, 'live-sketch');
  await assertAccessible(page, 'the sketch');
  await page.click('#sketch-erase');
  await drag(page, sketch, [0.5, 0.1], [0.5, 0.9]);
  assert((await mean(page, 'sketch'))[1] > after[1], 'the eraser');
  await page.click('#sketch-undo');
  assertEqual(await mean(page, 'sketch'), after, 'after undo');
  await page.fill('#color', '#00ff00');
  await page.click('#sketch-pick');
  const box = await sketch.boundingBox();
  await page.mouse.click(box.x + box.width / 2, box.y + box.height / 2);
  assertEqual(await page.inputValue('#color'), '#d02020', 'the picked colour');
  await sketch.focus();
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('Space');
  await live(page);
  await page.click('#sketch-clear');
  assert((await mean(page, 'sketch'))[1] > 250, 'the sketch is white again');
});

await check('live: the camera is drawn from and recorded, and a lost connection is made again', async () => {
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
  await fast(page);
  await press(page, 'camera');
  await live(page, 2);
  await page.click('#live-record');
  await live(page, 3);
  await page.waitForTimeout(1200);
  await shot(page, 'live-camera');
  const [clip] = await Promise.all([page.waitForEvent('download'), page.click('#live-record')]);
  assert(
    /^flux-live\.(mp4|webm)$/.test(clip.suggestedFilename()) && fs.statSync(await clip.path()).size > 1000,
    'the clip',
  );
  const count = lost.sockets.length;
  await lost.sockets.at(-1).close();
  await page.waitForFunction(() => document.querySelector('#figures').textContent.startsWith('Connecting'));
  await live(page, 2);
  assert(lost.sockets.length > count, 'it connected again');
  await page.click('#tabs a[data-tab=images]');
  await page.waitForFunction(() => document.querySelector('#video').srcObject.getTracks()[0].readyState === 'ended');
});

await check('live: a camera that is not wanted any more is off', async () => {
  const page = await visit({
    path: '/live',
    before: (page) =>
      page.addInitScript(() => {
        const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        window.opened = [];
        navigator.mediaDevices.getUserMedia = async (wanted) => {
          // The user thinks about it.
          await new Promise((done) => setTimeout(done, 500));
          const stream = await open(wanted);
          window.opened.push(stream);
          return stream;
        };
      }),
  });
  await page.waitForFunction(() => document.querySelector('#live-steps').options.length > 0);
  await press(page, 'camera');
  await press(page, 'type');
  await page.waitForFunction(() => window.opened.length === 1);
  await page.waitForTimeout(200);
  assert(await page.evaluate(() => window.opened[0].getTracks()[0].readyState === 'ended'), 'the camera is off');
});

await check('live: on a phone the sketch lies over the result', async () => {
  const page = await visit({ viewport: PHONE, path: '/live' });
  await fast(page);
  await press(page, 'paint');
  await live(page);
  await drag(page, page.locator('#sketch'), [0.2, 0.2], [0.8, 0.5]);
  await live(page);
  const [sketch, out] = await Promise.all(['#sketch', '#out'].map((id) => page.locator(id).boundingBox()));
  assertEqual([sketch.x, sketch.y], [out.x, out.y], 'the layers');
  await assertFits(page, 'the tab');
  await shot(page, 'live-phone', { fullPage: true });
  await assertAccessible(page, 'the tab on a phone');
});
