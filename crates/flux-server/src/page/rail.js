// The strip of recent images and running jobs. The selected one is shown on the stage.

import { $, el } from './dom.js';
import { jobs, partOf, progressText, promptOf } from './jobs.js';
import { images, labelOf, onImages, showThumb } from './library.js';

/** Max finished images in the strip; the gallery has all. */
const MAX = 60;

let selected = null;
let isGrid = false;
let shows = () => {};
const nodes = new Map();

/** Sets the callback for selection of a tile and for its changes. */
export function onSelected(hear) {
  shows = hear;
}

/** Returns the tiles in order: {id, image} or {id, job, index}. */
function entries() {
  const made = images.map((image) => ({
    id: image.id,
    image,
    group: image.group,
    created: image.created,
    index: image.index,
  }));
  const waiting = jobs
    .filter(({ more }) => !more?.isHidden)
    .flatMap((job) =>
      job.images.map((_, index) => ({ id: `${job.id}-${index}`, job, index, group: job.id, created: job.created })),
    );
  if (waiting.length === 0) return made;
  const known = new Set(made.map(({ id }) => id));
  const all = [...waiting.filter(({ id, job, index }) => !known.has(id) && !job.saved.has(index)), ...made];
  return all.sort((a, b) => b.created - a.created || a.index - b.index);
}

/** Selects a tile and shows it large, or shows its whole group. */
export function select(id, { focus = false, grid = false } = {}) {
  [selected, isGrid] = [id ?? null, grid];
  refresh();
  const node = nodes.get(selected);
  if (!node) return;
  if (focus) node.focus();
  node.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

export const selectJob = (job) => select(`${job.id}-0`, { grid: job.count > 1 });

/** Updates the tiles. Remaining tiles are not touched, so that they keep the focus. */
export function refresh() {
  const all = entries();
  let place = all.findIndex(({ id }) => id === selected);
  if (place < 0) [selected, place] = [all[0]?.id ?? null, 0];
  const waiting = all.filter(({ job }) => job);
  // An older image is shown among its neighbours.
  const from = place < MAX ? 0 : place - 20;
  const listed = [...(from > 0 ? waiting : []), ...all.slice(from, from + MAX + waiting.length)];
  const ids = new Set(listed.map(({ id }) => id));
  for (const [id, node] of nodes) {
    if (ids.has(id)) continue;
    node.remove();
    nodes.delete(id);
  }
  let at = $('tiles').firstChild;
  for (const entry of listed) {
    const node = nodes.get(entry.id) ?? newTile(entry.id);
    if (node === at) at = at.nextSibling;
    else $('tiles').insertBefore(node, at);
    fill(node, entry);
  }
  $('rail').hidden = all.length === 0;
  const entry = all[place];
  shows(entry, isGrid && entry ? all.filter(({ group }) => group === entry.group) : null);
}

function newTile(id) {
  const node = el('div', { className: 'tile appear', role: 'option' });
  node.onclick = () => select(id, { focus: true });
  node.onfocus = () => selected !== id && select(id);
  nodes.set(id, node);
  return node;
}

function fill(node, entry) {
  node.setAttribute('aria-selected', entry.id === selected);
  node.tabIndex = entry.id === selected ? 0 : -1;
  fillTile(node, entry);
}

/** Fills a tile with an image, or with the progress of its job. */
export function fillTile(node, { image, job, index }) {
  if (image) {
    if (node.dataset.made) return;
    node.dataset.made = 'yes';
    node.setAttribute('aria-label', labelOf(image));
    node.classList.remove('waiting');
    const img = el('img', { alt: '', decoding: 'async', draggable: false });
    node.replaceChildren(img);
    showThumb(img, image.id);
    return;
  }
  node.setAttribute('aria-label', `${promptOf(job)}: ${progressText(job, index)}`);
  node.classList.add('waiting');
  const { preview } = job.images[index];
  let [img, ring] = node.children;
  if (!ring) {
    [img, ring] = [el('img', { alt: '', hidden: true, draggable: false }), el('span', { className: 'ring' })];
    node.replaceChildren(img, ring);
  }
  if (preview && img.src !== preview) [img.src, img.hidden] = [preview, false];
  ring.style.setProperty('--part', partOf(job, index));
}

/** Moves the selection with the keyboard. */
export function moveBy(key) {
  const all = entries();
  const place = all.findIndex(({ id }) => id === selected);
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -place, End: all.length - 1 - place }[
    key
  ];
  const next = all[place + step];
  if (next) select(next.id, { focus: true });
  return Boolean(next);
}

onImages(refresh);
