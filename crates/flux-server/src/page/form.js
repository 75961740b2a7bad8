// The form: its fields as a request, filled from a recipe, and their errors.

import { $, el, icon, kept, press, randomSeed } from './dom.js';
import { boxFields, boxes, onBoxes, regionBoxes, setBoxes, showBoxes } from './boxes.js';
import { details, maxPixels, megapixels, onModel, server } from './models.js';
import { onReferences, references } from './references.js';
import { number, t } from './words.js';

/** The aspect ratios of the presets, and the areas relative to the model's own. */
const RATIOS = ['1:1', '4:3', '3:4', '3:2', '2:3', '16:9', '9:16'];
const AREAS = [0.25, 0.5, 1, 2, 4];
/** The factors of a second pass. */
const FACTORS = [1.5, 2, 3, 4];
const TEXTS = ['prompt', 'negative_prompt', 'steps', 'guidance', 'n', 'hires', 'variety', 'output_format', 'model'];
const CHECKS = ['changes', 'expand', 'upsample', 'transparent', 'no_recipe'];

let ratio = null;
let area = 1;
let isLocked = false;

const toStep = (side) => Math.round(side / 16) * 16;

/** Returns the sides of an aspect ratio with the chosen area, within the limits of the model. */
function sides(ratio) {
  const [across, down] = ratio.split(':').map(Number);
  const { pixels, sides: limits } = details();
  const [least, most] = limits ?? [64, Infinity];
  const unit = Math.sqrt(Math.min(pixels * area, maxPixels()) / (across * down));
  return [across, down].map((part) => Math.min(most, Math.max(least, toStep(part * unit))));
}

const isFree = () => ratio === 'free';
/** Returns the chosen sides, or null for the default. */
export const sizeOf = () =>
  ratio === null ? null : isFree() ? [Number($('width').value), Number($('height').value)] : sides(ratio);

function chip(text, isPressed, onclick, shape) {
  const node = el('button', { type: 'button', onclick }, ...(shape ? [shape] : []), text);
  press(node, isPressed);
  return node;
}

function shapeOf(ratio) {
  const [across, down] = ratio.split(':').map(Number);
  const shape = el('span', { className: 'shape' });
  const unit = 14 / Math.max(across, down);
  [shape.style.width, shape.style.height] = [`${across * unit}px`, `${down * unit}px`];
  return shape;
}

const then = (change) => () => {
  change();
  showSize();
  remember();
};

function showSize() {
  const { pixels, aspect_ratio: max, width, height } = details();
  const fits = (ratio) => Math.max(...ratio.split(':')) / Math.min(...ratio.split(':')) <= max;
  const focused = document.activeElement?.closest('#presets, #areas')?.id;
  const place = focused && [...$(focused).children].indexOf(document.activeElement);
  $('presets').replaceChildren(
    chip(
      t('auto'),
      ratio === null,
      then(() => (ratio = null)),
    ),
    ...RATIOS.filter(fits).map((name) =>
      chip(
        name,
        ratio === name,
        then(() => (ratio = name)),
        shapeOf(name),
      ),
    ),
    chip(
      t('free'),
      isFree(),
      then(() => {
        if (!isFree()) [$('width').value, $('height').value] = sizeOf() ?? [width, height];
        ratio = 'free';
      }),
    ),
  );
  const areas = AREAS.filter((part) => pixels * part <= maxPixels() * 1.01 && pixels * part >= 128 * 128);
  $('areas').replaceChildren(
    ...areas.map((part) =>
      chip(
        megapixels(pixels * part),
        area === part,
        then(() => (area = part)),
      ),
    ),
  );
  $('areas').hidden = ratio === null || isFree();
  $('free-size').hidden = !isFree();
  if (focused) $(focused).children[Math.min(place, $(focused).children.length - 1)]?.focus();
  summarize();
}

/** Shows the chosen size and count on the button of the settings. */
function summarize() {
  const [width, height] = sizeOf() ?? [];
  const count = Number($('n').value) || 1;
  const size =
    isChange() || (!width && references.length > 0)
      ? t('size_of_image')
      : width
        ? `${number(width)} × ${number(height)}`
        : t('auto');
  $('summary').textContent = [size, count > 1 && t('images', { n: count })].filter(Boolean).join(' · ');
}

