// The images of this browser, and the operations on them.

import { drawn, fileOfCanvas, randomName, toast } from './dom.js';
import { jobs } from './jobs.js';
import { references } from './references.js';
import * as store from './store.js';
import { t } from './words.js';

const THUMB = 320;

/** Finished images, newest first, without their files. */
export let images = [];
const hears = [];

/** Calls a function on each change of the images. */
export const onImages = (hear) => hears.push(hear);

function changed(next) {
  images = next;
  for (const hear of hears) hear();
}

const order = (a, b) => b.created - a.created || a.index - b.index;
export const find = (id) => images.find((image) => image.id === id);

/** Returns the images that were edited from the same first image, oldest first. */
export const family = ({ root }) => images.filter((image) => image.root === root).sort((a, b) => -order(a, b));

/** Shows the stored images, and deletes unused input files. */
export async function load() {
  const stored = await store.images().catch(() => []);
  const known = new Set(images.map(({ id }) => id));
  changed([...images, ...stored.filter(({ id }) => !known.has(id))].sort(order));
  const used = [...images, ...jobs].flatMap(({ inputs, mask }) => [...inputs, mask]);
  const current = references.flatMap(({ id, mask }) => [id, mask?.id]);
  await store.tidyInputs(new Set([...used, ...current])).catch(() => {});
}

/** Adds a finished image, and stores it. */
export async function keep(image, blob) {
  image.id ??= randomName();
  Object.assign(image, { root: image.root ?? image.id, bytes: blob.size, type: blob.type, inputs: image.inputs ?? [] });
  const small = await drawn(blob, THUMB).catch(() => null);
  const thumb = small && (await fileOfCanvas(small.canvas, 'image/webp', 0.85).catch(() => null));
  if (small) [image.width, image.height] = small.size;
  try {
    await store.putImage(image, blob, thumb);
  } catch {
    toast(t('not_stored'), { isError: true });
  }
  // Another tab of this browser may have stored it.
  changed([image, ...images.filter(({ id }) => id !== image.id)].sort(order));
  return image;
}

/** Deletes images. They can be restored while the message is shown. */
export function remove(gone) {
  const ids = new Set(gone.map(({ id }) => id));
  changed(images.filter(({ id }) => !ids.has(id)));
  const run = () => changed([...images, ...gone].sort(order));
  const ended = () => store.removeImages([...ids]).catch(() => {});
  toast(t('deleted', { n: gone.length }), { action: t('undo'), run, ended });
}

export function setStar(image, isStarred) {
  image.star = isStarred;
  store.putMeta(image);
  changed(images);
}

/** Returns the name of an image's file. */
export const nameOf = ({ recipe, type = 'image/png' }) =>
  `flux-${recipe.seed}.${type === 'image/jpeg' ? 'jpg' : type.split('/')[1]}`;

/** Returns an image as a file. */
export async function fileOf(image) {
  const blob = await store.file(image.id);
  return blob && new File([blob], nameOf(image), { type: blob.type });
}

export const labelOf = ({ recipe: { prompt, seed } }) => t('image_label', { prompt, seed: String(seed) });

/** Shows a thumbnail in an `img`. The URL is released when it was read. */
export async function showThumb(img, id) {
  const blob = await store.thumb(id).catch(() => null);
  if (!blob) return;
  const url = URL.createObjectURL(blob);
  img.onload = img.onerror = () => URL.revokeObjectURL(url);
  img.src = url;
}
