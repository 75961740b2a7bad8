// Editing: references, chains of edits, comparison, masks, extension, recipes.

import {
  action,
  apart,
  asFile,
  assert,
  assertAccessible,
  assertEqual,
  check,
  choose,
  chip,
  drag,
  draw,
  drop,
  idle,
  made,
  newestFile,
  openSettings,
  picture,
  referenceNames,
  shot,
  STORED,
  tiles,
  visit,
} from './browser.mjs';

await check('an image is edited twice, compared, and taken up again', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a red circle on a blue background', size: [192, 192], steps: 4, seed: 5 });
  await page.setInputFiles('#image-files', [asFile(await picture(page, 'teal'), 'other.png')]);
  await page.waitForSelector('#references li');
  await action(page, 'Edit').click();
  await page.waitForFunction(() => document.querySelector('#references .thumb')?.title.includes('flux-5.png'));
  assertEqual(await page.locator('#references li').count(), 1, 'an edit replaces the references');
  assertEqual(await page.inputValue('#prompt'), '', 'the prompt');
  assert(await page.locator('#prompt').evaluate((node) => node === document.activeElement), 'the prompt has the focus');
  await shot(page, 'edit-start');
  await page.keyboard.type('make the circle green');
  await page.keyboard.press('Control+Enter');
  await made(page, 2);
  await page.waitForSelector('.compare');
  assertEqual(await page.locator('.version').count(), 2, 'the versions');
  const clip = () => page.locator('.compare .before').evaluate((image) => image.style.clipPath);
  const before = await clip();
  await page.focus('#compare-split');
  await page.keyboard.press('ArrowRight');
  assert((await clip()) !== before, 'the keyboard moves the line');
  const box = await page.locator('.compare').boundingBox();
  await page.mouse.click(box.x + box.width * 0.35, box.y + box.height / 2);
  assert(/ 6[3-7]/.test(await clip()), `the line is at ${await clip()}`);
  await shot(page, 'compare');
  await assertAccessible(page, 'the comparison');
  await action(page, 'Compare').click();
  await page.waitForSelector('.compare', { state: 'detached' });
  await action(page, 'Compare').click();
  await page.waitForSelector('.compare');
  await action(page, 'Edit').click();
  await page.fill('#prompt', 'change the background to yellow');
  await page.click('#draw');
  await made(page, 3);
  await page.waitForFunction(() => document.querySelectorAll('.version').length === 3);
  await shot(page, 'versions');
  // The original is one click back.
  await page.click('.version >> nth=0');
  await page.waitForFunction(() => document.querySelector('#facts').textContent.includes('seed 5'));
  await action(page, 'Edit').click();
  await page.waitForFunction(() => document.querySelector('#references .thumb')?.title.includes('flux-5.png'));
  await page.click('#editing-end');
  await page.waitForSelector('#editing-end', { state: 'hidden' });
  assertEqual(await referenceNames(page), ['other.png'], 'the references before the edit');
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.version').length === 3);
});

await check('files are chosen, dropped and pasted, reordered and removed with undo', async () => {
  const page = await visit();
  await page.setInputFiles('#image-files', [asFile(await picture(page, 'teal'), '0.png')]);
  await page.waitForSelector('#references li:nth-child(1)');
  await drop(page, [asFile(await picture(page, 'orange', [128, 128], 'image/jpeg'), '1.jpg', 'image/jpeg')]);
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
  assertEqual(await page.locator('.badge').allTextContents(), ['image 1', 'image 2', 'image 3'], 'the names');
  await drop(page, [asFile(Buffer.from('no image'), 'text.png')]);
  await page.waitForSelector('.toast.wrong');
  const thumb = (place) => page.locator('#references .thumb').nth(place);
  await thumb(0).focus();
  await page.keyboard.press('Alt+ArrowRight');
  assertEqual(await referenceNames(page), ['1.jpg', '0.png', 'image.png'], 'after a key');
  const [from, to] = [await thumb(2).boundingBox(), await thumb(0).boundingBox()];
  await page.mouse.move(from.x + 30, from.y + 30);
  await page.mouse.down();
  await page.mouse.move(from.x + 10, from.y + 20, { steps: 4 });
  await page.mouse.move(to.x + 25, to.y + 25, { steps: 8 });
  await page.mouse.up();
  assertEqual(await referenceNames(page), ['image.png', '1.jpg', '0.png'], 'after a drag');
  await shot(page, 'references');
  await assertAccessible(page, 'the references');
  await thumb(0).click();
  await page.click('#reference-later');
  assertEqual(await referenceNames(page), ['1.jpg', 'image.png', '0.png'], 'after a button');
  await page.keyboard.press('Delete');
  assertEqual(await page.locator('#references li').count(), 2, 'after a deletion');
  await page.click('.toast button:has-text("Undo")');
  await page.waitForSelector('#references li:nth-child(3)');
  await draw(page, { prompt: 'both side by side', size: [128, 128] });
  await page.reload();
  await page.waitForSelector('#references li:nth-child(3)');
});

