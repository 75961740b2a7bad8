// The stage: the selected image as large as the window allows, its progress, its versions, and the tools on it.

import { $, el, open, release, say } from './dom.js';
import * as boxesTool from './boxes.js';
import { actionsOf, groupActions } from './actions.js';
import * as compareTool from './compare.js';
import * as extendTool from './extend.js';
import { sizeOf } from './form.js';
import { cancel, part, progressText } from './jobs.js';
import { family, labelOf, showThumb } from './library.js';
import * as maskTool from './mask.js';
import { fillTile, onSelected, refresh, select } from './rail.js';
import { references } from './references.js';
import * as store from './store.js';
import { lasts, number, t } from './words.js';

/** The interval of progress announcements to screen readers. */
const SAY_EVERY_MS = 10000;
const TOOLS = { mask: maskTool, extend: extendTool, boxes: boxesTool };

/** The entry that is shown, the URL of its file, and the tool on it. */
let shown = {};
let url = null;
let nextSaid = 0;
let tool = null;

/** Returns the job that is shown while it is running. */
export const shownJob = () => shown.job;
export const shownImage = () => shown.image;
export const isTool = () => tool !== null;

function show(entry = {}, group) {
  const { image, job, index } = entry;
  if (tool) return;
  const isGroup = Boolean(group && group.length > 1);
  $('empty').hidden = Boolean(image || job);
  $('view').hidden = !image && !job;
  const running = isGroup ? group.find(({ job }) => job) : entry;
  $('progress').hidden = !running?.job;
  $('actions').hidden = !image || (isGroup && group.some(({ job }) => job));
  $('about').hidden = !image && !job;
  $('grid').hidden = !isGroup;
  $('frame').hidden = isGroup;
  if (isGroup) showGroup(group);
  if (running?.job) showJob(running, isGroup);
  else if (image && isGroup) showAll(group.map(({ image }) => image));
  else if (image && (shown.image !== image || shown.isGroup)) showImage(image);
  const isNew = shown.id !== entry.id;
  shown = { id: entry.id, image, job: running?.job, index, isGroup };
  if (image && !isGroup) showVersions(image, isNew);
  else $('versions').hidden = true;
}

const setFrame = (width, height) => $('frame').style.setProperty('--ratio', width / height || 1);

