// The form: its fields as a request, filled from a recipe, and their errors.

import { $, el, kept } from './dom.js';
import { onReferences, references } from './references.js';

/** The aspect ratios of the presets. */
const RATIOS = [
  ['1:1', 1, 1],
  ['4:3', 4, 3],
  ['3:4', 3, 4],
  ['16:9', 16, 9],
  ['9:16', 9, 16],
];
/** Pixels of a preset, until a generated image shows the model's default. */
const PIXELS = 512 * 512;
const TEXTS = ['prompt', 'negative_prompt', 'steps', 'guidance', 'n', 'output_format', 'model'];

/** Pixels of the last generated image. */
let pixels = kept.get('pixels', PIXELS);
let isAuto = true;
let isLocked = false;

/** Remembers the size of the model's images. */
export function learnSize(width, height) {
  kept.set('pixels', (pixels = width * height));
}

const toStep = (side) => Math.max(64, Math.round(side / 16) * 16);

/** Returns the sides of an aspect ratio with about as many pixels as the last image. */
function sides(across, down) {
  const unit = Math.sqrt(pixels / (across * down));
  return [toStep(across * unit), toStep(down * unit)];
}

function showSize() {
  const [width, height] = [Number($('width').value), Number($('height').value)];
  for (const chip of $('presets').children) {
    const { across, down, kind } = chip.dataset;
    const isRatio = kind === 'ratio' && !isAuto && sides(across, down).join() === [width, height].join();
    chip.setAttribute('aria-pressed', kind === 'auto' ? isAuto : isRatio);
  }
  $('free-size').hidden = isAuto;
}

function setSize(width, height) {
  isAuto = !width;
  if (width) [$('width').value, $('height').value] = [width, height];
  showSize();
  remember();
}

function setLocked(locked) {
  isLocked = locked;
  $('lock').setAttribute('aria-pressed', locked);
  $('lock')
    .querySelector('use')
    .setAttribute('href', locked ? '#i-locked' : '#i-unlocked');
  remember();
}

const rolled = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);

/** Returns true if the first reference is edited, which determines the size of the result. */
const isChange = () => references.length > 0 && $('changes').checked;

/** Shows the controls that apply to the references. */
function showChange() {
  const { mask } = references[0] ?? {};
  $('change').hidden = $('mask-edit').hidden = references.length === 0;
  $('mask-remove').hidden = !mask;
  $('mask-edit').querySelector('span').textContent = mask ? 'Edit the mask' : 'Draw a mask';
  $('changes').disabled = Boolean(mask);
  if (mask) $('changes').checked = true;
  $('strength-row').hidden = $('strength-hint').hidden = !isChange();
  $('size-field').hidden = isChange();
}

const remember = () => {
  const texts = Object.fromEntries(TEXTS.map((name) => [name, $(name).value]));
  const seed = isLocked ? $('seed').value : '';
  const size = isAuto ? null : [$('width').value, $('height').value];
  // The models are not loaded yet.
  texts.model ||= kept.get('form', {}).model;
  kept.set('form', { ...texts, seed, size, changes: $('changes').checked, strength: $('strength').value });
};

const loraRows = () => [...$('loras').children].map((row) => row.querySelectorAll('input'));

/** Shows the models and adapters of the server. */
export function offer(models, loras) {
  $('model').replaceChildren(...models.map(({ id }) => el('option', { value: id, textContent: id })));
  $('model-field').hidden = models.length < 2;
  const wanted = kept.get('form', {}).model;
  if (models.some(({ id }) => id === wanted)) $('model').value = wanted;
  $('loras-field').hidden = loras.length === 0;
  $('loras').replaceChildren(
    ...loras.map(({ id }) => {
      const used = el('input', { type: 'checkbox', value: id });
      const weight = el('input', { type: 'number', value: 1, step: 0.1, aria: { label: `Weight of ${id}` } });
      return el('div', { className: 'row' }, el('label', { className: 'check' }, used, id), weight);
    }),
  );
}

/** Returns the fields of a request as texts, without files. An unlocked seed is rolled again. */
export function fields() {
  if (!isLocked) $('seed').value = rolled();
  const given = Object.fromEntries(
    TEXTS.map((name) => [name, $(name).value.trim()]).filter(([, value]) => value !== ''),
  );
  const loras = loraRows()
    .filter(([used]) => used.checked)
    .map(([used, weight]) => ({ name: used.value, weight: Number(weight.value) }));
  return {
    ...given,
    ...(isAuto || isChange() ? {} : { size: `${$('width').value}x${$('height').value}` }),
    seed: $('seed').value.trim(),
    ...(isChange() ? { strength: $('strength').value } : {}),
    ...(loras.length > 0 ? { loras } : {}),
  };
}

