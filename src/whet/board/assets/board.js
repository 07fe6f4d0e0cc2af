// What every page of the board shares: the token that writing needs, and requests.
// Text reaches the page through textContent alone.
const board = (() => {
  'use strict';
  const KEY = 'whet-token';

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

  takeToken();
  return {get, post, token, setToken};
})();
