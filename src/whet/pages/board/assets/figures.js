// Figures that the server drew become live charts. A page that names what it shows follows it: it is written anew when
// that changes, and not for the news of others, which would take away a zoom.
(() => {
  'use strict';
  whet.upgrade();
  document.addEventListener('board-refreshed', () => whet.upgrade());
  const shown = document.querySelector('[data-follows]');
  if (!shown) return;
  const follow = board.calmly(board.refresh);
  board.listen((kind, values) => { if (kind === 'run' && values.id === shown.dataset.follows) follow(); });
})();
