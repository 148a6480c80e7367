// From the address to the fields of the page; SETTINGS are put in by page.py.
(upload, query, ...boxes) => {
  const { first, models, tabs, count, most } = SETTINGS, from = new URLSearchParams(location.search);
  const at = name => from.get(name) ?? '', known = (name, all) => all.includes(at(name)) ? at(name) : all[0];
  const tab = known('tab', tabs), results = Math.min(Math.max(parseInt(at('k')) || count, 1), most);
  const asked = at('q') || (at('like') || upload ? '' : first);
  const typed = boxes.map(text => asked === query && text || at('q'));  // what was not sent yet stays
  return [
    asked, ...typed, at('like'), results, known('model', models),
    { __type__: 'update', selected: tab }, tab, at('picture'), tab === 'captions' ? 'picture' : 'sentence',
  ];
}
