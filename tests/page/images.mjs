// Generating: the first visit, settings, progress, models, errors.

import {
  action,
  assert,
  assertAccessible,
  assertEqual,
  base,
  check,
  chip,
  draw,
  idle,
  made,
  openSettings,
  ready,
  setSize,
  shot,
  tiles,
  visit,
} from './browser.mjs';

await check('the first visit shows samples of the model, and an image is one click away', async () => {
  const page = await visit({ samples: true });
  await page.waitForSelector('.sample');
  assertEqual(await page.locator('.sample').count(), 3, 'the samples');
  await page.waitForFunction(() => document.querySelectorAll('.sample img').length === 3, null, { timeout: 200000 });
  await shot(page, 'first-visit');
  await assertAccessible(page, 'the first visit');
  assertEqual(await tiles(page).count(), 0, 'samples are not images of the user');
  await page.click('.sample >> nth=1');
  await page.waitForSelector('#frame .zoom img', { timeout: 120000 });
  assert((await page.getAttribute('#frame img', 'alt')).includes('rocket'), 'the image');
  await idle(page);
});

await check('settings are used, and follow the model', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a green square on a white background', size: [192, 128], steps: 3, seed: 77 });
  const facts = await page.textContent('#facts');
  for (const fact of ['192 × 128', 'seed 77', '3 steps']) assert(facts.includes(fact), `the facts are "${facts}"`);
  assertEqual(await page.getAttribute('#lock', 'aria-pressed'), 'true', 'the lock of a seed that was typed');
  await page.click('#lock');
  assertEqual(
    [await page.inputValue('#seed'), await page.getAttribute('#seed', 'placeholder')],
    ['', 'random'],
    'an unlocked seed',
  );
  await chip(page, '3:2').click();
  const summary = await page.textContent('#summary');
  const [width, height] = summary.split('×').map((side) => Number(side.replace(/\D/g, '')));
  assert(width > height && width * height < 300 * 300, `3:2 of a model of 256 pixels is ${summary}`);
  assert((await page.locator('#areas button').count()) >= 2, 'areas are offered');
  assert(await page.locator('#guidance').isHidden(), 'a distilled model has no guidance');
  assertEqual(await page.getAttribute('#steps', 'placeholder'), '4', 'the steps of the model');
});

await check('progress is shown, and Escape cancels a job with undo', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a rocket on a beige background', size: [512, 512], steps: 30, wait: false });
  await page.waitForSelector('#frame img.preview');
  await page.waitForFunction(() => /step \d+ of 30/.test(document.querySelector('#progress-text').textContent));
  await shot(page, 'progress');
  await assertAccessible(page, 'a running job');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 0);
  const list = await (await page.request.get(`${base}/v1/jobs?limit=1`)).json();
  assertEqual(list.data[0].status, 'cancelled', 'the status of the job');
  await page.click('.toast button:has-text("Undo")');
  await page.waitForSelector('.tile.waiting');
  await draw(page, { wait: false });
  await page.waitForFunction(() => /ahead|Next/.test(document.querySelector('#progress-text').textContent));
  for (let left = 2; left > 0; left--) {
    await page.click('#cancel');
    await page.waitForFunction((count) => document.querySelectorAll('.tile').length === count, left - 1);
  }
});

await check('n images are a grid that fills', async () => {
  const page = await visit();
  await draw(page, { prompt: 'an owl on a beige background', n: 8, wait: false });
  await page.waitForFunction(() => document.querySelectorAll('.cell').length === 8);
  await page.waitForSelector('.cell:not(.waiting)');
  await shot(page, 'grid-filling');
  await made(page, 8);
  await idle(page);
  await page.waitForSelector('#actions button:has-text("Download")');
  await shot(page, 'grid');
  await assertAccessible(page, 'the grid');
  await page.click('.cell >> nth=2');
  await page.waitForSelector('#frame .zoom img');
  await action(page, 'Grid').click();
  await page.waitForSelector('#grid:not([hidden])');
});

