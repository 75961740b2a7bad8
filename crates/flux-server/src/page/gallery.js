// The gallery: images and running jobs as tiles. The selected one is shown large.

import { $, el, release, toast } from './dom.js';
import { jobs, part, progressText } from './jobs.js';
import { references } from './references.js';
import * as store from './store.js';

const THUMB = 320;

/** Finished images, newest first. */
export let images = [];
let selected = null;
let shows = () => {};

const nodes = new Map();
const keyOf = (id, image) => `${id}-${image}`;

/** Sets the callback for selection of a tile and for its changes. */
export function onSelected(hear) {
  shows = hear;
}

/** Returns the tiles in order: {id, image} or {id, job, index}. */
export function entries() {
  const made = images.map((image) => ({ id: image.id, image, created: image.created, index: image.index }));
  const waiting = jobs.flatMap((job) =>
    job.images.map((_, index) => ({ id: keyOf(job.id, index), job, index, created: job.created })),
  );
  const known = new Set(made.map(({ id }) => id));
  const all = [...waiting.filter(({ id, job, index }) => !known.has(id) && !job.saved.has(index)), ...made];
  return all.sort((a, b) => b.created - a.created || a.index - b.index);
}

export const selectedEntry = () => entries().find(({ id }) => id === selected);

/** Shows the stored images, and deletes unused input files. */
export async function load() {
  images = await store.images().catch(() => []);
  refresh();
  await trim();
  const used = [...images, ...jobs].flatMap(({ inputs, mask }) => [...inputs, mask]);
  const current = references.flatMap(({ id, mask }) => [id, mask?.id]);
  await store.tidyInputs(new Set([...used, ...current])).catch(() => {});
}

/** Stores a finished image. */
export async function keep(image) {
  image.thumb = await thumbOf(image.blob).catch(() => null);
  // Another tab of this browser may have stored it.
  images = [image, ...images.filter(({ id }) => id !== image.id)].sort(
    (a, b) => b.created - a.created || a.index - b.index,
  );
  refresh();
  try {
    await store.putImage(image, () => images.length > 1 && forget(images.at(-1).id));
  } catch {
    toast('The image cannot be stored in this browser: download it.', { isError: true });
  }
  await trim();
}

async function thumbOf(blob) {
  const bitmap = await createImageBitmap(blob);
  const scale = Math.min(1, THUMB / Math.min(bitmap.width, bitmap.height));
  const canvas = el('canvas', { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/webp', 0.85));
}

function forget(id) {
  images = images.filter((image) => image.id !== id);
  refresh();
  return id;
}

/** Deletes the images beyond the limits. */
async function trim() {
  for (const { id } of store.surplus(images)) await store.removeImage(forget(id)).catch(() => {});
}

/** Deletes the selected image. It can be restored for a while. */
export function removeSelected() {
  const entry = selectedEntry();
  if (!entry?.image) return;
  const order = entries();
  const place = order.findIndex(({ id }) => id === entry.id);
  const hadFocus = $('tiles').contains(document.activeElement);
  const next = order[place + 1] ?? order[place - 1];
  forget(entry.id);
  select(next?.id, { focus: hadFocus });
  store.removeImage(entry.id).catch(() => {});
  const back = () => {
    keep(entry.image);
    select(entry.id);
  };
  toast('The image is deleted.', { action: 'Undo', run: back });
}

/** Selects a tile and shows it large. */
export function select(id, { focus = false } = {}) {
  selected = id ?? null;
  refresh();
  const node = nodes.get(selected);
  if (focus && node) {
    node.focus();
    node.scrollIntoView({ block: 'nearest' });
  }
}

export const selectJob = (job) => select(keyOf(job.id, 0));

/** Updates the tiles. Remaining tiles are not touched, so that they keep the focus. */
export function refresh() {
  const all = entries();
  if (!all.some(({ id }) => id === selected)) selected = all[0]?.id ?? null;
  const ids = new Set(all.map(({ id }) => id));
  for (const [id, node] of nodes) {
    if (ids.has(id)) continue;
    if (node.dataset.url) release(node.dataset.url);
    node.remove();
    nodes.delete(id);
  }
  let at = $('tiles').firstChild;
  for (const entry of all) {
    const node = nodes.get(entry.id) ?? newTile(entry.id);
    if (node === at) at = at.nextSibling;
    else $('tiles').insertBefore(node, at);
    fill(node, entry);
  }
  $('gallery').hidden = all.length === 0;
  $('gallery-count').textContent = images.length > 0 ? `${images.length} stored in this browser` : '';
  shows(all.find(({ id }) => id === selected));
}

function newTile(id) {
  const node = el('div', { className: 'tile', role: 'option' });
  node.onclick = () => {
    select(id, { focus: true });
    $('stage').scrollIntoView({ block: 'nearest', behavior: 'smooth' });
  };
  node.onfocus = () => selected !== id && select(id);
  nodes.set(id, node);
  return node;
}

function fill(node, { id, image, job, index }) {
  node.setAttribute('aria-selected', id === selected);
  node.tabIndex = id === selected ? 0 : -1;
  if (image) {
    if (node.dataset.made) return;
    node.dataset.made = 'yes';
    node.dataset.url = URL.createObjectURL(image.thumb ?? image.blob);
    node.setAttribute('aria-label', `${image.recipe.prompt}, seed ${image.recipe.seed}`);
    node.classList.remove('waiting');
    node.replaceChildren(
      el('img', { src: node.dataset.url, alt: '', loading: 'lazy', decoding: 'async', draggable: false }),
    );
    return;
  }
  node.setAttribute('aria-label', `${job.asked.prompt}: ${progressText(job, index)}`);
  node.classList.add('waiting');
  const { preview, step, steps } = job.images[index];
  let [img, ring] = node.children;
  if (!ring) {
    [img, ring] = [el('img', { alt: '', hidden: true, draggable: false }), el('span', { className: 'ring' })];
    node.replaceChildren(img, ring);
  }
  if (preview && img.src !== preview) [img.src, img.hidden] = [preview, false];
  ring.style.setProperty('--part', job.count === 1 ? part(job) : steps && step / (steps + 1));
}

/** Moves the selection with the keyboard. */
export function moveBy(key) {
  const all = entries();
  const place = all.findIndex(({ id }) => id === selected);
  const columns = getComputedStyle($('tiles')).gridTemplateColumns.split(' ').length;
  const step = {
    ArrowLeft: -1,
    ArrowRight: 1,
    ArrowUp: -columns,
    ArrowDown: columns,
    Home: -place,
    End: all.length - 1 - place,
  }[key];
  const next = all[place + step];
  if (next) select(next.id, { focus: true });
  return Boolean(next);
}
