// Outpainting on the stage: the edges of the image are dragged outwards.

import { button, el } from './dom.js';
import { changeFirst, references } from './references.js';
import { isRtl, number, t } from './words.js';

const SIDES = ['left', 'top', 'right', 'bottom'];
const STEP = 16;

let grown;
let show;

const roundTo = (pixels) => Math.max(0, Math.round(pixels / STEP) * STEP);

/** Opens the edges around the first reference. The frame shrinks, so that there is space around it. */
export function start(frame, bar) {
  const { width, height, extend } = references[0];
  grown = { left: 0, top: 0, right: 0, bottom: 0, ...extend };
  const most = { left: width, right: width, top: height, bottom: height };
  frame.classList.add('extending');
  const canvas = el('div', { className: 'extended' });
  const text = el('output', { className: 'quiet' });
  const handles = SIDES.map((side) => {
    const handle = el('button', {
      type: 'button',
      role: 'slider',
      className: `edge ${side}`,
      aria: { label: t(`side_${side}`), valuemin: 0, valuemax: most[side] },
    });
    const sign = side === 'left' || side === 'top' ? -1 : 1;
    const isAcross = side === 'left' || side === 'right';
    const set = (pixels) => {
      grown[side] = Math.min(roundTo(pixels), roundTo(most[side]));
      show();
    };
    handle.onkeydown = (event) => {
      const step = {
        ArrowLeft: isAcross && -sign,
        ArrowRight: isAcross && sign,
        ArrowUp: !isAcross && -sign,
        ArrowDown: !isAcross && sign,
      }[event.key];
      if (!step) return;
      event.preventDefault();
      set(grown[side] + step * STEP);
    };
    handle.onpointerdown = (start) => {
      handle.setPointerCapture(start.pointerId);
      const [before, box] = [grown[side], frame.getBoundingClientRect()];
      const unit = width / box.width;
      handle.onpointermove = (event) =>
        set(before + sign * unit * (isAcross ? event.clientX - start.clientX : event.clientY - start.clientY));
      handle.onpointerup = handle.onpointercancel = () => (handle.onpointermove = null);
    };
    return handle;
  });
  show = () => {
    const [across, down] = [(pixels) => `${(-100 * pixels) / width}%`, (pixels) => `${(-100 * pixels) / height}%`];
    // The frame is not mirrored in languages from right to left, so physical sides are right.
    canvas.style.inset = `${down(grown.top)} ${across(grown.right)} ${down(grown.bottom)} ${across(grown.left)}`;
    for (const [at, side] of SIDES.entries()) handles[at].setAttribute('aria-valuenow', grown[side]);
    text.textContent = `${number(width + grown.left + grown.right)} × ${number(height + grown.top + grown.bottom)}`;
  };
  canvas.append(...handles);
  canvas.dir = isRtl ? 'ltr' : '';
  frame.append(canvas);
  bar.append(el('span', { textContent: t('drag_edges') }), text);
  const all = () => {
    for (const side of SIDES) grown[side] = roundTo(most[side] / 4);
    show();
  };
  const none = () => {
    for (const side of SIDES) grown[side] = 0;
    show();
  };
  bar.append(button('extend', t('all_sides'), all), button('close', t('clear'), none, { className: 'icon' }));
  show();
  handles[2].focus();
}

export function stop(frame) {
  frame.classList.remove('extending');
  changeFirst({ extend: Object.values(grown).some((pixels) => pixels > 0) ? grown : undefined });
}
