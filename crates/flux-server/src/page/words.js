// Texts, numbers and dates in the user's language. A translation is one file like en.js.

import { kept } from './kept.js';

/** The languages by name, and their files. */
export const LANGUAGES = { en: 'English', de: 'Deutsch', ar: 'العربية' };
const files = { en: () => import('./en.js'), de: () => import('./de.js'), ar: () => import('./ar.js') };

const preferred = [kept.get('language'), ...navigator.languages].map((name) => name?.slice(0, 2));
export const language = preferred.find((name) => name in LANGUAGES) ?? 'en';
const texts = (await files[language]()).default;
document.documentElement.lang = language;
document.documentElement.dir = language === 'ar' ? 'rtl' : 'ltr';
export const isRtl = language === 'ar';

const plural = new Intl.PluralRules(language);

export const number = (value, digits = 2) => value.toLocaleString(language, { maximumFractionDigits: digits });
export const day = (time) => new Date(time).toLocaleDateString(language, { dateStyle: 'full' });
export const moment = (time) => new Date(time).toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short' });

export function bytes(count) {
  const step = Math.min(4, Math.max(1, Math.floor(Math.log2(Math.max(count, 1)) / 10)));
  const unit = ['kilobyte', 'megabyte', 'gigabyte', 'terabyte'][step - 1];
  return (count / 1024 ** step).toLocaleString(language, { style: 'unit', unit, maximumFractionDigits: 1 });
}

/** Returns a duration in its two largest units. */
export function lasts(seconds) {
  const all = Math.ceil(seconds);
  const parts = {
    day: Math.floor(all / 86400),
    hour: Math.floor(all / 3600) % 24,
    minute: Math.floor(all / 60) % 60,
    second: all % 60,
  };
  const units = Object.keys(parts);
  const first = Math.max(
    0,
    units.findIndex((unit) => parts[unit] > 0),
  );
  const shown = all === 0 ? ['second'] : units.slice(first, first + 2).filter((unit) => parts[unit] > 0);
  return shown
    .map((unit) => parts[unit].toLocaleString(language, { style: 'unit', unit, unitDisplay: 'short' }))
    .join(' ');
}

/** Returns a text. `n` chooses its plural form. */
export function t(key, values = {}) {
  let text = texts[key] ?? key;
  if (typeof text === 'object') text = text[plural.select(values.n)] ?? text.other;
  return text.replace(/\{(\w+)\}/g, (_, name) =>
    typeof values[name] === 'number' ? number(values[name]) : (values[name] ?? ''),
  );
}

/** Fills in the texts of a document: contents, labels with titles, and placeholders. */
export function translate(root) {
  for (const node of root.querySelectorAll('[data-t]')) node.textContent = t(node.dataset.t);
  for (const node of root.querySelectorAll('[data-l]')) {
    node.setAttribute('aria-label', t(node.dataset.l));
    if (node.matches('.icon, summary')) node.title = t(node.dataset.l);
  }
  for (const node of root.querySelectorAll('[data-p]')) node.placeholder = t(node.dataset.p);
}
