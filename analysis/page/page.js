/* Draw the charts of the report's page from the data in it: Vega-Lite, through the interpreter of its
   expressions, as the page's policy allows no code from text. Panels over time share their time axis
   and the line at the pointer. */
(() => {
  'use strict';

  const sections = JSON.parse(document.getElementById('data').textContent);
  const root = document.documentElement;
  const COLOURS = 8;
  const DASHES = [[1, 0], [7, 3], [2, 2], [7, 2, 2, 2], [11, 3], [4, 2, 1, 2, 1, 2]];
  const PANEL = 150;
  const FIT = { type: 'fit-x', contains: 'padding' };
  const drawn = [];

  /* Charts name the style's colours, so that these follow the scheme, and print, without drawing anew. */
  const variable = (name) => `var(${name})`;
  const colour = (index) => variable(`--a${index % COLOURS}`);
  const pale = (name) => `color-mix(in srgb, var(${name}) 45%, var(--bg))`;
  /* A server's activities are pale, so that no two of a chart are alike. */
  const ACTIVITIES = {
    compute: variable('--busy'), forward: variable('--busy'), backward: colour(0), stall: pale('--a3'), compress: colour(4), queue: colour(7),
    send: colour(5), wait: variable('--line'), receive: colour(2), gather: pale('--a4'), aggregate: pale('--busy'), reply: pale('--a5'),
    held: colour(6), decompress: colour(1), apply: colour(3),
  };
  /** The line of an algorithm with its dashes, as a background. */
  const sample = (index) => {
    const stops = [];
    let from = 0;
    DASHES[index % DASHES.length].forEach((length, i) => {
      stops.push(`${i % 2 ? 'transparent' : colour(index)} ${from}px ${from + length}px`);
      from += length;
    });
    return `repeating-linear-gradient(90deg, ${stops.join(', ')})`;
  };
  const element = (name, attributes = {}, text = '') => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const digits = (value) => (value === null || value === undefined ? '–' : String(Number(value.toPrecision(3))));

  function config() {
    const text = variable('--fg'), soft = variable('--soft'), line = variable('--line');
    return {
      background: 'transparent', font: 'system-ui, sans-serif', view: { stroke: null },
      axis: {
        labelColor: soft, titleColor: soft, gridColor: variable('--grid'), domainColor: line, tickColor: line,
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: 'normal', labelOverlap: true,
      },
      legend: { labelColor: text, titleColor: soft, labelFontSize: 12, orient: 'top', title: null, columns: 4, symbolType: 'square' },
      header: { labelColor: text, titleColor: soft },
      text: { color: text }, rule: { color: soft },
    };
  }

  function scaleOf(names) {
    return {
      color: { field: 'a', type: 'nominal', legend: null, scale: { domain: names, range: names.map((_, i) => colour(i)) } },
      dash: { field: 'a', type: 'nominal', legend: null, scale: { domain: names, range: names.map((_, i) => DASHES[i % DASHES.length]) } },
    };
  }

  async function embed(host, spec) {
    const result = await vegaEmbed(host, { $schema: 'https://vega.github.io/schema/vega-lite/v6.json', ...spec, config: config() }, {
      actions: false, ast: true, renderer: 'svg', defaultStyle: false, mode: 'vega-lite',
    });
    host.removeAttribute('title');
    return result.view;
  }

  /** A figure with a caption; the chart goes into its ``.chart``. */
  function place(parent, title, wide = false) {
    const figure = element('figure', wide ? { class: 'wide' } : {});
    const chart = element('div', { class: 'chart' });
    figure.append(element('figcaption', {}, title), chart);
    parent.append(figure);
    return chart;
  }

  const pairs = (points) => (points[0] || []).map((t, i) => ({ t, v: points[1][i], w: points[2] ? points[2][i] : null, u: points[3] ? points[3][i] : null }));
  /** Rows with the least and the largest of the workers as rows, too: for a scale. */
  const ranged = (rows) => rows.flatMap((row) => (row.u === null ? [row] : [{ v: row.w }, { v: row.u }]));
  const spanOf = (values) => {
    const known = values.filter((v) => v > 0);
    return known.length ? Math.max(...known) / Math.min(...known) : 1;
  };
  /** The domain of all values, with a margin, whichever of them are shown. */
  const around = (values) => {
    const known = values.filter((v) => v !== null && v !== undefined);
    if (!known.length) return [0, 1];
    const [low, high] = [Math.min(...known), Math.max(...known)], margin = (high - low || Math.abs(high) || 1) * 0.12;
    return [low - margin, high + margin];
  };
  const shares = ([low, high]) => [Math.max(0, low), Math.min(1, high)];
  /** Where a label may stand beside its point: pixels to the right and down, and its alignment. */
  const SPOTS = [-13, 15, -27, 29, -41, 43].flatMap((dy) => [[0, dy, 'center'], [9, dy, 'left'], [-9, dy, 'right']]);
  SPOTS.splice(2, 0, [11, 0, 'left'], [-11, 0, 'right']);
  /** Each result with the spot of its label: off the others' labels, all points, their intervals and the front's line. */
  const apart = (rows, times, values, width, height) => {
    const x = (t) => width * (t - times[0]) / (times[1] - times[0]), y = (v) => height * (values[1] - v) / (values[1] - values[0]);
    const front = rows.filter((r) => r.front).sort((one, other) => one.t - other.t), spots = new Map(), boxes = [];
    const between = (a, b, n) => [...Array(n + 1)].map((_, i) => a + (b - a) * i / n);
    const marks = rows.flatMap((r) => [
      ...between(-6, 6, 12).map((d) => [x(r.t) + d, y(r.v)]), ...between(-6, 6, 6).map((d) => [x(r.t), y(r.v) + d]),
      ...between(y(r.accuracy_low ?? r.v), y(r.accuracy_high ?? r.v), 40).map((at) => [x(r.t), at]),
    ]);
    front.slice(1).forEach((r, i) => marks.push(...between(0, 1, 60).map((s) => [x(front[i].t) * (1 - s) + x(r.t) * s, y(front[i].v) * (1 - s) + y(r.v) * s])));
    for (const row of [...rows].sort((one, other) => one.t - other.t)) {
      const wide = Math.min(140, 6.6 * row.a.length), costs = SPOTS.map(([dx, dy, align], index) => {
        const left = x(row.t) + dx - { center: wide / 2, left: 0, right: wide }[align], top = y(row.v) + dy - 7;
        const [right, bottom] = [left + wide, top + 14];
        const crossed = marks.filter(([a, b]) => a > left && a < right && b > top && b < bottom).length;
        const covered = boxes.filter((own) => left < own[1] && right > own[0] && top < own[3] && bottom > own[2]).length;
        const far = (r) => Math.hypot(Math.max(left - x(r.t), 0, x(r.t) - right), Math.max(top - y(r.v), 0, y(r.v) - bottom));
        const beside = rows.some((r) => far(r) < far(row) - 1);
        const outside = left < 0 || right > width || top < 0 || bottom > height;
        return { index, box: [left, right, top, bottom], cost: index + 4 * crossed + 400 * covered + (outside ? 200 : 0) + (beside ? 60 : 0) };
      });
      const best = costs.reduce((one, other) => (other.cost < one.cost ? other : one));
      spots.set(row, best.index);
      boxes.push(best.box);
    }
    return rows.map((row) => ({ ...row, spot: spots.get(row) }));
  };
  const upTo = (values) => ({ domain: [0, Math.max(0, ...values) * 1.04 || 1], nice: false });
  const yScale = (rows, full) => {
    const values = rows.map((r) => r.v).filter((v) => v !== null);
    if (full) return { domain: full };
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return spanOf(values) > 12 && low > 0
      ? { type: 'log', domain: [low / 1.3, high * 1.3], nice: false }
      : { domain: [0, high > 0 ? high * 1.08 : 1], nice: false };
  };

  class Section {
    constructor(node, data) {
      Object.assign(this, { node, data, id: node.id, views: [], panels: [] });
      this.whole = [0, data.time_s || 1];
      this.range = [...this.whole];
      this.shown = new Set(data.algorithms);
      this.seed = data.job ? null : (data.seeds[0] ?? null);
      this.controls();
    }

    controls() {
      const controls = this.node.querySelector('.controls');
      const toggles = controls.querySelector('.toggles');
      this.data.algorithms.forEach((name, index) => {
        const label = element('label');
        const box = element('input', { type: 'checkbox', checked: '', value: name });
        box.addEventListener('change', () => {
          if (box.checked) this.shown.add(name); else this.shown.delete(name);
          this.refresh();
        });
        const key = element('span', { class: 'key', 'aria-hidden': 'true', 'data-index': index });
        label.append(box, key, document.createTextNode(name));
        toggles.append(label);
      });
      const seeds = controls.querySelector('.seeds');
      if (this.data.job || this.data.seeds.length < 2) seeds.remove();
      else {
        const select = seeds.querySelector('select');
        for (const seed of [...this.data.seeds, 'all']) select.append(element('option', { value: seed }, String(seed)));
        select.addEventListener('change', () => {
          this.seed = select.value === 'all' ? null : Number(select.value);
          this.refresh();
        });
      }
      for (const button of controls.querySelectorAll('[data-zoom]')) {
        button.addEventListener('click', () => this.zoomBy(button.dataset.zoom));
      }
      controls.hidden = false;
    }

    zoomBy(how) {
      const [from, to] = this.range, width = to - from, middle = (from + to) / 2;
      const moves = {
        in: [middle - width / 4, middle + width / 4], out: [middle - width, middle + width],
        left: [from - width / 4, to - width / 4], right: [from + width / 4, to + width / 4], all: this.whole,
      };
      this.zoom(...moves[how]);
    }

    zoom(from, to) {
      const [low, high] = this.whole, least = (high - low) / 2000;
      const width = Math.min(Math.max(to - from, least), high - low);
      const start = Math.min(Math.max(from, low), high - width);
      this.range = [start, start + width];
      for (const panel of this.panels) panel.view.signal('x0', start).signal('x1', start + width).runAsync();
      this.node.querySelector('.range').textContent = `${digits(start)} to ${digits(start + width)} s`;
    }

    hover(time, event, panel) {
      for (const each of this.panels) each.view.signal('hover', time === null ? -1 : time).runAsync();
      if (time === null) { readout.hidden = true; return; }
      const rows = panel.nearest(time);
      readout.replaceChildren(element('b', {}, `${digits(time)} s`), element('table'));
      for (const [name, value] of rows) {
        const line = element('tr');
        line.append(element('th', {}, name), element('td', {}, value));
        readout.querySelector('table').append(line);
      }
      readout.hidden = false;
      const width = readout.offsetWidth, left = event.x + 16 + width > innerWidth ? event.x - width - 16 : event.x + 16;
      readout.style.left = `${Math.max(4, left)}px`;
      readout.style.top = `${Math.min(event.y + 12, innerHeight - readout.offsetHeight - 4)}px`;
    }

    chosen(row) { return this.shown.has(row.a) && (this.seed === null || row.s === undefined || row.s === this.seed); }

    refresh() {
      for (const { view, rows, strips } of [...this.panels, ...this.views]) {
        if (strips) view.data('strips', strips.filter((row) => this.chosen(row)));
        view.data('rows', rows.filter((row) => row.a === undefined || this.chosen(row))).runAsync();
      }
    }

    async draw() {
      for (const key of document.querySelectorAll('.key[data-index]')) key.style.background = sample(Number(key.dataset.index));
      for (const key of this.node.querySelectorAll('.key[data-algorithm]')) {
        key.style.background = sample(Math.max(0, this.data.algorithms.indexOf(key.dataset.algorithm)));
      }
      const time = this.node.querySelector('[data-charts="time"]');
      const compared = this.node.querySelector('[data-charts="compared"]');
      time.replaceChildren(); compared.replaceChildren();
      for (const panel of this.data.job ? this.jobPanels() : this.runPanels()) await this.panel(time, panel);
      for (const chart of this.data.job ? this.jobCharts() : this.runCharts()) {
        const view = await embed(place(compared, chart.title, chart.wide), { description: chart.title, ...chart.spec });
        this.views.push({ view, rows: chart.rows });
      }
      this.zoom(...this.range);
      this.refresh();
    }

    rowsOf(key) {
      return this.data.runs.flatMap((run) => pairs(run[key]).map((p) => ({ ...p, a: run.algorithm, s: run.seed, r: run.run })));
    }

    runPanels() {
      const { link } = this.data, k = this.rowsOf('k'), delay = this.rowsOf('delay');
      const strips = this.data.runs.flatMap((run) => run.unreliable[0].map((from, i) => (
        { a: run.algorithm, s: run.seed, from, to: run.unreliable[1][i] })));
      const longest = this.data.runs.reduce((one, run) => (run.asked[0].at(-1) > (one.asked[0].at(-1) || 0) ? run : one), this.data.runs[0]);
      return [
        { title: `Rate of the link ${link}: asked (line) and delivered (points)`, y: 'Mbit/s', asked: pairs(longest.asked), rows: this.rowsOf('delivered'), mark: 'point', strips, scale: yScale([...pairs(longest.asked), ...this.rowsOf('delivered')]) },
        { title: 'Density k: the share of the gradient that was to be sent', y: 'k', rows: k, strips, scale: yScale(ranged(k)), band: true },
        { title: 'Communication delay: from sending a gradient to holding the mean of all', y: 's', rows: delay, strips, scale: yScale(ranged(delay)), band: true },
        { title: 'Test accuracy', y: 'accuracy', rows: this.rowsOf('accuracy'), strips, scale: yScale([], [0, 1]), dots: true },
      ];
    }

    jobPanels() {
      const rows = (what) => this.data.job_steps.filter((r) => r.what === what && r.algorithm).flatMap((r) => (
        [{ t: r.from_s, v: r.value, a: r.algorithm, r: r.run }, { t: r.to_s, v: r.value, a: r.algorithm, r: r.run }]));
      const asked = this.data.job_steps.filter((r) => r.what === 'asked').map((r) => ({ t: r.from_s, v: r.value }));
      const strips = this.data.unreliable.flatMap((own) => own.spans[0].map((from, i) => ({ a: own.algorithm, from, to: own.spans[1][i] })));
      const values = [...new Set(this.data.job_values.map((r) => r.value))];
      return [
        { title: 'Time of a step', y: 's', rows: rows('step'), strips, scale: yScale(rows('step')) },
        { title: 'Share of the step in which the busiest link was busy', y: 'share', rows: rows('busy'), strips, scale: { domain: [0, 1] } },
        { title: 'Rates: asked of the slowest link (line), carried by the busiest', y: 'Mbit/s', asked, rows: rows('carried'), strips, scale: yScale([...asked, ...rows('carried')].map((r) => ({ v: r.v }))) },
        ...values.map((name) => ({
          title: `${name}, as the job gave it`, y: name, strips,
          scale: { domain: around(this.data.job_values.filter((r) => r.value === name).map((r) => r.mean)), nice: false },
          rows: this.data.job_values.filter((r) => r.value === name).map((r) => ({ t: r.time_s, v: r.mean, a: r.algorithm, r: r.run })),
        })),
      ].filter((panel) => panel.rows.length || (panel.asked && panel.asked.length));
    }

    async panel(parent, { title: name, y, rows, asked = [], strips, scale, mark = 'line', dots = false, band = false }) {
      const workers = band && rows.some((row) => row.u !== null);
      const title = workers ? `${name}. Line: mean of the workers; band: from the least to the largest of them` : name;
      const chart = place(parent, title, true);
      chart.classList.add('time');
      chart.tabIndex = 0;
      chart.setAttribute('role', 'group');
      chart.setAttribute('aria-label', `${title}. Arrow keys move the line, + and − zoom.`);
      const { color, dash } = scaleOf(this.data.algorithms);
      const doubtful = this.data.algorithms.filter((own) => strips.some((row) => row.a === own)), thick = doubtful.length > 1 ? 4 : 6;
      const detail = { field: 'r', type: 'nominal' };
      const value = { field: 'v', type: 'quantitative', title: y, scale, axis: { minExtent: 44, tickCount: 5, format: '.3~r' } };
      const lines = mark === 'line'
        ? { mark: { type: 'line', clip: true, strokeWidth: 1.8, aria: false, point: dots ? { size: 26, filled: true } : false }, encoding: { color, strokeDash: dash, detail } }
        : { mark: { type: 'point', clip: true, filled: true, size: 16, aria: false }, encoding: { color } };
      const view = await embed(chart, {
        description: title, width: 'container', height: PANEL, data: { name: 'rows', values: rows },
        autosize: FIT,
        params: [{ name: 'x0', value: this.range[0] }, { name: 'x1', value: this.range[1] }, { name: 'hover', value: -1 }],
        encoding: {
          x: { field: 't', type: 'quantitative', title: 'Model time (s)', scale: { domain: [{ expr: 'x0' }, { expr: 'x1' }], nice: false, zero: false }, axis: { grid: false, offset: Math.max(7, thick * doubtful.length + 1), tickCount: 8 } },
        },
        datasets: { strips },
        layer: [
          asked.length && { data: { values: asked }, mark: { type: 'line', clip: true, interpolate: 'step-after', color: variable('--asked'), strokeWidth: 1.2, aria: false }, encoding: { y: value } },
          workers && { transform: [{ filter: 'isValid(datum.u)' }], mark: { type: 'area', clip: true, opacity: 0.16, aria: false }, encoding: { color, detail, y: { ...value, field: 'w' }, y2: { field: 'u' } } },
          { ...lines, encoding: { ...lines.encoding, y: value } },
          ...doubtful.map((own, row) => ({
            data: { name: 'strips' },
            transform: [{ filter: `datum.a === ${JSON.stringify(own)}` }, { calculate: 'max(datum.from, x0)', as: 'b' }, { calculate: 'min(datum.to, x1)', as: 'e' }, { filter: 'datum.e > datum.b' }],
            mark: { type: 'rect', color: colour(this.data.algorithms.indexOf(own)), aria: false, tooltip: { expr: JSON.stringify(`${own}: machine not to be relied upon`) } },
            encoding: { x: { field: 'b', type: 'quantitative' }, x2: { field: 'e' }, y: { value: PANEL + 1 + thick * row }, y2: { value: PANEL + thick * (row + 1) } },
          })),
          {
            data: { values: [{ one: 1 }] },
            transform: [{ calculate: 'hover', as: 't' }, { filter: 'datum.t >= x0 && datum.t <= x1' }],
            mark: { type: 'rule', color: variable('--soft'), aria: false },
          },
        ].filter(Boolean),
      });
      const panel = { view, rows, strips: doubtful.length ? strips : null, chart, nearest: (time) => this.nearest(rows, asked, time, y, dots || mark === 'point') };
      this.panels.push(panel);
      this.listen(panel);
    }

    /** Value of every run that is shown at the point nearest to ``time``; with its own time where points are ``sparse``. */
    nearest(rows, asked, time, unit, sparse) {
      const before = asked.filter((row) => row.t <= time).at(-1);
      const until = before && asked.find((row) => row.t > time && row.v !== before.v);
      const best = new Map(); // of the time in which as much was asked for, as other rates are not to be held against it
      for (const row of rows) {
        if (!this.chosen(row) || row.v === null || (before && row.t < before.t) || (until && row.t >= until.t)) continue;
        const name = this.seed === null && row.s !== undefined ? `${row.a} s${row.s}` : row.a;
        const far = Math.abs(row.t - time);
        if (!best.has(name) || far < best.get(name)[0]) best.set(name, [far, row.v, row.t, row]);
      }
      const near = (this.range[1] - this.range[0]) / 25;
      const found = [...best].filter(([, [far]]) => far <= near).map(([name, [, value, t, row]]) => (
        [name, `${digits(value)}${row.u === null || row.u === undefined ? '' : ` (${digits(row.w)} to ${digits(row.u)})`}${unit === 'k' || unit === 'accuracy' ? '' : ` ${unit}`}${sparse ? ` at ${digits(t)} s` : ''}`]));
      return before ? [['asked', `${digits(before.v)} ${unit}`], ...found] : found;
    }

    listen(panel) {
      const { chart, view } = panel;
      const at = (x) => {
        const left = chart.querySelector('svg').getBoundingClientRect().left + view.origin()[0];
        return Math.min(Math.max(view.scale('x').invert(x - left), this.range[0]), this.range[1]);
      };
      let start = null, brush = null;
      chart.addEventListener('pointerdown', (event) => {
        if (event.button !== 0 || event.pointerType === 'touch') return;
        start = event.clientX;
        chart.setPointerCapture(event.pointerId);
      });
      chart.addEventListener('pointermove', (event) => {
        if (start !== null && Math.abs(event.clientX - start) > 4) {
          const box = chart.parentElement.getBoundingClientRect();
          if (!brush) { brush = element('div', { class: 'brush' }); chart.parentElement.append(brush); }
          brush.style.left = `${Math.min(start, event.clientX) - box.left}px`;
          brush.style.width = `${Math.abs(event.clientX - start)}px`;
        }
        this.hover(at(event.clientX), { x: event.clientX, y: event.clientY }, panel);
      });
      chart.addEventListener('pointerup', (event) => {
        if (start !== null && brush) this.zoom(...[at(start), at(event.clientX)].sort((a, b) => a - b));
        if (brush) brush.remove();
        start = null; brush = null;
      });
      chart.addEventListener('pointercancel', () => { if (brush) brush.remove(); start = null; brush = null; });
      chart.addEventListener('pointerleave', () => this.hover(null));
      chart.addEventListener('blur', () => this.hover(null));
      chart.addEventListener('dblclick', () => this.zoom(...this.whole));
      chart.addEventListener('wheel', (event) => {
        if (!event.shiftKey && !event.ctrlKey) return;
        event.preventDefault();
        const [from, to] = this.range, width = to - from;
        if (event.ctrlKey) {
          const middle = at(event.clientX), factor = event.deltaY > 0 ? 1.25 : 0.8;
          this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
        } else this.zoom(from + width * Math.sign(event.deltaY || event.deltaX) / 10, to + width * Math.sign(event.deltaY || event.deltaX) / 10);
      }, { passive: false });
      chart.addEventListener('keydown', (event) => {
        const zooms = { '+': 'in', '=': 'in', '-': 'out', '0': 'all' };
        if (zooms[event.key]) { this.zoomBy(zooms[event.key]); event.preventDefault(); return; }
        if (event.key === 'Escape') { this.hover(null); return; }
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const [from, to] = this.range, now = view.signal('hover');
        const time = now < from || now > to ? (from + to) / 2 : Math.min(to, Math.max(from, now + step * (to - from) / 100));
        const box = chart.getBoundingClientRect();
        this.hover(time, { x: box.left + box.width * (time - from) / (to - from), y: box.top + 20 }, panel);
        live.textContent = panel.nearest(time).map((row) => row.join(' ')).join(', ');
      });
    }

    runCharts() {
      const names = this.data.algorithms, { color, dash } = scaleOf(names);
      const accuracy = this.rowsOf('accuracy'), sizes = accuracy.map((r) => r.w), wide = spanOf(sizes) > 30;
      const charts = [];
      if (accuracy.length) {
        charts.push({
          title: ['Accuracy against bytes that all workers sent and received', this.data.bytes_words].filter(Boolean).join('. '), rows: accuracy,
          spec: {
            width: 'container', height: 260, data: { name: 'rows', values: accuracy },
            mark: { type: 'line', point: { size: 30, filled: true }, aria: false },
            encoding: {
              x: { field: 'w', type: 'quantitative', title: 'MB', scale: wide ? { type: 'log', domain: [Math.min(...sizes.filter((w) => w > 0)) / 1.2, Math.max(...sizes) * 1.2], nice: false } : upTo(sizes), axis: { tickCount: 6 } },
              y: { field: 'v', type: 'quantitative', title: 'Test accuracy', scale: { domain: [0, 1] } }, color, strokeDash: dash, detail: { field: 'r', type: 'nominal' },
              tooltip: [{ field: 'a', title: 'algorithm' }, { field: 's', title: 'seed' }, { field: 'w', title: 'MB', format: '.3~g' }, { field: 'v', title: 'accuracy', format: '.3f' }],
            },
          },
        });
      }
      const clipped = (v) => (v === null ? null : Math.min(1, Math.max(0, v)));
      const plain = this.data.results.map((row) => ({
        ...row, a: row.algorithm, t: row.time_mean, v: row.accuracy_mean, accuracy_low: clipped(row.accuracy_low), accuracy_high: clipped(row.accuracy_high) }));
      if (plain.length) {
        const times = around(plain.flatMap((r) => [r.t, r.time_low, r.time_high])), values = shares(around(plain.flatMap((r) => [r.v, r.accuracy_low, r.accuracy_high])));
        const whole = this.node.querySelector('[data-charts="compared"]').clientWidth, results = apart(plain, times, values, (whole > 984 ? whole / 2 - 12 : whole) - 56, 260);
        const x = (field) => ({ field, type: 'quantitative', title: 'Model time (s)', scale: { domain: times, nice: false, zero: false }, axis: { tickCount: 6 } });
        const y = (field) => ({ field, type: 'quantitative', title: 'Final test accuracy', scale: { domain: values, nice: false, zero: false } });
        const tooltip = [{ field: 'a', title: 'algorithm' }, { field: 't', title: 'time (s)', format: '.3~f' }, { field: 'v', title: 'accuracy', format: '.3f' }];
        charts.push({
          title: `Accuracy against time. Pareto front, which nothing else beats in both: ${results.filter((r) => r.front).sort((one, other) => one.t - other.t).map((r) => r.a).join(', ')}`, rows: results,
          spec: {
            width: 'container', height: 260, data: { name: 'rows', values: results },
            layer: [
              results.some((r) => r.front) && { transform: [{ filter: 'datum.front' }], mark: { type: 'line', color: variable('--soft'), strokeDash: [3, 3], aria: false }, encoding: { x: x('t'), y: y('v'), order: { field: 't' } } },
              results.some((r) => r.accuracy_low !== null) && { transform: [{ filter: 'isValid(datum.accuracy_low)' }], mark: { type: 'rule', aria: false }, encoding: { x: x('t'), y: y('accuracy_low'), y2: { field: 'accuracy_high' }, color } },
              results.some((r) => r.time_low !== null) && { transform: [{ filter: 'isValid(datum.time_low)' }], mark: { type: 'rule', aria: false }, encoding: { x: x('time_low'), x2: { field: 'time_high' }, y: y('v'), color } },
              { mark: { type: 'point', filled: true, size: 110, aria: false }, encoding: { x: x('t'), y: y('v'), color, tooltip } },
              ...[...new Set(results.map((r) => r.spot))].map((spot) => (
                { transform: [{ filter: `datum.spot === ${spot}` }], mark: { type: 'text', align: SPOTS[spot][2], baseline: 'middle', dx: SPOTS[spot][0], dy: SPOTS[spot][1], fontSize: 12, limit: 140, aria: false }, encoding: { x: x('t'), y: y('v'), text: { field: 'a' } } })),
            ].filter(Boolean),
          },
        });
      }
      charts.push(this.bars('Time of a step by phase', this.data.phases.map((r) => ({ a: r.algorithm, kind: r.phase, v: r.seconds })), 's a step and worker'));
      const layers = this.data.layers.map((r) => ({ a: r.algorithm, layer: r.layer, v: r.bytes, k: r.k }));
      if (layers.length) {
        charts.push({
          title: 'Bytes of each layer, up per worker and step', rows: layers, wide: true,
          spec: {
            width: 'container', height: 9 * layers.length + 12 * new Set(layers.map((r) => r.layer)).size, autosize: FIT, data: { name: 'rows', values: layers }, mark: { type: 'bar', aria: false },
            encoding: {
              y: { field: 'layer', type: 'nominal', sort: null, title: null, axis: { labelLimit: 120 } }, yOffset: { field: 'a', sort: names }, color,
              x: { field: 'v', type: 'quantitative', title: 'B', scale: upTo(layers.map((r) => r.v)), axis: { tickCount: 8 } },
              tooltip: [{ field: 'layer' }, { field: 'a', title: 'algorithm' }, { field: 'v', title: 'bytes' }, { field: 'k', title: 'density' }],
            },
          },
        });
      }
      const step = this.data.step.map((r) => ({ ...r, a: r.algorithm, row: `${r.algorithm} · ${r.node}${r.layers ? ` · ${r.layers}` : ''}` }));
      if (step.length) {
        const kinds = [...new Set(step.map((r) => r.activity))];
        charts.push({
          title: `What nodes did in one step, in the middle of each algorithm’s run. ${this.data.step_words.join('; ')}`, rows: step, wide: true,
          spec: {
            width: 'container', height: 17 * new Set(step.map((r) => r.row)).size, autosize: FIT, data: { name: 'rows', values: step }, mark: { type: 'bar', aria: false, stroke: variable('--bg'), strokeWidth: 0.5, height: { band: 0.9 } },
            encoding: {
              y: { field: 'row', type: 'nominal', sort: null, title: null, axis: { labelLimit: innerWidth < 700 ? 140 : 260, grid: false } },
              x: { field: 'from_ms', type: 'quantitative', title: 'ms after the begin of the step', scale: upTo(step.map((r) => r.to_ms)), axis: { tickCount: 8 } }, x2: { field: 'to_ms' },
              color: this.activities(kinds, 'activity'),
              tooltip: [{ field: 'a', title: 'algorithm' }, { field: 'node' }, { field: 'activity' }, { field: 'from_ms', title: 'from (ms)', format: '.1f' }, { field: 'to_ms', title: 'to (ms)', format: '.1f' }],
            },
          },
        });
      }
      return charts;
    }

    activities(kinds, field) {
      const range = kinds.map((kind, i) => ACTIVITIES[kind] ?? colour(i));
      return { field, type: 'nominal', scale: { domain: kinds, range }, legend: { columns: innerWidth < 700 ? 2 : 8 } };
    }

    bars(title, rows, unit) {
      const kinds = [...new Set(rows.map((r) => r.kind))];
      const sums = this.data.algorithms.map((name) => rows.filter((r) => r.a === name).reduce((sum, r) => sum + r.v, 0));
      const longest = this.data.algorithms.flatMap((name) => {
        const own = rows.filter((r) => r.a === name).sort((a, b) => b.v - a.v)[0];
        return own ? [`${own.kind} of ${name} (${digits(own.v)} s)`] : [];
      });
      return {
        title: `${title}. Longest: ${longest.join(', ')}`, rows, wide: true,
        spec: {
          width: 'container', height: 30 * new Set(rows.map((r) => r.a)).size, autosize: FIT, data: { name: 'rows', values: rows }, mark: { type: 'bar', aria: false, height: { band: 0.72 } },
          encoding: {
            y: { field: 'a', type: 'nominal', sort: this.data.algorithms, title: null, axis: { grid: false, labelLimit: 140 } },
            x: { field: 'v', type: 'quantitative', title: unit, scale: upTo(sums), axis: { tickCount: 8 } }, order: { field: 'n' },
            color: this.activities(kinds, 'kind'),
            tooltip: [{ field: 'a', title: 'algorithm' }, { field: 'kind', title: 'phase' }, { field: 'v', title: unit, format: '.3~g' }],
          },
          transform: [{ calculate: `indexof(${JSON.stringify(kinds)}, datum.kind)`, as: 'n' }],
        },
      };
    }

    jobCharts() {
      const charts = [];
      const phases = this.data.job_phases.map((r) => ({ a: r.algorithm, kind: r.phase, v: r.seconds }));
      if (phases.length) charts.push(this.bars('Time of a step by phase, as the job marked it', phases, 's a step'));
      const bytes = this.data.job_bytes.map((r) => ({ a: r.algorithm, node: r.node, direction: r.direction, v: r.megabytes }));
      if (bytes.length) {
        const { color } = scaleOf(this.data.algorithms);
        charts.push({
          title: 'What each node’s link carried', rows: bytes, wide: true,
          spec: {
            width: 'container', height: 13 * bytes.length + 12 * new Set(bytes.map((r) => r.node + r.direction)).size, autosize: FIT, data: { name: 'rows', values: bytes }, mark: { type: 'bar', aria: false },
            transform: [{ calculate: "datum.node + ' ' + datum.direction", as: 'end' }],
            encoding: {
              y: { field: 'end', type: 'nominal', sort: null, title: null, axis: { grid: false } }, yOffset: { field: 'a', sort: this.data.algorithms }, color,
              x: { field: 'v', type: 'quantitative', title: 'MB', scale: upTo(bytes.map((r) => r.v)), axis: { tickCount: 8 } },
              tooltip: [{ field: 'a', title: 'run' }, { field: 'end', title: 'link' }, { field: 'v', title: 'MB' }],
            },
          },
        });
      }
      return charts;
    }
  }

  const readout = element('div', { class: 'readout', hidden: '', 'aria-hidden': 'true' });
  const live = element('div', { class: 'hidden', role: 'status' });
  document.body.append(readout, live);

  const theme = document.getElementById('theme');
  const THEMES = ['system', 'light', 'dark'];
  theme.hidden = false;
  theme.addEventListener('click', () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme || 'system') + 1) % THEMES.length];
    if (next === 'system') delete root.dataset.theme; else root.dataset.theme = next;
    theme.textContent = `Colours: ${next}`;
    theme.setAttribute('aria-label', `Colours: ${next}. Press to change`);
  });

  for (const node of document.querySelectorAll('.section')) drawn.push(new Section(node, sections[Number(node.dataset.section)]));

  async function draw() {
    root.dataset.drawn = 'no';
    for (const section of drawn) await section.draw();
    root.dataset.drawn = 'yes';
  }

  /* A part that an address leads to may lie in something that is folded. */
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === 'DETAILS') node.open = true;
  }
  addEventListener('hashchange', unfold);
  /* Paper has no folds: all but manifests is printed. */
  const folds = [...document.querySelectorAll('details:not(.long)')];
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = folds.filter((node) => !node.open);
    for (const node of folded) node.open = true;
  });
  addEventListener('afterprint', () => { for (const node of folded) node.open = false; });
  unfold();
  draw();
})();