function setSize(width, height) {
  ratio = width ? (RATIOS.find((name) => sides(name).join() === `${width},${height}`) ?? 'free') : null;
  if (width) [$('width').value, $('height').value] = [width, height];
  showSize();
}

function setLocked(locked) {
  isLocked = locked;
  press($('lock'), locked);
  $('lock').replaceChildren(icon(locked ? 'locked' : 'unlocked'));
}

/** Returns true if the first reference is edited in place, which determines the size of the result. */
const isChange = () => {
  const [{ mask, extend } = {}] = references;
  return references.length > 0 && ($('changes').checked || Boolean(mask ?? extend));
};

const stepCount = () => Number($('steps').value) || details().steps || 4;

/** Disables a control that others exclude, and shows the reason. */
function exclude(name, reason) {
  $(name).disabled = Boolean(reason);
  $(`${name}-why`).textContent = reason ? t(reason) : '';
}

/** Shows the controls that apply to the model and the references. */
function showFields() {
  const { steps, guidance, is_distilled: isDistilled, text_tokens: tokens } = details();
  const [{ mask, extend } = {}] = references;
  $('change').hidden = references.length === 0;
  $('changes').disabled = Boolean(mask ?? extend);
  if (mask ?? extend) $('changes').checked = true;
  $('strength-row').hidden = !isChange();
  $('size-field').hidden = isChange();
  for (const id of ['guidance-field', 'negative-field']) $(id).hidden = isDistilled === true;
  $('steps').placeholder = steps ? number(steps) : t('auto');
  $('guidance').placeholder = guidance ? number(guidance) : t('auto');
  $('n').max = server.limits.images;
  $('upsample-row').hidden = !server.upsample;
  showBoxes();
  const isPart = Boolean(mask ?? extend);
  exclude('hires', isPart && 'why_mask');
  exclude('variety', boxFields().regions && 'why_regions');
  const isTwice = has('hires') && $('hires').value !== '';
  const isJpeg = $('output_format').value === 'jpeg';
  exclude('transparent', (isChange() && 'why_change') || (isTwice && 'why_hires') || (isJpeg && 'why_jpeg'));
  $('prompt-hint').textContent = tokens ? t('tokens', { n: tokens }) : '';
  const count = stepCount();
  const isFull = $('strength').value === $('strength').max;
  $('strength').max = count;
  if (isFull || Number($('strength').value) > count) $('strength').value = count;
  showStrength();
  showSize();
}

function showStrength() {
  const text = t('of_steps', { i: Number($('strength').value), n: stepCount() });
  $('strength-shown').textContent = text;
  $('strength').setAttribute('aria-valuetext', text);
}

function remember() {
  const texts = Object.fromEntries(TEXTS.map((name) => [name, $(name).value]));
  // The models are not loaded yet.
  texts.model ||= kept.get('form', {}).model;
  const checks = Object.fromEntries(CHECKS.map((name) => [name, $(name).checked]));
  const free = isFree() ? [$('width').value, $('height').value] : null;
  kept.set('form', {
    ...texts,
    ...checks,
    seed: isLocked ? $('seed').value : '',
    ratio,
    area,
    free,
    strength: $('strength').value,
    boxes,
  });
}

const loraRows = () => [...$('loras').children].map((row) => row.querySelectorAll('input'));

/** Shows what the chosen model and the server offer. */
function offer() {
  $('loras-field').hidden = server.loras.length === 0;
  if ($('loras').childElementCount !== server.loras.length)
    $('loras').replaceChildren(
      ...server.loras.map(({ id }) => {
        const used = el('input', { type: 'checkbox', value: id });
        const weight = el('input', {
          type: 'number',
          value: 1,
          step: 0.1,
          aria: { label: t('weight_of', { name: id }) },
        });
        return el('div', { className: 'row' }, el('label', { className: 'check' }, used, id), weight);
      }),
    );
  showFields();
  remember();
}

const has = (name) => !$(name).closest('.field').hidden && !$(name).disabled;

