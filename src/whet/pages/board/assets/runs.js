// The list of runs: filter, choice of runs to compare, ages, and news.
(() => {
  'use strict';
  const words = document.getElementById('filter'), status = document.getElementById('status');
  const button = document.getElementById('compare'), shown = document.getElementById('shown');
  const chosen = new Set();

  function filter() {
    if (!words) return;
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll('tr[data-run]')];
    let count = 0;
    for (const row of rows) {
      const fits = wanted.every(word => row.dataset.words.includes(word)) && (!status.value || row.dataset.status === status.value);
      row.hidden = !fits;
      count += fits ? 1 : 0;
    }
    for (const group of document.querySelectorAll('.group')) {
      group.hidden = !group.querySelector('tr[data-run]:not([hidden])');
    }
    shown.textContent = count < rows.length ? count + ' of ' + rows.length + ' runs' : '';
  }

  function ages() {
    const now = Date.now() / 1000;
    for (const time of document.querySelectorAll('time[data-at]')) {
      const seconds = Math.max(0, now - Number(time.dataset.at));
      const [size, unit] = [[86400, 'd'], [3600, 'h'], [60, 'min']].find(each => seconds >= each[0]) || [1, 's'];
      if (!time.title) time.title = time.textContent + ' UTC';
      time.textContent = Math.round(seconds / size) + ' ' + unit + ' ago';
    }
  }

  function choose() {
    for (const box of document.querySelectorAll('.pick input')) box.checked = chosen.has(box.value);
    button.disabled = chosen.size < 1;
    button.textContent = chosen.size ? 'Compare ' + chosen.size : 'Compare';
  }

  function redo() { filter(); ages(); if (button) choose(); }

  document.addEventListener('change', event => {
    if (!event.target.matches('.pick input')) return;
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    choose();
  });
  if (words) {
    words.addEventListener('input', filter);
    status.addEventListener('change', filter);
    button.addEventListener('click', () => { location.href = '/compare?runs=' + [...chosen].join(','); });
    document.getElementById('filters').addEventListener('submit', event => event.preventDefault());
  }
  document.addEventListener('board-refreshed', redo);
  setInterval(ages, 30000);
  const refresh = board.calmly(async () => {
    const empty = !words;
    await board.refresh();
    if (empty && document.querySelector('tr[data-run]')) location.reload();  // the first run has come: filters and all
  });
  board.listen(refresh);
  redo();
})();
