// Helpers shared by all parts of the page.

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

const SVG = 'http://www.w3.org/2000/svg';

/** Returns an icon of the sprite in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

/** Announces a text to screen readers. */
export function say(text) {
  $('live').textContent = text;
}

/** Shows a message for a while. An action is the label of a button that calls `run`. */
export function toast(text, { action, run, isError = false } = {}) {
  const box = el('div', { className: isError ? 'toast wrong' : 'toast', role: isError ? 'alert' : 'status' });
  const close = () => box.remove();
  box.append(el('span', { textContent: text }));
  if (action) box.append(el('button', { textContent: action, onclick: () => (close(), run()) }));
  box.append(el('button', { className: 'icon', onclick: close, aria: { label: 'Close the message' } }, icon('close')));
  $('toasts').append(box);
  setTimeout(close, isError ? 20000 : 8000);
}

/** Opens a dialog. The promise resolves when it closes. */
export function open(dialog) {
  if (!dialog.open) dialog.showModal();
  return new Promise((closed) => dialog.addEventListener('close', closed, { once: true }));
}

/** Sets the title of a dialog. */
export function setTitle(dialog, title) {
  dialog.setAttribute('aria-label', title);
  dialog.querySelector('h2').textContent = title;
}

/** Adds titles and close buttons to dialogs. A click outside closes a dialog, unless work would be lost. */
export function prepareDialogs() {
  for (const dialog of document.querySelectorAll('dialog')) {
    const cross = el(
      'button',
      { className: 'icon', onclick: () => dialog.close(), aria: { label: 'Close' } },
      icon('close'),
    );
    dialog.prepend(el('div', { className: 'row' }, el('h2', { textContent: dialog.ariaLabel }), cross));
    if (dialog.id !== 'mask') dialog.addEventListener('click', ({ target }) => target === dialog && dialog.close());
  }
}

/** Copies a text. Pages over plain HTTP have no clipboard API. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el('textarea', { value: text, className: 'sr' });
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** Values in local storage. Reads return the default if storage is not available. */
export const kept = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`flux.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === undefined) localStorage.removeItem(`flux.${name}`);
      else localStorage.setItem(`flux.${name}`, JSON.stringify(value));
    } catch {
      // Storage is not available, so the value is not kept.
    }
  },
  /** Returns all values whose names begin with a prefix. */
  all(prefix) {
    try {
      return Object.keys(localStorage)
        .filter((name) => name.startsWith(`flux.${prefix}`))
        .map((name) => this.get(name.slice(5)))
        .filter(Boolean);
    } catch {
      return [];
    }
  },
};

/** Revokes an object URL, once images that are loading have read it. */
export const release = (url) => setTimeout(() => URL.revokeObjectURL(url), 5000);

/** Returns a random name of 128 bits. */
export function randomName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Downloads a file. */
export function save(blob, name = blob.name) {
  const link = el('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  release(link.href);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
