// Runs side by side: the choice of runs, further metrics, and news.
(() => {
  'use strict';
  const form = document.getElementById('choice'), other = document.getElementById('other');
  const runs = new URLSearchParams(location.search).get('runs') || '';
  if (form) form.addEventListener('submit', event => {
    event.preventDefault();
    location.href = '/compare?runs=' + [...form.querySelectorAll('input:checked')].map(each => each.value).join(',');
  });
  if (!runs) return;
  const across = document.getElementById('across');
  across.addEventListener('change', () => {
    location.search = '?' + new URLSearchParams({runs, ...(across.value === 'step' ? {} : {across: across.value})});
  });
  const charts = zooming(() => '/api/compare?' + new URLSearchParams({runs, across: across.value}) + '&');
  const update = board.calmly(async () => { await board.refresh(); await charts.update(); });
  board.listen((kind, values) => { if (kind === 'run' && runs.split(',').includes(values.id)) update(); });
  if (other) other.addEventListener('change', () => {
    if (!other.value) return;
    const chosen = other.selectedOptions[0], figure = whet.element('figure'), caption = whet.element('figcaption');
    const live = whet.element('div', 'live');
    caption.append(whet.element('b', '', chosen.textContent), whet.element('span', 'soft unit'), whet.element('span', 'last'));
    live.dataset.label = chosen.textContent;
    figure.dataset.key = chosen.value;
    figure.dataset.chart = '';
    figure.append(caption, live);
    document.getElementById('charts').append(figure);
    chosen.remove();
    other.value = '';
    charts.load([figure]).then(charts.watch).catch(() => {});
  });
})();
