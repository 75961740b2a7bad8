// A canvas to paint on: brush, eraser, undo, and colours from the picture.

import { $, el, press } from './dom.js';

const MAX_UNDO = 30;
const canvas = $('sketch');
const context = canvas.getContext('2d', { willReadFrequently: true });

let onChange = () => {};
let last = null;
let erases = false;
let picks = null;
const before = [];
/** The position of the brush when painting with the keyboard. */
let spot = [0.5, 0.5];

/** Sets the callback for changes by painting. */
export function onPainted(changed) {
  onChange = changed;
}

/** Resizes the sketch, scaling its contents. */
export function resize(side) {
  if (canvas.width === side && canvas.height === side) return;
  const isNew = canvas.dataset.begun === undefined;
  const copy = el('canvas', { width: canvas.width, height: canvas.height });
  copy.getContext('2d').drawImage(canvas, 0, 0);
  canvas.width = canvas.height = side;
  canvas.dataset.begun = '';
  before.length = 0;
  if (isNew) fill();
  else context.drawImage(copy, 0, 0, side, side);
  $('sketch-undo').disabled = true;
}

function fill() {
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  onChange();
}

function begin() {
  before.push(context.getImageData(0, 0, canvas.width, canvas.height));
  if (before.length > MAX_UNDO) before.shift();
  $('sketch-undo').disabled = false;
}

function paint([x, y], from = [x, y]) {
  Object.assign(context, { strokeStyle: erases ? '#fff' : $('color').value, lineCap: 'round', lineJoin: 'round' });
  context.lineWidth = Math.max(1, (Number($('brush').value) / 100) * canvas.width);
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(x + 0.01, y); // newer browsers draw no dot for a line of zero length
  context.stroke();
  onChange();
}

function place({ clientX, clientY }, node = canvas) {
  const box = node.getBoundingClientRect();
  return [((clientX - box.x) / box.width) * node.width, ((clientY - box.y) / box.height) * node.height];
}

/** Takes the colour of a point of a canvas. */
function pick(event, node) {
  const [x, y] = place(event, node).map(Math.floor);
  const rgb = node.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3);
  $('color').value = `#${Array.from(rgb, (value) => value.toString(16).padStart(2, '0')).join('')}`;
  setPick(false);
  choose(false);
}

function setPick(isOn) {
  picks = isOn;
  press($('sketch-pick'), isOn);
  $('live').classList.toggle('picking', isOn);
}

function choose(eraser) {
  erases = eraser;
  press($('sketch-brush'), !eraser);
  press($('sketch-erase'), eraser);
}

export function undo() {
  const image = before.pop();
  if (!image) return;
  context.putImageData(image, 0, 0);
  $('sketch-undo').disabled = before.length === 0;
  onChange();
}

canvas.onpointerdown = (event) => {
  if (event.button !== 0) return;
  if (picks) return pick(event, canvas);
  canvas.setPointerCapture(event.pointerId);
  begin();
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
  else if (event.key === ' ') (begin(), paint(spot.map((at) => at * canvas.width)));
  else if (event.key === 'z' && (event.ctrlKey || event.metaKey)) undo();
  else return;
  event.preventDefault();
};
$('out').addEventListener('pointerdown', (event) => picks && pick(event, $('out')));
$('sketch-brush').onclick = () => choose(false);
$('sketch-erase').onclick = () => choose(true);
$('sketch-undo').onclick = undo;
$('sketch-pick').onclick = () => setPick(!picks);
$('sketch-clear').onclick = () => (begin(), fill());
