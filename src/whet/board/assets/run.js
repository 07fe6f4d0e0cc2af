// One run: charts that follow it, zoom that asks the server for more, and the live parts of the page.
(() => {
  'use strict';
  const state = document.getElementById('state'), run = state.dataset.run;
  const figures = () => [...document.querySelectorAll('figure[data-key]')].filter(each => each.chart);
  const sync = document.getElementById('sync'), reset = document.getElementById('reset'), more = document.getElementById('more');
  let zoom = null, passing = false;

  async function load(wanted, range) {
    if (!wanted.length) return;
    const asked = new URLSearchParams({keys: wanted.map(each => each.dataset.key).join(','),
      points: String(Math.min(2000, Math.max(200, Math.round(wanted[0].clientWidth || 400))))});
    if (range) { asked.set('from', range.min); asked.set('to', range.max); }
    const {charts} = await board.get('/api/run/' + run + '/charts?' + asked);
    for (const figure of wanted) {
      const found = charts[figure.dataset.key];
      if (!found) continue;
      figure.querySelector('.last').textContent = found.last;
      figure.querySelector('.unit').textContent = found.unit;
      passing = true;
      if (figure.chart) figure.chart.set(found.spec);
      else figure.chart = whet.chart(figure.querySelector('.live'), found.spec);
      figure.classList.add('is-live');
      passing = false;
    }
  }

  // charts that are far below are loaded when they come near
  const near = new Set();
  const watching = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries) if (isIntersecting) near.add(target); else near.delete(target);
  }, {rootMargin: '300px'});
  const watch = () => { for (const figure of document.querySelectorAll('figure[data-key]')) watching.observe(figure); };

  const update = board.calmly(async () => {
    const status = await board.refresh();
    if (status === 404) { state.dataset.status = 'deleted'; gone(); return; }
    const shown = figures();
    await load(shown.filter(each => near.has(each)), zoom);
    await load(shown.filter(each => !near.has(each)), zoom);
    if (!shown.length && document.querySelector('.tile')) location.reload();  // the first step has come
  });

  function gone() {
    if (document.getElementById('gone')) return;
    const note = whet.element('p', 'finding problem remark', 'The folder of this run was deleted or moved. What is drawn here is the last that was read.');
    note.id = 'gone';
    note.setAttribute('role', 'alert');
    state.append(note);
  }

  const reload = board.calmly(() => load(figures(), zoom));

  document.addEventListener('whet-zoom', event => {
    if (passing) return;
    const from = event.target.closest('figure[data-key]');
    if (!from) return;
    zoom = event.detail;
    reset.hidden = !zoom;
    const same = sync.checked ? figures() : [from];
    passing = true;
    for (const figure of same) if (figure !== from) { figure.chart.zoom = zoom; }
    passing = false;
    load(same, zoom).catch(() => {});
  });
  if (reset) reset.addEventListener('click', () => {
    zoom = null;
    reset.hidden = true;
    for (const figure of figures()) figure.chart.zoom = null;
    reload();
  });
  if (more) more.addEventListener('toggle', () => {
    const empty = [...more.querySelectorAll('figure[data-key]')].filter(each => !each.chart);
    if (more.open && empty.length) load(empty, zoom).catch(() => {});
  });

  whet.upgrade();
  watch();
  board.listen((kind, values) => {
    if (kind === 'hello' || (kind === 'run' && values.id === run)) update();
  });
  // a long log is still being read: come back until it is whole
  const poll = setInterval(() => { if (document.querySelector('.reading')) update(); else clearInterval(poll); }, 2000);
})();
