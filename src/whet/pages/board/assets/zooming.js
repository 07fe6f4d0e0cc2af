// Charts of a page that share one stretch of steps and ask the server for more of it. `address` gives where.
function zooming(address) {
  'use strict';
  const figures = () => [...document.querySelectorAll('figure[data-key]')].filter(each => each.chart);
  const sync = document.getElementById('sync'), reset = document.getElementById('reset');
  const near = new Set();
  let zoom = null, passing = false;

  async function load(wanted) {
    if (!wanted.length) return;
    const asked = new URLSearchParams({keys: wanted.map(each => each.dataset.key).join(','),
      points: String(Math.min(2000, Math.max(200, Math.round(wanted[0].clientWidth || 400))))});
    if (zoom) { asked.set('from', zoom.min); asked.set('to', zoom.max); }
    const {charts} = await board.get(address() + asked);
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

  const watching = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries) if (isIntersecting) near.add(target); else near.delete(target);
  }, {rootMargin: '300px'});
  const watch = () => { for (const figure of document.querySelectorAll('figure[data-key]')) watching.observe(figure); };

  // those in sight first
  async function update() {
    await load(figures().filter(each => near.has(each)));
    await load(figures().filter(each => !near.has(each)));
  }

  document.addEventListener('whet-zoom', event => {
    const from = event.target.closest('figure[data-key]');
    if (passing || !from) return;
    zoom = event.detail;
    reset.hidden = !zoom;
    const same = sync.checked ? figures() : [from];
    for (const figure of same) figure.chart.zoom = zoom;
    load(same).catch(() => {});
  });
  if (reset) reset.addEventListener('click', () => {
    zoom = null;
    reset.hidden = true;
    for (const figure of figures()) figure.chart.zoom = null;
    update().catch(() => {});
  });
  whet.upgrade();
  watch();
  return {load, update, watch, figures};
}
