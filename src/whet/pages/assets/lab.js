// The lab: experiments with sliders. Tables come from this page, or from the board that serves it.
whet.lab = (() => {
  'use strict';
  const {element} = whet;
  const root = document.getElementById('lab');
  if (!root) return null;
  const COLUMNS = ['x', 'y', 'low', 'high'], SIDES = ['a', 'b'], FINE = 10, FRAME = 90;
  const api = root.dataset.api;
  const wordOf = {a: 'First setting', b: 'Second setting'};
  let experiments = [], record = null, shown = null, made = 0;

  // ---- tables of this page, packed as whet.pages.lab.page says
  function unpacked(table) {
    const charts = table.slice(1).map(number => {
      const [frame, ...numbers] = record.charts[number], chart = structuredClone(record.frames[frame]);
      let next = 0;
      for (const series of chart.spec.series)
        for (const name of COLUMNS) if (name in series) series[name] = record.columns[numbers[next++]];
      return chart;
    });
    return {charts, ...record.notes[table[0]]};
  }

  const applies = (control, settings) =>
    Object.entries(control.when).every(([name, values]) => values.includes(settings[name]));
  const choices = control => (control.options ? control.options.map(each => each[0]) : control.values);

  // every setting in the order of the tables
  function grid(experiment) {
    const found = [];
    const spread = (position, settings) => {
      if (position === experiment.controls.length) { found.push(keyOf(settings)); return; }
      const control = experiment.controls[position];
      if (!applies(control, settings)) { spread(position + 1, settings); return; }
      for (const value of choices(control)) spread(position + 1, {...settings, [control.name]: value});
    };
    spread(0, {});
    return found;
  }
  const keyOf = settings => JSON.stringify(settings);

  function stored(experiment, settings) {
    experiment.places ??= new Map(grid(experiment).map((key, place) => [key, place]));
    const place = experiment.places.get(keyOf(settings));
    if (place === undefined) throw new Error('this file has no table for that setting');
    return unpacked(experiment.tables[place]);
  }

  async function computed(experiment, settings, signal) {
    const answer = await fetch(`${api}/${encodeURIComponent(experiment.name)}?${new URLSearchParams(settings)}`, {signal});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail || found.error || `the board answered ${answer.status}`);
    return found;
  }

  const tableOf = async (experiment, settings, signal) =>
    (api ? computed(experiment, settings, signal) : stored(experiment, settings));

  // ---- settings: of each side those that apply, in the order of the controls
  function settled(experiment, given) {
    const settings = {};
    for (const control of experiment.controls) {
      if (!applies(control, settings)) continue;
      settings[control.name] = valid(control, given[control.name]);
    }
    return settings;
  }

  function valid(control, value) {
    if (control.options) return choices(control).includes(value) ? value : control.default;
    const number = Number(value);
    if (value === undefined || value === '' || !Number.isFinite(number)) return control.default;
    if (api) return Math.min(Math.max(control.whole ? Math.round(number) : number, control.span[0]), control.span[1]);
    const near = Math.min(Math.max(number, control.values[0]), control.values.at(-1));
    return control.values.reduce((best, each) => (Math.abs(each - near) < Math.abs(best - near) ? each : best));
  }

  // ---- a slider runs over its stops; on the board it halts between them too
  function stops(control) {
    return api ? [...new Set([control.span[0], ...control.values, control.span[1]])].sort((a, b) => a - b) : control.values;
  }

  function valueAt(control, position) {
    const all = stops(control), low = Math.floor(position + 1e-9), share = position - low;
    if (share < 1e-6 || low + 1 >= all.length) return all[Math.min(low, all.length - 1)];
    const [from, to] = [all[low], all[low + 1]];
    const value = control.log && from > 0 ? from * (to / from) ** share : from + (to - from) * share;
    return control.whole ? Math.round(value) : Number(value.toPrecision(3));
  }

  function positionOf(control, value) {
    const all = stops(control);
    const low = Math.max(all.findLastIndex(each => each <= value), 0);
    if (low + 1 >= all.length) return all.length - 1;
    const [from, to] = [all[low], all[low + 1]];
    return low + (control.log && from > 0 ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from));
  }

  const text = value => String(Number(value.toPrecision(4)));

  function slider(control, value, changed) {
    const label = element('label', 'control'), name = element('span', 'name'), output = element('output');
    const input = element('input');
    input.type = 'range';
    input.id = `lab-control-${made += 1}`;
    label.htmlFor = input.id;  // the output is nearer, and a label may name it instead
    Object.assign(input, {min: 0, max: stops(control).length - 1, step: api ? 1 / FINE : 1});
    input.value = positionOf(control, value);
    input.dataset.control = control.name;
    const say = number => { output.textContent = text(number); input.setAttribute('aria-valuetext', text(number)); };
    say(value);
    input.addEventListener('input', () => { const now = valueAt(control, Number(input.value)); say(now); changed(now); });
    name.append(element('span', '', control.label), output);
    label.append(name, input);
    return label;
  }

  function selector(control, value, changed) {
    const label = element('label', 'control'), name = element('span', 'name', control.label), select = element('select');
    for (const [each, said] of control.options) {
      const option = element('option', '', said);
      option.value = each;
      select.append(option);
    }
    select.value = value;
    select.dataset.control = control.name;
    select.addEventListener('change', () => changed(select.value));
    label.append(name, select);
    return label;
  }

  // ---- one experiment on the stage
  class Stage {
    constructor(experiment) {
      this.experiment = experiment;
      this.section = document.getElementById('experiment-' + experiment.name);
      this.work = this.section.querySelector('.work');
      this.panel = this.section.querySelector('.controls');
      this.state = this.section.querySelector('.state');
      this.figures = this.section.querySelector('.lab-charts');
      this.told = this.section.querySelector('.told');
      this.charts = [];
      this.asked = 0;
      this.frame = null;
      this.work.hidden = false;
      this.reset();
    }

    reset() {
      const {compared} = this.experiment;
      this.given = {a: {}, b: {...compared}};
      this.comparing = Object.keys(compared).length > 0;
    }

    // each setting by what sets it apart from the other
    words() {
      if (!this.comparing) return ['', ''];
      const both = SIDES.map(side => this.settings(side));
      const apart = this.experiment.controls.filter(({name}) => both.every(each => name in each) && both[0][name] !== both[1][name]);
      const said = (control, value) => (control.options ? control.options.find(each => each[0] === value)[1]
        : `${control.label.split(',')[0]} ${text(value)}`);
      const words = both.map(each => apart.slice(0, 2).map(control => said(control, each[control.name])).join(', '));
      return apart.length ? words : ['first', 'second'];
    }

    sides() { return this.comparing ? SIDES : ['a']; }
    settings(side) {
      const common = Object.fromEntries(this.experiment.shared.map(name => [name, this.given.a[name]]));
      return settled(this.experiment, side === 'a' ? this.given.a : {...this.given.a, ...this.given.b, ...common});
    }

    // ---- the address: only what differs from the defaults
    read(parameters) {
      this.reset();
      if (parameters.has('compare')) this.comparing = parameters.get('compare') === 'yes';
      for (const [name, value] of parameters) {
        const second = name.startsWith('b.'), plain = second ? name.slice(2) : name;
        if (this.experiment.controls.some(control => control.name === plain)) this.given[second ? 'b' : 'a'][plain] = value;
      }
    }

    address() {
      const parameters = new URLSearchParams(), first = this.settings('a'), usual = settled(this.experiment, {});
      for (const [name, value] of Object.entries(first)) if (usual[name] !== value) parameters.set(name, value);
      const compared = Object.keys(this.experiment.compared).length > 0;
      if (this.comparing !== compared) parameters.set('compare', this.comparing ? 'yes' : 'no');
      if (this.comparing) {
        const second = this.settings('b'), follows = settled(this.experiment, {...first, ...this.experiment.compared});
        for (const [name, value] of Object.entries(second))
          if (follows[name] !== value && !this.experiment.shared.includes(name)) parameters.set('b.' + name, value);
      }
      const said = String(parameters);
      return '#' + this.experiment.name + (said ? '&' + said : '');
    }

    keep() { history.replaceState(null, '', this.address()); }

    // ---- controls
    build() {
      const {experiment} = this, focus = document.activeElement && document.activeElement.dataset.place;
      const shared = new Set(this.comparing ? experiment.shared : []);
      const parts = this.sides().map(side => this.fields(side, control => !shared.has(control.name),
        this.comparing ? wordOf[side] : ''));
      if (shared.size) parts.push(this.fields('a', control => shared.has(control.name), '', 'common'));
      const filled = parts.filter(part => part.querySelector('.control'));
      this.panel.classList.toggle('two', this.comparing);
      this.panel.replaceChildren(...filled, this.actions());
      if (focus) this.panel.querySelector(`[data-place="${CSS.escape(focus)}"]`)?.focus();
    }

    fields(side, wanted, legend, kind) {
      const set = element('fieldset', kind), settings = this.settings(side);
      if (legend) {
        const line = element('legend');
        line.append(element('span', side === 'b' ? 'key second' : 'key'), legend);
        set.append(line);
      }
      for (const control of this.experiment.controls) {
        if (!(control.name in settings) || !wanted(control) || choices(control).length < 2 && !api) continue;
        const changed = value => this.change(side, control, value);
        const made = control.options ? selector(control, settings[control.name], changed)
          : slider(control, settings[control.name], changed);
        made.querySelector('input, select').dataset.place = side + ':' + control.name;
        set.append(made);
      }
      return set;
    }

    actions() {
      const row = element('div', 'actions');
      const button = (kind, said, act) => {
        const made = element('button', kind, said);
        made.type = 'button';
        made.dataset.place = 'button:' + kind;
        made.addEventListener('click', act);
        row.append(made);
        return made;
      };
      if (this.experiment.plays) {
        this.player = button('play', 'Play', () => this.play());
        this.clock = element('span', 'soft');
        row.append(this.clock);
      }
      const compare = button('compare', 'Compare with a second setting', () => {
        this.comparing = !this.comparing;
        this.build(); this.keep(); this.draw();
      });
      compare.setAttribute('aria-pressed', String(this.comparing));
      button('back', 'Back to the defaults', () => { this.reset(); this.build(); this.keep(); this.draw(); });
      return row;
    }

    change(side, control, value) {
      const common = this.experiment.shared.includes(control.name);
      // what the second setting has not been given of its own stays as it is while the first one moves
      if (this.comparing && side === 'a' && !common) this.given.b = {...this.settings('b'), ...this.given.b};
      this.given[common ? 'a' : side] = {...this.given[common ? 'a' : side], [control.name]: value};
      const others = this.experiment.controls.some(each => control.name in each.when);
      if (others) this.build();
      this.keep();
      if (api) { clearTimeout(this.timer); this.timer = setTimeout(() => this.draw(), FRAME); } else this.draw();
    }

    // ---- charts
    async draw() {
      this.stop();
      const ticket = ++this.asked;
      if (this.request) this.request.abort();
      this.request = new AbortController();
      this.section.classList.add('is-busy');
      let tables;
      try {
        tables = await Promise.all(this.sides().map(side => tableOf(this.experiment, this.settings(side), this.request.signal)));
      } catch (error) {
        if (ticket === this.asked && error.name !== 'AbortError') { this.section.classList.remove('is-busy'); this.say(error.message); }
        return;
      }
      if (ticket !== this.asked) return;
      this.section.classList.remove('is-busy');
      this.tables = tables;
      this.say(tables.map(each => each.refused).filter(Boolean).join('; '));
      this.plan = planned(tables, this.words());
      this.place(this.plan);
      this.tell(tables);
    }

    say(complaint) {
      this.state.textContent = complaint;
      this.state.classList.toggle('refused', Boolean(complaint));
    }

    // figures are kept while their titles stay: a zoom survives a slider
    place(plan) {
      const titles = plan.map(each => [each.title, each.note, each.spec.x.label, each.spec.y.label].join('|')).join('\n');
      if (titles !== this.titles) {
        for (const chart of this.charts) chart.destroy();
        this.charts = [];
        this.figures.replaceChildren();
        let row = null;
        plan.forEach((each, number) => {
          // two charts of one title are the two settings side by side
          const paired = plan[number + 1] && plan[number + 1].title === each.title;
          if (paired) { row = element('div', 'side-by-side'); this.figures.append(row); }
          (row || this.figures).append(figureOf(each));
          if (!paired) row = null;
        });
        this.titles = titles;
      }
      const hosts = [...this.figures.querySelectorAll('figure > div')];
      plan.forEach((each, number) => {
        if (this.charts[number]) this.charts[number].set(each.spec);
        else this.charts[number] = whet.chart(hosts[number], each.spec);
      });
    }

    tell(tables) {
      const boxes = tables.map((table, number) => {
        const box = element('div', 'box');
        if (this.comparing) box.append(element('h3', '', `${wordOf[SIDES[number]]}: ${this.words()[number]}`));
        if (table.words) box.append(element('p', 'mono', table.words));
        const facts = element('dl', 'facts');
        for (const [name, value] of table.facts) facts.append(element('dt', '', name), element('dd', '', value));
        if (table.facts.length) box.append(facts);
        return box;
      });
      this.told.replaceChildren(...boxes.filter(box => box.childElementCount));
    }

    // ---- play: the steps one by one, on axes that hold still
    play() {
      if (this.frame !== null) { this.stop(); this.place(this.plan); return; }
      const last = Math.max(...this.plan.flatMap(each => stepped(each.spec) ? each.spec.series.flatMap(line => line.x) : []));
      if (!Number.isFinite(last)) return;
      let step = 0;
      this.player.textContent = 'Stop';
      const tick = () => {
        this.place(this.plan.map(each => (stepped(each.spec) ? {...each, spec: until(each.spec, step)} : each)));
        this.clock.textContent = `step ${step} of ${last}`;
        if (step >= last) { this.stop(); this.place(this.plan); return; }
        step += 1;
        this.frame = setTimeout(tick, FRAME);
      };
      tick();
    }

    stop() {
      clearTimeout(this.frame);
      this.frame = null;
      if (this.player) { this.player.textContent = 'Play'; this.clock.textContent = ''; }
    }
  }

  function figureOf(each) {
    const figure = element('figure'), caption = element('figcaption'), host = element('div');
    const axes = `${each.spec.y.label}${each.spec.y.label ? ' ' : ''}against ${each.spec.x.label}`;
    host.dataset.label = `${each.title}, ${axes}`;
    caption.append(element('b', '', each.title), element('span', 'soft', axes));
    figure.append(caption, host);
    if (each.note) figure.append(element('p', 'range', each.note));
    return figure;
  }

  const stepped = spec => spec.x.label === 'step';

  function until(spec, step) {
    const values = spec.series.flatMap(line => [...line.y, ...(line.low || []), ...(line.high || [])]).filter(Number.isFinite);
    const least = Math.min(...values), most = Math.max(...values), room = (most - least) * 0.06 || 0.5;
    const cut = (line, column) => column && column.map((value, place) => (line.x[place] <= step ? value : null));
    return {...spec,
      y: {...spec.y, min: spec.y.min ?? (least >= 0 ? Math.max(0, least - room) : least - room), max: spec.y.max ?? most + room},
      series: spec.series.map(line => ({...line, y: cut(line, line.y), low: cut(line, line.low), high: cut(line, line.high)}))};
  }

  // the charts of one table; of two tables, those that overlay in one chart and the others side by side
  function planned(tables, words) {
    if (tables.length === 1) return tables[0].charts;
    const [first, second] = tables;
    const plan = [];
    for (let number = 0; number < Math.max(first.charts.length, second.charts.length); number += 1) {
      const here = first.charts[number], there = second.charts[number];
      if (here && there && here.overlay && here.title === there.title) plan.push(overlaid(here, there, words));
      else plan.push(...[here, there].filter(Boolean));
    }
    return plan;
  }

  function overlaid(here, there, words) {
    const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
    const alone = here.spec.series.length === 1, lists = [here.spec.series, there.spec.series];
    // a series of both sides says whose it is; one that is the same in both is drawn once
    const shared = line => lists.every(list => list.some(each => each.name === line.name));
    const once = line => lists.every(list => list.some(each => same(each, line)));
    const named = (line, word) => (!shared(line) || once(line) ? line.name : alone ? word : `${line.name}, ${word}`);
    const first = lists[0].map(line => ({...line, name: named(line, words[0])}));
    const added = lists[1].filter(line => !once(line)).map(line => ({
      ...line, name: named(line, words[1]), dashed: alone ? line.dashed : true, tone: alone ? 1 : line.tone}));
    const lines = [...here.spec.lines, ...there.spec.lines.filter(line => !here.spec.lines.some(each => same(each, line)))];
    return {...here, note: here.note || there.note, spec: {...here.spec, lines, series: [...first, ...added]}};
  }

  // ---- which experiment, in the address
  const stages = new Map();
  function visit() {
    const [name, ...rest] = decodeURI(location.hash.slice(1)).split('&');
    const experiment = experiments.find(each => each.name === name) || experiments[0];
    if (!stages.has(experiment.name)) stages.set(experiment.name, new Stage(experiment));
    const stage = stages.get(experiment.name), before = shown;
    if (before && before !== stage) before.stop();
    shown = stage;
    stage.read(new URLSearchParams(rest.join('&')));
    for (const section of root.querySelectorAll('.experiment')) section.classList.toggle('shown', section === stage.section);
    for (const link of root.querySelectorAll('.lab-nav a')) {
      if (link.dataset.experiment === experiment.name) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    stage.build();
    return stage.draw();
  }

  async function start() {
    if (api) experiments = await (await fetch(api)).json();
    else {
      const bytes = Uint8Array.from(atob(document.getElementById('lab-data').textContent), each => each.charCodeAt(0));
      const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
      record = JSON.parse(await new Response(text).text());
      experiments = record.experiments;
    }
    root.classList.add('is-ready');
    addEventListener('hashchange', visit);
    await visit();
  }

  const ready = start().catch(error => { root.append(element('p', 'finding problem', 'The lab cannot start: ' + error.message)); });
  return {ready, stage: () => shown, tableOf, settled};
})();
