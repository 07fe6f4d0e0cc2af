// One run: charts that follow it, and the live parts of the page.
(() => {
  'use strict';
  const state = document.getElementById('state'), run = state.dataset.run, more = document.getElementById('more');
  const charts = zooming(() => '/api/run/' + run + '/charts?');

  function gone() {
    if (document.getElementById('gone')) return;
    const note = whet.element('p', 'finding problem remark',
      'The folder of this run was deleted or moved. What is drawn here is the last that was read.');
    note.id = 'gone';
    note.setAttribute('role', 'alert');
    state.append(note);
  }

  const update = board.calmly(async () => {
    if (await board.refresh() === 404) { gone(); return; }
    await charts.update();
    if (!charts.figures().length && document.querySelector('.tile')) location.reload();  // the first step has come
  });

  if (more) more.addEventListener('toggle', () => {
    const empty = [...more.querySelectorAll('figure[data-key]')].filter(each => !each.chart);
    if (more.open && empty.length) charts.load(empty).catch(() => {});
  });
  board.listen((kind, values) => { if (kind === 'run' && values.id === run) update(); });
  // a long log is still being read: come back until it is whole
  const poll = setInterval(() => { if (document.querySelector('.reading')) update(); else clearInterval(poll); }, 2000);
})();
