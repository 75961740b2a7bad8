// The tab of live generation: generates while the user types, paints or moves.

import { $, button, copyText, el, kept, press, save, toast } from './dom.js';
import { commands } from './commands.js';
import { SERVER, hasKey, json } from './api.js';
import { Frames } from './frames.js';
import { keep } from './library.js';
import { chosen, details, server } from './models.js';
import { onPainted, resize } from './sketch.js';
import { number, t } from './words.js';

const KEPT = ['live-prompt', 'start', 'follow', 'calm', 'side', 'live-steps', 'live-seed'];
const SIDES = [128, 256, 384, 512, 768, 1024];
const QUALITY = 0.9;
const SOURCES = {
  camera: () => navigator.mediaDevices.getUserMedia({ video: true }),
  screen: () => navigator.mediaDevices.getDisplayMedia({ video: true }),
};

let way = 'type';
/** True if the input has changed since the last frame. */
let isChanged = true;
let isOpen = false;
let isPaused = true;
let stream = null;
/** The number of mode changes so far. */
let choices = 0;
let frames = null;
let newest = null;
let recorder = null;
let actions = {};

/** Shows an image. If images arrive faster than they are decoded, only the newest is shown. */
async function show(blob) {
  newest = { blob, asked: settings() };
  const bitmap = await createImageBitmap(blob);
  const out = $('out');
  if (out.width !== bitmap.width || out.height !== bitmap.height)
    [out.width, out.height] = [bitmap.width, bitmap.height];
  out.getContext('2d').drawImage(bitmap, 0, 0);
  bitmap.close();
  out.dataset.images = Number(out.dataset.images ?? 0) + 1;
  $('wrong').textContent = '';
  for (const node of $('live-actions').children) node.disabled = false;
}

/** Sends a frame, if there is a new one. */
async function pump() {
  if (isPaused || !frames.isFree) return;
  if (way in SOURCES ? !takePicture() : !isChanged) return;
  isChanged = false;
  if (way === 'type') {
    frames.draw();
    return;
  }
  const canvas = $(way === 'paint' ? 'sketch' : 'camera');
  await frames.send(new Promise((done) => canvas.toBlob(done, 'image/jpeg', QUALITY)));
}

/** Captures the center of the picture. Returns false if there is none yet. */
function takePicture() {
  const { videoWidth: width, videoHeight: height } = $('video');
  if (!stream || width === 0) return false;
  const [canvas, side] = [$('camera'), Number($('side').value)];
  if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;
  const least = Math.min(width, height);
  canvas
    .getContext('2d')
    .drawImage($('video'), (width - least) / 2, (height - least) / 2, least, least, 0, 0, side, side);
  return true;
}

function settings() {
  const side = $('side').value;
  const seed = Number($('live-seed').value.trim());
  const all = { prompt: $('live-prompt').value, steps: Number($('live-steps').value) };
  if (server.models.length > 1) all.model = chosen().id;
  if (Number.isSafeInteger(seed) && seed >= 0) all.seed = seed;
  if (way === 'type') all.size = `${side}x${side}`;
  else if ($('start').value === 'strength') all.strength = Number($('follow').value);
  else if (Number($('calm').value) > 0) all.feedback = Number($('calm').value);
  return all;
}

/** Handles a change of a setting. An image in progress from the prompt alone is outdated. */
function change() {
  for (const id of KEPT) kept.set(id, $(id).value);
  $('follow-row').hidden = $('start').value !== 'strength';
  $('calm-row').hidden = $('start').value === 'strength';
  resize(Number($('side').value));
  frames.set(settings());
  isChanged = true;
  if (way === 'type' && isOpen && !isPaused) {
    isChanged = false;
    frames.draw();
  } else pump();
}

async function choose(next) {
  way = next;
  choices += 1;
  const choice = choices;
  frames.forget();
  for (const node of $('ways').children) press(node, node.dataset.way === way);
  $('live').dataset.way = way;
  $('in').hidden = $('start-field').hidden = way === 'type';
  $('sketch').hidden = $('sketch-tools').hidden = way !== 'paint';
  $('camera').hidden = !(way in SOURCES);
  $('wrong').textContent = '';
  stop(stream);
  stream = null;
  if (way in SOURCES) await openSource(choice);
  if (choice === choices) change();
}

