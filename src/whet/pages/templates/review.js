const rows = JSON.parse(document.getElementById('rows').textContent);
const byId = new Map(rows.map(row => [row.id, row]));
const key = id => 'whet-review/' + id;
let store = null;
try { store = window.localStorage; store.getItem('x'); } catch (error) { store = null; }
function show(card) {
  const row = byId.get(card.id);
  if (row.mark) card.dataset.mark = row.mark; else delete card.dataset.mark;
  card.querySelector('input').value = row.note || '';
  for (const button of card.querySelectorAll('button'))
    button.setAttribute('aria-pressed', String(button.value === row.mark));
}
function count() {
  const marked = rows.filter(row => row.mark).length;
  document.getElementById('count').textContent = marked + ' of ' + rows.length + ' marked';
}
function keep(row) {
  if (store) store.setItem(key(row.id), JSON.stringify({mark: row.mark, note: row.note}));
  count();
}
for (const card of document.querySelectorAll('.sample')) {
  const row = byId.get(card.id);
  const kept = store && store.getItem(key(row.id));
  if (kept) Object.assign(row, JSON.parse(kept));
  if (row.mark === 'bad') row.mark = 'wrong';  // what an earlier version called it
  show(card);
  card.addEventListener('click', event => {
    if (event.target.tagName !== 'BUTTON') return;
    row.mark = row.mark === event.target.value ? null : event.target.value;
    keep(row); show(card);
  });
  card.querySelector('input').addEventListener('change', event => { row.note = event.target.value; keep(row); });
}
document.getElementById('save').addEventListener('click', () => {
  const lines = rows.map(row => JSON.stringify(row) + '\n').join('');
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines], {type: 'application/x-ndjson'}));
  link.download = 'review.jsonl';
  link.click();
  URL.revokeObjectURL(link.href);
});
count();