/** Returns the fields of a request as texts, without files. A seed that is not kept is random. */
export function fields() {
  const given = TEXTS.map((name) => [name, $(name).value.trim()]).filter(
    ([name, value]) => value !== '' && (name === 'model' || has(name)),
  );
  const loras = loraRows()
    .filter(([used]) => used.checked)
    .map(([used, weight]) => ({ name: used.value, weight: Number(weight.value) }));
  const [{ extend, feather, mask } = {}] = references;
  const size = sizeOf();
  return {
    ...Object.fromEntries(given),
    ...(size && !isChange() ? { size: size.join('x') } : {}),
    seed: isLocked ? $('seed').value.trim() : randomSeed(),
    // An extension alone regenerates its new part in full.
    ...(isChange() ? { strength: String(Number($('strength').value) / stepCount()) } : {}),
    ...(extend ? { extend } : {}),
    ...(feather && (mask ?? extend) ? { feather: String(feather) } : {}),
    ...(loras.length > 0 ? { loras } : {}),
    ...boxFields(),
    ...($('transparent').checked && has('transparent') ? { transparent: 'true' } : {}),
    ...($('expand').checked ? { expand: 'true' } : {}),
    ...(server.upsample ? { upsample: String($('upsample').checked) } : {}),
    ...($('no_recipe').checked ? { recipe: 'false' } : {}),
  };
}

/** Returns the first error of the form in the user's words, or null. */
export function wrong() {
  const [width, height] = sizeOf() ?? [];
  const isWhole = (id, least, most) =>
    $(id).value === '' || (/^\d+$/.test($(id).value) && $(id).value >= least && $(id).value <= most);
  const { images, prompt = 32000 } = server.limits;
  const checks = [
    ['prompt', $('prompt').value.trim() === '', 'wrong_empty'],
    ['prompt', $('prompt').value.length > prompt, 'wrong_long'],
    ['size', width && !isChange() && !(Math.min(width, height) >= 64), 'wrong_small'],
    ['size', width && !isChange() && width * height > maxPixels() * 1.1, 'wrong_large'],
    ['seed', isLocked && !/^\d+$/.test($('seed').value.trim()), 'wrong_seed'],
    ['n', !isWhole('n', 1, images), 'wrong_n'],
    ['steps', !isWhole('steps', 1, 1000), 'wrong_steps'],
    ['variety', !($('variety').value >= 0 && $('variety').value <= 2), 'wrong_variety'],
  ];
  const [param, , key] = checks.find(([, isWrong]) => isWrong) ?? [];
  return key ? { param, message: t(key, { n: images, pixels: megapixels(maxPixels()), max: prompt }) } : null;
}

/** Fills the form from the recipe of an image, except the references. */
export function useRecipe(
  {
    prompt,
    template,
    negative,
    width,
    height,
    steps,
    guidance,
    strength,
    seed,
    model,
    hires,
    variety,
    transparent,
    regions,
  },
  asked = {},
) {
  const set = (name, value) => ($(name).value = value ?? '');
  set('prompt', asked.prompt ?? template ?? prompt);
  set('negative_prompt', negative);
  set('steps', steps);
  set('guidance', guidance === 1 ? undefined : guidance);
  set('hires', asked.hires ?? hires?.by);
  // A recipe also has the share of values and of steps.
  set('variety', String(asked.variety ?? variety ?? '').split(':')[0]);
  $('transparent').checked = Boolean(asked.transparent ?? transparent);
  setSize(width, height);
  useSeed(seed);
  $('changes').checked = strength !== undefined;
  $('expand').checked = Boolean(asked.expand ?? template);
  $('no_recipe').checked = asked.recipe === 'false';
  setBoxes(asked.boxes ?? regionBoxes(asked.regions ?? regions));
  const known = [...$('model').options].map(({ value }) => value);
  const name = [asked.model, model].find((name) => known.includes(name));
  if (name && name !== $('model').value) {
    $('model').value = name;
    $('model').onchange();
  }
  for (const [used, weight] of loraRows()) {
    const before = asked.loras?.find(({ name }) => name === used.value);
    used.checked = Boolean(before);
    if (before) weight.value = before.weight;
  }
  clearErrors();
  showFields();
  if (strength !== undefined) $('strength').value = Math.max(1, Math.round(strength * stepCount()));
  showStrength();
  remember();
}

export function useSeed(seed) {
  $('seed').value = seed ?? '';
  setLocked(seed !== undefined && seed !== '');
  remember();
}

/** The texts of the form that an edit replaces. */
export const draft = () => ({ prompt: $('prompt').value, changes: $('changes').checked });

