// Helpers shared by all parts of the page.

import { t } from './words.js';

export { kept } from './kept.js';

export const $ = (id) => document.getElementById(id);

/** Creates an element with properties. `data` and `aria` are objects. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'data') Object.assign(element.dataset, value);
    else if (name === 'aria')
      for (const [key, text] of Object.entries(value)) element.setAttribute(`aria-${key}`, text);
    else if (name === 'role') element.setAttribute('role', value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Returns an icon of the sprite in index.html. */
export function icon(name) {
  const [svg, use] = ['svg', 'use'].map((tag) => document.createElementNS('http://www.w3.org/2000/svg', tag));
  use.setAttribute('href', `#i-${name}`);
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

/** Returns a button with an icon. Without a text the label is its name. */
export function button(name, label, onclick, properties = {}) {
  const node = el('button', { type: 'button', onclick, ...properties }, icon(name));
  if (properties.className?.includes('icon')) setLabel(node, label);
  else node.append(el('span', { textContent: label }));
  return node;
}

export function setLabel(node, text) {
  node.setAttribute('aria-label', text);
  node.title = text;
}

export const press = (node, isPressed) => node.setAttribute('aria-pressed', Boolean(isPressed));

/** Announces a text to screen readers. */
export function say(text) {
  $('said').textContent = text;
}

/** Shows a message for a while. `run` belongs to the button `action`, and `ended` is called without it. */
export function toast(text, { action, run, ended, isError = false } = {}) {
  const box = el('div', { className: isError ? 'toast wrong' : 'toast', role: isError ? 'alert' : 'status' });
  const close = (then) => {
    if (!box.isConnected) return;
    clearTimeout(timer);
    box.remove();
    then?.();
  };
  box.append(el('span', { textContent: text }));
  if (action) box.append(el('button', { textContent: action, onclick: () => close(run) }));
  box.append(button('close', t('close'), () => close(ended), { className: 'icon' }));
  $('toasts').append(box);
  const timer = setTimeout(() => close(ended), isError ? 20000 : 8000);
}

/** Opens a dialog. The promise resolves when it closes. */
export function open(dialog) {
  if (!dialog.open) dialog.showModal();
  return new Promise((closed) => dialog.addEventListener('close', closed, { once: true }));
}

/** Adds titles and close buttons to dialogs. A click outside closes a dialog. */
export function prepareDialogs() {
  for (const dialog of document.querySelectorAll('dialog')) {
    const cross = button('close', t('close'), () => dialog.close(), { className: 'icon' });
    dialog.prepend(el('div', { className: 'row' }, el('h2', { textContent: dialog.ariaLabel }), cross));
    dialog.addEventListener('click', ({ target }) => target === dialog && dialog.close());
  }
}

/** Returns a menu: a button that opens a list of buttons [icon, label, run]. */
export function menu(name, label, items) {
  const list = el('div', { className: 'menu-list' });
  const box = el(
    'details',
    { className: 'menu' },
    el('summary', {}, icon(name), el('span', { textContent: label })),
    list,
  );
  list.append(...items.map(([name, label, run]) => button(name, label, () => ((box.open = false), run()))));
  return box;
}

document.addEventListener('click', ({ target }) => {
  for (const box of document.querySelectorAll('.menu[open]')) if (!box.contains(target)) box.open = false;
});

/** Copies a text. Pages over plain HTTP have no clipboard API. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el('textarea', { value: text, className: 'sr' });
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** Revokes an object URL, once images that are loading have read it. */
export const release = (url) => url && setTimeout(() => URL.revokeObjectURL(url), 5000);

/** Returns a random name of 128 bits. */
export const randomName = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

export const randomSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);

/** Downloads a file. */
export function save(blob, name = blob.name) {
  const link = el('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  release(link.href);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Draws an image file on a new canvas whose shorter side has at most `side` pixels. */
export async function drawn(blob, side = Infinity) {
  const bitmap = await createImageBitmap(blob);
  const scale = Math.min(1, side / Math.min(bitmap.width, bitmap.height));
  const canvas = el('canvas', { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const size = [bitmap.width, bitmap.height];
  bitmap.close();
  return { canvas, size };
}

export const fileOfCanvas = (canvas, type, quality) =>
  new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error('no image'))), type, quality),
  );