await check('a lost connection is taken up again, and a request whose answer is lost draws once', async () => {
  let cuts = 0;
  let posts = 0;
  const names = new Set();
  const page = await visit({
    expected: ['Failed to load resource'],
    before: async (page) => {
      await page.route('**/events', (route) => (cuts++ < 2 ? route.abort() : route.continue()));
      await page.route('**/v1/jobs', async (route) => {
        if (route.request().method() !== 'POST') return route.continue();
        names.add(route.request().headers()['idempotency-key']);
        if (posts++ > 0) return route.continue();
        await route.fetch();
        return route.abort();
      });
    },
  });
  await draw(page);
  assert(cuts > 2, 'the events are requested again');
  assertEqual([posts, names.size], [2, 1], 'posts and names');
});

await check('errors are in the words of the page, beside their fields', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await page.click('#draw');
  assertEqual(await page.textContent('#prompt-error'), 'Describe the image first.', 'the message');
  assertEqual(await page.getAttribute('#prompt', 'aria-invalid'), 'true', 'the prompt');
  await shot(page, 'error');
  await page.fill('#prompt', 'x');
  assertEqual(await page.textContent('#prompt-error'), '', 'the message after a change');
  await openSettings(page);
  await setSize(page, [8, 64]);
  await page.click('#draw');
  assert((await page.textContent('#size-error')).includes('64'), 'the size');
  await setSize(page, [128, 128]);
  for (const [field, value] of [
    ['seed', 'seven'],
    ['n', '11'],
    ['steps', '0'],
  ]) {
    await page.fill(`#${field}`, value);
    await page.click('#draw');
    assert((await page.textContent(`#${field}-error`)) !== '', field);
    await page.fill(`#${field}`, field === 'n' ? '1' : '');
  }
  // The server's own errors are shown beside their fields, too.
  await page.route('**/v1/jobs', (route) =>
    route.fulfill({
      status: 400,
      json: { error: { message: 'the `steps` are too many', param: 'steps', code: 'invalid_value' } },
    }),
  );
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#steps-error').textContent.includes('“Steps”'));
  await assertAccessible(page, 'an error');
  assertEqual(await tiles(page).count(), 0, 'nothing is drawn');
});

await check('the key is asked for once', async () => {
  const page = await visit({
    expected: ['Failed to load resource'],
    before: (page) =>
      page.route('**/v1/**', (route) => {
        if (route.request().headers().authorization === 'Bearer right') return route.continue();
        const error = { message: 'an API key is required', param: null, code: 'invalid_api_key' };
        return route.fulfill({ status: 401, json: { error } });
      }),
  });
  await page.waitForSelector('#key[open]');
  await assertAccessible(page, 'the question for the key');
  await page.fill('#key-text', 'wrong');
  await page.click('#key-use');
  await page.waitForFunction(() => document.querySelector('#key-error').textContent !== '');
  await page.fill('#key-text', 'right');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  await draw(page);
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
});

/** Gives the page a server with other models and features. */
const withModels =
  (...data) =>
  async (page) => {
    await page.route('**/v1/models', (route) =>
      route.fulfill({
        json: { data, flux: { queue: false, upsample: true, limits: { images: 4, pixels: 4194304, prompt: 32000 } } },
      }),
    );
    await page.route('**/v1/loras', (route) => route.fulfill({ json: { data: [{ id: 'ink' }] } }));
  };
const flux3 = {
  kind: 'flux3-klein',
  size: '1024x1024',
  steps: 16,
  guidance: 1,
  is_distilled: true,
  reads_boxes: true,
  wants_captions: true,
  sides: null,
  aspect_ratio: 4,
  area_factor: 4,
  text_tokens: 8192,
  max_references: 16,
  reference_pixels: [4194304, 1048576],
  licence: { name: 'FLUX Non-Commercial', link: 'https://example.com/licence' },
};

