// The list reads on while the board is still searching; one sample has its tokens coloured by a value of each.
(() => {
  'use strict';
  whet.upgrade();
  const filters = document.querySelector('.filters');
  if (filters) {
    // empty fields stay out of the address
    filters.addEventListener('submit', () => {
      for (const field of filters.elements) if (field.name && !field.value) field.disabled = true;
    });
    addEventListener('pageshow', () => { for (const field of filters.elements) field.disabled = false; });
    if ('unread' in filters.dataset) {
      const timer = setTimeout(() => location.reload(), 1200);
      filters.addEventListener('input', () => clearTimeout(timer));
    }
  }

  const section = document.getElementById('tokens');
  if (!section) return;
  const text = document.getElementById('token-text');
  const told = document.getElementById('token-value');
  const note = document.getElementById('token-note');
  const scale = document.getElementById('scale');
  const choice = document.getElementById('colour');
  const STEPS = 4;  // of colour on either side of the middle
  // where the scale has its middle, and the words of both ends
  const KINDS = {
    advantage: {middle: 0, low: 'pushed down', high: 'pushed up'},
    weight: {middle: 1, low: 'counts less', high: 'counts more'},
    gap: {middle: 0, low: 'trainer lower', high: 'trainer higher'},
    logp: {middle: 0, low: 'unlikely', high: 'certain', oneSided: true},
  };
  let data = null, spans = [], at = -1;

  function number(value) {
    if (value === null || value === undefined) return 'unknown';
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  }

  function widest(values, middle) {
    let most = 0;
    for (const value of values) if (value !== null) most = Math.max(most, Math.abs(value - middle));
    return most;
  }

  function tone(value, middle, most) {
    if (value === null || most === 0) return 0;
    return Math.round((value - middle) / most * STEPS);
  }

  function paint() {
    const kind = choice.value, {middle, low, high, oneSided} = KINDS[kind], values = data[kind];
    const most = widest(values, middle);
    spans.forEach((span, place) => {
      const value = values[place];
      span.className = data.action[place] ? 'token' : 'token read';
      if (!data.action[place]) return;
      if (value === null) { span.classList.add('unknown'); return; }
      if (kind === 'weight' && value === 0) { span.classList.add('stopped'); return; }
      const step = tone(value, middle, most);
      if (step) span.classList.add((step < 0 ? 'low-' : 'high-') + Math.abs(step));
    });
    scale.replaceChildren();
    const last = oneSided ? 0 : STEPS;
    const word = (said) => { const each = document.createElement('span'); each.textContent = said; scale.append(each); };
    if (most === 0) {
      word('all tokens: ' + number(middle));
    } else {
      word(low + ' ' + number(middle - most));
      for (let step = -STEPS; step <= last; step += 1) {
        const box = document.createElement('span');
        box.className = 'token ' + (step ? (step < 0 ? 'low-' : 'high-') + Math.abs(step) : '');
        box.textContent = '\u00a0\u00a0';
        box.title = 'about ' + number(middle + step / STEPS * most);
        scale.append(box);
      }
      word(number(middle + (oneSided ? 0 : most)) + ' ' + high);
    }
    if (kind === 'weight') {
      const box = document.createElement('span');
      box.className = 'token stopped';
      box.textContent = '0';
      scale.append(box);
      word('no gradient');
    }
    scale.setAttribute('aria-label', 'Scale from ' + number(middle - most) + ' (' + low + ') to ' +
      number(middle + (oneSided ? 0 : most)) + ' (' + high + ')');
    if (at >= 0) tell(at);
  }

  function line(place) {
    const said = 'token ' + (place + 1) + ' of ' + spans.length + ': ' + JSON.stringify(data.pieces[place]);
    if (!data.action[place]) return said + ', read, not chosen by the policy';
    return said + ', advantage ' + number(data.advantage[place]) + ', weight ' + number(data.weight[place]) +
      ', log-prob ' + number(data.logp[place]) + ', trainer minus sampler ' + number(data.gap[place]);
  }

  function tell(place) {
    if (at >= 0 && spans[at]) spans[at].removeAttribute('data-current');
    at = place;
    spans[at].setAttribute('data-current', '');
    told.textContent = line(place);
  }

  function build() {
    const starts = new Map();
    (data.turns || []).forEach((turn, number) => {
      if (turn[1] > turn[0]) starts.set(turn[0], data.roles[number] || '');
    });
    data.pieces.forEach((piece, place) => {
      if (starts.has(place)) {
        const label = document.createElement('b');
        label.className = 'turn-label';
        label.textContent = starts.get(place);
        text.append(label);
      }
      const span = document.createElement('span');
      span.dataset.place = place;
      const breaks = (piece.match(/\n/g) || []).length;
      span.textContent = piece === '' ? '\u00b7' : piece.replace(/\n/g, '\u21b5\n');
      if (breaks) span.dataset.breaks = breaks;
      spans.push(span);
      text.append(span);
    });
    if (data.left_out) note.textContent = data.left_out + ' more tokens were not recorded: report.tokens bounds a step.';
  }

  text.addEventListener('pointerover', event => {
    const span = event.target.closest('span[data-place]');
    if (span) { tell(Number(span.dataset.place)); span.title = line(Number(span.dataset.place)); }
  });
  text.addEventListener('keydown', event => {
    const moves = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10};
    let to = null;
    if (moves[event.key]) to = at < 0 ? 0 : at + moves[event.key];
    if (event.key === 'Home') to = 0;
    if (event.key === 'End') to = spans.length - 1;
    if (to === null || !spans.length) return;
    event.preventDefault();
    tell(Math.min(Math.max(to, 0), spans.length - 1));
    spans[at].scrollIntoView({block: 'nearest'});
  });
  choice.addEventListener('change', paint);
  board.get(section.dataset.address).then(found => {
    if (!found.pieces.length) {
      section.querySelector('.token-bar').hidden = true;
      document.getElementById('token-help').hidden = true;
      text.hidden = true;
      note.textContent = found.why || 'No tokens.';
      return;
    }
    data = found;
    build();
    paint();
  }).catch(error => { note.textContent = error.message; });
})();