await check('a mask is painted on the stage, and what is outside stays', async () => {
  const page = await visit({ before: (page) => page.addInitScript(STORED) });
  await draw(page, { prompt: 'a red circle on a blue background', size: [256, 256], steps: 4, seed: 5 });
  const before = await newestFile(page);
  await action(page, 'Mask').click();
  await page.waitForSelector('#mask-canvas');
  const covered = () =>
    page.locator('#mask-canvas').evaluate((canvas) => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.filter((value, at) => at % 4 === 3 && value > 127).length / (data.length / 4);
    });
  const canvas = page.locator('#mask-canvas');
  await page.fill('#mask-size', '24');
  await drag(page, canvas, [0.2, 0.2], [0.2, 0.8]);
  const first = await covered();
  assert(first > 0.02 && first < 0.5, `a stroke covers ${first}`);
  await page.focus('#mask-canvas');
  for (let more = 0; more < 4; more++) await page.keyboard.press(']');
  await canvas.hover({ position: { x: 200, y: 200 } });
  await page.mouse.wheel(0, -100);
  assert(Number(await page.inputValue('#mask-size')) > 35, 'the brackets and the wheel change the size');
  await drag(page, canvas, [0.3, 0.2], [0.3, 0.8]);
  assert((await covered()) > first, 'a second stroke covers more');
  await shot(page, 'mask');
  await assertAccessible(page, 'the mask');
  await page.click('#tools button[aria-label="Undo"]');
  assertEqual(await covered(), first, 'after undo');
  await page.click('#tools button:has-text("Eraser")');
  await drag(page, canvas, [0.2, 0.5], [0.21, 0.5]);
  assert((await covered()) < first, 'the eraser takes away');
  await page.focus('#mask-canvas');
  await page.keyboard.press('Control+z');
  await page.click('#tools button:has-text("Brush")');
  await page.click('#tools button[aria-label="Invert"]');
  assert(Math.abs((await covered()) - (1 - first)) < 0.02, 'inverted');
  await page.click('#tools button[aria-label="Undo"]');
  await page.focus('#mask-canvas');
  await page.keyboard.press('Space');
  assert((await covered()) > first, 'the keyboard paints');
  await page.keyboard.press('Control+z');
  // Escape keeps the mask.
  await page.keyboard.press('Escape');
  await page.waitForSelector('#references .masked');
  await openSettings(page);
  assertEqual(await page.textContent('#strength-shown'), '4 of 4 steps', 'the strength');
  await draw(page, { prompt: 'a green square on a blue background', size: null, steps: 4, seed: 9 });
  const [inside, outside] = await apart(page, before, await newestFile(page));
  assert(inside > 30, `the masked half differs by ${inside}`);
  assertEqual(outside, 0, 'how far the other half is apart');
  await page.reload();
  await page.waitForSelector('#references .masked');
});

await check('an image is extended by dragging an edge', async () => {
  const page = await visit();
  await draw(page, { prompt: 'a red circle on a blue background', size: [192, 192], steps: 2, seed: 5 });
  await action(page, 'Extend').click();
  await page.waitForSelector('.edge.right');
  const edge = page.locator('.edge.right');
  const box = await edge.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + 130, box.y + box.height / 2, { steps: 6 });
  await page.mouse.up();
  const grown = Number(await edge.getAttribute('aria-valuenow'));
  assert(grown > 16 && grown % 16 === 0, `the right side grows by ${grown}`);
  await page.focus('.edge.right');
  await page.keyboard.press('ArrowLeft');
  assertEqual(Number(await edge.getAttribute('aria-valuenow')), grown - 16, 'after a key');
  await page.focus('.edge.top');
  await page.keyboard.press('ArrowUp');
  assertEqual(await page.getAttribute('.edge.top', 'aria-valuenow'), '16', 'the top');
  await shot(page, 'extend');
  await assertAccessible(page, 'the extension');
  await page.click('#tool-done');
  await draw(page, { prompt: 'a red circle on a blue background', size: null, steps: 2 });
  await page.waitForFunction(
    (size) => document.querySelector('#facts').textContent.includes(size),
    `${192 + grown - 16} × 208`,
  );
});