await check('models drive the form: guidance, boxes, areas, licence, adapters', async () => {
  const base4b = {
    ...flux3,
    reads_boxes: false,
    reads_regions: false,
    is_distilled: false,
    steps: 50,
    guidance: 4,
    licence: null,
  };
  let body = '';
  const page = await visit({
    before: async (page) => {
      await withModels(
        { id: 'flux3', details: flux3 },
        { id: 'base', details: base4b },
        { id: 'closed', details: null },
      )(page);
      await page.route('**/v1/jobs', (route) => {
        body = route.request().postData();
        return route.fulfill({
          status: 400,
          json: { error: { message: 'there is no LoRA `ink`', param: 'loras', code: 'invalid_value' } },
        });
      });
    },
    expected: ['Failed to load resource'],
  });
  await openSettings(page);
  assertEqual(await page.textContent('#licence'), 'FLUX Non-Commercial', 'the licence');
  await chip(page, '16:9').click();
  assert((await page.textContent('#summary')).includes('1,360 × 768'), await page.textContent('#summary'));
  assertEqual(
    await page.locator('#areas button').allTextContents(),
    ['0.3 MP', '0.5 MP', '1 MP', '2.1 MP', '4.2 MP'],
    'the areas',
  );
  await page.click('#boxes-draw');
  const box = await page.locator('.boxes').boundingBox();
  await page.mouse.move(box.x + 20, box.y + 20);
  await page.mouse.down();
  await page.mouse.move(box.x + 200, box.y + 150, { steps: 4 });
  await page.mouse.up();
  await page.fill('#boxes-list input >> nth=1', 'a black cat');
  await shot(page, 'boxes');
  await assertAccessible(page, 'the boxes');
  await page.click('#tool-done');
  await page.check('#loras input[value=ink]');
  await page.check('#upsample');
  await page.check('#no_recipe');
  await page.fill('#prompt', 'a cat <object_1>');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#loras-error').textContent !== '');
  for (const part of [
    '"id":"object_1"',
    'a black cat',
    '[{"name":"ink","weight":1}]',
    'name="upsample"',
    'name="recipe"',
  ])
    assert(body.includes(part), `${part} is sent: ${body}`);
  await page.selectOption('#model', 'base');
  assert(await page.locator('#guidance').isVisible(), 'guidance of a base model');
  assert(await page.locator('#boxes-draw').isDisabled(), 'no boxes');
  assert((await page.textContent('#boxes-why')) !== '', 'the reason');
  await page.selectOption('#model', 'closed');
  await page.reload();
  await ready(page);
  assertEqual(await page.inputValue('#model'), 'closed', 'the model after a reload');
});

await check('a job that the server forgot is said', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await page.evaluate(() => {
    const job = { id: 'gone', created: 1, asked: { prompt: 'gone' }, inputs: [], count: 1, saved: [], isResumed: true };
    localStorage.setItem('flux.job.gone', JSON.stringify(job));
  });
  await page.reload();
  await page.waitForSelector('.toast.wrong');
  assertEqual(await page.evaluate(() => localStorage.getItem('flux.job.gone')), null, 'the stored job');
});

await check('a large upload shows its progress, and a photo that is reduced is said so', async () => {
  const page = await visit();
  const photo = await page.evaluate(() => {
    const canvas = new OffscreenCanvas(1300, 1000);
    const context = canvas.getContext('2d');
    const data = context.createImageData(1300, 1000);
    for (let at = 0; at < data.data.length; at += 65536) crypto.getRandomValues(data.data.subarray(at, at + 65536));
    context.putImageData(data, 0, 0);
    return canvas
      .convertToBlob({ type: 'image/jpeg', quality: 0.95 })
      .then((blob) => blob.arrayBuffer())
      .then((buffer) => [...new Uint8Array(buffer)]);
  });
  await page.setInputFiles('#image-files', [{ name: 'photo.jpg', mimeType: 'image/jpeg', buffer: Buffer.from(photo) }]);
  await page.waitForSelector('#references li');
  assert((await page.getAttribute('#references .thumb', 'title')).includes('sees 1 of 1.3 megapixels'), 'the title');
  const client = await page.context().newCDPSession(page);
  await client.send('Network.emulateNetworkConditions', {
    offline: false,
    latency: 0,
    downloadThroughput: -1,
    uploadThroughput: 3 << 20,
  });
  await page.fill('#prompt', 'x');
  await page.click('#draw');
  await page.waitForSelector('#sending:not([hidden])');
  await shot(page, 'sending');
  await page.waitForSelector('#cancel');
  await page.waitForSelector('.tile');
  await page.click('#cancel');
});
