// What belongs to the whole page: its address, its keys, what was asked before, copying and saving.
window.vse ??= {};
const ASKED = 'vse_demo.asked', MOST = 12;
const unpack = text => { try { return decodeURIComponent(text); } catch { return text; } };  // names of no Unicode stay packed
const remembered = () => { try { return JSON.parse(localStorage.getItem(ASKED)) ?? []; } catch { return []; } };

// The address says what the page shows: going somewhere is to write it and to read it again. Scrolling is no step back.
window.vse.visit = (changes, how = 'pushState') => {
  const url = new URL(location);
  for (const [key, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(key, value); else url.searchParams.delete(key);
  }
  if (url.href !== location.href) history[how](null, '', url);
};
window.vse.go = (changes, how) => { window.vse.visit(changes, how); trigger('restore'); };
addEventListener('popstate', () => trigger('restore'));

// Sentences that were asked for are offered again below the search field.
const offer = () => {
  const list = element.querySelector('datalist');
  list.replaceChildren(...remembered().map(text => Object.assign(document.createElement('option'), { value: text })));
  for (const box of document.querySelectorAll('.search input')) box.setAttribute('list', list.id);
};
window.vse.remember = text => {
  const sentences = [text, ...remembered().filter(each => each !== text)].slice(0, MOST);
  try { localStorage.setItem(ASKED, JSON.stringify(sentences)); } catch { /* a private window keeps nothing */ }
  offer();
};
new MutationObserver(() => { if (document.querySelector('.search input:not([list])')) offer(); })
  .observe(document.body, { childList: true, subtree: true });
offer();

const say = (button, text) => {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => { button.textContent = before; }, 1500);
};
const copyPicture = async button => {
  const picture = new Image();
  picture.src = button.dataset.copyPicture;
  await picture.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width: picture.naturalWidth, height: picture.naturalHeight });
  canvas.getContext('2d').drawImage(picture, 0, 0);
  const blob = await new Promise(done => canvas.toBlob(done));
  await navigator.clipboard.write([new ClipboardItem({ 'image/png': blob })]);
};
const cell = value => `"${String(value ?? '').replaceAll('"', '""').replace(/^(?=[=+@\t\r])/, "'")}"`;  // no formulas
const save = (kind, rows) => {
  const columns = [...new Set(rows.flatMap(row => Object.keys(row)))];
  const flat = value => Array.isArray(value) ? value.join(' | ') : value;
  const text = kind === 'json' ? JSON.stringify(rows, null, 2)
    : [columns, ...rows.map(row => columns.map(key => flat(row[key])))].map(row => row.map(cell).join(',')).join('\r\n');
  const link = Object.assign(document.createElement('a'), {
    href: URL.createObjectURL(new Blob([text], { type: kind === 'json' ? 'application/json' : 'text/csv' })),
    download: `results.${kind}`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
};

document.addEventListener('click', event => {
  const hit = name => event.target.closest?.(`[data-${name}]`);
  let button = event.target.closest?.('[role=tab]');
  if (button) {
    const names = element.querySelector('datalist').dataset.tabs.split(' ');
    const at = [...document.querySelectorAll('[role=tab]')].filter(each => each.offsetParent).indexOf(button);
    window.vse.visit({ tab: at > 0 ? names[at] : '' });
  } else if ((button = hit('go'))) window.vse.go(Object.fromEntries(new URLSearchParams(button.dataset.go)));
  else if ((button = hit('ask'))) { const q = unpack(button.dataset.ask); window.vse.remember(q); window.vse.go({ q }); }
  else if ((button = hit('like'))) window.vse.go({ like: unpack(button.dataset.like), q: '', tab: '' });
  else if ((button = hit('enlarge'))) window.vse.enlarge(button.dataset.enlarge);
  else if ((button = hit('copy'))) navigator.clipboard.writeText(unpack(button.dataset.copy)).then(() => say(button, 'Copied'));
  else if ((button = hit('copy-picture'))) {
    copyPicture(button).then(() => say(button, 'Copied'), () => say(button, 'Not allowed'));
  } else if ((button = hit('save'))) {
    const cards = button.closest('.head').parentElement.querySelector('.cards');
    save(button.dataset.save, JSON.parse(unpack(cards.dataset.results)));
  }
});

document.addEventListener('keydown', event => {
  const typing = event.target.closest?.('input, textarea, select, [contenteditable]');
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
    const box = [...document.querySelectorAll('.search input')].find(each => each.offsetParent);
    if (box) { event.preventDefault(); box.focus(); box.select(); }
  }
  const tab = event.target.closest?.('[role=tab]'), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!tab || !step) return;
  const tabs = [...document.querySelectorAll('[role=tab]')].filter(each => each.offsetParent);
  const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
  event.preventDefault();
  next.focus();
  next.click();
});

// Gradio's upload button does nothing while there is a picture: take it away first, and wait for the field's input.
document.addEventListener('click', event => {
  const upload = event.target.closest?.('.picture-field [aria-label="Upload file"]'), field = upload?.closest('.picture-field');
  const remove = field?.querySelector('[aria-label="Remove"], [aria-label="Clear"], [aria-label="Remove Image"]');
  if (!remove) return;
  new MutationObserver((_, seen) => {
    const input = field.querySelector('input[type=file]');
    if (input) { seen.disconnect(); input.click(); }
  }).observe(field, { childList: true, subtree: true });
  remove.click();
}, true);
