// The gallery: all images by day, searched and selected. Only the tiles in view exist.

import { $, button, el, press, save, say, setLabel, toast } from './dom.js';
import { fileOf, images, keep, labelOf, nameOf, onImages, remove, setStar, showThumb } from './library.js';
import { readRecipe } from './recipe.js';
import * as store from './store.js';
import { bytes, day, t } from './words.js';
import { unzip, zip } from './zip.js';

const GAP = 10;
const HEADING = 52;
/** Pixels above and below the view that are filled, too. */
const MARGIN = 600;
const INDEX = 'flux-gallery.json';

let shows = () => {};
let found = [];
/** The headings and tiles: {key, top, left, side, image} or {key, top, text}. */
let placed = [];
let columns = 1;
let last = null;
const selected = new Set();
const nodes = new Map();

/** Sets the callback that shows an image on the stage. */
export function onOpened(hear) {
  shows = hear;
}

/** Finds the images of the search, and places their tiles. */
function layout() {
  const words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const isStarred = $('starred').getAttribute('aria-pressed') === 'true';
  const fits = ({ recipe, star }) =>
    (!isStarred || star) && words.every((word) => (recipe.prompt ?? '').toLowerCase().includes(word));
  found = words.length > 0 || isStarred ? images.filter(fits) : images;
  const width = $('wall').clientWidth;
  const least = width < 600 ? 100 : 180;
  columns = Math.max(2, Math.floor((width + GAP) / (least + GAP)));
  const side = (width - GAP * (columns - 1)) / columns;
  placed = [];
  let [top, column, today] = [0, 0, null];
  for (const image of found) {
    const date = new Date(image.created).toDateString();
    if (date !== today) {
      if (today !== null) top += side + GAP;
      placed.push({ key: date, top, text: day(image.created) });
      [today, column] = [date, 0];
      top += HEADING;
    } else if (column === columns) [top, column] = [top + side + GAP, 0];
    placed.push({ key: image.id, top, left: column * (side + GAP), side, image });
    column++;
  }
  $('wall').style.height = `${found.length > 0 ? top + side : 0}px`;
  $('wall-empty').hidden = found.length > 0;
  $('wall-empty').textContent = t(images.length > 0 ? 'nothing_found' : 'nothing_yet');
  draw();
}

/** Creates the tiles in view, and removes the others. */
function draw() {
  const from = -$('wall').getBoundingClientRect().top - MARGIN;
  const to = from + innerHeight + 2 * MARGIN;
  let first = 0;
  let after = placed.length;
  while (first < after) {
    const middle = (first + after) >> 1;
    if (placed[middle].top + (placed[middle].side ?? HEADING) < from) first = middle + 1;
    else after = middle;
  }
  const shown = new Set();
  const fresh = [];
  for (let at = first; at < placed.length && placed[at].top <= to; at++) {
    const item = placed[at];
    shown.add(item.key);
    const node = nodes.get(item.key) ?? newNode(item);
    node.style.transform = `translate(${document.dir === 'rtl' ? -(item.left ?? 0) : (item.left ?? 0)}px, ${item.top}px)`;
    if (item.image) {
      node.style.width = node.style.height = `${item.side}px`;
      node.classList.toggle('picked', selected.has(item.key));
      node.querySelector('input').checked = selected.has(item.key);
      press(node.querySelector('.heart'), item.image.star);
    }
    if (!node.isConnected) fresh.push(node);
  }
  for (const [key, node] of nodes) {
    if (shown.has(key) || node.contains(document.activeElement)) continue;
    node.remove();
    nodes.delete(key);
  }
  $('wall').append(...fresh);
}

function newNode({ key, text, image }) {
  const node = image ? newTile(image) : el('h2', { textContent: text });
  nodes.set(key, node);
  return node;
}

function newTile(image) {
  const img = el('img', { alt: '', decoding: 'async', draggable: false });
  showThumb(img, image.id);
  const opener = el(
    'button',
    {
      type: 'button',
      className: 'opener',
      data: { id: image.id },
      title: image.recipe.prompt,
      aria: { label: labelOf(image) },
    },
    img,
  );
  opener.onclick = (event) =>
    event.ctrlKey || event.metaKey || event.shiftKey || selected.size > 0
      ? pick(image.id, event.shiftKey)
      : shows(image);
  const box = el('input', { type: 'checkbox', aria: { label: t('select_name', { name: labelOf(image) }) } });
  box.onclick = (event) => pick(image.id, event.shiftKey);
  const heart = button('star', t('favourite'), () => setStar(image, !image.star), { className: 'icon heart' });
  return el('div', { className: 'piece' }, opener, box, heart);
}

function pick(id, isRange) {
  const ids = found.map((image) => image.id);
  const [a, b] = [ids.indexOf(last), ids.indexOf(id)].sort((x, y) => x - y);
  if (isRange && a >= 0) for (const one of ids.slice(a, b + 1)) selected.add(one);
  else if (!selected.delete(id)) selected.add(id);
  last = id;
  showSelection();
  draw();
}

const chosen = () => images.filter(({ id }) => selected.has(id));

function showSelection() {
  const count = chosen().length;
  $('picked').hidden = count === 0;
  $('picked-count').textContent = t('selected', { n: count });
}

function clear() {
  selected.clear();
  showSelection();
  draw();
}

