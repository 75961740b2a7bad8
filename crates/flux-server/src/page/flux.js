// The page of `flux serve`: connects its parts, its tabs, and what comes from outside.

import { edit, endEdit, showEditing } from './page/actions.js';
import { $, el, kept, open, prepareDialogs, press, release, say, toast } from './page/dom.js';
import { clearErrors, fields, prepareForm, sentence, showError, useRecipe, wrong } from './page/form.js';
import { importFiles, onOpened, prepareGallery, showGallery } from './page/gallery.js';
import { draw, jobs, onJobs, promptOf, resume } from './page/jobs.js';
import { cancelShown, prepareKeys, showSheet } from './page/keys.js';
import { find, images, keep, load, onImages } from './page/library.js';
import { loadModels, onModel, watchStatus } from './page/models.js';
import { refresh, select, selectJob } from './page/rail.js';
import { described, readRecipe } from './page/recipe.js';
import { addFiles, onReferences, references, restoreReferences } from './page/references.js';
import { showSamples } from './page/samples.js';
import { closeTool, isTool, openTool } from './page/stage.js';
import * as store from './page/store.js';
import { LANGUAGES, bytes, language, t, translate } from './page/words.js';

/** Uploads of more bytes show their progress. */
const LARGE = 1 << 20;

// Generating

async function request(asked, inputs, mask, more) {
  const onSent = (part, total) => {
    if (total < LARGE) return;
    $('sending').hidden = part === 1;
    $('sending-bar').value = part;
    $('sending-text').textContent = t('sending', { size: bytes(total) });
  };
  const job = await draw(asked, inputs, mask, { more, onSent });
  selectJob(job);
  say(t('requested'));
  return job;
}

async function submit() {
  if (isTool()) await closeTool();
  clearErrors();
  const error = wrong();
  if (error) return showError(error);
  $('draw').disabled = true;
  $('draw').setAttribute('aria-busy', 'true');
  try {
    const [first] = references;
    const parent = find(first?.image);
    await request(fields(), [...references], first?.mask, parent ? { parent: parent.id, root: parent.root } : {});
    store.persist();
    $('stage').scrollIntoView({ block: 'nearest' });
  } catch (error) {
    showError(error instanceof TypeError ? { message: t('unreachable') } : error);
  } finally {
    $('sending').hidden = true;
    $('draw').disabled = false;
    $('draw').removeAttribute('aria-busy');
  }
}

/** Sends the request of a cancelled job again. */
async function again({ asked, inputs, mask, more }) {
  const [file, ...files] = await Promise.all([mask, ...inputs].map((id) => id && store.input(id)));
  request(asked, files.filter(Boolean), file, more).catch(showError);
}

onJobs({
  change: ({ more }) => more?.isHidden || refresh(),
  async image(job, index, blob) {
    if (job.more?.sample) return;
    const { id, created, notes, count, more } = job;
    // An enlarged image keeps the settings of the original.
    const { asked, inputs, mask } = more?.enlarged ?? job;
    const known = more?.enlarged?.recipe ?? { prompt: asked.prompt, seed: asked.seed };
    const recipe = (await readRecipe(blob)) ?? known;
    // The start of a job found after a reload is unknown.
    const seconds = job.isResumed ? null : (performance.now() - job.since) / 1000 / (job.saved.size + 1);
    const family = { parent: more?.parent, root: more?.root };
    say(t('image_ready', { i: index + 1, n: count }));
    await keep(
      {
        id: `${id}-${index}`,
        group: id,
        index,
        count,
        created,
        recipe,
        asked,
        inputs,
        mask,
        notes,
        seconds,
        isEnlarged: Boolean(more?.enlarged),
        ...family,
      },
      blob,
    );
  },
  end(job, error, isCancelled) {
    if (job.more?.isHidden) return;
    refresh();
    const prompt = promptOf(job);
    if (!error) {
      if (isCancelled) say(t('cancelled'));
    } else if (error.code === 'not_found') toast(t('job_gone', { prompt }), { isError: true });
    else if (error.param) showError(error);
    else toast(t('job_failed', { prompt, why: sentence(error.message) }), { isError: true });
  },
});

$('form').addEventListener('submit', (event) => (event.preventDefault(), submit()));
$('cancel').onclick = () => cancelShown(again);
$('editing-end').onclick = endEdit;
$('boxes-draw').onclick = () => openTool('boxes');

// Files from outside

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
  if (!$('gallery').hidden) return importFiles(files);
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
  Object.assign($('found-image'), { src: url, alt: file.name });
  $('found-reuse').onclick = () => {
    $('found').close();
    useRecipe(recipe);
    if (recipe.inputs?.length) toast(t('add_references'));
    $('prompt').focus();
  };
  $('found-reference').onclick = () => ($('found').close(), addFiles([file]));
  await open($('found'));
  release(url);
}

// Tabs

const TABS = ['images', 'gallery', 'live', 'batches'];
const titleOf = (tab) => (tab === 'images' ? 'flux' : `flux · ${t(`tab_${tab}`)}`);
let live = null;
let batches = null;
const openBatches = async () => (batches ??= await import('./page/batches.js'));

async function showTab(tab) {
  for (const name of TABS) $(name).hidden = name !== tab;
  for (const link of $('tabs').children) {
    if (link.dataset.tab === tab) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = titleOf(tab);
  scrollTo(0, 0);
  if (tab === 'gallery') showGallery();
  if (tab === 'batches') (await openBatches()).showBatches();
  if (tab === 'live') {
    live ??= await import('./page/live.js');
    live.start({
      send: async (image) => (await go('images'), select(image.id)),
      edit: async (image) => (await go('images'), edit(image)),
    });
  } else live?.pauseLive();
}

const pathTab = () => TABS.find((tab) => location.pathname.endsWith(`/${tab}`)) ?? 'images';

async function go(tab) {
  history.pushState(null, '', tab === 'images' ? '.' : tab);
  await showTab(tab);
}

addEventListener('popstate', () => showTab(pathTab()));
for (const link of $('tabs').children)
  link.onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.dataset.tab);
  };
onOpened(async (image) => {
  await go('images');
  select(image.id);
});

// Dark and light theme, and the language

const isDark = () =>
  (document.documentElement.dataset.theme ??
    (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const showTheme = () => press($('theme'), isDark());
$('theme').onclick = () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  kept.set('theme', theme);
  showTheme();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
$('help-open').onclick = showSheet;
for (const [name, text] of Object.entries(LANGUAGES))
  $('language').append(el('option', { value: name, textContent: text, selected: name === language }));
$('language').onchange = () => {
  kept.set('language', $('language').value);
  location.reload();
};

async function start() {
  $('no-scripts').remove();
  translate(document);
  showTab(pathTab());
  document.body.classList.add('ready');
  prepareDialogs();
  prepareForm();
  prepareGallery();
  prepareKeys({ submit, again, tabs: TABS, go });
  showTheme();
  const showIntro = () => $('empty').hidden || showSamples(submit);
  onModel(showIntro);
  onImages(showIntro);
  onReferences(showEditing);
  await restoreReferences();
  showEditing();
  resume();
  await load();
  if (!(await store.isKept)) toast(t('no_store'));
  const shown = jobs.filter(({ more }) => !more?.isHidden);
  if (shown.length > 0) selectJob(shown.at(-1));
  try {
    await loadModels();
  } catch (error) {
    toast(error instanceof TypeError ? t('unreachable') : sentence(error.message), { isError: true });
  }
  watchStatus();
  // A list goes on after a reload.
  if (kept.get('batch')) openBatches();
  if (images.length === 0) showIntro();
}

start();
