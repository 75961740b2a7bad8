// The mask brush on the stage. The alpha channel of its canvas is the mask: opaque in the area to regenerate.

import { $, button, drawn, el, fileOfCanvas, press } from './dom.js';
import { changeFirst, keepInput, references } from './references.js';
import { t } from './words.js';

const PAINT = [255, 45, 120];
const COLOR = `rgb(${PAINT})`;

let canvas;
let context;
let cursor;
/** The changes since the tool was opened, and the initial mask. */
let done = [];
let base = null;
let stroke = null;
let erases = false;
let size = 12;
/** The position of the brush when painting with the keyboard. */
let spot = null;
const controls = {};

/** Returns a canvas that is opaque where the file of a mask is white. */
async function alphaOf(blob) {
  const copy = el('canvas', { width: canvas.width, height: canvas.height });
  const its = copy.getContext('2d');
  its.drawImage((await drawn(blob)).canvas, 0, 0, copy.width, copy.height);
  const pixels = its.getImageData(0, 0, copy.width, copy.height);
  for (let at = 0; at < pixels.data.length; at += 4) pixels.data.set([...PAINT, pixels.data[at]], at);
  its.putImageData(pixels, 0, 0);
  return copy;
}

/** Returns the mask as a file, white on black, or null if nothing is painted. */
async function file() {
  const { width, height } = canvas;
  const white = el('canvas', { width, height });
  const its = white.getContext('2d');
  its.drawImage(canvas, 0, 0);
  const { data } = its.getImageData(0, 0, width, height);
  let isEmpty = true;
  for (let at = 3; at < data.length && isEmpty; at += 4) isEmpty = data[at] === 0;
  if (isEmpty) return null;
  for (const [operation, color] of [
    ['source-in', '#fff'],
    ['destination-over', '#000'],
  ]) {
    Object.assign(its, { globalCompositeOperation: operation, fillStyle: color });
    its.fillRect(0, 0, width, height);
  }
  return fileOfCanvas(white);
}

/** Functions that replay one change each. */
const draw = {
  clear: () => context.clearRect(0, 0, canvas.width, canvas.height),
  invert() {
    Object.assign(context, { globalCompositeOperation: 'xor', fillStyle: COLOR });
    context.fillRect(0, 0, canvas.width, canvas.height);
  },
  stroke({ points, width, isErased }) {
    context.globalCompositeOperation = isErased ? 'destination-out' : 'source-over';
    Object.assign(context, { strokeStyle: COLOR, lineWidth: width, lineCap: 'round', lineJoin: 'round' });
    context.beginPath();
    const [x, y] = points[0];
    context.moveTo(x, y);
    context.lineTo(x + 0.01, y); // newer browsers draw no dot for a line of zero length
    for (const point of points) context.lineTo(...point);
    context.stroke();
  },
};

function redraw() {
  context.globalCompositeOperation = 'source-over';
  draw.clear();
  if (base) context.drawImage(base, 0, 0);
  for (const step of done) draw[step.kind](step);
  controls.undo.disabled = done.length === 0;
}

function add(step) {
  done.push(step);
  redraw();
}

const scale = () => canvas.width / canvas.getBoundingClientRect().width;
/** Returns the width of the brush in pixels of the image. */
const brush = () => Math.max(1, (size / 100) ** 1.6 * Math.min(canvas.width, canvas.height));

function place({ clientX, clientY }) {
  const box = canvas.getBoundingClientRect();
  return [(clientX - box.x) * scale(), (clientY - box.y) * scale()];
}

/** Shows the size of the brush around a point of the image. */
function showCursor([x, y] = spot) {
  const width = brush() / scale();
  cursor.hidden = false;
  cursor.style.width = cursor.style.height = `${width}px`;
  cursor.style.transform = `translate(${x / scale() - width / 2}px, ${y / scale() - width / 2}px)`;
}

function resize(by) {
  size = Math.min(100, Math.max(2, size + by));
  controls.size.value = size;
  showCursor();
}

const newStroke = (point) => ({ kind: 'stroke', points: [point], width: brush(), isErased: erases });

function choose(eraser) {
  erases = eraser;
  press(controls.brush, !eraser);
  press(controls.erase, eraser);
}

function undo() {
  done.pop();
  redraw();
}

function listen() {
  canvas.onpointerdown = (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    stroke = newStroke(place(event));
    add(stroke);
  };
  canvas.onpointermove = (event) => {
    spot = place(event);
    showCursor();
    if (!stroke) return;
    stroke.points.push(...(event.getCoalescedEvents?.() ?? []).map(place), place(event));
    draw.stroke({ ...stroke, points: stroke.points.slice(-16) });
  };
  canvas.onpointerup = canvas.onpointercancel = () => {
    if (stroke) redraw();
    stroke = null;
  };
  canvas.onpointerleave = canvas.onblur = () => (cursor.hidden = true);
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    resize(event.deltaY > 0 ? -2 : 2);
  });
  canvas.onkeydown = (event) => {
    const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    const step = Math.max(canvas.width, canvas.height) / 40;
    if (x || y)
      spot = [
        Math.min(Math.max(spot[0] + x * step, 0), canvas.width),
        Math.min(Math.max(spot[1] + y * step, 0), canvas.height),
      ];
    else if (event.key === ' ') add(newStroke(spot));
    else return;
    event.preventDefault();
    showCursor();
  };
}

/** Opens the brush on the first reference, in a frame and with a bar of controls. */
export async function start(frame, bar) {
  const { blob, mask, feather = 0 } = references[0];
  const {
    size: [width, height],
  } = await drawn(blob, 1);
  canvas = el('canvas', {
    id: 'mask-canvas',
    width,
    height,
    tabIndex: 0,
    role: 'img',
    aria: { label: t('mask_canvas') },
  });
  context = canvas.getContext('2d', { willReadFrequently: true });
  cursor = el('span', { className: 'cursor', hidden: true });
  controls.brush = button('brush', t('brush'), () => choose(false));
  controls.erase = button('erase', t('eraser'), () => choose(true));
  controls.undo = button('undo', t('undo'), undo, { className: 'icon' });
  controls.size = el('input', {
    id: 'mask-size',
    type: 'range',
    min: 2,
    max: 100,
    value: size,
    oninput: () => (size = Number(controls.size.value)),
  });
  controls.feather = el('input', { id: 'mask-feather', type: 'range', min: 0, max: 64, value: feather });
  const slider = (label, input) => el('label', { className: 'slider' }, label, input);
  bar.append(
    controls.brush,
    controls.erase,
    slider(t('brush_size'), controls.size),
    slider(t('feather'), controls.feather),
    controls.undo,
    button('invert', t('invert'), () => add({ kind: 'invert' }), { className: 'icon' }),
    button('close', t('clear'), () => add({ kind: 'clear' }), { className: 'icon' }),
  );
  choose(false);
  listen();
  [done, stroke, spot] = [[], null, [width / 2, height / 2]];
  base = mask ? await alphaOf(mask.blob) : null;
  frame.append(canvas, cursor);
  redraw();
  canvas.focus();
}

/** Keeps the mask. */
export async function stop() {
  const mask = await file();
  changeFirst({ mask: mask ? await keepInput(mask, 'mask.png') : undefined, feather: Number(controls.feather.value) });
}

export function key({ key, ctrlKey, metaKey }) {
  if (key === '[' || key === ']') resize(key === '[' ? -3 : 3);
  else if (key === 'z' && (ctrlKey || metaKey) && done.length > 0) undo();
  else if (key === 'e') choose(!erases);
  else return false;
  return true;
}
