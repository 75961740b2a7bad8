// Comparison of an image with the one before it: a movable divider on the stage.

import { $, el, kept, press, release } from './dom.js';
import { find, labelOf } from './library.js';
import * as store from './store.js';
import { t } from './words.js';

let isOn = kept.get('compare', true);
let shown = null;
let before = null;

/** Returns the image or input that an image was edited from. */
async function source({ parent, inputs }) {
  const image = find(parent);
  if (image) return { blob: await store.file(image.id), label: labelOf(image) };
  const input = inputs[0] && (await store.input(inputs[0]));
  return input && { blob: input.blob, label: input.name };
}

export const canCompare = ({ parent, inputs }) => Boolean(parent || inputs.length > 0);

/** Adds the divider to the frame of an image that was edited. */
export async function show(image) {
  const frame = $('frame');
  shown = image;
  hide();
  const isShown = isOn && canCompare(image);
  if ($('compare-toggle')) press($('compare-toggle'), isShown);
  if (!isShown) return;
  const found = await source(image);
  if (!found?.blob || shown !== image || !isOn) return;
  before = URL.createObjectURL(found.blob);
  const old = el('img', { src: before, alt: t('before', { label: found.label }) });
  const { extend } = image.asked ?? {};
  if (extend) {
    // The image before lies inside of the larger canvas.
    const [across, down] = [100 / image.width, 100 / image.height];
    const [left, top] = [extend.left * across, extend.top * down];
    const [width, height] = [100 - left - extend.right * across, 100 - top - extend.bottom * down];
    Object.assign(old.style, {
      position: 'absolute',
      left: `${left}%`,
      top: `${top}%`,
      width: `${width}%`,
      height: `${height}%`,
    });
  }
  const left = el('div', { className: 'before' }, old);
  const line = el('span', { className: 'line' });
  const split = el('input', {
    id: 'compare-split',
    type: 'range',
    min: 0,
    max: 100,
    step: 0.5,
    value: 50,
    dir: 'ltr',
    aria: { label: t('divider') },
  });
  const move = () => {
    left.style.clipPath = `inset(0 ${100 - split.value}% 0 0)`;
    line.style.left = `${split.value}%`;
    split.setAttribute('aria-valuetext', `${Math.round(split.value)} %`);
  };
  split.oninput = move;
  const layer = el(
    'div',
    { className: 'compare appear' },
    left,
    line,
    el('span', { className: 'tag', textContent: t('before_short') }),
    el('span', { className: 'tag after', textContent: t('after_short') }),
    split,
  );
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
