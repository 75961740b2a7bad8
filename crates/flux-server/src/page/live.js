// The page of live generation: generates while the user types, paints or moves.

import { json } from './page/api.js';
import { $, kept, prepareDialogs } from './page/dom.js';
import { Frames } from './page/frames.js';
import { onPainted, resize } from './page/sketch.js';

const KEPT = ['prompt', 'start', 'strength', 'feedback', 'side', 'steps', 'seed'];
const QUALITY = 0.9;

let way = 'type';
/** True if the input has changed since the last frame. */
let isChanged = true;
let isOpen = false;
let stream = null;
/** The number of mode changes so far. */
let choices = 0;

const frames = new Frames({
  image: show,
  wrong: (message) => ($('wrong').textContent = message),
  state(open) {
    isOpen = open;
    if (open) isChanged = true;
  },
  refused: () => (isChanged = true),
  free: pump,
});

/** Shows an image. If images arrive faster than they are decoded, only the newest is shown. */
async function show(blob) {
  const bitmap = await createImageBitmap(blob);
  const out = $('out');
  [out.width, out.height] = [bitmap.width, bitmap.height];
  out.style.aspectRatio = bitmap.width / bitmap.height;
  out.getContext('2d').drawImage(bitmap, 0, 0);
  bitmap.close();
  out.dataset.images = Number(out.dataset.images ?? 0) + 1;
  $('wrong').textContent = '';
}

/** Sends a frame, if there is a new one. */
async function pump() {
  if (!frames.isFree) return;
  if (way === 'camera' ? !takePicture() : !isChanged) return;
  isChanged = false;
  if (way === 'type') {
    frames.draw();
    return;
  }
  const canvas = $(way === 'paint' ? 'sketch' : 'camera');
  await frames.send(new Promise((done) => canvas.toBlob(done, 'image/jpeg', QUALITY)));
}

/** Captures the center of the camera's picture. Returns false if there is none yet. */
function takePicture() {
  const { videoWidth: width, videoHeight: height } = $('video');
  if (!stream || width === 0) return false;
  const [canvas, side] = [$('camera'), Number($('side').value)];
  if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;
  const least = Math.min(width, height);
  const [left, top] = [(width - least) / 2, (height - least) / 2];
  canvas.getContext('2d').drawImage($('video'), left, top, least, least, 0, 0, side, side);
  return true;
}

function settings() {
  const side = $('side').value;
  const seed = Number($('seed').value.trim());
  const all = { prompt: $('prompt').value, steps: Number($('steps').value) };
  if (Number.isSafeInteger(seed) && seed >= 0) all.seed = seed;
  if (way === 'type') all.size = `${side}x${side}`;
  else if (['strength', 'feedback'].includes($('start').value)) all[$('start').value] = Number($($('start').value).value);
  return all;
}

/** Handles a change of a setting. An image in progress from the prompt alone is outdated. */
function change() {
  for (const id of KEPT) kept.set(`live-${id}`, $(id).value);
  for (const id of ['strength', 'feedback']) {
    $(`${id}-shown`).textContent = $(id).value;
    $(`${id}-row`).hidden = $('start').value !== id;
  }
  resize(Number($('side').value));
  frames.set(settings());
  isChanged = true;
  if (way === 'type' && isOpen) {
    isChanged = false;
    frames.draw();
  } else pump();
}

async function choose(next) {
  way = next;
  choices += 1;
  const choice = choices;
  frames.forget();
  for (const button of $('ways').children) button.setAttribute('aria-pressed', button.dataset.way === way);
  $('in').hidden = $('start-field').hidden = way === 'type';
  $('sketch').hidden = $('tools').hidden = way !== 'paint';
  $('camera').hidden = way !== 'camera';
  stop(stream);
  stream = null;
  if (way === 'camera') await openCamera(choice);
  if (choice === choices) change();
}

function stop(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/** Opens the camera, unless the mode changes while the browser asks for permission. */
async function openCamera(choice) {
  if (!navigator.mediaDevices) {
    $('wrong').textContent = 'Browsers allow a camera only on pages of this machine and over HTTPS.';
    return;
  }
  let opened = null;
  try {
    opened = await navigator.mediaDevices.getUserMedia({ video: true });
    if (choice !== choices) {
      stop(opened);
      return;
    }
    stream = opened;
    $('video').srcObject = stream;
    await $('video').play();
  } catch (error) {
    stop(opened);
    if (choice !== choices) return;
    stream = null;
    $('wrong').textContent = `The camera is not available: ${error.message}.`;
  }
}

function tell() {
  const figures = frames.figures();
  $('figures').textContent = !isOpen
    ? 'Connecting …'
    : figures
      ? `${figures.rate.toFixed(1)} images per second · ${figures.ms.toFixed(0)} ms from frame to image`
      : '';
}

async function start() {
  prepareDialogs();
  for (const id of KEPT) $(id).value = kept.get(`live-${id}`, $(id).value);
  onPainted(() => {
    isChanged = true;
    pump();
  });
  for (const id of KEPT) $(id).addEventListener('input', change);
  for (const button of $('ways').children) button.onclick = () => choose(button.dataset.way);
  $('form').addEventListener('submit', (event) => event.preventDefault());
  $('video').addEventListener('loadeddata', pump);
  setInterval(tell, 250);
  // Camera frames arrive without events, and a hidden tab resumes in this way.
  setInterval(pump, 500);
  change();
  // Asks for the key if the server needs one.
  json('/v1/models').catch((error) => ($('wrong').textContent = error.message));
}

start();
