// Jobs of this browser: submitted, followed, and resumed after a reload.

import { ApiError, call, events, json, submit } from './api.js';
import { kept, pause, randomName } from './dom.js';
import { lasts, t } from './words.js';

/** Max jobs followed by events. Each takes one of the browser's six connections. */
const MAX_FOLLOWED = 3;
const POLL_MS = 2000;

/** Unfinished jobs, oldest first. */
export const jobs = [];

const hears = [];

/** Adds callbacks for changes of a job, for finished images, and for ends: change(job), image(job, index, blob), end(job, error). */
export const onJobs = (given) => hears.push(given);

async function tell(kind, ...values) {
  for (const hear of hears) await hear[kind]?.(...values);
}

/** Stores a job under its own name, so that tabs of this browser do not overwrite each other's jobs. */
function remember({ id, created, asked, inputs, mask, count, saved, more }) {
  kept.set(`job.${id}`, { id, created, asked, inputs, mask, count, more, saved: [...saved], isResumed: true });
}

const newJob = (job) => ({
  status: 'queued',
  position: null,
  eta: null,
  notes: [],
  isLost: false,
  ...job,
  images: Array.from({ length: job.count }, () => ({ step: 0, steps: 0, preview: null })),
  saved: new Set(job.saved),
  abort: new AbortController(),
});

/** Copies the state of a job from a response. */
function take(job, { status, position, eta_s: eta, size, notes }) {
  Object.assign(job, { status, position, eta, size, notes });
}

/** Submits a job. `inputs` are its references, as stored in the browser; `more` goes into the records of its images. */
export async function draw(asked, inputs = [], mask, { more = {}, onSent = () => {} } = {}) {
  const body = new FormData();
  for (const [name, value] of Object.entries(asked))
    body.append(name, typeof value === 'string' ? value : JSON.stringify(value));
  for (const { blob, name } of inputs) body.append('image[]', blob, name);
  if (mask) body.append('mask', mask.blob, 'mask.png');
  const answer = await submit(body, randomName(), onSent);
  const ids = inputs.map(({ id }) => id);
  const job = newJob({ id: answer.id, created: Date.now(), asked, inputs: ids, mask: mask?.id, count: answer.n, more });
  take(job, answer);
  jobs.push(job);
  remember(job);
  followNext();
  return job;
}

/** Resumes the jobs of the last visit. */
export function resume() {
  const all = kept.all('job.').map(newJob);
  jobs.push(...all.sort((a, b) => a.created - b.created));
  followNext();
  poll();
}

/** Cancels a job. */
export async function cancel(job) {
  try {
    await call(`/v1/jobs/${job.id}`, { method: 'DELETE' });
    end(job, null, true);
  } catch (error) {
    tell('end', job, error);
  }
}

function followNext() {
  for (const job of jobs.slice(0, MAX_FOLLOWED)) {
    if (job.isFollowed) continue;
    job.isFollowed = true;
    follow(job).catch((error) => end(job, job.abort.signal.aborted ? null : error));
  }
}

/** Polls the positions of the jobs that are not followed yet. */
async function poll() {
  for (;;) {
    await pause(POLL_MS);
    if (jobs.length <= MAX_FOLLOWED) continue;
    const { data } = await json('/v1/jobs?limit=300').catch(() => ({ data: [] }));
    for (const job of jobs.filter(({ isFollowed }) => !isFollowed)) {
      const said = data.find(({ id }) => id === job.id);
      if (said) take(job, said);
      tell('change', job);
    }
  }
}

async function follow(job) {
  const lost = () => {
    job.isLost = true;
    tell('change', job);
  };
  for await (const { type, data } of events(job.id, job.abort.signal, lost)) {
    job.isLost = false;
    await heard[type]?.(job, data);
    tell('change', job);
  }
}

const heard = {
  queued: (job, { position, eta_s: eta }) => Object.assign(job, { position, eta }),
  started(job) {
    job.status = 'running';
    job.since ??= performance.now();
  },
  step: (job, { image, step, steps }) => Object.assign(job.images[image], { step, steps }),
  preview(job, { image, output_format: format, b64_json: data }) {
    job.images[image].preview = `data:image/${format};base64,${data}`;
  },
  image: (job, { image }) => fetchImage(job, image),
  async done(job, { job: said }) {
    take(job, said);
    // The page may have been reloaded between an event and its image.
    for (let image = 0; image < job.count; image++) await fetchImage(job, image);
    end(job, null);
  },
  failed: (job, { error }) => end(job, new ApiError(0, error)),
  cancelled: (job) => end(job, null, true),
};

async function fetchImage(job, image) {
  if (job.saved.has(image)) return;
  const answer = await call(`/v1/jobs/${job.id}/images/${image}`, { signal: job.abort.signal });
  await tell('image', job, image, await answer.blob());
  job.saved.add(image);
  remember(job);
}

function end(job, error, isCancelled = false) {
  const place = jobs.indexOf(job);
  if (place < 0) return;
  jobs.splice(place, 1);
  job.abort.abort();
  kept.set(`job.${job.id}`);
  tell('end', job, error, isCancelled);
  followNext();
}

/** Returns the prompt of a job; an image that is enlarged has one of its own. */
export const promptOf = ({ asked, more }) => (more?.enlarged?.recipe ?? asked).prompt;

/** Returns the progress of an image, from 0 to 1. */
export const partOf = (job, image) => {
  const { step, steps } = job.images[image];
  return job.saved.has(image) ? 1 : steps && step / (steps + 1);
};

/** Returns the progress of a job, from 0 to 1. */
export const part = (job) => job.images.reduce((sum, _, image) => sum + partOf(job, image), 0) / job.count;

/** Returns the progress of a job as text: that of its image `image`, or of its first unfinished one. */
export function progressText(job, image = job.images.findIndex((_, at) => !job.saved.has(at))) {
  if (job.isLost) return t('lost');
  if (job.status === 'queued') {
    const place = job.position > 0 ? t('ahead', { n: job.position }) : t('next');
    return job.eta ? `${place} · ${t('done_in', { time: lasts(job.eta) })}` : place;
  }
  const { step, steps } = job.images[image] ?? {};
  const [done, elapsed] = [part(job), (performance.now() - job.since) / 1000];
  const isKnown = done > 0.1 && elapsed > 2 && !job.isResumed;
  const texts = [
    job.count > 1 && t('image_of', { i: image + 1, n: job.count }),
    !steps ? t('starting') : step < steps ? t('step_of', { i: Math.min(step + 1, steps), n: steps }) : t('finishing'),
    isKnown && t('left', { time: lasts((elapsed * (1 - done)) / done) }),
  ];
  return texts.filter(Boolean).join(' · ');
}
