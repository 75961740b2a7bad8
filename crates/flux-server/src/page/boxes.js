// Boxes, drawn on the stage: for FLUX.3 places of objects that the prompt cites by ID, for other models regions with
// texts of their own.

import { $, button, el } from './dom.js';
import { details } from './models.js';
import { t } from './words.js';

/** The boxes: {id, bbox: [top, left, bottom, right] from 0 to 1000, desc}. */
export let boxes = [];
let layer = null;
const hears = [];

/** Calls a function when there are other boxes. */
export const onBoxes = (hear) => hears.push(hear);

export function setBoxes(next) {
  boxes = next;
  showBoxes();
  if (layer) showLayer();
  for (const hear of hears) hear();
}

const areRegions = () => !details().reads_boxes;
const isRead = () => !areRegions() || details().reads_regions !== false;

/** Returns the boxes as a field of a request, as the chosen model reads them. */
export function boxFields() {
  if (boxes.length === 0 || !isRead()) return {};
  return areRegions() ? { regions: boxes.map(({ bbox, desc }) => ({ box: bbox, prompt: desc })) } : { boxes };
}

/** Returns regions of a recipe as boxes. Those with a mask are left out. */
export const regionBoxes = (regions = []) =>
  regions.filter(({ box }) => box).map(({ box, prompt }, at) => ({ id: `object_${at + 1}`, bbox: box, desc: prompt }));

/** Shows the list of boxes, as the chosen model reads them. */
export function showBoxes() {
  $('boxes-label').textContent = t(areRegions() ? 'field_regions' : 'field_boxes');
  $('boxes-draw').textContent = t(areRegions() ? 'regions_open' : 'boxes_open');
  $('boxes-draw').disabled = !isRead();
  $('boxes-why').textContent = isRead() ? '' : t('why_model');
  const input = (box, name, label) => {
    const node = el('input', { value: box[name] ?? '', aria: { label } });
    node.oninput = () => (box[name] = node.value.trim());
    return node;
  };
  $('boxes-list').replaceChildren(
    ...boxes.map((box, place) =>
      el(
        'li',
        { className: 'row' },
        ...(areRegions() ? [] : [input(box, 'id', t('box_id', { n: place + 1 }))]),
        input(box, 'desc', t(areRegions() ? 'region_text' : 'box_text', { n: place + 1 })),
        button(
          'close',
          t('remove_name', { name: nameOf(box, place) }),
          () => setBoxes(boxes.filter((other) => other !== box)),
          {
            className: 'icon',
          },
        ),
      ),
    ),
  );
}

const nameOf = ({ id }, place) => (areRegions() ? String(place + 1) : id);

const percent = (part) => `${part / 10}%`;

function showLayer() {
  layer.replaceChildren(
    ...boxes.map((box, place) => {
      const [top, left, bottom, right] = box.bbox;
      const node = el('span', { className: 'box' }, el('b', { textContent: nameOf(box, place) }));
      Object.assign(node.style, {
        top: percent(top),
        left: percent(left),
        height: percent(bottom - top),
        width: percent(right - left),
      });
      return node;
    }),
  );
}

/** Opens the drawing of boxes over the frame. */
export function start(frame, bar) {
  layer = el('div', { className: 'boxes', tabIndex: 0, role: 'img', aria: { label: t('boxes_layer') } });
  const at = ({ clientX, clientY }) => {
    const box = layer.getBoundingClientRect();
    const part = (value) => Math.round(Math.min(1, Math.max(0, value)) * 1000);
    return [part((clientY - box.y) / box.height), part((clientX - box.x) / box.width)];
  };
  const add = (bbox) => ({ id: `object_${boxes.length + 1}`, bbox, desc: '' });
  layer.onpointerdown = (event) => {
    layer.setPointerCapture(event.pointerId);
    const [top, left] = at(event);
    const box = add([top, left, top, left]);
    boxes.push(box);
    layer.onpointermove = (event) => {
      const [y, x] = at(event);
      box.bbox = [Math.min(top, y), Math.min(left, x), Math.max(top, y), Math.max(left, x)];
      showLayer();
    };
    layer.onpointerup = layer.onpointercancel = () => {
      layer.onpointermove = null;
      const [top, left, bottom, right] = box.bbox;
      // A click is no box.
      setBoxes(boxes.filter((other) => other !== box || (bottom - top > 15 && right - left > 15)));
    };
  };
  layer.onkeydown = (event) => {
    if (event.key !== ' ') return;
    event.preventDefault();
    setBoxes([...boxes, add([250, 250, 750, 750])]);
  };
  frame.append(layer);
  bar.append(
    el('span', { textContent: t(areRegions() ? 'draw_regions' : 'draw_boxes') }),
    button('close', t('clear'), () => setBoxes([]), { className: 'icon' }),
  );
  showLayer();
  layer.focus();
}

export function stop() {
  layer = null;
  $('settings').dispatchEvent(new Event('input', { bubbles: true }));
}
