// Marks by button and by keyboard. On the board a mark is shown as given once the board has kept it; a page on its own
// keeps marks in this browser until they are downloaded.
(() => {
  'use strict';
  const cards = [...document.querySelectorAll('.sample[data-id]')];
  const keys = {g: 'good', h: 'hacked', w: 'wrong'};
  const noteOf = card => card.querySelector('.note input');

  function show(card, mark) {
    if (mark) card.dataset.mark = mark; else delete card.dataset.mark;
    for (const button of card.querySelectorAll('.marks button'))
      button.setAttribute('aria-pressed', String(button.value === mark));
  }

  function count(marked, total) { document.getElementById('marked').textContent = marked + ' of ' + total + ' marked'; }

  function inBrowser(rows) {
    const byId = new Map(rows.map(row => [row.id, row])), key = id => 'whet-review/' + id;
    let store = null;
    try { store = window.localStorage; store.getItem('x'); } catch (error) { store = null; }
    for (const card of cards) {
      const row = byId.get(card.dataset.id), known = store && store.getItem(key(row.id));
      if (known) Object.assign(row, JSON.parse(known));
      noteOf(card).value = row.note || '';
      show(card, row.mark);
    }
    const recount = () => count(rows.filter(row => row.mark).length, rows.length);
    document.getElementById('save').addEventListener('click', () => {
      const link = document.createElement('a');
      const lines = rows.map(row => JSON.stringify(row) + '\n').join('');
      link.href = URL.createObjectURL(new Blob([lines], {type: 'application/x-ndjson'}));
      link.download = 'review.jsonl';
      link.click();
      URL.revokeObjectURL(link.href);
    });
    recount();
    return (card, value) => {
      Object.assign(byId.get(value.id), {mark: value.mark, note: value.note});
      if (store) store.setItem(key(value.id), JSON.stringify({mark: value.mark, note: value.note}));
      show(card, value.mark);
      recount();
    };
  }

  function onBoard(root) {
    const trouble = document.getElementById('trouble'), form = document.getElementById('token-form');
    const steps = document.getElementById('steps');
    let waiting = Promise.resolve();  // marks are sent one after the other: the last one given is the last one kept
    steps.addEventListener('change', event => { location.search = '?step=' + encodeURIComponent(event.target.value); });
    form.addEventListener('submit', event => {
      event.preventDefault();
      board.setToken(document.getElementById('token').value);
      form.hidden = true;
      trouble.textContent = 'Mark again: the token is known now.';
    });
    return (card, value) => {
      waiting = waiting.then(async () => {
        try {
          const told = await board.post(root.dataset.address, value);
          document.getElementById('verdict').textContent = told.verdict;
          count(told.marked, told.total);
          for (const cell of document.querySelectorAll('#counts td[data-end]'))
            cell.textContent = told.counts[cell.dataset.end][cell.dataset.count];
          show(card, value.mark);
          const done = cards.filter(each => each.dataset.mark).length, chosen = steps.selectedOptions[0];
          chosen.textContent = chosen.value + ' (' + done + ' of ' + cards.length + ')';
          card.dataset.kept = value.note;
          trouble.textContent = '';
          form.hidden = true;
        } catch (error) {
          trouble.textContent = 'Not kept: ' + error.message;
          form.hidden = error.status !== 401;
        }
      });
    };
  }

  const rows = document.getElementById('rows'), root = document.getElementById('review');
  if (!root) return;
  const keep = rows ? inBrowser(JSON.parse(rows.textContent)) : onBoard(root);
  const say = (card, mark) => keep(card, {id: card.dataset.id, mark: mark || null, note: noteOf(card).value});
  const toggle = (card, mark) => say(card, card.dataset.mark === mark ? null : mark);

  function move(by) {
    const at = cards.indexOf(document.activeElement && document.activeElement.closest('.sample'));
    const next = cards[Math.min(Math.max(at + by, 0), cards.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest'}); }
  }

  document.addEventListener('click', event => {
    const button = event.target.closest('.marks button');
    if (button) toggle(button.closest('.sample'), button.value);
  });
  for (const card of cards) {
    const note = noteOf(card);
    card.dataset.kept = note.value;
    note.addEventListener('change', () => { if (note.value !== card.dataset.kept) say(card, card.dataset.mark); });
    note.addEventListener('keydown', event => {
      if (event.key === 'Enter' || event.key === 'Escape') { event.preventDefault(); note.blur(); card.focus(); }
    });
  }
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const inWell = event.target.closest('.well');  // arrows scroll there
    if (event.key === 'j' || (event.key === 'ArrowDown' && !inWell)) { event.preventDefault(); move(1); return; }
    if (event.key === 'k' || (event.key === 'ArrowUp' && !inWell)) { event.preventDefault(); move(-1); return; }
    const card = event.target.closest('.sample');
    if (!card) return;
    if (keys[event.key]) { event.preventDefault(); toggle(card, keys[event.key]); }
    if (event.key === 'n') { event.preventDefault(); noteOf(card).focus(); }
  });
})();
