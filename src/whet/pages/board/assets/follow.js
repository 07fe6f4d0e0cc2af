// A page that is written anew by the server whenever something changes; figures that it draws become live charts.
// One that names what it shows is written anew for the news of that alone.
(() => {
  'use strict';
  whet.upgrade();
  document.addEventListener('board-refreshed', () => whet.upgrade());
  const shown = document.querySelector('[data-follows]'), follow = board.calmly(board.refresh);
  board.listen((kind, values) => { if (!shown || (kind === 'run' && values.id === shown.dataset.follows)) follow(); });
})();
