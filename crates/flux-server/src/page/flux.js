// The page of `flux serve`: connects its parts, and handles keys, drops and pastes.

import { json } from './page/api.js';
import { $, el, kept, open, prepareDialogs, release, say, toast } from './page/dom.js';
import { clearErrors, fields, learnSize, offer, sentence, showError, useRecipe } from './page/form.js';
import { keep, load, moveBy, refresh, removeSelected, selectedEntry, selectJob } from './page/gallery.js';
import { cancel, draw, jobs, onJobs, resume } from './page/jobs.js';
import { editMask } from './page/mask.js';
import { described, readRecipe } from './page/recipe.js';
import { addFiles, keepInput, references, restoreReferences, setMask } from './page/references.js';
import { shownJob, showZoom } from './page/stage.js';
import { isKept } from './page/store.js';

const EXAMPLES = [
  'an owl on a beige background',
  'a rocket on a beige background',
  'a green tree on a yellow background',
];

// Generating

async function submit() {
  clearErrors();
  $('draw').disabled = true;
  try {
    const job = await draw(fields(), [...references], references[0]?.mask);
    selectJob(job);
    say('The images are requested.');
    if ($('stage').getBoundingClientRect().top > innerHeight / 2) $('stage').scrollIntoView({ behavior: 'smooth' });
  } catch (error) {
    showError(error);
  } finally {
    $('draw').disabled = false;
  }
}

async function keepImage(job, index, blob) {
  const bitmap = await createImageBitmap(blob);
  const [width, height] = [bitmap.width, bitmap.height];
  bitmap.close();
  const asked = { ...job.asked };
  const recipe = (await readRecipe(blob)) ?? { prompt: asked.prompt, seed: asked.seed, width, height };
  // Without a requested size, the image has the model's default size.
  if (!asked.size && job.inputs.length === 0) learnSize(width, height);
  // The start of a job found after a reload is unknown.
  const seconds = job.isResumed ? null : (performance.now() - job.since) / 1000 / (job.saved.size + 1);
  const { id, created, inputs, mask, notes } = job;
  say(`Image ${index + 1} of ${job.count} is finished.`);
  await keep({
    id: `${id}-${index}`,
    index,
    created,
    blob,
    width,
    height,
    recipe,
    asked,
    inputs,
    mask,
    notes,
    seconds,
  });
}

function jobEnded(job, error) {
  refresh();
  if (!error) {
    if (job.saved.size < job.count) say('The job is cancelled.');
  } else if (error.code === 'not_found') {
    toast(`The server no longer has the job “${job.asked.prompt}”.`, { isError: true });
  } else if (error.param) {
    showError(error);
  } else {
    toast(`“${job.asked.prompt}” failed: ${error.message}.`, { isError: true });
  }
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  submit();
});

// Input images from outside

$('image-add').onclick = () => $('image-files').click();
$('image-files').onchange = async () => {
  await addFiles($('image-files').files);
  $('image-files').value = '';
};

document.addEventListener('paste', (event) => {
  const files = [...event.clipboardData.files].filter(({ type }) => type.startsWith('image/'));
  if (files.length === 0 || document.querySelector('dialog[open]')) return;
  event.preventDefault();
  addFiles(files);
});

const isForUs = ({ dataTransfer }) => dataTransfer.types.includes('Files');
let entered = 0;

function setEntered(count) {
  entered = count;
  $('drop').hidden = count <= 0;
}

document.addEventListener('dragenter', (event) => isForUs(event) && setEntered(entered + 1));
document.addEventListener('dragleave', (event) => isForUs(event) && setEntered(entered - 1));
document.addEventListener('dragover', (event) => isForUs(event) && event.preventDefault());
document.addEventListener('drop', async (event) => {
  if (!isForUs(event)) return;
  event.preventDefault();
  setEntered(0);
  const files = [...event.dataTransfer.files];
  const recipe = files.length === 1 ? await readRecipe(files[0]).catch(() => null) : null;
  return recipe ? showFound(files[0], recipe) : addFiles(files);
});

/** Shows the recipe of a file, which can be reused. */
async function showFound(file, recipe) {
  const pairs = described(recipe).flatMap(([name, value]) => [
    el('dt', { textContent: name }),
    el('dd', { textContent: value }),
  ]);
  const url = URL.createObjectURL(file);
  $('found-recipe').replaceChildren(...pairs);
  $('found-image').src = url;
  $('found-image').alt = file.name;
  $('found-reuse').onclick = () => {
    $('found').close();
    useRecipe(recipe);
    if (recipe.inputs?.length) toast('The recipe has references, which the file does not contain: add them.');
    $('prompt').focus();
  };
  $('found-reference').onclick = () => {
    $('found').close();
    addFiles([file]);
  };
  await open($('found'));
  release(url);
}

// The mask

$('mask-edit').onclick = async () => {
  const [first] = references;
  const mask = await editMask(first.blob, first.mask?.blob);
  // A cancelled edit changes nothing.
  if (mask === undefined || references[0] !== first) return;
  setMask(mask ? await keepInput(mask, 'mask.png') : undefined);
};
$('mask-remove').onclick = () => setMask(undefined);

// Keyboard

const ARROWS = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'];

document.addEventListener('keydown', (event) => {
  const { key, target } = event;
  if (document.querySelector('dialog[open]')) return;
  if (key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    submit();
    return;
  }
  if (key === 'Escape' && shownJob()) {
    cancel(shownJob());
    return;
  }
  const isTyping = target.matches('input, textarea, select');
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const isOnTile = target === document.body || target.closest('#tiles');
  if (key === '/') $('prompt').focus();
  else if (key === '?') open($('help'));
  else if (isOnTile && ARROWS.includes(key)) {
    if (!moveBy(key)) return;
  } else if (isOnTile && key === 'Delete') removeSelected();
  else if (target.closest('#tiles') && key === 'Enter') showZoom();
  else return;
  event.preventDefault();
});

$('zoom').addEventListener('keydown', ({ key }) => {
  if (ARROWS.includes(key) && moveBy(key) && selectedEntry()?.image) showZoom();
});

// Dark and light theme

const isDark = () =>
  (document.documentElement.dataset.theme ??
    (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const showTheme = () => $('theme').setAttribute('aria-pressed', isDark());
$('theme').onclick = () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  kept.set('theme', theme);
  showTheme();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
$('help-open').onclick = () => open($('help'));

// Startup

for (const text of EXAMPLES) {
  const run = () => {
    $('prompt').value = text;
    submit();
  };
  $('examples').append(el('button', { textContent: text, onclick: run }));
}

async function start() {
  prepareDialogs();
  for (const button of document.querySelectorAll('button.icon')) button.title = button.ariaLabel;
  showTheme();
  onJobs({ change: refresh, image: keepImage, end: jobEnded });
  await restoreReferences();
  resume();
  await load();
  if (!(await isKept)) toast('This browser cannot store images: download those that you want to keep.');
  if (jobs.length > 0) selectJob(jobs.at(-1));
  try {
    const [models, loras] = await Promise.all([json('/v1/models'), json('/v1/loras')]);
    offer(models.data, loras.data);
    $('batches').hidden = !models.flux.queue;
  } catch (error) {
    toast(sentence(error instanceof TypeError ? 'the server cannot be reached' : error.message), { isError: true });
  }
}

start();
