// Tags and a note of a run, kept in its folder; writing needs the token.
(() => {
  'use strict';
  const form = document.getElementById('notes');
  if (!form) return;
  const told = form.querySelector('output'), ask = form.querySelector('.token');
  form.addEventListener('submit', async event => {
    event.preventDefault();
    if (form.elements.token.value) board.setToken(form.elements.token.value);
    const tags = form.elements.tags.value.split(',').map(tag => tag.trim()).filter(Boolean);
    try {
      await board.post(form.dataset.address, {tags, note: form.elements.note.value});
      told.textContent = 'Kept.';
      ask.hidden = true;
      await board.refresh();
    } catch (error) {
      told.textContent = 'Not kept: ' + error.message;
      ask.hidden = error.status !== 401;
    }
  });
})();
