// The map: tips for what one points at, taps or moves to with the arrow keys; zoom; a click opens a picture.
// Plotly draws such maps too, but cannot be moved through by keyboard and tells Gradio nothing of clicks.
const WIDTH = 1000, HEIGHT = 620;
let view = [0, 0, WIDTH, HEIGHT], drag = null;
const every = () => [...element.querySelectorAll('svg > circle')];
const at = point => [Number(point.getAttribute('cx')), Number(point.getAttribute('cy'))];
const hide = () => {
  element.querySelector('.tip').style.display = 'none';
  element.querySelector('.joins').setAttribute('d', '');
  for (const each of element.querySelectorAll('.on, .kin')) each.classList.remove('on', 'kin');
};
const look = (x, y, width) => {  // the part of the map that is shown, never beyond its edges
  const height = width * HEIGHT / WIDTH;
  view = [Math.max(0, Math.min(x, WIDTH - width)), Math.max(0, Math.min(y, HEIGHT - height)), width, height];
  const svg = element.querySelector('svg');
  svg.setAttribute('viewBox', view.join(' '));
  svg.style.setProperty('--zoom', WIDTH / width);
};
const zoom = (factor, x = view[0] + view[2] / 2, y = view[1] + view[3] / 2) => {
  const width = factor ? Math.max(WIDTH / 16, Math.min(WIDTH, view[2] / factor)) : WIDTH, share = width / view[2];
  look(x - (x - view[0]) * share, y - (y - view[1]) * share, width);
  hide();
};
const place = event => {  // of an event, in units of the map
  const box = element.querySelector('svg').getBoundingClientRect(), scale = view[2] / box.width;
  return [view[0] + (event.clientX - box.left) * scale, view[1] + (event.clientY - box.top) * scale, scale];
};
const show = point => {
  hide();
  const box = element.querySelector('svg').getBoundingClientRect(), scale = box.width / view[2], [x, y] = at(point);
  const kin = every().filter(each => each.dataset.of === point.dataset.of);
  const photo = kin.find(each => each.dataset.src);
  for (const each of kin) each.classList.add(each === point ? 'on' : 'kin');
  if (photo) {
    element.querySelector('.joins').setAttribute('d', kin.map(each => `M${at(photo)}L${at(each)}`).join(''));
  }
  const tip = element.querySelector('.tip'), left = (x - view[0]) * scale, top = (y - view[1]) * scale;
  tip.replaceChildren();
  if (photo) { const img = new Image(); img.src = photo.dataset.src; img.alt = ''; tip.append(img); }
  tip.append(point.dataset.tip);
  tip.style.display = 'block';
  tip.style.left = Math.max(0, Math.min(left + 14, box.width - 232)) + 'px';
  tip.style.top = (top + 14 + tip.offsetHeight > box.height && top > tip.offsetHeight
    ? top - tip.offsetHeight - 14 : top + 14) + 'px';
};
const nearest = event => {
  const [x, y, scale] = place(event);
  let best = null, least = (event.pointerType === 'mouse' ? 14 : 30) * scale;
  for (const each of every()) {
    const [px, py] = at(each), far = Math.hypot(px - x, py - y) - Number(each.getAttribute('r'));
    if (far < least) { best = each; least = far; }
  }
  return best;
};
const point = event => {
  if (!event.target.closest('svg')) return;
  if (drag) {
    const scale = view[2] / element.querySelector('svg').getBoundingClientRect().width;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    drag.moved ||= Math.hypot(dx, dy) > 6;
    if (drag.moved && view[2] < WIDTH) { look(drag.view[0] - dx * scale, drag.view[1] - dy * scale, view[2]); hide(); return; }
  }
  const best = nearest(event);
  if (!best) hide(); else if (!best.classList.contains('on')) show(best);
};
const open = dot => {
  const photo = dot && every().find(each => each.dataset.of === dot.dataset.of && each.dataset.item);
  if (photo) window.vse.enlarge(photo.dataset.item);
};
element.addEventListener('pointerdown', event => {
  const seen = element.querySelector('.on');
  drag = { x: event.clientX, y: event.clientY, view: [...view], moved: false };
  point(event);
  drag.again = event.pointerType === 'mouse' || (seen && seen === element.querySelector('.on'));  // a first tap only tells
});
element.addEventListener('pointermove', point);
element.addEventListener('click', event => {
  const button = event.target.closest('[data-zoom]');
  if (button) { zoom(Number(button.dataset.zoom)); return; }
  if (drag && !drag.moved && drag.again && event.target.closest('svg')) open(nearest(event));
});
addEventListener('pointerup', () => setTimeout(() => { drag = null; }));
element.addEventListener('dblclick', event => { if (!nearest(event)) { const [x, y] = place(event); zoom(2, x, y); } });
element.addEventListener('wheel', event => {  // alone it scrolls the page; pinching a touchpad is a wheel with Ctrl
  if (!event.ctrlKey || !event.target.closest('svg')) return;
  event.preventDefault();
  const [x, y] = place(event);
  zoom(Math.exp(-event.deltaY / 200), x, y);
}, { passive: false });
element.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') hide(); });
element.addEventListener('focusout', hide);
element.addEventListener('keydown', event => {
  if (!event.target.closest('svg')) return;
  const here = element.querySelector('.on');
  if (event.key === 'Escape') { hide(); return; }
  if (event.key === 'Enter') { open(here); return; }
  if ('+-0'.includes(event.key)) { zoom({ '+': 2, '-': 0.5, '0': 0 }[event.key]); return; }
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, way = ways[event.key];
  if (!way) return;
  event.preventDefault();
  const [x, y] = here ? at(here) : [view[0] + view[2] / 2, view[1] + view[3] / 2];
  let best = null, least = Infinity;
  for (const each of every()) {
    const [px, py] = at(each), ahead = (px - x) * way[0] + (py - y) * way[1];
    const aside = Math.abs((px - x) * way[1]) + Math.abs((py - y) * way[0]);
    if (each !== here && ahead > 0 && ahead >= aside && ahead + 2 * aside < least) {
      best = each; least = ahead + 2 * aside;
    }
  }
  if (!best) return;
  const [bx, by] = at(best);
  if (bx < view[0] || by < view[1] || bx > view[0] + view[2] || by > view[1] + view[3]) {
    look(bx - view[2] / 2, by - view[3] / 2, view[2]);
  }
  show(best);
});
watch('value', () => look(...view.slice(0, 3)));  // a new mark draws the map anew
