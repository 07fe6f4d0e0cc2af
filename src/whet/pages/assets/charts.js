// One way to draw a chart, on the board and in files that need nothing but a browser: a spec in, a live chart out.
// Text reaches the page through textContent alone.
const whet = (() => {
  'use strict';
  const NUM_TONES = 8, HEIGHT = 220, MARGIN = 0.06, COSTS = ['tokens', 'seconds', 'minutes', 'hours'];
  const charts = new Set();
  let weight = 0, across = 'step', logarithmic = false;

  function element(name, kind, text) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || '#888';
  }

  function trimmed(text) { return text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : text; }

  // three significant digits, thousands and millions by their letter
  function number(value, percent) {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    if (percent) return trimmed((100 * value).toFixed(1)) + '%';
    const size = Math.abs(value);
    if (size >= 1e9) return trimmed((value / 1e9).toPrecision(3)) + 'G';
    if (size >= 1e6) return trimmed((value / 1e6).toPrecision(3)) + 'M';
    if (size >= 1e4) return trimmed((value / 1e3).toPrecision(3)) + 'k';
    if (size >= 100) return trimmed(value.toFixed(1));
    if (size !== 0 && size < 1e-3) return value.toExponential(1);
    return trimmed(value.toPrecision(3));
  }

  // exponential mean without its bias towards the start; gaps stay gaps
  function smooth(values, share) {
    let sum = 0, total = 0;
    return values.map(value => {
      if (value === null || value === undefined) return null;
      sum = share * sum + (1 - share) * value;
      total = share * total + (1 - share);
      return sum / total;
    });
  }

  // how many tokens and seconds a run had spent after each step, where its page says so: {step, tokens, seconds}
  let course = null, courseText = '';
  function spent() {
    const source = document.getElementById('course'), text = source ? source.textContent : '';
    if (text !== courseText) { courseText = text; course = text ? JSON.parse(text) : null; }
    return course;
  }

  // a straight line between the two nearest entries
  function between(from, to, value) {
    let low = 0, high = from.length - 1;
    if (value <= from[low] || high < 1) return to[low];
    if (value >= from[high]) return to[high];
    while (high - low > 1) { const middle = (low + high) >> 1; if (from[middle] <= value) low = middle; else high = middle; }
    return from[high] === from[low] ? to[low] : to[low] + (value - from[low]) / (from[high] - from[low]) * (to[high] - to[low]);
  }

  // what the steps of a run are drawn by: {label, map, unmap}; null: by themselves
  function axis() {
    const known = across === 'step' ? null : spent();
    if (!known) return null;
    if (across === 'tokens') return {label: 'tokens', map: x => between(known.step, known.tokens, x), unmap: x => between(known.tokens, known.step, x)};
    const total = known.seconds[known.seconds.length - 1];
    const [size, label] = total < 300 ? [1, 'seconds'] : total < 10800 ? [60, 'minutes'] : [3600, 'hours'];
    return {label, map: x => between(known.step, known.seconds, x) / size, unmap: x => between(known.seconds, known.step, x * size)};
  }

  function normal(spec) {
    let series = (spec.series || []).filter(line => line.x && line.x.length), x = {label: 'step', log: false, steps: true, ...spec.x};
    const by = x.steps && x.label === 'step' ? axis() : null, y = {label: '', log: false, ...spec.y};
    let lines = spec.lines || [];
    if (by) {
      x = {...x, label: by.label, steps: false};
      series = series.map(line => ({...line, x: line.x.map(by.map), ...(line.best ? {best: [by.map(line.best[0]), line.best[1]]} : {})}));
      lines = lines.map(line => (line.x === undefined ? line : {...line, x: by.map(line.x)}));
    }
    const stacked = series.some(line => line.own), positive = series.some(line => line.y.some(value => value > 0));
    if (logarithmic && x.label !== 'cost' && !stacked && positive) y.log = true;
    return {smooth: true, height: HEIGHT, ...spec, lines, x, y, series, by};
  }

  // all series on one sorted x, each with null where it has no value
  function table(spec, share) {
    const places = [...new Set(spec.series.flatMap(line => line.x))].sort((a, b) => a - b);
    const at = new Map(places.map((x, place) => [x, place]));
    const spread = (line, values) => {
      const column = new Array(places.length).fill(null);
      if (values) line.x.forEach((x, place) => {
        const value = values[place];
        const drawable = value !== null && value !== undefined && Number.isFinite(value) && (!spec.y.log || value > 0);
        column[at.get(x)] = drawable ? value : null;
      });
      return column;
    };
    const columns = [places], drawn = [], bands = [];
    spec.series.forEach((line, place) => {
      const tone = (line.tone ?? place) % NUM_TONES, values = spread(line, line.y);
      const calm = share > 0 && spec.smooth && !line.marked && line.x.length > 3;
      if (line.low && line.high) {
        bands.push({tone, line: place, high: columns.length, low: columns.length + 1});
        columns.push(spread(line, line.high), spread(line, line.low));
        drawn.push({role: 'edge', tone}, {role: 'edge', tone});
      }
      if (calm) { columns.push(values); drawn.push({role: 'raw', tone, line: place}); }
      columns.push(calm ? smooth(values, share) : values);
      drawn.push({role: 'line', tone, line: place, marked: Boolean(line.marked), dashed: Boolean(line.dashed), bars: Boolean(line.bars),
        own: line.own ? spread(line, line.own) : null});  // of a line that stands on others: its value by itself
    });
    return {columns, drawn, bands};
  }

  class Chart {
    constructor(host, spec) {
      this.host = host;
      this.hidden = new Set();
      this.zoom = null;
      this.box = element('div', 'plot');
      this.box.tabIndex = 0;
      this.box.setAttribute('role', 'group');
      this.box.setAttribute('aria-label', host.dataset.label || 'chart');
      this.box.title = 'Drag to zoom, double click for all; with the keyboard: arrows, + - 0';
      this.legend = element('div', 'legend live-legend');
      this.saving = this.saver();
      this.spoken = element('div', 'spoken');
      this.spoken.setAttribute('aria-live', 'polite');
      host.replaceChildren(this.box, this.legend, this.spoken);
      this.box.addEventListener('keydown', event => this.key(event));
      this.observer = new ResizeObserver(() => this.fit());
      this.observer.observe(this.box);
      charts.add(this);
      this.set(spec);
    }

    set(spec) {
      this.source = spec;
      this.draw();
    }

    destroy() {
      this.observer.disconnect();
      if (this.plot) this.plot.destroy();
      charts.delete(this);
      this.host.replaceChildren();
    }

    draw() {
      const spec = this.spec = normal(this.source);
      const before = this.plot && this.plot.cursor.idx;
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.data = table(spec, weight);
      this.legends();
      if (!spec.series.length) return;
      this.plot = new uPlot(this.options(), this.data.columns, this.box);
      const {by} = spec, place = x => (by ? by.map(x) : x);
      if (this.zoom) this.plot.setScale('x', {min: place(this.zoom.min), max: place(this.zoom.max)});
      if (before !== null && before !== undefined) this.point(before);
    }

    options() {
      const {spec, data} = this, ink = colour('--soft'), rule = colour('--rule');
      const font = '11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
      const style = each => {
        const stroke = colour('--c' + each.tone), show = !this.hidden.has(each.line);
        if (each.role === 'edge') return {stroke: 'transparent', width: 0, points: {show: false}, spanGaps: true};
        if (each.role === 'raw') return {show, stroke, alpha: 0.3, width: 1, points: {show: false}, spanGaps: true};
        if (each.bars) return {show, stroke, fill: stroke + '55', width: 1, paths: uPlot.paths.bars({size: [0.6, 60]}), points: {show: false}};
        const few = this.spec.series[each.line].x.length === 1;
        return {show, stroke, width: 1.8, dash: each.dashed ? [6, 4] : undefined, spanGaps: true,
          points: {show: each.marked || few, size: 6, fill: stroke}};
      };
      const ticks = {stroke: rule, width: 1, size: 4};
      const wanted = [spec.y.min, spec.y.max];
      const lines = (spec.lines || []).filter(line => Number.isFinite(line.y)).map(line => line.y);
      return {
        width: Math.max(this.box.clientWidth, 120), height: spec.height, pxAlign: 0, legend: {show: false},
        ...(spec.x.names ? {padding: [null, Math.min(56, 3.4 * named(spec.x, spec.x.names.length - 1).length), null, null]} : {}),
        cursor: {drag: {x: true, y: false}, points: {size: 7}, focus: {prox: 24}},
        scales: {
          x: spec.x.log ? {time: false, distr: 3, range: (plot, low, high) => [low, high]}
            : data.drawn.some(each => each.bars) ? {time: false, range: (plot, low, high) => [low - 0.5, high + 0.5]} : {time: false},
          y: spec.y.log ? {distr: 3} : {range: (plot, low, high) => bounds(low, high, wanted, lines)},
        },
        axes: [
          {stroke: ink, font, ticks, grid: {stroke: rule, width: 1}, size: 28, space: 60,
            ...(spec.x.steps && !spec.x.log ? {incrs: whole()} : {}),
            ...(spec.x.log ? {grid: {stroke: rule, width: 1, filter: (plot, splits) => powers(splits)}} : {}),
            ...(spec.x.names ? {space: Math.min(140, 7 * Math.max(...spec.x.names.map(name => name.length)) + 16)} : {}),
            values: (plot, splits) => splits.map(each => (each === null ? null : named(spec.x, each)))},
          {stroke: ink, font, ticks, grid: {stroke: rule, width: 1}, size: 50, space: 34,
            ...(spec.y.log ? {filter: (plot, splits) => powers(splits), grid: {stroke: rule, width: 1, filter: (plot, splits) => powers(splits)}} : {}),
            values: (plot, splits) => splits.map(each => (each === null ? null : axisText(each, spec.y.percent)))},
        ],
        series: [{}, ...data.drawn.map(style)],
        bands: data.bands.filter(band => !this.hidden.has(band.line)).map(band => ({series: [band.high, band.low],
          fill: colour('--c' + band.tone) + '2e'})),
        hooks: {
          setCursor: [plot => this.values(plot.cursor.idx)],
          setScale: [(plot, key) => this.scaled(plot, key)],
          drawAxes: [plot => this.references(plot, font, ink)],
          draw: [plot => this.bests(plot, font, ink)],
        },
      };
    }

    scaled(plot, key) {
      if (key !== 'x' || !this.plot) return;
      const places = this.data.columns[0], {min, max} = plot.scales.x;
      const all = min <= places[0] && max >= places[places.length - 1];
      const {by} = this.spec;  // a zoom is one of steps, whatever is drawn across
      const zoom = all ? null : by ? {min: by.unmap(min), max: by.unmap(max)} : {min, max};
      const moved = JSON.stringify(zoom) !== JSON.stringify(this.zoom);
      this.zoom = zoom;
      if (moved) this.host.dispatchEvent(new CustomEvent('whet-zoom', {bubbles: true, detail: zoom}));
    }

    references(plot, font, ink) {
      for (const line of this.spec.lines || []) {
        const across = line.x !== undefined, at = plot.valToPos(across ? line.x : line.y, across ? 'x' : 'y', true);
        const {left, top, width, height} = plot.bbox, to = plot.ctx;
        if (!Number.isFinite(at) || (across ? at < left || at > left + width : at < top || at > top + height)) continue;
        to.save();
        to.strokeStyle = ink; to.fillStyle = ink; to.setLineDash([5, 5]); to.lineWidth = devicePixelRatio;
        to.beginPath();
        if (across) { to.moveTo(at, top); to.lineTo(at, top + height); } else { to.moveTo(left, at); to.lineTo(left + width, at); }
        to.stroke();
        to.font = font.replace('11px', 11 * devicePixelRatio + 'px');
        to.textAlign = 'left'; to.textBaseline = 'alphabetic';  // the axes leave their own behind
        if (line.label) {
          if (across) to.fillText(line.label, at + 4 * devicePixelRatio, top + 11 * devicePixelRatio);
          else to.fillText(line.label, left + 5 * devicePixelRatio, at - 4 * devicePixelRatio);
        }
        to.restore();
      }
    }

    // a ring around the best of the dots
    bests(plot, font, ink) {
      const ratio = devicePixelRatio, {left, top, width, height} = plot.bbox, to = plot.ctx;
      this.spec.series.forEach((line, place) => {
        if (!line.best || this.hidden.has(place)) return;
        const x = plot.valToPos(line.best[0], 'x', true), y = plot.valToPos(line.best[1], 'y', true);
        if (!(x >= left - 1 && x <= left + width + 1 && y >= top - 1 && y <= top + height + 1)) return;
        to.save();
        to.strokeStyle = colour('--c' + (line.tone ?? place) % NUM_TONES); to.lineWidth = 1.6 * ratio;
        to.beginPath(); to.arc(x, y, 7 * ratio, 0, 2 * Math.PI); to.stroke();
        to.font = font.replace('11px', 11 * ratio + 'px'); to.fillStyle = ink;
        const right = x > left + width * 0.8, above = y > top + 24 * ratio;
        to.textAlign = right ? 'right' : 'left'; to.textBaseline = 'alphabetic';
        to.fillText('best ' + number(line.best[1], this.spec.y.percent), x + (right ? -8 : 8) * ratio, y + (above ? -8 : 18) * ratio);
        to.restore();
      });
    }

    // a button per series with its value where the cursor is, or a line where it rests, or its last one
    legends() {
      this.cells = [];
      this.where = element('span', 'soft where');
      const entries = this.spec.series.map((line, place) => {
        const button = element('button', 's' + ((line.tone ?? place) % NUM_TONES));
        button.type = 'button';
        button.setAttribute('aria-pressed', String(!this.hidden.has(place)));
        const value = element('b');
        button.append(element('span', line.dashed ? 'swatch hollow' : 'swatch'), element('span', '', line.name + ' '), value);
        button.addEventListener('click', () => {
          if (!this.hidden.delete(place)) this.hidden.add(place);
          this.draw();
        });
        this.cells.push(value);
        return button;
      });
      // one series is named by the caption of its figure
      const alone = entries.length === 1 && this.host.closest('figure') && !this.spec.named;
      this.legend.replaceChildren(...(alone ? [] : entries), this.where, this.saving);
      this.values(null);
    }

    values(place) {
      const {spec, data} = this, places = data.columns[0];
      const rest = (spec.lines || []).find(line => line.rests);
      if (rest && (place === null || place === undefined)) {
        place = places.reduce((best, x, at) => (Math.abs(x - rest.x) < Math.abs(places[best] - rest.x) ? at : best), 0);
      }
      const pointed = place !== null && place !== undefined && places[place] !== undefined;
      this.where.textContent = pointed ? spec.x.label + ' ' + named(spec.x, places[place])
        : COSTS.includes(spec.x.label) ? 'by ' + spec.x.label : '';
      data.drawn.forEach((each, column) => {
        if (each.role !== 'line') return;
        // what was measured, also where a smoothed line is drawn
        const raw = data.drawn.findIndex(other => other.role === 'raw' && other.line === each.line);
        const values = each.own || data.columns[(raw < 0 ? column : raw) + 1];
        let at = pointed ? place : values.length - 1;
        if (!pointed) while (at > 0 && values[at] === null) at -= 1;
        const edges = each.marked && data.bands.find(band => band.line === each.line);
        const [low, high] = edges ? [edges.low, edges.high].map(column => data.columns[column][at]) : [null, null];
        this.cells[each.line].textContent = number(values[at], spec.y.percent) + (low === null || low === undefined ? ''
          : ' (' + number(low, spec.y.percent) + ' to ' + number(high, spec.y.percent) + ')');
      });
      if (spec.series.length === 1 && pointed) this.where.textContent += ': ' + this.cells[0].textContent;
    }

    point(place) {
      const {plot} = this, places = this.data.columns[0];
      const at = Math.min(Math.max(place, 0), places.length - 1);
      plot.setCursor({left: plot.valToPos(places[at], 'x'), top: plot.over.clientHeight / 2});
      this.at = at;
    }

    key(event) {
      const {plot} = this;
      if (!plot || event.altKey || event.ctrlKey || event.metaKey) return;
      const places = this.data.columns[0], {min, max} = plot.scales.x, middle = (min + max) / 2;
      const from = this.at ?? (plot.cursor.idx ?? places.length - 1), stride = event.shiftKey ? 10 : 1;
      const widen = factor => plot.setScale('x', {
        min: Math.max(places[0], middle - (max - min) * factor / 2),
        max: Math.min(places[places.length - 1], middle + (max - min) * factor / 2)});
      const acts = {
        ArrowLeft: () => this.point(from - stride), ArrowRight: () => this.point(from + stride),
        Home: () => this.point(0), End: () => this.point(places.length - 1),
        '+': () => widen(0.5), '=': () => widen(0.5), '-': () => widen(2),
        '0': () => plot.setScale('x', {min: places[0], max: places[places.length - 1]}),
        Escape: () => plot.setCursor({left: -10, top: -10}),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
      const said = [this.where.textContent, ...this.spec.series.map((line, place) => line.name + ' ' + this.cells[place].textContent)];
      this.spoken.textContent = said.filter(Boolean).join(', ');
    }

    // SVG, PNG and CSV of what is drawn now
    saver() {
      const made = element('details', 'save');
      made.append(element('summary', '', 'Save'));
      const ways = {SVG: () => this.file('svg', new Blob([this.svg()], {type: 'image/svg+xml'})),
        PNG: () => this.png().toBlob(content => this.file('png', content)),
        CSV: () => this.file('csv', new Blob([this.csv()], {type: 'text/csv'}))};
      for (const [name, save] of Object.entries(ways)) {
        const button = element('button', '', name);
        button.type = 'button';
        button.addEventListener('click', () => { if (this.plot) save(); made.open = false; });
        made.append(button);
      }
      return made;
    }

    get title() { return this.host.dataset.label || 'chart'; }

    file(kind, content) {
      const link = element('a');
      link.href = URL.createObjectURL(content);
      link.download = (this.title.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '').toLowerCase() || 'chart') + '.' + kind;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    // what was measured, and the edges of bands; smoothing is left to whoever reads it
    csv() {
      const {spec} = this, {columns, drawn, bands} = table(spec, 0);
      const quoted = text => '"' + String(text).replace(/"/g, '""') + '"';
      const heads = [spec.x.label], chosen = [columns[0]];
      drawn.forEach((each, column) => {
        if (each.role !== 'line') return;
        const name = spec.series[each.line].name || this.title, band = bands.find(other => other.line === each.line);
        heads.push(name);
        chosen.push(each.own || columns[column + 1]);
        if (band && !each.own) { heads.push(name + ' low', name + ' high'); chosen.push(columns[band.low], columns[band.high]); }
      });
      const rows = columns[0].map((x, place) => chosen.map(values => values[place] ?? '').join(','));
      return [heads.map(quoted).join(','), ...rows].join('\n') + '\n';
    }

    svg() {
      const {plot, spec, data} = this, {width, height} = plot, ratio = devicePixelRatio, head = 26, foot = 24;
      const escaped = text => String(text).replace(/[&<>"]/g, each => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[each]);
      const box = Object.fromEntries(Object.entries(plot.bbox).map(([name, value]) => [name, value / ratio]));
      const at = (value, scale) => (scale === 'x' ? box.left : box.top) + plot.valToPos(value, scale);
      const inside = x => x >= plot.scales.x.min && x <= plot.scales.x.max;
      const text = (x, y, said, anchor, ink) => '<text x="' + x.toFixed(1) + '" y="' + y.toFixed(1) + '" text-anchor="' + anchor + '" fill="' + ink + '">' + escaped(said) + '</text>';
      const path = (points, look) => (points.length ? '<path d="M' + points.map(([x, y]) => x.toFixed(1) + ' ' + y.toFixed(1)).join('L') + '" ' + look + '/>' : '');
      const places = data.columns[0], points = column => places.flatMap((x, place) => {
        const value = data.columns[column][place];
        return inside(x) && value !== null ? [[at(x, 'x'), at(value, 'y')]] : [];
      });
      const soft = colour('--soft'), rule = colour('--rule'), ink = colour('--ink'), parts = [], bottom = box.top + box.height;
      plot.axes.forEach((axis, side) => (axis._splits || []).forEach((split, place) => {
        const said = (axis._values || [])[place];
        if (split === null || said === null || said === undefined) return;
        const to = at(split, side ? 'y' : 'x');
        parts.push(path(side ? [[box.left, to], [box.left + box.width, to]] : [[to, box.top], [to, bottom]], 'stroke="' + rule + '" fill="none"'));
        parts.push(side ? text(box.left - 6, to + 4, said, 'end', soft) : text(to, bottom + 16, said, 'middle', soft));
      }));
      for (const band of data.bands) if (!this.hidden.has(band.line)) {
        parts.push(path([...points(band.high), ...points(band.low).reverse()], 'fill="' + colour('--c' + band.tone) + '" fill-opacity="0.18"'));
      }
      data.drawn.forEach((each, column) => {
        if (each.role === 'edge' || this.hidden.has(each.line)) return;
        const stroke = colour('--c' + each.tone), line = points(column + 1);
        const look = each.role === 'raw' ? ' stroke-width="1" stroke-opacity="0.3"' : ' stroke-width="1.8"' + (each.dashed ? ' stroke-dasharray="6 4"' : '');
        if (each.bars) {
          const half = 0.3 * Math.abs(at(1, 'x') - at(0, 'x')), ground = at(0, 'y');
          for (const [x, y] of line) parts.push(path([[x - half, ground], [x - half, y], [x + half, y], [x + half, ground]], 'fill="' + stroke + '" fill-opacity="0.33" stroke="' + stroke + '"'));
          return;
        }
        parts.push(path(line, 'fill="none" stroke="' + stroke + '"' + look));
        if (each.marked) for (const [x, y] of line) parts.push('<circle cx="' + x.toFixed(1) + '" cy="' + y.toFixed(1) + '" r="3" fill="' + stroke + '"/>');
        const best = each.role === 'line' && spec.series[each.line].best;
        if (best && inside(best[0])) {
          parts.push('<circle cx="' + at(best[0], 'x').toFixed(1) + '" cy="' + at(best[1], 'y').toFixed(1) + '" r="7" fill="none" stroke="' + stroke + '" stroke-width="1.6"/>');
          parts.push(text(at(best[0], 'x') + 8, at(best[1], 'y') - 8, 'best ' + number(best[1], spec.y.percent), 'start', soft));
        }
      });
      let left = 10;
      const names = spec.series.map((line, place) => {
        if (this.hidden.has(place)) return '';
        const from = left, name = line.name || this.title;
        left += 26 + 6.6 * name.length;
        return '<rect x="' + from + '" y="' + (height + head + 8) + '" width="10" height="10" rx="2" fill="' + colour('--c' + (line.tone ?? place) % NUM_TONES) + '"/>' + text(from + 14, height + head + 17, name, 'start', ink);
      });
      const drawn = '<svg width="' + width + '" height="' + (height + head + foot) + '" font-family="system-ui, sans-serif" font-size="11">' +
        '<rect width="100%" height="100%" fill="' + colour('--card') + '"/>' + text(10, 18, this.title, 'start', ink) +
        text(width - 10, 18, 'by ' + spec.x.label, 'end', soft) + '<g transform="translate(0 ' + head + ')">' + parts.join('') + '</g>' + names.join('') + '</svg>';
      // a document of its own, in which nothing runs, gives the drawing its name space
      return new XMLSerializer().serializeToString(new DOMParser().parseFromString(drawn, 'text/html').querySelector('svg')) + '\n';
    }

    png() {
      const ratio = devicePixelRatio, head = 26 * ratio, foot = 24 * ratio, from = this.plot.ctx.canvas;
      const made = element('canvas'), to = made.getContext('2d');
      made.width = from.width;
      made.height = from.height + head + foot;
      to.fillStyle = colour('--card'); to.fillRect(0, 0, made.width, made.height);
      to.drawImage(from, 0, head);
      to.font = 11 * ratio + 'px system-ui, sans-serif'; to.fillStyle = colour('--ink');
      to.fillText(this.title, 10 * ratio, 18 * ratio);
      let left = 10 * ratio;
      this.spec.series.forEach((line, place) => {
        if (this.hidden.has(place)) return;
        const name = line.name || this.title;
        to.fillStyle = colour('--c' + (line.tone ?? place) % NUM_TONES); to.fillRect(left, made.height - 16 * ratio, 10 * ratio, 10 * ratio);
        to.fillStyle = colour('--ink'); to.fillText(name, left + 14 * ratio, made.height - 7 * ratio);
        left += 26 * ratio + to.measureText(name).width;
      });
      return made;
    }

    fit() {
      const width = Math.max(this.box.clientWidth, 120);
      if (this.plot && Math.abs(width - this.plot.width) > 1) this.plot.setSize({width, height: this.spec.height});
    }
  }

  function whole() {
    const steps = [];
    for (let power = 1; power <= 1e9; power *= 10) steps.push(power, 2 * power, 5 * power);
    return steps;
  }

  // of a logarithmic axis the powers of ten, where there are two of them
  function powers(splits) {
    const whole = splits.map(each => (each !== null && Math.abs(Math.log10(each) % 1) < 1e-6 ? each : null));
    return whole.filter(each => each !== null).length > 1 ? whole : splits;
  }

  function axisText(value, percent) {
    if (percent) return trimmed((100 * value).toFixed(1)) + '%';
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e4)) return number(value);
    return trimmed(value.toFixed(4));
  }

  // a value of the horizontal axis: its name where it has one
  function named(axis, value) {
    if (!axis.names) return axisText(value, axis.percent);
    const name = axis.names[value] || '';
    return name.length > 18 ? name.slice(0, 17) + '…' : name;
  }

  function bounds(low, high, wanted, lines) {
    if (low === null || high === null) return [0, 1];
    const least = Math.min(low, ...lines), most = Math.max(high, ...lines);
    const flat = most - least <= 1e-9 * Math.max(Math.abs(least), Math.abs(most));  // equal but for rounding
    const room = (flat ? 0 : (most - least) * MARGIN) || Math.abs(most) * 0.1 || 0.5;
    const bottom = least >= 0 && least - room < 0 ? 0 : least - room;
    return [wanted[0] ?? bottom, wanted[1] ?? most + room];
  }

  function redraw() { for (const chart of charts) if (chart.host.isConnected) chart.draw(); else chart.destroy(); }

  function smoothing(share) {
    weight = Math.min(Math.max(Number(share) || 0, 0), 0.99);
    redraw();
  }

  // each figure with a spec becomes a live chart; what Python drew stays for print
  function upgrade(root) {
    for (const figure of (root || document).querySelectorAll('figure[data-chart]:not(.is-live)')) {
      const source = figure.querySelector('script.spec'), host = figure.querySelector('.live');
      if (!source || !host) continue;
      figure.classList.add('is-live');
      figure.chart = new Chart(host, JSON.parse(source.textContent));
    }
    for (const slider of (root || document).querySelectorAll('input[data-smoothing]:not(.is-live)')) {
      slider.classList.add('is-live');
      const shown = slider.parentElement.querySelector('output');
      const apply = () => { if (shown) shown.textContent = slider.value; smoothing(slider.value); };
      slider.parentElement.hidden = false;
      slider.addEventListener('input', apply);
      apply();
    }
    for (const choice of (root || document).querySelectorAll('select[data-across]:not(.is-live)')) {
      choice.classList.add('is-live');
      choice.parentElement.hidden = !spent();
      choice.addEventListener('change', () => { across = choice.value; redraw(); });
    }
    for (const box of (root || document).querySelectorAll('input[data-log]:not(.is-live)')) {
      box.classList.add('is-live');
      box.parentElement.hidden = false;
      box.addEventListener('change', () => { logarithmic = box.checked; redraw(); });
    }
  }

  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  return {chart: (host, spec) => new Chart(host, spec), upgrade, smoothing, redraw, number, smooth, element};
})();