/** Fills the form from the recipe of an image, except the references. */
export function useRecipe({ prompt, negative, width, height, steps, guidance, strength, seed, model }, asked = {}) {
  const set = (name, value) => ($(name).value = value ?? '');
  set('prompt', prompt);
  set('negative_prompt', negative);
  set('steps', steps);
  set('guidance', guidance === 1 ? undefined : guidance);
  setSize(width, height);
  useSeed(seed);
  $('changes').checked = strength !== undefined;
  if (strength !== undefined) $('strength').value = strength;
  $('strength-shown').textContent = $('strength').value;
  const known = [...$('model').options].map(({ value }) => value);
  for (const name of [asked.model, model]) if (known.includes(name)) $('model').value = name;
  for (const [used, weight] of loraRows()) {
    const before = asked.loras?.find(({ name }) => name === used.value);
    used.checked = Boolean(before);
    if (before) weight.value = before.weight;
  }
  if (negative || (guidance !== undefined && guidance !== 1)) $('advanced').open = true;
  clearErrors();
  showChange();
  remember();
}

export function useSeed(seed) {
  $('seed').value = seed ?? '';
  setLocked(seed !== undefined && seed !== '');
}

/** Field names that errors use. Some belong to an element with another ID. */
const NAMES = [...TEXTS, 'size', 'seed', 'strength', 'loras', 'image', 'mask'];
const ELEMENTS = { size: 'width', image: 'image-add', mask: 'mask-edit' };
const elementOf = (name) => $(ELEMENTS[name] ?? name);

/** Adds a place for the error of a field. */
function addMessage(name) {
  const [element, id] = [elementOf(name), `${name}-error`];
  element.closest('.field').append(el('p', { className: 'error', id }));
  element.setAttribute('aria-describedby', `${element.getAttribute('aria-describedby') ?? ''} ${id}`.trim());
}

export function clearErrors() {
  for (const message of document.querySelectorAll('#form .error')) message.textContent = '';
  for (const wrong of document.querySelectorAll('#form [aria-invalid]')) wrong.removeAttribute('aria-invalid');
}

/** Shows an error next to its field. */
export function showError({ message, param }) {
  const text = sentence(message);
  const place = param && $(`${param.replace('[]', '')}-error`);
  if (!place) {
    $('form-error').textContent = text;
    return;
  }
  place.textContent = text;
  for (let details = place.closest('details'); details; details = details.parentElement.closest('details'))
    details.open = true;
  if (param === 'size') $('free-size').hidden = false;
  const field = elementOf(param.replace('[]', ''));
  if (field?.matches('input, textarea, select')) field.setAttribute('aria-invalid', 'true');
  field?.focus();
}

/** Returns a message of the server as a sentence. */
export const sentence = (message) =>
  message.replace(/^[a-z]/, (first) => first.toUpperCase()).replace(/([^.!?])$/, '$1.');

function restore() {
  const before = kept.get('form', {});
  // Fields that were never saved keep the page's default.
  for (const name of TEXTS) if (name in before && name !== 'model') $(name).value = before[name];
  setSize(...(before.size ?? []));
  if (before.seed) useSeed(before.seed);
  $('changes').checked = before.changes ?? false;
  $('strength').value = before.strength ?? 0.8;
  $('strength-shown').textContent = $('strength').value;
  remember();
}

function prepare() {
  NAMES.forEach(addMessage);
  const chip = (text, data, [width, height], run) => {
    const shape = el('span', { className: 'shape' });
    [shape.style.width, shape.style.height] = [`${width}px`, `${height}px`];
    const button = el('button', { type: 'button', data, onclick: run, aria: { pressed: 'false' } }, shape, text);
    $('presets').append(button);
  };
  chip('Auto', { kind: 'auto' }, [0, 0], () => setSize());
  for (const [text, across, down] of RATIOS) {
    const unit = 13 / Math.max(across, down);
    chip(text, { kind: 'ratio', across, down }, [across * unit, down * unit], () => setSize(...sides(across, down)));
  }
  $('width').oninput = $('height').oninput = showSize;
  $('dice').onclick = () => useSeed(rolled());
  $('lock').onclick = () => {
    if (!isLocked && !$('seed').value) $('seed').value = rolled();
    setLocked(!isLocked);
  };
  $('seed').oninput = () => setLocked($('seed').value.trim() !== '');
  $('changes').onchange = showChange;
  $('strength').oninput = () => ($('strength-shown').textContent = $('strength').value);
  onReferences(showChange);
  $('form').addEventListener('input', (event) => {
    const message = event.target.id && $(`${event.target.id}-error`);
    if (message) message.textContent = '';
    event.target.removeAttribute('aria-invalid');
    remember();
  });
  // On phones, images come before the settings.
  $('settings').open = matchMedia('(min-width: 900px)').matches;
  restore();
  showChange();
}

prepare();
