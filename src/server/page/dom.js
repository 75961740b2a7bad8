// Small things that all parts of the page use.

export const $ = (id) => document.getElementById(id);

/** An element with properties; `data` and `aria` are objects, other values are set as they are. */
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

/** An icon of the sprite in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

/** Tells screen readers. */
export function say(text) {
  $('live').textContent = text;
}

/** Shows a message for a while; an action is a button with a label. */
export function toast(text, { action, run, isError = false } = {}) {
  const box = el('div', { className: isError ? 'toast wrong' : 'toast', role: isError ? 'alert' : 'status' });
  const close = () => box.remove();
  box.append(el('span', { textContent: text }));
  if (action) box.append(el('button', { textContent: action, onclick: () => (close(), run()) }));
  box.append(el('button', { className: 'icon', onclick: close, aria: { label: 'Close the message' } }, icon('close')));
  $('toasts').append(box);
  setTimeout(close, isError ? 20000 : 8000);
}

/** Opens a dialog; the promise is fulfilled when it is closed. The browser gives the focus back. */
export function open(dialog) {
  if (!dialog.open) dialog.showModal();
  return new Promise((closed) => dialog.addEventListener('close', closed, { once: true }));
}

/** Changes the title of a dialog. */
export function setTitle(dialog, title) {
  dialog.setAttribute('aria-label', title);
  dialog.querySelector('h2').textContent = title;
}

/** Gives dialogs their titles and crosses. A click beside a dialog closes it, unless work would be lost. */
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

/** Copies a text; pages of plain HTTP have no clipboard, and copy what is selected. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el('textarea', { value: text, className: 'sr' });
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** What the browser keeps of a name; nothing where it keeps nothing. */
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
      // It is then not kept.
    }
  },
  /** What is kept under names that begin so. */
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

/** Lets the browser forget a file, once images that are still loading have read it. */
export const release = (url) => setTimeout(() => URL.revokeObjectURL(url), 5000);

/** A random name of 128 bits. */
export function randomName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Saves a file. */
export function save(blob, name = blob.name) {
  const link = el('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  release(link.href);
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