export function setDraft({ prompt, changes = false }) {
  $('prompt').value = prompt;
  $('changes').checked = changes;
  clearErrors();
  showFields();
  remember();
}

/** Field names that errors use. Some belong to an element with another ID. */
const NAMES = [
  ...TEXTS.filter((name) => name !== 'model'),
  'size',
  'seed',
  'strength',
  'loras',
  'image',
  'boxes',
  'regions',
  'transparent',
  'upsample',
  'expand',
];
const ELEMENTS = {
  size: 'width',
  image: 'image-add',
  boxes: 'boxes-draw',
  regions: 'boxes-draw',
  mask: 'image-add',
  extend: 'image-add',
};
const elementOf = (name) => $(ELEMENTS[name] ?? name);

export function clearErrors() {
  for (const message of document.querySelectorAll('#form .error, #settings .error')) message.textContent = '';
  for (const wrong of document.querySelectorAll('[aria-invalid]')) wrong.removeAttribute('aria-invalid');
}

/** Shows an error next to its field. */
export function showError({ message, param }) {
  const name = param?.replace(/\W.*/, '');
  const place = $(`${['mask', 'extend'].includes(name) ? 'image' : name}-error`);
  const text = sentence(message);
  if (!place) {
    $('form-error').textContent = text;
    return;
  }
  if (place.closest('#settings')) openSettings(true);
  place.textContent = text;
  if (name === 'size') $('free-size').hidden = false;
  const field = elementOf(name);
  if (field?.matches('input, textarea, select')) field.setAttribute('aria-invalid', 'true');
  field?.focus();
}

/** Returns a message of the server as a sentence, with the names of the page for its fields. */
export function sentence(message) {
  const named = message.replace(/`(\w+)`/g, (whole, name) =>
    NAMES.includes(name) ? `“${t(`field_${name}`)}”` : whole,
  );
  return named.replace(/^[a-z]/, (first) => first.toUpperCase()).replace(/([^.!?])$/, '$1.');
}

function openSettings(isOpen) {
  $('settings').hidden = !isOpen;
  $('settings-open').setAttribute('aria-expanded', isOpen);
  kept.set('settings', isOpen);
}

function restore() {
  const before = kept.get('form', {});
  for (const name of TEXTS) if (name in before && name !== 'model') $(name).value = before[name];
  for (const name of CHECKS) $(name).checked = before[name] ?? false;
  ({ ratio = null, area = 1 } = before);
  if (before.free) [$('width').value, $('height').value] = before.free;
  if (before.seed) useSeed(before.seed);
  else setLocked(false);
  if (before.strength) [$('strength').max, $('strength').value] = [before.strength, before.strength];
  if (before.boxes) setBoxes(before.boxes);
}

export function prepareForm() {
  for (const name of NAMES) {
    const [element, id] = [elementOf(name), `${name}-error`];
    element.closest('.field').append(el('p', { className: 'error', id }));
    element.setAttribute('aria-describedby', `${element.getAttribute('aria-describedby') ?? ''} ${id}`.trim());
  }
  $('width').oninput = $('height').oninput = summarize;
  $('dice').onclick = () => useSeed(randomSeed());
  $('lock').onclick = () => useSeed(isLocked ? '' : $('seed').value.trim() || randomSeed());
  $('seed').oninput = () => setLocked($('seed').value.trim() !== '');
  $('hires').append(...FACTORS.map((by) => el('option', { value: by, textContent: t('hires_by', { by }) })));
  for (const id of ['changes', 'hires', 'output_format']) $(id).onchange = showFields;
  $('steps').oninput = showFields;
  $('strength').oninput = showStrength;
  $('n').oninput = summarize;
  $('settings-open').onclick = () => openSettings($('settings').hidden);
  $('settings-close').onclick = () => (openSettings(false), $('settings-open').focus());
  onReferences(showFields);
  onBoxes(showFields);
  onModel(offer);
  const heard = ({ target }) => {
    const own = $(`${target.id}-error`);
    for (const message of own ? [own] : (target.closest('.field')?.querySelectorAll('.error') ?? []))
      message.textContent = '';
    target.removeAttribute('aria-invalid');
    remember();
  };
  $('form').addEventListener('input', heard);
  $('settings').addEventListener('input', heard);
  restore();
  openSettings(kept.get('settings', false) && matchMedia('(min-width: 900px)').matches);
  showFields();
}
