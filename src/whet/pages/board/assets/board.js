// What every page of the board shares: the token that writing needs, requests, and news of runs as they come.
// Text reaches the page through textContent, or escaped by the templates of the server; never as HTML of a run.
const board = (() => {
  'use strict';
  const KEY = 'whet-token', CALM = 400;

  // the token comes in the address, behind #, which no server sees; it is kept for this tab
  function takeToken() {
    const found = /^#token=([\w-]+)$/.exec(location.hash);
    if (!found) return;
    sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
    history.replaceState(null, '', location.pathname + location.search);
  }

  function token() { return sessionStorage.getItem(KEY) || ''; }

  function setToken(value) { sessionStorage.setItem(KEY, value.trim()); }

  async function answered(response) {
    const value = await response.json().catch(() => ({error: 'the board sent something that is not JSON'}));
    if (!response.ok) throw Object.assign(new Error(value.error || response.statusText), {status: response.status});
    return value;
  }

  async function get(address, options) { return answered(await fetch(address, options)); }

  // POST with the token; an error with status 401 means that it is missing or wrong
  async function post(address, value) {
    const headers = {'Content-Type': 'application/json', 'X-Whet-Token': token()};
    return answered(await fetch(address, {method: 'POST', headers, body: JSON.stringify(value)}));
  }

  // news: one stream per visible tab (browsers allow six connections), opened again when it breaks
  const listeners = new Set();
  let stream = null;

  function tell(state, text) {
    const place = document.getElementById('stream');
    if (!place) return;
    place.className = 'stream ' + state;
    if (place.textContent !== text) place.textContent = text;
  }

  function connect() {
    if (stream || document.hidden) return;
    stream = new EventSource('/events');
    const pass = event => {
      const values = JSON.parse(event.data);
      for (const listener of listeners) listener(event.type, values);
    };
    stream.addEventListener('run', pass);
    stream.addEventListener('runs', pass);
    stream.addEventListener('hello', () => { tell('on', 'live'); for (const listener of listeners) listener('hello', {}); });
    stream.addEventListener('error', () => {
      tell('off', 'not connected');
      if (stream && stream.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connect, 3000); }
    });
  }

  function disconnect() {
    if (stream) stream.close();
    stream = null;
  }

  // at most one call at a time, and a calm between two: news may come faster than they can be drawn
  function calmly(work) {
    let busy = false, again = false;
    return async function run() {
      if (busy) { again = true; return; }
      busy = true;
      try { await work(); } catch (error) { if (error.name !== 'AbortError') tell('off', 'not connected'); }
      setTimeout(() => { busy = false; if (again) { again = false; run(); } }, CALM);
    };
  }

  function listen(listener) {
    listeners.add(listener);
    connect();
  }

  // the live parts of this page as the server writes them now; whatever has the focus, and what the server writes as it
  // did before, is left alone: a chart there keeps its zoom. In a list the row of the same run gets the focus back
  const written = new Map([...document.querySelectorAll('[data-live]')].map(part => [part.dataset.live, part.outerHTML]));
  async function refresh() {
    const response = await fetch(location.pathname + location.search, {headers: {Accept: 'text/html'}});
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    if (!response.ok) return response.status;
    for (const part of document.querySelectorAll('[data-live]')) {
      const fresh = page.querySelector('[data-live="' + CSS.escape(part.dataset.live) + '"]');
      const active = part.contains(document.activeElement) ? document.activeElement : null, row = active && active.closest('tr[data-run]');
      if (!fresh || written.get(part.dataset.live) === fresh.outerHTML || (active && !row)) continue;
      written.set(part.dataset.live, fresh.outerHTML);
      part.replaceChildren(...[...fresh.childNodes].map(node => document.importNode(node, true)));
      for (const {name, value} of fresh.attributes) part.setAttribute(name, value);
      const again = row && part.querySelector('tr[data-run="' + CSS.escape(row.dataset.run) + '"] ' + active.localName);
      if (again) again.focus({preventScroll: true});
    }
    const status = page.querySelector('.eyebrow .status'), shown = document.querySelector('.eyebrow .status');
    if (status && shown) { shown.className = status.className; shown.textContent = status.textContent; }
    document.dispatchEvent(new CustomEvent('board-refreshed'));
    return response.status;
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) disconnect(); else if (listeners.size) connect();
  });
  addEventListener('pagehide', disconnect);
  addEventListener('pageshow', () => { if (listeners.size) connect(); });
  takeToken();
  return {get, post, token, setToken, listen, refresh, calmly};
})();
