// Keyboard shortcuts, and the sheet that lists them.

import { $, el, open, toast } from './dom.js';
import { edit } from './actions.js';
import { toggle } from './compare.js';
import { moveInGallery } from './gallery.js';
import { cancel } from './jobs.js';
import { remove } from './library.js';
import { moveBy } from './rail.js';
import { closeTool, isTool, showZoom, shownImage, shownJob, toolKey } from './stage.js';
import { t } from './words.js';

const ARROWS = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'];
/** Keys of the sheet, with the names of their texts. */
const SHEET = [
  ['/', 'prompt'],
  ['Ctrl ↵', 'draw'],
  ['Esc', 'escape'],
  ['← →', 'move'],
  ['↵', 'zoom'],
  ['e', 'edit'],
  ['c', 'compare'],
  ['f', 'star'],
  ['Del', 'delete'],
  ['[ ]', 'brush'],
  ['Ctrl Z', 'undo'],
  ['Alt ← →', 'reference'],
  ['1 2 3 4', 'tabs'],
  ['?', 'help'],
];

export function showSheet() {
  if ($('sheet').childElementCount === 0)
    for (const [keys, name] of SHEET) {
      const term = el('dt', {}, ...keys.split(' ').flatMap((key) => [el('kbd', { textContent: key }), ' ']));
      $('sheet').append(term, el('dd', { textContent: t(`key_${name}`) }));
    }
  open($('help'));
}

/** Cancels the shown job, which can be undone: the same request is sent again. */
export function cancelShown(again) {
  const job = shownJob();
  cancel(job);
  toast(t('cancelled'), { action: t('undo'), run: () => again(job) });
}

export function prepareKeys({ submit, again, tabs, go }) {
  document.addEventListener('keydown', (event) => {
    const { key, target } = event;
    if (document.querySelector('dialog[open]')) return;
    const isCommand = event.ctrlKey || event.metaKey;
    const isImages = !$('images').hidden;
    const done = () => event.preventDefault();
    if (key === 'Enter' && isCommand && isImages) {
      done();
      return submit();
    }
    if (key === 'Escape') {
      const menu = document.querySelector('.menu[open]');
      if (menu) {
        menu.open = false;
        menu.firstChild.focus();
      } else if (isTool()) closeTool();
      else if (isImages && shownJob() && !target.matches('input, textarea, select')) cancelShown(again);
      return;
    }
    const isTyping = target.matches('input:not([type=checkbox], [type=range]), textarea, select');
    if (isTyping) return;
    if (isTool() && toolKey(event)) return done();
    if (isCommand || event.altKey) return;
    const image = isImages && !isTool() ? shownImage() : null;
    const isOnTile = target === document.body || target.closest('#tiles, #frame');
    if (key === '/') (isImages ? $('prompt') : $('gallery').hidden ? $('live-prompt') : $('search')).focus();
    else if (key === '?') showSheet();
    else if (tabs[Number(key) - 1]) go(tabs[Number(key) - 1]);
    else if (target.matches('.opener') && ARROWS.includes(key)) moveInGallery(key, target);
    else if (target.matches('input')) return;
    else if (isImages && !isTool() && isOnTile && ARROWS.includes(key)) {
      if (!moveBy(key)) return;
    } else if (image && key === 'e') edit(image);
    else if (image && key === 'c') toggle();
    else if (image && key === 'f') $('actions').querySelector('.heart')?.click();
    else if (image && isOnTile && key === 'Delete') {
      const hadFocus = target.closest('#tiles');
      remove([image]);
      if (hadFocus) $('tiles').querySelector('[tabindex="0"]')?.focus();
    } else if (image && target.closest('#tiles') && key === 'Enter') showZoom();
    else return;
    done();
  });
  $('zoom').addEventListener('keydown', ({ key }) => {
    if (ARROWS.includes(key) && moveBy(key)) setTimeout(showZoom, 50);
  });
}
