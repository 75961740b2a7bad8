// Comparison of two images on top of each other, with a movable divider.

import { $, el, open, release, toast } from './dom.js';
import { images } from './gallery.js';
import * as store from './store.js';

/** Max images offered. */
const MAX = 40;

const split = $('compare-split');

function move() {
  const at = split.value;
  $('compare-right').style.clipPath = `inset(0 0 0 ${at}%)`;
  $('compare-line').style.left = `${at}%`;
  split.setAttribute('aria-valuetext', `${Math.round(at)} percent`);
}

/** Compares an image with its inputs or with another image. */
export async function compare(image) {
  const inputs = await Promise.all(image.inputs.map((id) => store.input(id)));
  const after = images.indexOf(image);
  const ordered = [...images.slice(after + 1), ...images.slice(0, after).reverse()];
  const choices = [
    ...inputs.filter(Boolean).map(({ blob, name }) => ({ blob, label: name })),
    ...ordered
      .slice(0, MAX)
      .map(({ blob, thumb, recipe }) => ({ blob, thumb, label: `${recipe.prompt}, seed ${recipe.seed}` })),
  ];
  if (choices.length === 0) {
    toast('There is nothing to compare it with yet.');
    return;
  }
  const urls = [];
  const urlOf = (blob) => urls[urls.push(URL.createObjectURL(blob)) - 1];
  const choose = (place) => {
    $('compare-left').src = urlOf(choices[place].blob);
    $('compare-left').alt = choices[place].label;
    for (const [at, button] of [...$('compare-choice').children].entries())
      button.setAttribute('aria-pressed', at === place);
  };
  $('compare-right').src = urlOf(image.blob);
  $('compare-right').alt = `${image.recipe.prompt}, seed ${image.recipe.seed}`;
  $('compare-stage').style.setProperty('--ratio', image.width / image.height);
  $('compare-choice').replaceChildren(
    ...choices.map(({ blob, thumb, label }, place) => {
      const button = el('button', {
        className: 'thumb',
        title: label,
        onclick: () => choose(place),
        aria: { label },
      });
      button.append(el('img', { src: urlOf(thumb ?? blob), alt: '' }));
      return button;
    }),
  );
  choose(0);
  split.value = 50;
  move();
  const closed = open($('compare'));
  split.focus();
  await closed;
  urls.forEach(release);
}

split.oninput = move;
