// The actions of an image, in the order of use.

import { SERVER, hasKey } from './api.js';
import { $, button, copyText, el, menu, press, randomSeed, save, setLabel, toast } from './dom.js';
import { commands } from './commands.js';
import { canCompare, toggle } from './compare.js';
import { draft, setDraft, showError, useRecipe, useSeed } from './form.js';
import { draw } from './jobs.js';
import { downloadAll } from './gallery.js';
import { fileOf, remove, setStar } from './library.js';
import { details, server } from './models.js';
import { select, selectJob } from './rail.js';
import { addFiles, keepInput, references, setReferences } from './references.js';
import { openTool } from './stage.js';
import * as store from './store.js';
import { t } from './words.js';

/** The form before an edit, to which its end returns. */
let before = null;

/** Makes an image the only reference, and asks what to change. */
export async function edit(image) {
  before ??= { ...draft(), ids: references.map(({ id }) => id) };
  setDraft({ prompt: '' });
  $('prompt').focus();
  const file = await fileOf(image);
  const { id } = await keepInput(file, file.name);
  await setReferences([id], undefined, { image: image.id });
  showEditing();
}

/** Ends the edit, and returns to the form before it. */
export async function endEdit() {
  const { ids = [], prompt = '', changes } = before ?? {};
  before = null;
  await setReferences(ids);
  setDraft({ prompt, changes });
  showEditing();
}

/** Shows that an image is edited. */
export function showEditing() {
  const isEdit = Boolean(references[0]?.image);
  $('editing-end').hidden = !isEdit;
  $('prompt').placeholder = t(isEdit ? 'prompt_edit' : 'prompt_new');
  $('draw-text').textContent = t(isEdit ? 'edit_do' : 'generate');
  if (!isEdit) before = null;
}

/** Opens a tool on an image, which becomes the image to edit. */
async function useTool(name, image) {
  if (references[0]?.image !== image.id) await edit(image);
  openTool(name);
}

/** Draws four variations: with other seeds, or near the image by strength. */
async function vary(image, strength) {
  const asked = { ...image.asked, seed: randomSeed(), n: String(Math.min(4, server.limits.images)) };
  try {
    if (strength === undefined) {
      const [mask, ...inputs] = await Promise.all([image.mask, ...image.inputs].map((id) => id && store.input(id)));
      selectJob(await draw(asked, inputs.filter(Boolean), mask));
      return;
    }
    const steps = Number(asked.steps) || details().steps || 4;
    const part = Math.max(1, Math.round(strength * steps)) / steps;
    // The image has its second pass, and its background is removed already.
    const {
      size: _size,
      extend: _extend,
      feather: _feather,
      hires: _hires,
      transparent: _transparent,
      ...rest
    } = asked;
    const file = await fileOf(image);
    const name = { id: image.id, name: file.name, blob: file };
    await store.putInput(name);
    const more = { parent: image.id, root: image.root };
    selectJob(
      await draw({ ...rest, prompt: image.recipe.prompt, strength: String(part) }, [name], undefined, { more }),
    );
  } catch (error) {
    showError(error);
  }
}

/** Enlarges an image, which becomes a new version. */
async function enlarge(image, upscaler, by) {
  const file = await fileOf(image);
  const input = { id: image.id, name: file.name, blob: file };
  await store.putInput(input);
  const { recipe, asked, inputs, mask, root, id } = image;
  const more = { parent: id, root, enlarged: { recipe, asked, inputs, mask } };
  await draw({ upscale: { upscaler, by } }, [input], undefined, { more }).then(selectJob, showError);
}

/** Returns the entries of the menu that enlarges an image: the sizes that the server allows. */
function sizesOf(image) {
  const most = server.limits.upscale_pixels ?? Infinity;
  const factors = [2, 4].filter((by) => image.width * image.height * by * by <= most);
  return server.upscalers.flatMap((name) =>
    factors.map((by) => ['enlarge', t('enlarge_by', { by, name }), () => enlarge(image, name, by)]),
  );
}

async function reuse({ recipe, asked, inputs, mask }) {
  const isWhole = await setReferences(inputs, mask, { extend: asked?.extend });
  useRecipe(recipe, asked);
  showEditing();
  if (!isWhole) toast(t('references_gone'), { isError: true });
  $('prompt').focus();
}

async function copyAs(kind, image) {
  const [mask, ...inputs] = await Promise.all([image.mask, ...image.inputs].map((id) => id && store.input(id)));
  const names = inputs.map((input, place) => input?.name ?? `image-${place + 1}.png`);
  await copyText(commands({ ...image, inputs: names }, SERVER, hasKey())[kind]);
  const files = [...inputs, mask].filter(Boolean);
  const run = () => files.forEach(({ blob, name }) => save(blob, name));
  toast(t('copied'), files.length > 0 ? { action: t('save_inputs'), run } : {});
}

async function copyImage(image) {
  const blob = await store.file(image.id);
  const png = blob.type === 'image/png' ? blob : null;
  try {
    await navigator.clipboard.write([new ClipboardItem({ 'image/png': png })]);
    toast(t('copied'));
  } catch {
    save(await fileOf(image));
  }
}

export async function download(image) {
  save(await fileOf(image));
}

/** Returns the buttons of the images of a job. */
export const groupActions = (group) => [
  button('down', t('download'), () => downloadAll(group)),
  button('variations', t('vary_seed'), () => vary(group[0])),
  el('span', { className: 'gap' }),
  button('trash', t('delete'), () => remove(group), { className: 'icon danger' }),
];

/** Returns the buttons of an image. */
export function actionsOf(image) {
  const heart = button('star', t('favourite'), () => (setStar(image, !image.star), press(heart, image.star)), {
    className: 'icon heart',
  });
  press(heart, image.star);
  const compare = button('compare', t('compare'), toggle, { id: 'compare-toggle' });
  compare.hidden = !canCompare(image);
  const grid = button('grid', t('grid'), () => select(image.id, { grid: true }));
  grid.hidden = !(image.count > 1);
  const sizes = menu('enlarge', t('enlarge'), sizesOf(image));
  sizes.hidden = sizesOf(image).length === 0;
  const trash = button('trash', t('delete'), () => remove([image]), { className: 'icon danger' });
  const main = button('edit', t('edit'), () => edit(image), { className: 'primary' });
  setLabel(main, t('edit'));
  return [
    main,
    menu('variations', t('variations'), [
      ['dice', t('vary_seed'), () => vary(image)],
      ['less', t('vary_little'), () => vary(image, 0.5)],
      ['more', t('vary_much'), () => vary(image, 0.75)],
    ]),
    compare,
    grid,
    button('brush', t('mask'), () => useTool('mask', image)),
    button('extend', t('extend'), () => useTool('extend', image)),
    sizes,
    button('down', t('download'), () => download(image)),
    menu('code', t('copy'), [
      ['image', t('copy_image'), () => copyImage(image)],
      // The commands make the image before it was enlarged.
      ...(image.isEnlarged ? [] : ['flux', 'curl', 'Python']).map((kind) => ['code', kind, () => copyAs(kind, image)]),
    ]),
    menu('again', t('reuse'), [
      ['again', t('reuse_all'), () => reuse(image)],
      [
        'seed',
        t('reuse_seed'),
        () => (useSeed(image.recipe.seed), toast(t('seed_n', { seed: String(image.recipe.seed) }))),
      ],
      ['plus', t('as_reference'), async () => addFiles([await fileOf(image)])],
    ]),
    heart,
    el('span', { className: 'gap' }),
    trash,
  ];
}
