// The models of the server: which one is chosen, what it can do, and how busy the server is.

import { SERVER, json } from './api.js';
import { $, el, kept, pause } from './dom.js';
import { number, t } from './words.js';

const STATUS_MS = 4000;
/** What is assumed of a model that is not loaded. */
const UNKNOWN = {
  size: '1024x1024',
  aspect_ratio: 4,
  area_factor: 4,
  reference_pixels: [2 ** 20, 2 ** 20],
  max_references: 16,
};

/** The models, the adapters, and the features of the server. */
export const server = {
  models: [],
  loras: [],
  upscalers: [],
  queue: false,
  upsample: false,
  limits: { images: 10 },
};
const hears = [];

/** Calls a function when another model is chosen. */
export const onModel = (hear) => hears.push(hear);

export const chosen = () => server.models.find(({ id }) => id === $('model').value) ?? server.models[0];

/** Returns the details of the chosen model. */
export function details() {
  const known = chosen()?.details ?? {};
  const all = { ...UNKNOWN, ...known };
  const [width, height] = all.size.split('x').map(Number);
  return { ...all, width, height, pixels: width * height };
}

/** Returns the most pixels of an image. */
export function maxPixels() {
  const { pixels, area_factor: factor, sides } = details();
  return Math.min(server.limits.pixels ?? Infinity, sides ? sides[1] ** 2 : pixels * factor);
}

/** Loads the lists, again when the server is reachable. */
export async function loadModels() {
  const [models, loras] = await Promise.all([json('/v1/models'), json('/v1/loras')]);
  const { limits, ...features } = models.flux ?? {};
  Object.assign(server, features, { models: models.data, loras: loras.data, limits: { ...server.limits, ...limits } });
  const wanted = $('model').value || kept.get('form', {}).model;
  $('model').replaceChildren(...server.models.map(({ id }) => el('option', { value: id, textContent: id })));
  if (server.models.some(({ id }) => id === wanted)) $('model').value = wanted;
  $('model').disabled = server.models.length < 2;
  changed();
}

function changed() {
  const { licence } = details();
  $('licence').hidden = !licence;
  $('licence').textContent = licence?.name ?? '';
  $('licence').title = t('licence');
  if (licence?.link) $('licence').href = licence.link;
  else $('licence').removeAttribute('href');
  for (const hear of hears) hear();
}

$('model').onchange = changed;

/** Shows how busy the server is, as long as somebody looks. */
export async function watchStatus() {
  let wasAway = false;
  for (;;) {
    if (!document.hidden) {
      const state = await fetch(`${SERVER}/readyz`)
        .then((answer) => answer.json())
        .catch(() => ({ status: 'away' }));
      const isAway = state.status === 'away';
      if (wasAway && !isAway) await loadModels().catch(() => {});
      wasAway = isAway;
      const { status, waiting, running } = state;
      const text =
        status !== 'ready'
          ? t(`status_${status}`)
          : waiting > 0
            ? t('status_waiting', { n: waiting })
            : t(running > 0 ? 'status_busy' : 'status_ready');
      $('status').dataset.state = status === 'ready' ? (running > 0 ? 'busy' : 'ready') : status;
      $('status').textContent = text;
    }
    await pause(STATUS_MS);
  }
}

/** Returns an area in megapixels. */
export const megapixels = (pixels) => t('megapixels', { n: number(pixels / 1e6, pixels < 1e5 ? 2 : 1) });
