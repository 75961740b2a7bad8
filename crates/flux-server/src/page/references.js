// Reference images: added, reordered, removed, and restored after a reload.

import {
  $,
  button,
  drawn,
  el,
  fileOfCanvas,
  icon,
  kept,
  open,
  randomName,
  release,
  say,
  setLabel,
  toast,
} from './dom.js';
import { details } from './models.js';
import * as store from './store.js';
import { number, t } from './words.js';

/** Formats that the server accepts. The browser converts others to PNG. */
const READ = ['image/png', 'image/jpeg', 'image/webp'];

/** The references: {id, name, blob, url, width, height, mask, image}, where `image` is the gallery image it comes from. */
export const references = [];

const hears = [];
/** Calls a function on each change. */
export const onReferences = (hear) => hears.push(hear);

/** Stores a file under a new ID, so that recipes can refer to it. */
export async function keepInput(blob, name) {
  const input = { id: randomName(), name, blob };
  await store.putInput(input);
  return input;
}

async function opened(input) {
  const { width, height } = await createImageBitmap(input.blob).catch(() => ({}));
  return { ...input, width, height, url: URL.createObjectURL(input.blob) };
}

/** Adds files. Shows an error for files that are not images. */
export async function addFiles(files) {
  for (const file of files) {
    const { max_references: max } = details();
    if (references.length >= max) {
      toast(t('too_many_references', { n: max }), { isError: true });
      break;
    }
    try {
      const blob = READ.includes(file.type) ? file : await fileOfCanvas((await drawn(file)).canvas);
      const reference = await opened(await keepInput(blob, file.name || 'image.png'));
      if (!reference.width) throw new Error('no image');
      references.push(reference);
      say(t('is_reference', { name: reference.name, n: references.length }));
    } catch {
      toast(t('not_an_image', { name: file.name || '?' }), { isError: true });
    }
  }
  update();
}

/** Replaces the references with inputs. Returns false if some are no longer stored. */
export async function setReferences(ids, maskId, more = {}) {
  const inputs = (await Promise.all(ids.map((id) => store.input(id)))).filter(Boolean);
  const mask = maskId && (await store.input(maskId));
  for (const old of references) release(old.url);
  const added = await Promise.all(inputs.map(opened));
  if (added[0]) Object.assign(added[0], more, mask ? { mask } : {});
  references.splice(0, references.length, ...added);
  update();
  return inputs.length === ids.length;
}

/** Restores the references of the last visit. */
export async function restoreReferences() {
  const { ids = [], mask, image, extend } = kept.get('references', {});
  if (ids.length > 0) await setReferences(ids, mask, { image, extend });
}

/** Sets properties of the first image: `mask`, `feather` and `extend`. */
export function changeFirst(properties) {
  if (!references[0]) return;
  Object.assign(references[0], properties);
  update();
}

function remove(place) {
  const before = references.map(({ id, mask }) => [id, mask?.id]);
  const { image, extend } = references[0];
  const [gone] = references.splice(place, 1);
  release(gone.url);
  update(Math.min(place, references.length - 1));
  const run = () =>
    setReferences(
      before.map(([id]) => id),
      before[0][1],
      { image, extend },
    );
  toast(t('reference_removed', { name: gone.name }), { action: t('undo'), run });
}

function move(from, to) {
  if (to < 0 || to >= references.length) return;
  references.splice(to, 0, ...references.splice(from, 1));
  say(t('is_reference', { name: references[to].name, n: to + 1 }));
  update(to);
}

/** Updates the references. Focuses the one at `focused`, if given. */
function update(focused) {
  $('references').replaceChildren(...references.map(tile));
  $('references').hidden = references.length === 0;
  if (focused >= 0) $('references').children[focused].firstChild.focus();
  else if (focused === -1) $('image-add').focus();
  const [{ mask, image, extend } = {}] = references;
  kept.set('references', { ids: references.map(({ id }) => id), mask: mask?.id, image, extend });
  for (const hear of hears) hear();
}

/** Returns a text if the model sees a smaller image. */
export function reduced({ width, height }) {
  const [alone, each] = details().reference_pixels;
  const pixels = references.length > 1 ? each : alone;
  return width * height > pixels
    ? t('reduced', { from: number((width * height) / 1e6, 1), to: number(pixels / 1e6, 1) })
    : '';
}

function tile(reference, place) {
  const { name, url, mask } = reference;
  const label = [
    t('reference_label', { n: place + 1, name }),
    mask && place === 0 && t('with_mask'),
    reduced(reference),
  ];
  const thumb = el('button', {
    type: 'button',
    className: 'thumb',
    onclick: () => thumb.dataset.dragged || show(place),
  });
  thumb.append(el('img', { src: url, alt: '', draggable: false }));
  setLabel(thumb, label.filter(Boolean).join(' · '));
  thumb.append(el('span', { textContent: t('image_n', { n: place + 1 }), className: 'badge' }));
  if (mask && place === 0) thumb.append(el('span', { className: 'badge masked' }, icon('brush')));
  thumb.onkeydown = (event) => key(event, place);
  thumb.onpointerdown = (event) => drag(event, thumb, place);
  const cross = button('close', t('remove_name', { name }), () => remove(place), { className: 'icon remove' });
  return el('li', {}, thumb, cross);
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
function drag(start, thumb, from) {
  if (start.button !== 0) return;
  delete thumb.dataset.dragged;
  const boxes = [...$('references').children].map((item) => item.getBoundingClientRect());
  const at = ({ clientX, clientY }) => {
    const distances = boxes.map((box) => Math.hypot(box.x + box.width / 2 - clientX, box.y + box.height / 2 - clientY));
    return distances.indexOf(Math.min(...distances));
  };
  const moved = (event) => {
    const [x, y] = [event.clientX - start.clientX, event.clientY - start.clientY];
    if (!thumb.dataset.dragged && Math.hypot(x, y) < 6) return;
    thumb.dataset.dragged = 'yes';
    thumb.style.transform = `translate(${x}px, ${y}px)`;
    const to = at(event);
    for (const [place, item] of [...$('references').children].entries())
      item.classList.toggle('target', place === to && to !== from);
  };
  const ended = (event) => {
    thumb.removeEventListener('pointermove', moved);
    thumb.style.transform = '';
    if (!thumb.dataset.dragged) return;
    if (event.type === 'pointerup' && at(event) !== from) move(from, at(event));
    else update();
  };
  thumb.setPointerCapture(start.pointerId);
  thumb.addEventListener('pointermove', moved);
  thumb.addEventListener('pointerup', ended, { once: true });
  thumb.addEventListener('pointercancel', ended, { once: true });
}

/** Shows a reference large, with its actions. */
function show(place) {
  const dialog = $('reference');
  const reference = references[place];
  const title = t('reference_label', { n: place + 1, name: reference.name });
  dialog.setAttribute('aria-label', title);
  dialog.querySelector('h2').textContent = title;
  Object.assign($('reference-image'), { src: reference.url, alt: reference.name });
  const facts = [`${number(reference.width)} × ${number(reference.height)}`, reduced(reference)];
  $('reference-facts').textContent = facts.filter(Boolean).join(' · ');
  const actions = {
    earlier: () => move(place, place - 1),
    later: () => move(place, place + 1),
    remove: () => remove(place),
  };
  for (const [name, run] of Object.entries(actions)) $(`reference-${name}`).onclick = () => (dialog.close(), run());
  $('reference-earlier').disabled = place === 0;
  $('reference-later').disabled = place === references.length - 1;
  open(dialog);
}
