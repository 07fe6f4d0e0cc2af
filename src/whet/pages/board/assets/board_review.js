// Marks by button and by keyboard. A mark is shown as given once the board has kept it.
(() => {
  'use strict';
  const root = document.getElementById('review');
  if (!root) return;
  const cards = [...root.querySelectorAll('.sample')];
  const keys = {g: 'good', h: 'hacked', w: 'wrong'};
  const trouble = document.getElementById('trouble');
  const form = document.getElementById('token-form');
  const steps = document.getElementById('steps');
  let waiting = Promise.resolve();  // marks are sent one after the other: the last one given is the last one kept

  const noteOf = card => card.querySelector('.note input');

  function show(card, mark) {
    if (mark) card.dataset.mark = mark; else delete card.dataset.mark;
    for (const button of card.querySelectorAll('.marks button'))
      button.setAttribute('aria-pressed', String(button.value === mark));
  }

  function count(found) {
    document.getElementById('verdict').textContent = found.verdict;
    document.getElementById('marked').textContent = found.marked + ' of ' + found.total + ' marked';
    for (const cell of document.querySelectorAll('#counts td[data-end]'))
      cell.textContent = found.counts[cell.dataset.end][cell.dataset.count];
  }

  function keep(card, mark) {
    const value = {id: card.dataset.id, mark: mark || null, note: noteOf(card).value};
    waiting = waiting.then(async () => {
      try {
        count(await board.post(root.dataset.address, value));
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
    return waiting;
  }

  const toggle = (card, mark) => keep(card, card.dataset.mark === mark ? null : mark);

  function move(by) {
    const at = cards.indexOf(document.activeElement && document.activeElement.closest('.sample'));
    const next = cards[Math.min(Math.max(at + by, 0), cards.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest'}); }
  }

  root.addEventListener('click', event => {
    const button = event.target.closest('.marks button');
    if (button) toggle(button.closest('.sample'), button.value);
  });
  for (const card of cards) {
    const note = noteOf(card);
    card.dataset.kept = note.value;
    note.addEventListener('change', () => { if (note.value !== card.dataset.kept) keep(card, card.dataset.mark); });
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
  steps.addEventListener('change', event => {
    location.search = '?step=' + encodeURIComponent(event.target.value);
  });
  form.addEventListener('submit', event => {
    event.preventDefault();
    board.setToken(document.getElementById('token').value);
    form.hidden = true;
    trouble.textContent = 'Mark again: the token is known now.';
  });
})();