async function showFullness() {
  const full = await store.fullness();
  const text = [
    t('images', { n: images.length }),
    full && t('fullness', { used: bytes(full.usage), all: bytes(full.quota) }),
  ];
  $('fullness').textContent = text.filter(Boolean).join(' · ');
  $('fullness-bar').hidden = !full;
  if (full) $('fullness-bar').value = full.usage / full.quota;
}

async function* filesOf(list) {
  for (const image of list) {
    const blob = await store.file(image.id);
    if (blob) yield { name: nameOf(image), blob };
  }
}

/** Downloads images, several of them as an archive. */
export async function downloadAll(list, name = 'flux-images.zip') {
  if (list.length === 1) return save(await fileOf(list[0]));
  const told = (count) => say(t('packing', { i: count, n: list.length }));
  save(await zip(filesOf(list), told), name);
}

/** Downloads all images with their references and their places in the gallery. */
async function exportAll() {
  const inputs = [...new Set(images.flatMap(({ inputs, mask }) => [...inputs, mask]))].filter(Boolean);
  async function* files() {
    const index = { images, inputs: [] };
    for (const image of images) {
      const blob = await store.file(image.id);
      if (blob) yield { name: `images/${image.id}`, blob };
    }
    for (const id of inputs) {
      const input = await store.input(id);
      if (!input) continue;
      index.inputs.push({ id, name: input.name, type: input.blob.type });
      yield { name: `inputs/${id}`, blob: input.blob };
    }
    yield { name: INDEX, blob: new Blob([JSON.stringify(index)]) };
  }
  save(await zip(files()), `flux-gallery-${new Date().toISOString().slice(0, 10)}.zip`);
}

/** Adds the images of archives and of image files to the gallery. */
export async function importFiles(list) {
  let count = 0;
  const add = async (blob, image) => {
    await keep(image, blob);
    count++;
  };
  const addPlain = async (blob, name) => {
    const recipe = (await readRecipe(blob).catch(() => null)) ?? { prompt: name.replace(/\.\w+$/, ''), seed: '0' };
    await add(blob, { index: 0, created: Date.now() - count, recipe, asked: {}, notes: [] });
  };
  for (const file of list) {
    try {
      if (!/zip/.test(file.type) && !file.name.endsWith('.zip')) {
        await addPlain(file, file.name);
        continue;
      }
      const files = await unzip(file);
      const index = files.get(INDEX) && JSON.parse(await files.get(INDEX).text());
      for (const { id, name, type } of index?.inputs ?? [])
        await store.putInput({ id, name, blob: new Blob([files.get(`inputs/${id}`)], { type }) });
      for (const image of index?.images ?? [])
        if (files.has(`images/${image.id}`))
          await add(new Blob([files.get(`images/${image.id}`)], { type: image.type }), image);
      if (!index)
        for (const [name, blob] of files)
          if (/\.(png|jpe?g|webp)$/i.test(name))
            await addPlain(new Blob([blob], { type: `image/${name.split('.').pop().replace('jpg', 'jpeg')}` }), name);
    } catch {
      toast(t('not_an_image', { name: file.name }), { isError: true });
    }
  }
  toast(t('imported', { n: count }));
}

/** Moves the focus between the tiles. */
export function moveInGallery(key, target) {
  const at = found.findIndex(({ id }) => id === target.dataset.id);
  const forward = document.dir === 'rtl' ? -1 : 1;
  const step = {
    ArrowLeft: -forward,
    ArrowRight: forward,
    ArrowUp: -columns,
    ArrowDown: columns,
    Home: -at,
    End: found.length - 1 - at,
  }[key];
  const next = found[at + step];
  if (!next) return;
  const item = placed.find((one) => one.key === next.id);
  const top = $('wall').getBoundingClientRect().top + item.top;
  if (top < 130 || top + item.side > innerHeight) scrollBy(0, top - innerHeight / 2);
  draw();
  nodes.get(next.id)?.firstChild.focus();
}

export function showGallery() {
  layout();
  showSelection();
  showFullness();
}

export function prepareGallery() {
  const isShown = () => !$('gallery').hidden;
  let frame = null;
  const soon = (run) => () => (frame ??= requestAnimationFrame(() => ((frame = null), isShown() && run())));
  addEventListener('scroll', soon(draw), { passive: true });
  new ResizeObserver(soon(layout)).observe($('wall').parentNode);
  onImages(() => isShown() && showGallery());
  $('search').oninput = () => (layout(), say(t('images', { n: found.length })));
  $('starred').onclick = () => (press($('starred'), $('starred').getAttribute('aria-pressed') !== 'true'), layout());
  const actions = {
    all: () => (found.forEach(({ id }) => selected.add(id)), showSelection(), draw()),
    none: clear,
    star: () => chosen().forEach((image) => setStar(image, true)),
    save: () => downloadAll(chosen()),
    delete: () => (remove(chosen()), clear()),
  };
  for (const [name, run] of Object.entries(actions)) $(`picked-${name}`).onclick = run;
  $('export').onclick = exportAll;
  $('import').onclick = () => $('import-files').click();
  $('import-files').onchange = () =>
    importFiles([...$('import-files').files]).then(() => ($('import-files').value = ''));
  setLabel($('search'), t('search'));
  $('search').title = '';
}
