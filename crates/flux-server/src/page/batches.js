// The page of batches: progress of the batches in the store.

import { json } from './page/api.js';
import { $, el, pause, prepareDialogs } from './page/dom.js';

const EVERY_MS = 4000;
const UNKNOWN = '–';

/** The card of each batch, by ID. */
const cards = new Map();

const whole = (number) => (number === null ? UNKNOWN : number.toLocaleString('en'));

/** Formats seconds in their two largest units. */
function lasts(seconds) {
  if (seconds === null) return UNKNOWN;
  const all = Math.ceil(seconds);
  const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${all % 60} s` : `${all} s`;
}

const FACTS = {
  Done: ({ done, jobs }) => `${whole(done)} of ${whole(jobs)}`,
  Waiting: ({ waiting }) => whole(waiting),
  Failed: ({ failed }) => whole(failed),
  Dead: ({ dead }) => whole(dead),
  'Images per second': ({ images_per_second: rate }) => (rate === null ? UNKNOWN : rate.toFixed(rate < 10 ? 2 : 0)),
  'Time left': ({ eta_s: seconds }) => lasts(seconds),
};

function state({ cancelled, waiting, submitted, jobs }) {
  if (cancelled) return 'cancelled';
  if (waiting === 0) return 'finished';
  return submitted < jobs ? `${whole(submitted)} submitted` : 'in progress';
}

function card(batch) {
  const title = el('h2', { textContent: batch.id, id: batch.id });
  const about = el('p', { className: 'quiet' });
  const progress = el('progress', { aria: { labelledby: batch.id } });
  const values = Object.fromEntries(Object.keys(FACTS).map((name) => [name, el('dd')]));
  const facts = el('dl');
  for (const [name, value] of Object.entries(values)) facts.append(el('div', {}, el('dt', { textContent: name }), value));
  return { item: el('li', {}, title, about, progress, facts), about, progress, values };
}

/** Updates the card of a batch. Unchanged texts are not touched, which would disturb readers. */
function show(batch) {
  const { about, progress, values } = cards.get(batch.id) ?? cards.set(batch.id, card(batch)).get(batch.id);
  const set = (element, text) => element.textContent === text || (element.textContent = text);
  const since = new Date(1000 * batch.created).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short' });
  set(about, `${batch.model} · ${since} · ${state(batch)}`);
  [progress.max, progress.value] = [Math.max(batch.jobs, 1), batch.done];
  for (const [name, value] of Object.entries(values)) set(value, FACTS[name](batch));
  values.Failed.className = batch.failed > 0 ? 'wrong' : '';
  values.Dead.className = batch.dead > 0 ? 'wrong' : '';
}

async function refresh() {
  const { data, others } = await json('/v1/batches');
  data.forEach(show);
  const names = data.map(({ id }) => id);
  for (const name of cards.keys()) if (!names.includes(name)) cards.delete(name);
  const items = names.map((name) => cards.get(name).item);
  if (items.some((item, place) => $('all').children[place] !== item) || $('all').children.length !== items.length)
    $('all').replaceChildren(...items);
  $('told').textContent =
    data.length === 0
      ? 'There are no batches: create one with `flux submit`.'
      : others > 0
        ? `The newest ${data.length} batches; ${whole(others)} are older.`
        : '';
  $('told').hidden = $('told').textContent === '';
  $('wrong').textContent = '';
}

async function start() {
  prepareDialogs();
  for (;;) {
    if (!document.hidden) {
      await refresh().catch((error) => {
        $('told').hidden = true;
        $('wrong').textContent = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
      });
    }
    await pause(EVERY_MS);
  }
}

start();
