// The list of runs: filter and columns, choice of runs to compare, ages, and news. The address says what is listed.
(() => {
  'use strict';
  const KEY = 'whet-runs', LOOKS = ['sort', 'group', 'columns'], CALM = 200;
  const form = document.getElementById('filters'), button = document.getElementById('compare');
  const chosen = new Set();

  // how a list looks is kept in this browser; a plain address gets it back
  const looks = query => new URLSearchParams([...query].filter(([name, value]) => LOOKS.includes(name) && value)).toString();
  const before = localStorage.getItem(KEY) || '';
  if (!location.search && before && form) { location.replace('/?' + before); return; }

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

  function redo() { ages(); if (button) choose(); }

  const refresh = board.calmly(async () => {
    await board.refresh();
    if (!form && document.querySelector('tr[data-run]')) location.reload();  // the first run has come: filters and all
  });

  // the list anew for what the form says, from its first page on
  function ask() {
    const query = new URLSearchParams(location.search), boxes = [...form.querySelectorAll('[data-column]')];
    query.delete('page');
    for (const name of ['search', 'status', 'group', 'sort']) query.set(name, form.elements[name].value.trim());
    const usual = boxes.every(box => box.checked === ('usual' in box.dataset));
    query.set('columns', usual ? '' : boxes.filter(box => box.checked).map(box => box.dataset.column).join(','));
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    localStorage.setItem(KEY, looks(query));
    history.replaceState(null, '', query.size ? '/?' + query : '/');
    refresh();
  }

  document.addEventListener('change', event => {
    if (!event.target.matches('.pick input')) return;
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    choose();
  });
  if (form) {
    let timer = 0;
    if (location.search) localStorage.setItem(KEY, looks(new URLSearchParams(location.search)));
    form.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(ask, CALM); });
    form.addEventListener('submit', event => { event.preventDefault(); ask(); });
    button.addEventListener('click', () => { location.href = '/compare?runs=' + [...chosen].join(','); });
  }
  document.addEventListener('board-refreshed', redo);
  setInterval(ages, 30000);
  board.listen(refresh);
  redo();
})();
