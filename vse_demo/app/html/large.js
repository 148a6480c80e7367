// A picture in large: opened from anywhere by `vse.enlarge(item)`; arrows lead to the results beside it.
window.vse ??= {};
let came = null, wanted = '';  // what was asked for last: arrows can be faster than answers
const dialog = () => element.querySelector('dialog');
const results = () => [...document.querySelectorAll('#found-pictures .card')].map(each => each.dataset.item);
const open = () => {
  if (dialog().open) return;
  if (!element.contains(document.activeElement)) came = document.activeElement;
  dialog().querySelector('.beside').hidden = !results().includes(dialog().dataset.item);
  dialog().showModal();
};
const close = () => { dialog()?.close(); came?.focus?.(); };
window.vse.wanted = () => wanted;
window.vse.enlarge = item => {
  wanted = item;
  if (dialog()?.dataset.item === item) open(); else trigger('enlarge');
};
const beside = step => {
  const all = results(), next = all.includes(wanted) && all[all.indexOf(wanted) + step];
  if (next) window.vse.enlarge(next);
};
watch('value', () => {
  if (!dialog()) return;
  dialog().addEventListener('close', () => { wanted = ''; came?.focus?.(); });
  if (wanted) open();  // else it was closed before this answer came
  if (wanted && wanted !== dialog().dataset.item) trigger('enlarge');
});
element.addEventListener('click', event => {
  if (event.target.closest('.close') || event.target === dialog() || event.target.closest('[data-like]')) close();
});
element.addEventListener('keydown', event => {
  if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') beside(event.key === 'ArrowLeft' ? -1 : 1);
});
