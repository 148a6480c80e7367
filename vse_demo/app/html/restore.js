// From the address to the fields of the page; SETTINGS are put in by page.py.
() => {
  const { first, models, tabs, count, most } = SETTINGS, from = new URLSearchParams(location.search);
  const at = name => from.get(name) ?? '', known = (name, all) => all.includes(at(name)) ? at(name) : all[0];
  const tab = known('tab', tabs), results = Math.min(Math.max(parseInt(at('k')) || count, 1), most);
  return [
    at('q'), at('q') || (at('like') ? '' : first), at('like'), results, known('model', models),
    { __type__: 'update', selected: tab }, tab, at('picture'), 'sentence',
  ];
}
