// Comparison of an image with the one before it: a movable divider on the stage.

import { $, el, kept, press, release } from './dom.js';
import { find, labelOf } from './library.js';
import * as store from './store.js';
import { t } from './words.js';

let isOn = kept.get('compare', true);
let shown = null;
let other = null;
let before = null;

/** Returns the image or input that an image is compared with: the chosen one, or what it was edited from. */
async function source({ parent, inputs }) {
  const image = find(other) ?? find(parent);
  if (image) return { blob: await store.file(image.id), label: labelOf(image) };
  const input = inputs[0] && (await store.input(inputs[0]));
  return input && { blob: input.blob, label: input.name };
}

export const canCompare = ({ parent, inputs }) => Boolean(parent || inputs.length > 0);

/** Adds the divider to the frame of an image that was edited. */
export async function show(image, frame = $('frame')) {
  if (shown?.root !== image.root) other = null;
  shown = image;
  hide();
  const isShown = isOn && (canCompare(image) || (other && other !== image.id));
  press($('compare-toggle') ?? frame, isShown);
  frame.removeAttribute('aria-pressed');
  if (!isShown) return;
  const found = await source(image);
  if (!found?.blob || shown !== image || !isOn) return;
  before = URL.createObjectURL(found.blob);
  const left = el('img', { src: before, alt: t('before', { label: found.label }), className: 'before' });
  const line = el('span', { className: 'line' });
  const split = el('input', { id: 'compare-split', type: 'range', min: 0, max: 100, step: 0.5, value: 50, dir: 'ltr', aria: { label: t('divider') } });
  const move = () => {
    left.style.clipPath = `inset(0 ${100 - split.value}% 0 0)`;
    line.style.left = `${split.value}%`;
    split.setAttribute('aria-valuetext', `${Math.round(split.value)} %`);
  };
  split.oninput = move;
  const layer = el('div', { className: 'compare appear' }, left, line, el('span', { className: 'tag', textContent: t('before_short') }), el('span', { className: 'tag after', textContent: t('after_short') }), split);
  move();
  frame.querySelector('.compare')?.remove();
  frame.append(layer);
}

export function hide() {
  $('frame').querySelector('.compare')?.remove();
  release(before);
  before = null;
}

export function toggle() {
  if (!shown) return;
  isOn = !isOn;
  kept.set('compare', isOn);
  show(shown);
  if (isOn) setTimeout(() => $('compare-split')?.focus(), 100);
}

/** Compares the shown image with another one. */
export function compareWith(id) {
  [other, isOn] = [id, true];
  show(shown);
}
