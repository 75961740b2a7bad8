// The first visit: three samples, drawn by the model at hand.

import { $, el, kept } from './dom.js';
import { setDraft, useSeed } from './form.js';
import { draw, jobs, onJobs } from './jobs.js';
import { chosen, details, server } from './models.js';
import * as store from './store.js';

/** Prompts for a model of emoji, for models of short prompts, and for models of full captions. */
const PROMPTS = {
  tiny: ['an owl on a beige background', 'a rocket on a light blue background', 'a green tree on a yellow background'],
  short: [
    'a red fox in fresh snow at dawn, film photograph',
    'a lighthouse in a storm, oil painting',
    'a small ceramic robot watering plants, studio light',
  ],
};
const CAPTION = ', with soft natural light, rich detail in the foreground and a calm background';

let shownFor = null;
const waiting = new Map();

const promptsOf = () => {
  const { pixels, wants_captions: isLong } = details();
  return pixels <= 256 * 256 ? PROMPTS.tiny : PROMPTS.short.map((text) => (isLong ? text + CAPTION : text));
};

function showCard(card, blob) {
  const img = el('img', { alt: '', className: 'appear', src: URL.createObjectURL(blob) });
  img.onload = () => URL.revokeObjectURL(img.src);
  card.querySelector('.shot').replaceChildren(img);
}

/** Shows the samples, and draws those that this browser has not yet. */
export async function showSamples(run) {
  if (!chosen() || shownFor === chosen().id) return;
  shownFor = chosen().id;
  const prompts = promptsOf();
  const cards = prompts.map((prompt, at) => {
    const use = () => {
      setDraft({ prompt });
      useSeed(String(at + 1));
      run();
    };
    const shot = el('span', { className: 'shot' }, el('span', { className: 'pulse' }));
    return el(
      'button',
      { type: 'button', className: 'sample', onclick: use, lang: 'en', dir: 'ltr' },
      shot,
      el('span', { textContent: prompt }),
    );
  });
  $('examples').replaceChildren(...cards);
  const { width, height } = details();
  const side = Math.min(512, Math.round(Math.min(width, height) / 16) * 16);
  for (const [at, card] of cards.entries()) {
    const id = `sample-${shownFor}-${at}`;
    const before = await store.input(id);
    if (before) showCard(card, before.blob);
    else if (!server.queue && !kept.get('no_samples') && !$('empty').hidden) await ask(id, card, prompts[at], side, at);
    else card.querySelector('.shot').hidden = true;
  }
}

async function ask(id, card, prompt, side, at) {
  const asked = {
    prompt,
    model: chosen().id,
    size: `${side}x${side}`,
    seed: String(at + 1),
    n: '1',
    priority: 'low',
    partial_images: '0',
    deadline_s: '300',
  };
  const fail = () => (card.querySelector('.shot').hidden = true);
  const more = { isHidden: true, sample: id };
  const job =
    jobs.find((job) => job.more?.sample === id) ?? (await draw(asked, [], undefined, { more }).catch(() => null));
  if (job) waiting.set(id, { card, fail });
  else fail();
}

onJobs({
  async image(job, _, blob) {
    const id = job.more?.sample;
    if (!id) return;
    await store.putInput({ id, name: 'sample', blob });
    if (waiting.has(id)) showCard(waiting.get(id).card, blob);
  },
  end: (job, error) => error && waiting.get(job.more?.sample)?.fail(),
});
