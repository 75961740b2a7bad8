// Drives the page of `flux serve` in a browser, and fails when something of it does not work.
//
//   node page.mjs http://127.0.0.1:7860 [--shots FOLDER] [--chromium FILE] [--only WORD]
//
// It needs playwright-core and axe-core, found from the folder that it is run in, and a server with the built-in model:
//
//   PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install playwright-core axe-core

import { assertEqual, check, complaints, finish } from './browser.mjs';

for (const part of ['images', 'edits', 'gallery', 'batches', 'live', 'looks']) await import(`./${part}.mjs`);

await check('the browser complained about nothing', async () => {
  assertEqual(complaints, [], 'the complaints');
});
await finish();
