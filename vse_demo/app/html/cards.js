// Cards: a click chooses, arrows move between them, the last one of many asks for more. No click is lost.
const cards = () => [...element.querySelectorAll('.card')];
const kept = { top: 0, open: false, sentence: '', results: '', chosen: '', at: 0 };
element.addEventListener('click', event => {
  const card = event.target.closest('.card');
  if (!card) return;
  for (const each of cards()) each.setAttribute('aria-pressed', each === card);
  const { index, item } = card.dataset, { sentence, asked } = card.closest('.cards').dataset;
  Object.assign(kept, { chosen: item, at: performance.now() });
  trigger('select', { index: Number(index), value: { item, sentence, asked: Number(asked) } });
});
element.addEventListener('keydown', event => {
  const all = cards(), here = all.indexOf(document.activeElement);
  if (here < 0) return;
  const columns = all.filter(each => each.getBoundingClientRect().top === all[0].getBoundingClientRect().top).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -here, End: all.length - 1 - here };
  const next = all[here + steps[event.key]];
  if (!next) return;
  event.preventDefault();
  next.focus();
});
element.addEventListener('toggle', event => { if (event.target.matches('.far')) kept.open = event.target.open; }, true);
const keepOpen = () => {  // far results that one asked to see, as long as the sentence is the same
  const { sentence } = element.querySelector('.cards')?.dataset ?? {}, far = element.querySelector('.far');
  if (sentence !== kept.sentence) Object.assign(kept, { sentence, top: 0, open: false });
  if (far) far.open = kept.open;
};
const watchEnd = () => {  // many results have a box of their own, which asks for more when one comes to its end
  const box = element.querySelector('.cards.many'), more = box?.querySelector('.more');
  if (!box) { kept.top = 0; return; }
  box.scrollTop = kept.top;
  box.addEventListener('scroll', () => { kept.top = box.scrollTop; });
  if (!more) return;
  const end = new IntersectionObserver(seen => {
    if (!box.scrollTop || !seen.some(each => each.isIntersecting)) return;
    end.disconnect();
    window.vse.go(Object.fromEntries(new URLSearchParams(more.dataset.go)), 'replaceState');
  }, { root: box });
  end.observe(more);
};
const keepChoice = () => {  // of a card that was chosen while these were on their way, or if these only add to what was here
  const { asked, results = '' } = element.querySelector('.cards')?.dataset ?? {};
  const more = results.startsWith(kept.results.slice(0, -'%5D'.length));  // a list, packed: without its last bracket
  const card = cards().find(each => each.dataset.item === kept.chosen);
  Object.assign(kept, { results, chosen: '' });
  if (card && (more || kept.at > Number(asked))) card.click();
};
const fadeReasons = () => {  // what is explained belongs to other cards as long as the explanation of these is on its way
  const asked = element.querySelector('.cards')?.dataset.asked;
  for (const each of element.closest('[role=tabpanel]')?.querySelectorAll('.reasons') ?? []) {
    each.setAttribute('aria-busy', each.dataset.search !== asked);
  }
};
watch('value', () => { keepOpen(); watchEnd(); fadeReasons(); keepChoice(); });
