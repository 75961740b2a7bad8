// The tab of batches: a pasted list or CSV is drawn row by row, and batches of the server's queue are shown.

import { json } from './api.js';
import { $, el, kept, pause, toast } from './dom.js';
import { downloadAll } from './gallery.js';
import { fields, sentence } from './form.js';
import { cancel, draw, jobs, onJobs, part, progressText } from './jobs.js';
import { images } from './library.js';
import { server } from './models.js';
import { lasts, moment, number, t } from './words.js';

/** Max jobs of a list that the server has at the same time. */
const MAX_SENT = 4;
const EVERY_MS = 4000;
const UNKNOWN = '–';
/** The columns that a list may have: fields of the HTTP API. */
const COLUMNS = [
  'prompt',
  'seed',
  'steps',
  'n',
  'size',
  'guidance',
  'negative_prompt',
  'model',
  'output_format',
  'expand',
];

/** The rows: {fields, state, job, error}. */
let rows = kept.get('batch', []);
let isRunning = false;

/** Returns the cells of a CSV with this separator. */
function cells(text, separator) {
  const [lines, line] = [[], [[]]];
  let [cell, isQuoted] = ['', false];
  for (let at = 0; at <= text.length; at++) {
    const char = text[at] ?? '\n';
    if (isQuoted && char === '"' && text[at + 1] === '"') cell += text[++at];
    else if (char === '"' && (isQuoted || cell === '')) isQuoted = !isQuoted;
    else if (!isQuoted && (char === separator || char === '\n')) {
      line[0].push(cell.trim());
      cell = '';
      if (char === '\n') (lines.push(line.pop()), line.push([]));
    } else if (char !== '\r' || isQuoted) cell += char;
  }
  return lines.filter((one) => one.some(Boolean));
}

/** Returns the rows of a text: a prompt for each line, or a CSV whose first line names `prompt`. Throws its first error. */
export function parse(text) {
  const head = text.trimStart().split('\n')[0].toLowerCase();
  const separator = ['\t', ';', ','].find((one) =>
    head.split(one).some((name) => name.trim().replaceAll('"', '') === 'prompt'),
  );
  if (!separator || !/[\t;,]/.test(head))
    return text
      .split('\n')
      .map((line) => line.trim())
      .filter((line) => line && line !== 'prompt')
      .map((prompt) => ({ prompt }));
  const [names, ...lines] = cells(text.trim(), separator);
  const keys = names.map((name) => name.toLowerCase());
  const unknown = keys.find((name) => !COLUMNS.includes(name));
  if (unknown !== undefined) throw new Error(t('unknown_column', { name: unknown, names: COLUMNS.join(', ') }));
  return lines.map((line, at) => {
    if (line.length > keys.length) throw new Error(t('too_many_cells', { n: at + 2 }));
    return Object.fromEntries(keys.map((key, at) => [key, line[at] ?? '']).filter(([, value]) => value !== ''));
  });
}

const jobOf = (row) => jobs.find(({ id }) => id === row.job);
const isOver = ({ state }) => state === 'done' || state === 'failed';

function stateText(row) {
  const job = jobOf(row);
  if (row.state === 'failed') return row.error;
  return job ? progressText(job) : t(`row_${row.state}`);
}

function remember() {
  kept.set('batch', rows.length > 0 ? rows : undefined);
  show();
}

function show() {
  if ($('batches').hidden) return;
  const made = rows.filter(isOver).length;
  $('rows').hidden = rows.length === 0;
  for (const [at, row] of rows.entries()) {
    const line = $('rows-body').children[at] ?? $('rows-body').appendChild(el('tr', {}, el('td'), el('td'), el('td')));
    const texts = [number(at + 1), row.fields.prompt ?? '', stateText(row)];
    for (const [place, text] of texts.entries())
      if (line.children[place].textContent !== text) line.children[place].textContent = text;
    line.dataset.state = row.state;
    line.style.setProperty('--part', row.state === 'done' ? 1 : jobOf(row) ? part(jobOf(row)) : 0);
  }
  while ($('rows-body').childElementCount > rows.length) $('rows-body').lastChild.remove();
  const failed = rows.filter(({ state }) => state === 'failed').length;
  $('batch-text').textContent =
    rows.length > 0
      ? t('batch_done', { i: made, n: rows.length }) + (failed > 0 ? ` · ${t('batch_failed', { n: failed })}` : '')
      : '';
  $('batch-stop').hidden = !isRunning;
  $('batch-start').hidden = isRunning;
  $('batch-start-text').textContent = t(rows.some((row) => !isOver(row)) ? 'batch_go_on' : 'batch_start');
  $('batch-save').hidden = !rows.some(({ state }) => state === 'done');
  $('batch-clear').hidden = rows.length === 0 || isRunning;
}

/** Submits the rows, a few at a time. */
async function run() {
  isRunning = true;
  remember();
  while (isRunning) {
    const sent = rows.filter(({ state }) => state === 'sent').length;
    const row = rows.find(({ state }) => state === 'waiting');
    if (!row && sent === 0) break;
    if (!row || sent >= MAX_SENT) {
      await pause(200);
      continue;
    }
    row.state = 'sent';
    try {
      const {
        size: _size,
        boxes: _boxes,
        regions: _regions,
        strength: _strength,
        extend: _extend,
        ...common
      } = fields();
      const size = row.fields.size ?? (_strength ? undefined : _size);
      const job = await draw({ ...common, ...(size ? { size } : {}), n: '1', ...row.fields }, [], undefined, {
        more: { isHidden: true },
      });
      row.job = job.id;
    } catch (error) {
      // The server has enough to do, or is away.
      if (!error.status || error.status === 429 || error.status === 503) {
        row.state = 'waiting';
        await pause(1000 * (error.retryAfter ?? 2));
      } else Object.assign(row, { state: 'failed', error: sentence(error.message) });
    }
    remember();
  }
  isRunning = false;
  show();
}

