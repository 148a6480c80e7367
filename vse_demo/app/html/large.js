// A picture in large: opened from anywhere by `vse.enlarge(item)`; arrows lead to the results beside it.
window.vse ??= {};
window.vse.enlarge = item => trigger('enlarge', { value: item });
let came = null;
const dialog = () => element.querySelector('dialog');
const close = () => { dialog()?.close(); came?.focus?.(); };
const beside = step => {
  const shown = [...document.querySelectorAll('#found-pictures .card')], item = dialog().dataset.item;
  const next = shown[shown.findIndex(each => each.dataset.item === item) + step];
  if (next && shown.some(each => each.dataset.item === item)) window.vse.enlarge(next.dataset.item);
};
watch('value', () => {
  if (!dialog() || dialog().open) return;
  if (!element.contains(document.activeElement)) came = document.activeElement;
  dialog().showModal();
  dialog().addEventListener('close', () => came?.focus?.());
});
element.addEventListener('click', event => {
  if (event.target.closest('.close') || event.target === dialog() || event.target.closest('[data-like]')) close();
});
element.addEventListener('keydown', event => {
  if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') beside(event.key === 'ArrowLeft' ? -1 : 1);
});
