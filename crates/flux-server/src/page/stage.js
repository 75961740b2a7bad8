// The selected image, shown large with its progress and actions.

import { SERVER, hasKey } from './api.js';
import { $, copyText, el, icon, open, release, save, say, toast } from './dom.js';
import { useRecipe, useSeed } from './form.js';
import { onSelected, removeSelected } from './gallery.js';
import { compare } from './compare.js';
import { cancel, part, progressText } from './jobs.js';
import { commands, fileOf } from './recipe.js';
import { addFiles, setReferences } from './references.js';
import * as store from './store.js';

/** The interval of progress announcements to screen readers. */
const SAY_EVERY_MS = 10000;

/** The entry that is shown, and the URL of its file. */
let shown = {};
let url = null;
let nextSaid = 0;

/** Returns the job that is shown while it is running. */
export const shownJob = () => shown.job;

function show(entry = {}) {
  const { image, job, index } = entry;
  $('empty').hidden = Boolean(image || job);
  $('figure').hidden = !image && !job;
  $('progress').hidden = !job;
  $('actions').hidden = !image;
  if (job) showJob(entry);
  else if (image && shown.image !== image) showImage(image);
  shown = { id: entry.id, image, job, index };
}

/** Sets the frame to the aspect ratio of the image. Small images are shown at double size. */
function setFrame(width, height) {
  $('frame').style.setProperty('--ratio', width / height);
  $('frame').style.setProperty('--most', `${Math.max(2 * width, 320)}px`);
}

function setNotes(notes) {
  $('notes').hidden = notes.length === 0;
  $('notes').textContent = notes.map((note) => `Note: ${note}.`).join(' ');
}

function showJob({ id, job, index }) {
  const [width, height] = (job.size ?? '').split('x').map(Number);
  setFrame(width || 1, height || 1);
  const { preview } = job.images[index];
  let img = $('frame').querySelector('img');
  if (shown.id !== id || !preview) img = null;
  if (preview && !img) img = el('img', { alt: 'A preview', className: 'preview' });
  if (img && img.src !== preview) img.src = preview;
  if (img?.parentNode !== $('frame') || !img)
    $('frame').replaceChildren(...(img ? [img] : [el('span', { className: 'pulse' })]));
  const isWaiting = job.status === 'queued' || job.isLost;
  if (isWaiting) $('bar').removeAttribute('value');
  else $('bar').value = part(job);
  const text = progressText(job, index);
  $('progress-text').textContent = text;
  if (performance.now() > nextSaid) {
    nextSaid = performance.now() + SAY_EVERY_MS;
    say(text);
  }
  $('caption').textContent = job.asked.prompt;
  $('facts').textContent = '';
  setNotes(job.notes);
}

function showImage(image) {
  if (url) release(url);
  url = URL.createObjectURL(image.blob);
  const { recipe, width, height, seconds, notes = [] } = image;
  setFrame(width, height);
  const zoom = el('button', { className: 'zoom', onclick: showZoom, aria: { label: 'Show large' } });
  zoom.append(el('img', { src: url, alt: recipe.prompt }));
  $('frame').replaceChildren(zoom);
  $('caption').textContent = recipe.prompt;
  const facts = [
    `${width} × ${height}`,
    `seed ${recipe.seed}`,
    recipe.steps && `${recipe.steps} ${recipe.steps === 1 ? 'step' : 'steps'}`,
    recipe.model,
    seconds && `${seconds.toFixed(1)} s`,
  ];
  $('facts').textContent = facts.filter(Boolean).join(' · ');
  setNotes(notes);
}

export function showZoom() {
  if (!shown.image) return;
  $('zoom-image').src = url;
  $('zoom-image').alt = shown.image.recipe.prompt;
  $('zoom-image').style.setProperty('--ratio', shown.image.width / shown.image.height);
  open($('zoom'));
}

async function reuse({ recipe, asked, inputs, mask }) {
  const isWhole = await setReferences(inputs, mask);
  useRecipe(recipe, asked);
  if (!isWhole) toast('Some of its references are no longer stored.', { isError: true });
  $('prompt').focus();
}

async function showCopy(image) {
  const [mask, ...inputs] = await Promise.all([image.mask, ...image.inputs].map((id) => id && store.input(id)));
  const names = inputs.map((input, place) => input?.name ?? `image-${place + 1}.png`);
  const texts = commands({ ...image, inputs: names }, SERVER, hasKey());
  const choose = (kind) => {
    $('copy-text').textContent = texts[kind];
    for (const button of $('copy-kinds').children) button.setAttribute('aria-pressed', button.textContent === kind);
  };
  $('copy-kinds').replaceChildren(
    ...Object.keys(texts).map((kind) => el('button', { textContent: kind, onclick: () => choose(kind) })),
  );
  choose('flux');
  $('copy-do').onclick = async () => {
    await copyText($('copy-text').textContent);
    $('copy').close();
    toast('Copied.');
  };
  const files = [...inputs, mask].filter(Boolean);
  $('copy-files').hidden = files.length === 0;
  $('copy-files').onclick = () => files.forEach(({ blob, name }) => save(blob, name));
  open($('copy'));
}

const ACTIONS = [
  ['again', 'Reuse all', reuse],
  ['seed', 'Reuse seed', ({ recipe }) => (useSeed(recipe.seed), toast(`The seed is ${recipe.seed}.`))],
  ['image', 'Use as reference', (image) => addFiles([fileOf(image)])],
  ['compare', 'Compare', compare],
  ['down', 'Download', (image) => save(fileOf(image))],
  ['code', 'Copy as …', showCopy],
  ['trash', 'Delete', removeSelected],
];

for (const [name, text, run] of ACTIONS) {
  $('actions').append(el('button', { onclick: () => run(shown.image) }, icon(name), el('span', { textContent: text })));
}
$('cancel').onclick = () => cancel(shown.job);
onSelected(show);