function start() {
  const text = $('batch-list').value;
  $('batch-error').textContent = '';
  if (!rows.some((row) => !isOver(row))) {
    try {
      rows = parse(text).map((fields) => ({ fields, state: 'waiting' }));
      if (rows.length === 0) throw new Error(t('batch_empty'));
    } catch (error) {
      $('batch-error').textContent = error.message;
      $('batch-list').focus();
      return;
    }
  }
  run();
}

async function stop() {
  isRunning = false;
  for (const row of rows.filter(({ state }) => state === 'sent')) {
    const job = jobOf(row);
    Object.assign(row, { state: 'waiting', job: undefined });
    if (job) await cancel(job);
  }
  remember();
}

const madeBy = () => images.filter(({ group }) => rows.some(({ job }) => job === group)).reverse();

onJobs({
  change: show,
  end(job, error, isCancelled) {
    const row = rows.find((one) => one.job === job.id);
    if (!row) return;
    if (error) Object.assign(row, { state: 'failed', error: sentence(error.message) });
    else if (!isCancelled) row.state = 'done';
    else if (row.state === 'sent') Object.assign(row, { state: 'waiting', job: undefined });
    remember();
  },
});

/** The card of each batch of the queue, by ID. */
const cards = new Map();
const whole = (value) => (value === null ? UNKNOWN : number(value));
const FACTS = {
  queue_done: ({ done, jobs }) => t('of', { i: done, n: jobs }),
  queue_waiting: ({ waiting }) => whole(waiting),
  queue_failed: ({ failed }) => whole(failed),
  queue_dead: ({ dead }) => whole(dead),
  queue_rate: ({ images_per_second: rate }) => (rate === null ? UNKNOWN : number(rate, rate < 10 ? 2 : 0)),
  queue_left: ({ eta_s: seconds }) => (seconds === null ? UNKNOWN : lasts(seconds)),
};

function card(batch) {
  const title = el('h2', { textContent: batch.id, id: batch.id });
  const about = el('p', { className: 'quiet' });
  const progress = el('progress', { aria: { labelledby: batch.id } });
  const values = Object.fromEntries(Object.keys(FACTS).map((name) => [name, el('dd')]));
  const facts = el('dl');
  for (const [name, value] of Object.entries(values))
    facts.append(el('div', {}, el('dt', { textContent: t(name) }), value));
  return { item: el('li', {}, title, about, progress, facts), about, progress, values };
}

/** Updates the card of a batch. Unchanged texts are not touched, which would disturb readers. */
function showBatch(batch) {
  const { about, progress, values } = cards.get(batch.id) ?? cards.set(batch.id, card(batch)).get(batch.id);
  const set = (element, text) => element.textContent === text || (element.textContent = text);
  const { cancelled, waiting, submitted, jobs } = batch;
  const state = cancelled
    ? t('queue_cancelled')
    : waiting === 0
      ? t('queue_over')
      : submitted < jobs
        ? t('queue_submitted', { n: submitted })
        : t('queue_runs');
  set(about, `${batch.model} · ${moment(1000 * batch.created)} · ${state}`);
  [progress.max, progress.value] = [Math.max(batch.jobs, 1), batch.done];
  for (const [name, value] of Object.entries(values)) set(value, FACTS[name](batch));
  values.queue_failed.className = batch.failed > 0 ? 'wrong' : '';
  values.queue_dead.className = batch.dead > 0 ? 'wrong' : '';
}

async function refreshQueue() {
  const { data, others } = await json('/v1/batches');
  data.forEach(showBatch);
  const items = data.map(({ id }) => cards.get(id).item);
  if (items.some((item, at) => $('all').children[at] !== item) || $('all').childElementCount !== items.length)
    $('all').replaceChildren(...items);
  $('queue-text').textContent = data.length === 0 ? t('queue_none') : others > 0 ? t('queue_older', { n: others }) : '';
}

async function watchQueue() {
  for (;;) {
    const isShown = server.queue && !$('batches').hidden;
    $('queue').hidden = !server.queue;
    if (isShown && !document.hidden)
      await refreshQueue().catch(({ message }) => ($('queue-text').textContent = sentence(message)));
    await pause(isShown ? EVERY_MS : 500);
  }
}

$('batch-start').onclick = start;
$('batch-stop').onclick = stop;
$('batch-save').onclick = () => downloadAll(madeBy(), 'flux-batch.zip');
$('batch-clear').onclick = () => {
  const before = rows;
  rows = [];
  remember();
  toast(t('batch_cleared'), { action: t('undo'), run: () => ((rows = before), remember()) });
};
$('batch-file').onclick = () => $('batch-files').click();
$('batch-files').onchange = async () => ($('batch-list').value = await $('batch-files').files[0].text());
if (rows.some(({ state }) => state === 'sent')) run();
watchQueue();

export { show as showBatches };