function stop(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/** Opens the camera or the screen, unless the mode changes while the browser asks for permission. */
async function openSource(choice) {
  if (!navigator.mediaDevices) {
    $('wrong').textContent = t('no_camera_here');
    return;
  }
  let opened = null;
  try {
    opened = await SOURCES[way]();
    if (choice !== choices) return stop(opened);
    stream = opened;
    $('video').srcObject = stream;
    await $('video').play();
  } catch (error) {
    stop(opened);
    if (choice !== choices) return;
    stream = null;
    $('wrong').textContent = t('no_camera', { why: error.message });
  }
}

function tell() {
  const figures = frames.figures();
  $('figures').textContent = !isOpen
    ? t('connecting')
    : figures
      ? t('figures', { rate: number(figures.rate, 1), ms: number(figures.ms, 0) })
      : '';
}

/** Keeps the newest image in the gallery. */
async function toGallery() {
  const { blob, asked } = newest;
  const { prompt, seed = 0, steps, strength } = asked;
  const recipe = { prompt, seed: String(seed), steps, strength, model: chosen()?.id };
  return keep(
    { index: 0, created: Date.now(), recipe, asked: { prompt, seed: String(seed), steps: String(steps) }, notes: [] },
    blob,
  );
}

/** Starts or ends a recording of the result. */
function record() {
  if (recorder) return recorder.stop();
  const type = ['video/mp4', 'video/webm'].find((type) => MediaRecorder.isTypeSupported(type));
  const parts = [];
  recorder = new MediaRecorder($('out').captureStream(30), { mimeType: type, videoBitsPerSecond: 8e6 });
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.onstop = () => {
    recorder = null;
    showRecording();
    save(new Blob(parts, { type }), `flux-live.${type.split('/')[1]}`);
  };
  recorder.start(1000);
  showRecording();
}

function showRecording() {
  press($('live-record'), recorder);
  $('live-record').lastChild.textContent = t(recorder ? 'record_end' : 'record');
}

async function copyRecipe() {
  const { asked } = newest;
  const recipe = { ...asked, width: Number($('side').value), height: Number($('side').value) };
  await copyText(commands({ recipe, asked: {}, inputs: way === 'type' ? [] : ['frame.jpg'] }, SERVER, hasKey()).flux);
  toast(t('copied'));
}

/** Offers the sizes and steps that suit the model. */
function offer() {
  const { sides, width, steps } = details();
  const [least, most] = sides ?? [128, 1024];
  const fill = (id, values, otherwise) => {
    const wanted = kept.get(id, String(otherwise));
    $(id).replaceChildren(...values.map((value) => el('option', { value, textContent: number(value) })));
    $(id).value = values.some((value) => String(value) === wanted) ? wanted : values.at(-1);
  };
  fill(
    'side',
    SIDES.filter((side) => side >= least && side <= most),
    Math.min(512, width),
  );
  fill(
    'live-steps',
    [1, 2, 4, 8, 16].filter((count) => count <= Math.max(4, steps ?? 4)),
    2,
  );
}

let isPrepared = false;

function prepare() {
  isPrepared = true;
  for (const id of KEPT) if ($(id).options === undefined || id === 'start') $(id).value = kept.get(id, $(id).value);
  offer();
  frames = new Frames({
    image: show,
    wrong: (message) => ($('wrong').textContent = message),
    state(open) {
      isOpen = open;
      if (open) isChanged = true;
    },
    refused: () => (isChanged = true),
    free: pump,
  });
  onPainted(() => {
    isChanged = true;
    pump();
  });
  for (const id of KEPT) $(id).addEventListener('input', change);
  for (const node of $('ways').children) node.onclick = () => choose(node.dataset.way);
  $('live-form').addEventListener('submit', (event) => event.preventDefault());
  $('video').addEventListener('loadeddata', pump);
  $('live-actions').append(
    button('down', t('download'), () => save(newest.blob, 'flux-live.jpg')),
    button('image', t('to_images'), async () => actions.send(await toGallery())),
    button('edit', t('edit'), async () => actions.edit(await toGallery())),
    button('record', t('record'), record, { id: 'live-record' }),
    button('code', t('copy_recipe'), copyRecipe),
  );
  for (const node of $('live-actions').children) node.disabled = true;
  setInterval(tell, 250);
  // Camera frames arrive without events, and a hidden tab resumes in this way.
  setInterval(pump, 500);
}

/** Shows the tab. */
export async function start(given) {
  actions = given;
  // Asks for the key if the server needs one.
  if (server.models.length === 0)
    await json('/v1/models')
      .then(({ data }) => (server.models = data))
      .catch((error) => ($('wrong').textContent = error.message));
  isPaused = false;
  if (!isPrepared) prepare();
  $('live').dataset.way = way;
  change();
}

/** Stops sending while another tab is shown. */
export function pauseLive() {
  isPaused = true;
  if (recorder) recorder.stop();
  if (way in SOURCES) choose('type');
}