function setNotes(notes = []) {
  $('notes').hidden = notes.length === 0;
  $('notes').textContent = notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}.`).join(' ');
}

/** Shows the images of a job as a grid, which fills as they come. */
function showGroup(group) {
  const { width, height } = group.find(({ image }) => image)?.image ?? {};
  const [across, down] = width ? [width, height] : (group[0].job?.size ?? '1x1').split('x').map(Number);
  const ratio = across / down || 1;
  const count = Math.max(group.length, group[0].job?.count ?? 0);
  $('grid').style.setProperty('--ratio', ratio);
  $('grid').style.setProperty('--columns', Math.ceil(Math.sqrt(count / Math.min(ratio, 1.4))));
  const known = new Map([...$('grid').children].map((node) => [node.dataset.id, node]));
  const cells = group.map((entry) => {
    const cell =
      known.get(entry.id) ??
      el('button', {
        type: 'button',
        className: 'cell appear',
        data: { id: entry.id },
        onclick: () => select(entry.id),
      });
    fillTile(cell, entry);
    if (entry.image && !cell.dataset.large) {
      cell.dataset.large = 'yes';
      store.file(entry.id).then((blob) => {
        const source = blob && URL.createObjectURL(blob);
        if (source) Object.assign(cell.firstChild, { src: source, onload: () => release(source) });
      });
    }
    return cell;
  });
  if (cells.some((cell, at) => $('grid').children[at] !== cell) || $('grid').childElementCount !== cells.length)
    $('grid').replaceChildren(...cells);
}

function showJob({ id, job, index }, isGroup) {
  const [width, height] = (job.size ?? '').split('x').map(Number);
  setFrame(width, height);
  const { preview } = job.images[index];
  let img = shown.id === id && preview ? $('frame').querySelector('.preview') : null;
  if (preview && !img) img = el('img', { alt: t('preview'), className: 'preview' });
  if (img && img.src !== preview) img.src = preview;
  if (!img || img.parentNode !== $('frame')) $('frame').replaceChildren(img ?? el('span', { className: 'pulse' }));
  if (job.status === 'queued' || job.isLost) $('bar').removeAttribute('value');
  else $('bar').value = part(job);
  const text = progressText(job, isGroup ? undefined : index);
  $('progress-text').textContent = text;
  if (performance.now() > nextSaid) {
    nextSaid = performance.now() + SAY_EVERY_MS;
    say(text);
  }
  setCaption(job.asked.prompt, []);
  setNotes(job.notes);
}

function setCaption(prompt, facts) {
  $('caption').textContent = prompt;
  $('caption').title = prompt;
  $('facts').textContent = facts.filter(Boolean).join(' · ');
}

/** Shows what the images of a job have in common. */
function showAll(all) {
  const [{ recipe, width, height, notes }] = all;
  $('actions').replaceChildren(...groupActions(all));
  setCaption(recipe.prompt, [t('images', { n: all.length }), `${number(width)} × ${number(height)}`, recipe.model]);
  setNotes(notes);
}

async function showImage(image) {
  const { recipe, width, height, seconds, notes } = image;
  setFrame(width, height);
  $('actions').replaceChildren(...actionsOf(image));
  setCaption(recipe.prompt, [
    `${number(width)} × ${number(height)}`,
    t('seed_n', { seed: String(recipe.seed) }),
    recipe.steps && t('steps_n', { n: recipe.steps }),
    recipe.model,
    seconds && lasts(seconds),
  ]);
  setNotes(notes);
  const blob = await store.file(image.id);
  if (shown.image !== image || !blob || tool) return;
  release(url);
  url = URL.createObjectURL(blob);
  const zoom = el('button', {
    type: 'button',
    className: 'zoom appear',
    onclick: showZoom,
    aria: { label: t('show_large') },
  });
  zoom.append(el('img', { src: url, alt: recipe.prompt }));
  $('frame').replaceChildren(zoom);
  compareTool.show(image);
}

/** Shows the chain of edits of an image. Any version can be taken up again. */
function showVersions(image, isNew) {
  const all = family(image);
  $('versions').hidden = all.length < 2;
  if (all.length < 2) return;
  const ids = all.map(({ id }) => id).join();
  if ($('versions').dataset.ids !== ids) {
    $('versions').dataset.ids = ids;
    $('versions').replaceChildren(
      ...all.map((version, at) => {
        const img = el('img', { alt: '', draggable: false });
        showThumb(img, version.id);
        const node = el(
          'button',
          { type: 'button', className: 'version', data: { id: version.id }, onclick: () => select(version.id) },
          img,
        );
        const size = version.isEnlarged && `${number(version.width)} × ${number(version.height)}`;
        const label = size || (at === 0 ? t('original') : t('version_n', { n: at }));
        node.append(el('span', { textContent: label }));
        node.setAttribute('aria-label', `${label}: ${labelOf(version)}`);
        return node;
      }),
    );
  }
  for (const node of $('versions').children) {
    const isShown = node.dataset.id === image.id;
    if (isShown) node.setAttribute('aria-current', 'true');
    else node.removeAttribute('aria-current');
    if (isShown && isNew) node.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
}

export function showZoom() {
  if (!shown.image || shown.isGroup) return;
  Object.assign($('zoom-image'), { src: url, alt: shown.image.recipe.prompt });
  $('zoom-image').style.setProperty('--ratio', shown.image.width / shown.image.height);
  open($('zoom'));
}

/** Opens a tool on the first reference, or on an empty frame for boxes of a new image. */
export async function openTool(name) {
  if (tool) await closeTool();
  const [first] = references;
  tool = TOOLS[name];
  compareTool.hide();
  for (const id of ['empty', 'grid', 'actions', 'about', 'progress', 'versions']) $(id).hidden = true;
  for (const id of ['view', 'frame', 'tools']) $(id).hidden = false;
  $('stage').classList.add('tooling');
  const [width, height] = first ? [first.width, first.height] : (sizeOf() ?? [1, 1]);
  setFrame(width, height);
  $('frame').replaceChildren(...(first ? [el('img', { src: first.url, alt: first.name })] : []));
  $('tools').replaceChildren();
  await tool.start($('frame'), $('tools'));
  $('tools').append(
    el('button', { type: 'button', id: 'tool-done', className: 'primary', textContent: t('done'), onclick: closeTool }),
  );
  $('stage').scrollIntoView({ block: 'nearest' });
}

/** Closes the tool, and keeps its work. */
export async function closeTool() {
  const closed = tool;
  if (!closed) return;
  await closed.stop($('frame'));
  tool = null;
  shown = {};
  $('tools').hidden = true;
  $('stage').classList.remove('tooling');
  $('frame').replaceChildren();
  refresh();
  $('prompt').focus();
}

export const toolKey = (event) => Boolean(tool?.key?.(event));

$('cancel').onclick = () => cancel(shown.job);
onSelected(show);
