// The mask editor. The alpha channel of its canvas is the mask: opaque in the area to regenerate.

import { $, el, open, release } from './dom.js';

const PAINT = '#ff3d6e';

const canvas = $('mask-canvas');
const context = canvas.getContext('2d');
const cursor = $('mask-cursor');

/** The changes since the editor was opened, and the initial mask. */
let done = [];
let base = null;
let stroke = null;
let erases = false;
/** The position of the brush when painting with the keyboard. */
let spot = null;

/** Opens the editor. Returns the mask as a file, null if nothing is painted, undefined if nothing changed. */
export async function editMask(image, before) {
  const picture = $('mask-image');
  picture.src = URL.createObjectURL(image);
  await picture.decode();
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  $('mask-stage').style.setProperty('--ratio', canvas.width / canvas.height);
  base = before && (await alphaOf(before));
  [done, stroke] = [[], null];
  spot = [canvas.width / 2, canvas.height / 2];
  redraw();
  let result;
  $('mask-done').onclick = async () => {
    result = await file();
    $('mask').close();
  };
  const closed = open($('mask'));
  canvas.focus();
  await closed;
  release(picture.src);
  base = null;
  return result;
}

/** Returns a canvas that is opaque where the file of a mask is white. */
async function alphaOf(blob) {
  const bitmap = await createImageBitmap(blob);
  const copy = el('canvas', { width: canvas.width, height: canvas.height });
  const its = copy.getContext('2d');
  its.drawImage(bitmap, 0, 0, copy.width, copy.height);
  const pixels = its.getImageData(0, 0, copy.width, copy.height);
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(PAINT.slice(at, at + 2), 16));
  for (let at = 0; at < pixels.data.length; at += 4) pixels.data.set([red, green, blue, pixels.data[at]], at);
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
  its.globalCompositeOperation = 'source-in';
  its.fillStyle = '#fff';
  its.fillRect(0, 0, width, height);
  its.globalCompositeOperation = 'destination-over';
  its.fillStyle = '#000';
  its.fillRect(0, 0, width, height);
  return new Promise((resolve) => white.toBlob(resolve));
}

/** Functions that replay one change each. */
const draw = {
  clear: () => context.clearRect(0, 0, canvas.width, canvas.height),
  invert() {
    context.globalCompositeOperation = 'xor';
    context.fillStyle = PAINT;
    context.fillRect(0, 0, canvas.width, canvas.height);
  },
  stroke({ points, size, isErased }) {
    context.globalCompositeOperation = isErased ? 'destination-out' : 'source-over';
    Object.assign(context, { strokeStyle: PAINT, lineWidth: size, lineCap: 'round', lineJoin: 'round' });
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
  $('mask-undo').disabled = done.length === 0;
}

function add(step) {
  done.push(step);
  redraw();
}

/** Returns the width of the brush in pixels, up to half of the shorter side. */
const brushSize = () =>
  Math.max(1, ((Number($('mask-size').value) / 100) ** 1.6 * Math.min(canvas.width, canvas.height)) / 2);

const scale = () => canvas.width / canvas.getBoundingClientRect().width;

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.x) * scale(), (event.clientY - box.y) * scale()];
}

/** Shows the size of the brush around a point of the image. */
function showCursor([x, y]) {
  const [box, frame] = [canvas.getBoundingClientRect(), $('mask-stage').getBoundingClientRect()];
  const size = brushSize() / scale();
  cursor.hidden = false;
  cursor.style.width = cursor.style.height = `${size}px`;
  cursor.style.transform = `translate(${box.x - frame.x + x / scale() - size / 2}px, ${box.y - frame.y + y / scale() - size / 2}px)`;
}

const newStroke = (point) => ({ kind: 'stroke', points: [point], size: brushSize(), isErased: erases });

canvas.onpointerdown = (event) => {
  if (event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  stroke = newStroke(place(event));
  add(stroke);
};
canvas.onpointermove = (event) => {
  showCursor(place(event));
  if (!stroke) return;
  stroke.points.push(...(event.getCoalescedEvents?.() ?? []).map(place), place(event));
  draw.stroke({ ...stroke, points: stroke.points.slice(-16) });
};
canvas.onpointerup = canvas.onpointercancel = () => {
  if (stroke) redraw();
  stroke = null;
};
canvas.onpointerleave = canvas.onblur = () => (cursor.hidden = true);
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
  showCursor(spot);
};

function choose(eraser) {
  erases = eraser;
  $('mask-brush').setAttribute('aria-pressed', !eraser);
  $('mask-erase').setAttribute('aria-pressed', eraser);
}

function undo() {
  done.pop();
  redraw();
}

$('mask-brush').onclick = () => choose(false);
$('mask-erase').onclick = () => choose(true);
$('mask-undo').onclick = undo;
$('mask-invert').onclick = () => add({ kind: 'invert' });
$('mask-clear').onclick = () => add({ kind: 'clear' });
$('mask').addEventListener('keydown', (event) => {
  if (event.key === 'z' && (event.ctrlKey || event.metaKey) && done.length > 0) undo();
});
