// Jobs of this browser: submitted, followed, and resumed after a reload.

import { ApiError, call, events, json, submit } from './api.js';
import { kept, pause, randomName } from './dom.js';

/** Max jobs followed by events. Each takes one of the browser's six connections. */
const MAX_FOLLOWED = 3;
const POLL_MS = 2000;

/** Unfinished jobs, oldest first. */
export const jobs = [];

const hears = { change: () => {}, image: async () => {}, end: () => {} };

/** Sets the callbacks for changes of a job, for finished images, and for ends. */
export function onJobs(given) {
  Object.assign(hears, given);
}

/** Stores a job under its own name, so that tabs of this browser do not overwrite each other's jobs. */
function remember({ id, created, asked, inputs, mask, count, saved }) {
  kept.set(`job.${id}`, { id, created, asked, inputs, mask, count, saved: [...saved], isResumed: true });
}

function newJob(job) {
  const images = Array.from({ length: job.count }, () => ({ step: 0, steps: 0, preview: null }));
  return {
    status: 'queued',
    position: null,
    eta: null,
    notes: [],
    isLost: false,
    ...job,
    images,
    saved: new Set(job.saved),
    abort: new AbortController(),
  };
}

/** Copies the state of a job from a response. */
function take(job, { status, position, eta_s, size, notes }) {
  Object.assign(job, { status, position, eta: eta_s, size, notes });
}

/** Submits a job. `inputs` are its references, as stored in the browser. */
export async function draw(asked, inputs, mask) {
  const body = new FormData();
  for (const [name, value] of Object.entries(asked))
    body.append(name, typeof value === 'string' ? value : JSON.stringify(value));
  for (const { blob, name } of inputs) body.append('image[]', blob, name);
  if (mask) body.append('mask', mask.blob, 'mask.png');
  const answer = await submit(body, randomName());
  const job = newJob({
    id: answer.id,
    created: Date.now(),
    asked,
    inputs: inputs.map(({ id }) => id),
    mask: mask?.id,
    count: answer.n,
  });
  take(job, answer);
  jobs.push(job);
  remember(job);
  followNext();
  return job;
}

/** Resumes the jobs of the last visit. */
export function resume() {
  jobs.push(
    ...kept
      .all('job.')
      .map(newJob)
      .sort((a, b) => a.created - b.created),
  );
  followNext();
  poll();
}

/** Cancels a job. */
export async function cancel(job) {
  try {
    await call(`/v1/jobs/${job.id}`, { method: 'DELETE' });
    end(job, null);
  } catch (error) {
    hears.end(job, error);
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
      hears.change(job);
    }
  }
}

async function follow(job) {
  const lost = () => {
    job.isLost = true;
    hears.change(job);
  };
  for await (const { type, data } of events(job.id, job.abort.signal, lost)) {
    job.isLost = false;
    await heard[type]?.(job, data);
    hears.change(job);
  }
}

const heard = {
  queued: (job, { position, eta_s }) => Object.assign(job, { position, eta: eta_s }),
  started(job) {
    job.status = 'running';
    job.since ??= performance.now();
  },
  step: (job, { image, step, steps }) => Object.assign(job.images[image], { step, steps }),
  preview(job, { image, output_format, b64_json }) {
    job.images[image].preview = `data:image/${output_format};base64,${b64_json}`;
  },
  image: (job, { image }) => fetchImage(job, image),
  async done(job, { job: said }) {
    take(job, said);
    // The page may have been reloaded between an event and its image.
    for (let image = 0; image < job.count; image++) await fetchImage(job, image);
    end(job, null);
  },
  failed: (job, { error }) => end(job, new ApiError(0, error)),
  cancelled: (job) => end(job, null),
};

async function fetchImage(job, image) {
  if (job.saved.has(image)) return;
  const answer = await call(`/v1/jobs/${job.id}/images/${image}`, { signal: job.abort.signal });
  await hears.image(job, image, await answer.blob());
  job.saved.add(image);
  remember(job);
}

function end(job, error) {
  const place = jobs.indexOf(job);
  if (place < 0) return;
  jobs.splice(place, 1);
  job.abort.abort();
  kept.set(`job.${job.id}`);
  hears.end(job, error);
  followNext();
}

/** Returns the progress of a job, from 0 to 1. */
export function part(job) {
  const parts = job.images.map(({ step, steps }, image) => (job.saved.has(image) ? 1 : steps && step / (steps + 1)));
  return parts.reduce((sum, one) => sum + one, 0) / job.count;
}

const seconds = (count) => (count < 90 ? `${Math.max(1, Math.round(count))} s` : `${Math.round(count / 60)} min`);

/** Returns the progress of an image as text. */
export function progressText(job, image) {
  if (job.isLost) return 'The connection is lost. Trying again …';
  if (job.status === 'queued') {
    const place =
      job.position > 0 ? `${job.position} ${job.position === 1 ? 'image' : 'images'} ahead` : 'Next in the queue';
    return job.eta ? `${place}, done in about ${seconds(job.eta)}` : place;
  }
  const { step, steps } = job.images[image];
  const done = part(job);
  const elapsed = (performance.now() - job.since) / 1000;
  const left =
    done > 0.1 && elapsed > 2 && !job.isResumed ? `, about ${seconds((elapsed * (1 - done)) / done)} left` : '';
  const which = job.count > 1 ? `Image ${image + 1} of ${job.count}: ` : '';
  if (!steps) return which ? `${which}waiting${left}` : 'Starting';
  return step < steps
    ? `${which}${which ? 'step' : 'Step'} ${Math.min(step + 1, steps)} of ${steps}${left}`
    : `${which}${which ? 'finishing' : 'Finishing'}`;
}
