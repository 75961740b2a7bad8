// Boxes of FLUX.3, drawn on the stage: places of objects that the prompt cites by ID.

import { $, button, el } from './dom.js';
import { t } from './words.js';

/** The boxes as the server reads them: {id, bbox: [top, left, bottom, right] from 0 to 1000, desc}. */
export let boxes = [];
let layer = null;

export function setBoxes(next) {
  boxes = next;
  showList();
  if (layer) showLayer();
}

function showList() {
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
        input(box, 'id', t('box_id', { n: place + 1 })),
        input(box, 'desc', t('box_text', { n: place + 1 })),
        button('close', t('remove_name', { name: box.id }), () => setBoxes(boxes.filter((other) => other !== box)), {
          className: 'icon',
        }),
      ),
    ),
  );
}

const percent = (part) => `${part / 10}%`;

function showLayer() {
  layer.replaceChildren(
    ...boxes.map(({ id, bbox: [top, left, bottom, right] }) => {
      const node = el('span', { className: 'box' }, el('b', { textContent: id }));
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
    el('span', { textContent: t('draw_boxes') }),
    button('close', t('clear'), () => setBoxes([]), { className: 'icon' }),
  );
  showLayer();
  layer.focus();
}

export function stop() {
  layer = null;
  $('settings').dispatchEvent(new Event('input', { bubbles: true }));
}