await check('variations have other seeds, or stay close by strength', async () => {
  const page = await visit();
  await draw(page, { prompt: 'an owl on a beige background', seed: 3 });
  await choose(page, 'Variations', 'Other seeds');
  await made(page, 5);
  await idle(page);
  await page.click('.cell >> nth=0');
  await page.waitForSelector('#frame .zoom');
  await choose(page, 'Variations', 'Stay close');
  await made(page, 9);
  await idle(page);
  await page.click('.cell >> nth=0');
  await page.waitForSelector('.compare');
});

await check('an image is enlarged into a new version', async () => {
  const page = await visit();
  await draw(page, { prompt: 'an owl on a beige background', size: [128, 160], steps: 2, seed: 3 });
  await choose(page, 'Enlarge', '2 × with Lanczos');
  await made(page, 2);
  await idle(page);
  await page.waitForFunction(() => document.querySelector('#facts').textContent.includes('256 × 320'));
  assertEqual(await page.locator('.version').count(), 2, 'versions');
  assert((await page.textContent('#facts')).includes('3'), 'the seed of the original');
});

await check('regions are drawn on the stage, and have a text each', async () => {
  const page = await visit({ expected: ['Failed to load resource'] });
  await openSettings(page);
  await page.click('#boxes-draw');
  const layer = page.locator('.boxes');
  await drag(page, layer, [0.02, 0.02], [0.48, 0.98]);
  await drag(page, layer, [0.52, 0.02], [0.98, 0.98]);
  await drag(page, layer, [0.5, 0.5], [0.505, 0.505]);
  assertEqual(await page.locator('.box b').allTextContents(), ['1', '2'], 'a click is no region');
  await page.fill('#boxes-list input >> nth=0', 'a red circle on the left, light green background');
  await shot(page, 'regions');
  await assertAccessible(page, 'the regions');
  await page.click('#tool-done');
  assert(await page.locator('#variety').isDisabled(), 'no variety with regions');
  assert((await page.textContent('#variety-why')) !== '', 'the reason');
  // A region without a text is refused at its place.
  await draw(page, { prompt: 'light green background', seed: 1, wait: false });
  await page.waitForFunction(() => document.querySelector('#regions-error').textContent !== '');
  await page.fill('#boxes-list input >> nth=1', 'a blue star on the right, light green background');
  assertEqual(await page.textContent('#regions-error'), '', 'the error after an input');
  await draw(page, { seed: 1 });
  await choose(page, 'Copy', 'flux');
  await page.waitForSelector('.toast:has-text("Copied")');
  const command = await page.evaluate(() => navigator.clipboard.readText());
  const regions = [...command.matchAll(/--region '(\d+),(\d+),(\d+),(\d+):a (red|blue)/g)].map((found) =>
    found.slice(1),
  );
  assert(
    regions.length === 2 && regions[0][1] < 100 && regions[1][1] > 500 && regions[1][4] === 'blue',
    `the command is ${command}`,
  );
  await page.reload();
  assertEqual(await page.locator('#boxes-list li').count(), 2, 'the regions after a reload');
  await page.click('#boxes-draw');
  await page.click('#tools button[aria-label="Clear"]');
  await page.click('#tool-done');
  assert(await page.locator('#variety').isEnabled(), 'variety without regions');
  await choose(page, 'Reuse', 'All settings');
  await page.waitForFunction(() => document.querySelectorAll('#boxes-list li').length === 2);
});

await check('an image gets a second pass, variety, and a transparent background', async () => {
  const page = await visit({ before: (page) => page.addInitScript(STORED) });
  await openSettings(page);
  const why = (name) => page.textContent(`#${name}-why`);
  await page.check('#transparent');
  await page.selectOption('#hires', '2');
  assert((await page.locator('#transparent').isDisabled()) && (await why('transparent')) !== '', 'one of the two');
  await page.fill('#variety', '3');
  await page.fill('#prompt', 'a red heart');
  await page.click('#draw');
  await page.waitForFunction(() => document.querySelector('#variety-error').textContent !== '');
  await page.fill('#variety', '0.5');
  await draw(page, { prompt: 'a red heart', seed: 3 });
  await page.waitForFunction(() => document.querySelector('#facts').textContent.includes('256 × 256'));
  await choose(page, 'Copy', 'flux');
  await page.waitForSelector('.toast:has-text("Copied")');
  const command = await page.evaluate(() => navigator.clipboard.readText());
  assert(
    command.includes('--hires 2 --variety 0.5') && !command.includes('--transparent'),
    `the command is ${command}`,
  );
  await shot(page, 'second-pass');
  await assertAccessible(page, 'the settings');
  await page.selectOption('#hires', '');
  await page.fill('#variety', '');
  await page.selectOption('#output_format', 'jpeg');
  assert((await page.locator('#transparent').isDisabled()) && (await why('transparent')) !== '', 'a JPEG');
  await page.selectOption('#output_format', 'png');
  await page.reload();
  assert(await page.isChecked('#transparent'), 'after a reload');
  await draw(page, { prompt: 'a red heart on a white background', seed: 3, steps: 4 });
  const opacity = await page.evaluate(async () => {
    const bitmap = await createImageBitmap(await window.stored());
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    return data[3];
  });
  assert(opacity < 30, `the corner has an opacity of ${opacity}`);
  // A mask excludes both, and keeps the choice.
  await page.uncheck('#transparent');
  await page.selectOption('#hires', '2');
  await action(page, 'Mask').click();
  await page.waitForSelector('#mask-canvas');
  await drag(page, page.locator('#mask-canvas'), [0.2, 0.2], [0.2, 0.8]);
  await page.click('#tool-done');
  await page.waitForFunction(() => document.querySelector('#hires').disabled);
  for (const name of ['hires', 'transparent'])
    assert((await page.locator(`#${name}`).isDisabled()) && (await why(name)) !== '', `${name} with a mask`);
  await page.click('#editing-end');
  await page.waitForFunction(() => !document.querySelector('#hires').disabled);
  assertEqual(await page.inputValue('#hires'), '2', 'the factor');
});

await check('recipes are reused, copied, downloaded and deleted with undo', async () => {
  const page = await visit();
  const prompt = `a cat's "hat" on a white background`;
  await draw(page, { prompt, size: [128, 160], steps: 2, seed: 12345678 });
  await page.fill('#prompt', 'else');
  await chip(page, 'Auto').click();
  await page.fill('#seed', '');
  await page.fill('#steps', '');
  await choose(page, 'Reuse', 'The seed');
  assertEqual([await page.inputValue('#seed'), await page.inputValue('#prompt')], ['12345678', 'else'], 'the seed');
  await choose(page, 'Reuse', 'All settings');
  await page.waitForFunction((prompt) => document.querySelector('#prompt').value === prompt, prompt);
  const values = await Promise.all(['#width', '#height', '#steps', '#seed'].map((id) => page.inputValue(id)));
  assertEqual(values, ['128', '160', '2', '12345678'], 'what is reused');
  const texts = {};
  for (const kind of ['flux', 'curl', 'Python']) {
    await choose(page, 'Copy', kind);
    await page.waitForSelector('.toast:has-text("Copied")');
    texts[kind] = await page.evaluate(() => navigator.clipboard.readText());
    while ((await page.locator('.toast').count()) > 0) await page.locator('.toast .icon').first().click();
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
  const [download] = await Promise.all([page.waitForEvent('download'), action(page, 'Download').click()]);
  assertEqual(download.suggestedFilename(), 'flux-12345678.png', 'the name of the file');
  await page.click('#actions .danger');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 0);
  await page.click('.toast button:has-text("Undo")');
  await page.waitForFunction(() => document.querySelectorAll('.tile').length === 1);
  await page.reload();
  await page.waitForSelector('.tile');
  assertEqual(await tiles(page).count(), 1, 'the image after a reload');
});

await check('a dropped image shows its recipe, which is reused', async () => {
  const page = await visit({ before: (page) => page.addInitScript(STORED) });
  for (const format of ['png', 'webp', 'jpeg']) {
    await openSettings(page);
    await page.selectOption('#output_format', format);
    const prompt = `“ünï” <b>&amp; 雪 ${format}`;
    await draw(page, { prompt, seed: 4294967295, steps: 1 });
    const file = asFile(await newestFile(page), `ours.${format}`, `image/${format}`);
    await page.fill('#prompt', 'else');
    await drop(page, [file]);
    await page.waitForSelector('#found[open]');
    const shown = await page.textContent('#found-recipe');
    assert(shown.includes(prompt) && shown.includes('4294967295'), `the recipe of a ${format} is "${shown}"`);
    if (format === 'png') await assertAccessible(page, 'the recipe');
    await page.click('#found-reuse');
    assertEqual(await page.inputValue('#prompt'), prompt, 'the prompt');
  }
});
