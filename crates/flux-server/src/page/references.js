// Reference images: added, reordered, removed, and restored after a reload.

import { $, el, icon, kept, open, randomName, release, say, setTitle, toast } from './dom.js';
import * as store from './store.js';

const MAX = 16;
/** Formats that the server accepts. The browser converts others to PNG. */
const READ = ['image/png', 'image/jpeg', 'image/webp'];

/** The references: {id, name, blob, url, mask}. */
export const references = [];

let changed = () => {};

/** Sets the callback for changes. */
export function onReferences(hear) {
  changed = hear;
}

/** Stores a file under a new ID, so that recipes can refer to it. */
export async function keepInput(blob, name) {
  const input = { id: randomName(), name, blob };
  await store.putInput(input).catch(() => {});
  return input;
}

/** Adds files. Shows an error for files that are not images. */
export async function addFiles(files) {
  for (const file of files) {
    if (references.length === MAX) {
      toast(`There are ${MAX} references already.`, { isError: true });
      break;
    }
    try {
      const bitmap = await createImageBitmap(file);
      const blob = READ.includes(file.type) ? file : await asPng(bitmap);
      bitmap.close();
      const input = await keepInput(blob, file.name || 'image.png');
      references.push({ ...input, url: URL.createObjectURL(blob) });
      say(`${input.name} is reference ${references.length}.`);
    } catch {
      toast(`${file.name || 'The file'} is not an image that this browser can read.`, { isError: true });
    }
  }
  update();
}

function asPng(bitmap) {
  const canvas = el('canvas', { width: bitmap.width, height: bitmap.height });
  canvas.getContext('2d').drawImage(bitmap, 0, 0);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('no PNG')))),
  );
}

/** Replaces the references with the inputs of a recipe. */
export async function setReferences(ids, maskId) {
  const inputs = (await Promise.all(ids.map((id) => store.input(id).catch(() => null)))).filter(Boolean);
  const mask = maskId && (await store.input(maskId).catch(() => null));
  for (const old of references) release(old.url);
  const added = inputs.map((input, place) => ({
    ...input,
    url: URL.createObjectURL(input.blob),
    mask: place === 0 ? (mask ?? undefined) : undefined,
  }));
  references.splice(0, references.length, ...added);
  update();
  return inputs.length === ids.length;
}

/** Restores the references of the last visit. */
export async function restoreReferences() {
  const { ids = [], mask } = kept.get('references', {});
  if (ids.length > 0) await setReferences(ids, mask);
}

/** Sets or removes the mask of the first image. */
export function setMask(mask) {
  references[0].mask = mask;
  update();
}

function remove(place) {
  const [gone] = references.splice(place, 1);
  release(gone.url);
  say(`${gone.name} is removed.`);
  update(Math.min(place, references.length - 1));
}

function move(from, to) {
  if (to < 0 || to >= references.length) return;
  references.splice(to, 0, ...references.splice(from, 1));
  say(`${references[to].name} is reference ${to + 1} of ${references.length}.`);
  update(to);
}

/** Updates the references. Focuses the one at `focused`, if given. */
function update(focused) {
  $('references').replaceChildren(...references.map(tile));
  $('references').hidden = references.length === 0;
  $('image-count').textContent = references.length > 0 ? `${references.length} of ${MAX}` : '';
  $('image-hint').hidden = references.length > 0;
  if (focused >= 0) $('references').children[focused].firstChild.focus();
  else if (focused === -1) $('image-add').focus();
  kept.set('references', { ids: references.map(({ id }) => id), mask: references[0]?.mask?.id });
  changed();
}

function tile({ name, url, mask }, place) {
  const label = `Reference ${place + 1}: ${name}${mask && place === 0 ? ', with a mask' : ''}`;
  const button = el('button', { type: 'button', className: 'thumb', title: label, aria: { label } });
  button.append(
    el('img', { src: url, alt: '', draggable: false }),
    el('span', { textContent: place + 1, className: 'badge' }),
  );
  if (mask && place === 0) button.append(el('span', { className: 'badge masked' }, icon('brush')));
  button.onclick = () => button.dataset.dragged || show(place);
  button.onkeydown = (event) => key(event, place);
  button.onpointerdown = (event) => drag(event, button, place);
  const cross = el(
    'button',
    { type: 'button', className: 'remove', title: 'Remove', aria: { label: `Remove ${name}` } },
    icon('close'),
  );
  cross.onclick = () => remove(place);
  return el('li', {}, button, cross);
}

function key(event, place) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (step && event.altKey) move(place, place + step);
  else if (step) $('references').children[place + step]?.firstChild.focus();
  else if (event.key === 'Delete' || event.key === 'Backspace') remove(place);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Lets the user drag a tile to another position. */
function drag(start, button, from) {
  if (start.button !== 0) return;
  delete button.dataset.dragged;
  const boxes = [...$('references').children].map((item) => item.getBoundingClientRect());
  const at = ({ clientX, clientY }) => {
    const distances = boxes.map((box) => Math.hypot(box.x + box.width / 2 - clientX, box.y + box.height / 2 - clientY));
    return distances.indexOf(Math.min(...distances));
  };
  const moved = (event) => {
    const [x, y] = [event.clientX - start.clientX, event.clientY - start.clientY];
    if (!button.dataset.dragged && Math.hypot(x, y) < 6) return;
    button.dataset.dragged = 'yes';
    button.style.transform = `translate(${x}px, ${y}px)`;
    const to = at(event);
    for (const [place, item] of [...$('references').children].entries())
      item.classList.toggle('target', place === to && to !== from);
  };
  const ended = (event) => {
    button.removeEventListener('pointermove', moved);
    button.style.transform = '';
    if (!button.dataset.dragged) return;
    if (event.type === 'pointerup' && at(event) !== from) move(from, at(event));
    else update();
  };
  button.setPointerCapture(start.pointerId);
  button.addEventListener('pointermove', moved);
  button.addEventListener('pointerup', ended, { once: true });
  button.addEventListener('pointercancel', ended, { once: true });
}

/** Shows a reference large, with its actions. */
function show(place) {
  const { name, url } = references[place];
  setTitle($('reference'), `Reference ${place + 1}: ${name}`);
  $('reference-image').src = url;
  $('reference-image').alt = name;
  const then = (run) => () => ($('reference').close(), run());
  $('reference-earlier').disabled = place === 0;
  $('reference-later').disabled = place === references.length - 1;
  $('reference-earlier').onclick = then(() => move(place, place - 1));
  $('reference-later').onclick = then(() => move(place, place + 1));
  $('reference-remove').onclick = then(() => remove(place));
  open($('reference'));
}
