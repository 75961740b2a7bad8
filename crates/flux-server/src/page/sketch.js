// A canvas to paint on.

import { $ } from './dom.js';

const canvas = $('sketch');
const context = canvas.getContext('2d');

let onChange = () => {};
let last = null;
/** The position of the brush when painting with the keyboard. */
let spot = [0.5, 0.5];

/** Sets the callback for changes by painting. */
export function onPainted(changed) {
  onChange = changed;
}

/** Resizes the sketch, scaling its contents. */
export function resize(side) {
  if (canvas.width === side && canvas.height === side) return;
  const before = canvas.width > 0 && context.getImageData(0, 0, canvas.width, canvas.height);
  const copy = document.createElement('canvas');
  if (before) {
    [copy.width, copy.height] = [before.width, before.height];
    copy.getContext('2d').putImageData(before, 0, 0);
  }
  const isNew = canvas.dataset.begun === undefined;
  canvas.width = canvas.height = side;
  canvas.dataset.begun = '';
  if (isNew) clear();
  else context.drawImage(copy, 0, 0, side, side);
}

function clear() {
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  onChange();
}

function paint([x, y], from = [x, y]) {
  Object.assign(context, { strokeStyle: $('color').value, lineCap: 'round', lineJoin: 'round' });
  context.lineWidth = Math.max(1, (Number($('brush').value) / 100) * canvas.width);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(x + 0.01, y); // newer browsers draw no dot for a line of zero length
  context.stroke();
  onChange();
}

function place({ clientX, clientY }) {
  const box = canvas.getBoundingClientRect();
  return [((clientX - box.x) / box.width) * canvas.width, ((clientY - box.y) / box.height) * canvas.height];
}

canvas.onpointerdown = (event) => {
  if (event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  last = place(event);
  paint(last);
};
canvas.onpointermove = (event) => {
  if (!last) return;
  const now = place(event);
  paint(now, last);
  last = now;
};
canvas.onpointerup = canvas.onpointercancel = () => (last = null);
canvas.onkeydown = (event) => {
  const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
  if (x || y) spot = [spot[0] + x / 40, spot[1] + y / 40].map((at) => Math.min(Math.max(at, 0), 1));
  else if (event.key === ' ') paint(spot.map((at) => at * canvas.width));
  else return;
  event.preventDefault();
};
$('clear').onclick = clear;
