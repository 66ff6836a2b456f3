// SPDX-License-Identifier: Apache-2.0
// The live part of the dashboard: asks for JSON every two seconds and draws it. Its words are those of proto/json/json.h, which
// `mfl ... --json` prints, too; what is not known is null. Everything that came from users goes into the page as text, never as
// HTML. Without this file the page is plain tables.
'use strict';

const EVERY_MS = 2000;
const ROWS_MAX = 40;
const SVG = 'http://www.w3.org/2000/svg';

// ---- making elements ----

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Rows are kept by key, so that the keyboard's focus stays. make(tr) adds cells once, update(tr, item) fills them.
function keepRows(body, items, key, make, update) {
  const old = new Map([...body.children].map((tr) => [tr.dataset.key, tr]));
  items.forEach((item, i) => {
    const id = key(item);
    let tr = old.get(id);
    if (!tr) {
      tr = el('tr', { 'data-key': id });
      make(tr, item);
    }
    old.delete(id);
    update(tr, item);
    if (body.children[i] !== tr) body.insertBefore(tr, body.children[i] || null);
  });
  for (const tr of old.values()) tr.remove();
}

function table(columns, label) {
  const head = el('tr', {}, ...columns.map(([name, cls]) => el('th', { class: cls, scope: 'col' }, name)));
  const node = el('table', {}, el('thead', {}, head), el('tbody', {}));
  return el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': label }, node);
}

// ---- how numbers are written ----

const fixed = (x, n) => (Number.isFinite(x) ? x.toFixed(n) : '');
function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; i++; }
  return n.toFixed(i && n < 10 ? 1 : 0) + ' ' + units[i];
}
function duration(s) {
  if (s < 10) return s.toFixed(2) + ' s';
  if (s < 90) return s.toFixed(0) + ' s';
  return s < 5400 ? (s / 60).toFixed(0) + ' min' : (s / 3600).toFixed(1) + ' h';
}
function count(n) {
  return n >= 1e6 ? (n / 1e6).toFixed(2) + ' M' : n >= 1e4 ? (n / 1e3).toFixed(1) + ' k' : String(n);
}

// ---- curves ----

// Steps of round numbers that give about n lines.
function ticks(low, high, n, least) {
  const raw = Math.max((high - low) / n, least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) found.push(t);
  return { found, digits: Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))) };
}

// lines: [{ points: [[x, y]], cls }]. Drawn at the box's own width, so that letters keep their size.
function drawCurve(box, lines, label) {
  const all = lines.flatMap((line) => line.points);
  const width = Math.max(240, box.clientWidth || 500), height = 190;
  const left = 44, right = 10, top = 8, bottom = 22;
  const node = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': label });
  if (!all.length) {
    node.append(svg('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, 'no evaluated round yet'));
    box.replaceChildren(node);
    return;
  }
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
  let y0 = Math.min(...ys), y1 = Math.max(...ys);
  const margin = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 0.05;
  y0 -= margin;
  y1 += margin;
  const x = (v) => left + (v - x0) / (x1 - x0) * (width - left - right);
  const y = (v) => top + (y1 - v) / (y1 - y0) * (height - top - bottom);
  const across = ticks(y0, y1, 4, 1e-9), along = ticks(x0, x1, Math.max(2, width / 90), 1);
  for (const t of across.found) {
    node.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg('text', { x: left - 6, y: y(t) + 4, 'text-anchor': 'end' }, t.toFixed(across.digits)));
  }
  for (const t of along.found) {
    node.append(svg('text', { x: x(t), y: height - 6, 'text-anchor': 'middle' }, t.toFixed(0)));
  }
  for (const line of lines) {
    const d = line.points.map((p, i) => (i ? 'L' : 'M') + x(p[0]).toFixed(1) + ' ' + y(p[1]).toFixed(1)).join('');
    node.append(svg('path', { class: 'curve ' + line.cls, d }));
    const last = line.points[line.points.length - 1];
    if (last && !line.cls) node.append(svg('circle', { class: 'dot', cx: x(last[0]), cy: y(last[1]), r: 3 }));
  }
  box.replaceChildren(node);
}

function curvesOf() {
  const parts = ['Accuracy', 'Loss'].map((name) => {
    const now = el('span', { class: 'now' }), box = el('div', {});
    return { node: el('div', {}, el('h3', {}, name + ' ', now), box), now, box };
  });
  const node = el('div', { class: 'curves' }, ...parts.map((p) => p.node));
  return {
    node,
    draw(job, rounds) {
      const evaluated = rounds.filter((r) => r.loss !== null);
      const last = evaluated[evaluated.length - 1];
      setText(parts[0].now, last ? `${fixed(last.accuracy, 4)}, best ${fixed(job.best ? job.best.accuracy : NaN, 4)}` : '');
      setText(parts[1].now, last ? `${fixed(last.loss, 4)} on the test split; dashed: training` : '');
      drawCurve(parts[0].box, [{ points: evaluated.map((r) => [r.round, r.accuracy]).filter((p) => Number.isFinite(p[1])), cls: '' }],
        'accuracy by round');
      drawCurve(parts[1].box, [
        { points: rounds.map((r) => [r.round, r.train_loss]).filter((p) => Number.isFinite(p[1])), cls: 'other' },
        { points: evaluated.map((r) => [r.round, r.loss]).filter((p) => Number.isFinite(p[1])), cls: '' },
      ], 'loss by round');
    },
  };
}

// ---- the timeline ----

const KINDS = [['train', 'trains'], ['evaluate', 'evaluates'], ['wait', 'waits to upload, or for its update to be added'], ['upload', 'uploads']];

// As long as the last few rounds, so that both short and long rounds can be seen.
function windowOf(data) {
  const rounds = data.rounds.slice(-4).map((r) => r.started_ago_seconds);
  const spans = data.spans.filter((s) => s.open).map((s) => s.from_ago_seconds);
  const last = data.spans.length ? [data.spans[data.spans.length - 1].from_ago_seconds] : [];
  const wanted = Math.max(...rounds, ...spans, ...last, 5);
  return [10, 20, 30, 45, 60, 90, 120, 180, 300, 600].find((w) => w >= wanted) || 600;
}

function drawTimeline(box, data) {
  const seconds = windowOf(data);
  const shown = data.spans.filter((s) => s.to_ago_seconds <= seconds);
  if (!shown.length) {
    box.replaceChildren(el('p', { class: 'note' }, 'No daemon has worked in the last ten minutes.'));
    return;
  }
  const names = [...new Set(shown.map((s) => s.daemon))].sort();
  const rows = new Map(names.slice(0, ROWS_MAX).map((name, i) => [name, i]));
  const width = Math.max(240, box.clientWidth || 800), row = 22, top = 18;
  const left = Math.min(150, width / 4), height = top + rows.size * row + 20;
  const x = (ago) => left + (1 - Math.min(ago, seconds) / seconds) * (width - left - 8);
  const node = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': `who trained, evaluated, waited and uploaded in the last ${seconds} seconds` });
  for (const [name, i] of rows) {
    const letters = Math.floor(left / 7) - 1;
    node.append(svg('text', { x: 0, y: top + i * row + 14 }, name.length > letters ? name.slice(0, letters) + '…' : name));
  }
  let free = 0;
  for (const r of data.rounds.filter((one) => one.ended_ago_seconds < seconds)) {
    const at = x(r.ended_ago_seconds);
    node.append(svg('line', { class: 'commit', x1: at, x2: at, y1: top - 4, y2: height - 18 }));
    if (at < free) continue;
    free = at + 30;
    node.append(svg('text', { x: at, y: 11, 'text-anchor': 'middle' }, String(r.round)));
  }
  for (const s of shown) {
    if (!rows.has(s.daemon)) continue;
    const computes = s.what === 'train' || s.what === 'evaluate';
    const y = top + rows.get(s.daemon) * row + (computes ? 3 : 11);
    const from = x(s.from_ago_seconds), to = x(s.to_ago_seconds);
    const rect = svg('rect', { class: s.what, x: from, y, height: 7, width: Math.max(2, to - from) });
    rect.append(svg('title', {}, `${s.daemon}: ${s.what}, ${s.job} round ${s.round}, ${duration(s.from_ago_seconds - s.to_ago_seconds)}`));
    node.append(rect);
  }
  for (const part of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    const ago = Math.round(seconds * (1 - part));
    node.append(svg('text', { x: x(ago), y: height - 4, 'text-anchor': part === 1 ? 'end' : 'middle' },
      ago ? `-${ago} s` : 'now'));
  }
  box.replaceChildren(node);
  if (names.length > ROWS_MAX) box.append(el('p', { class: 'note' }, `${names.length - ROWS_MAX} more daemons are not shown.`));
}

function timelineSection() {
  const box = el('div', {});
  const legend = el('ul', { class: 'legend' }, ...KINDS.map(([cls, text]) => el('li', {},
    svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, svg('rect', { class: cls, width: 12, height: 12 })), text)));
  legend.append(el('li', {}, 'dashed line with a number: the end of that round'));
  const node = el('section', { id: 'timeline' }, el('h2', {}, 'Who did what'), box, legend);
  return { node, draw: (data) => drawTimeline(box, data) };
}

// ---- a job ----

// The measures of the newest evaluated round, in words; the histogram is a line of blocks.
function measured(job) {
  const r = job.evaluated || job.last || {}, rows = [];
  if (r.clients_evaluated) {
    const most = Math.max(...r.client_bins), blocks = r.client_bins.map((n) => (n ? '\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588'[Math.ceil(8 * n / most) - 1] : '_'));
    rows.push([`Evaluated on ${r.clients_evaluated} clients`, `mean ${fixed(r.client_mean, 4)}, worst 10% ${fixed(r.client_worst, 4)}, best 10% ${fixed(r.client_best, 4)}, `
      + `variance ${fixed(r.client_variance, 6)}; ${fixed(r.client_low, 2)} ${blocks.join('')} ${fixed(r.client_high, 2)}`]);
  }
  for (const [name, key] of [['Macro F1', 'macro_f1'], ['MAE', 'mae'], ['RMSE', 'rmse'], ['R2', 'r2'], ['Backdoor success', 'backdoor']]) {
    if (Number.isFinite(r[key])) rows.push([name, fixed(r[key], 4)]);
  }
  for (const [name, value] of Object.entries(r.metrics || {})) rows.push([`Metric ${name}`, Number.isFinite(value) ? fixed(value, 4) : '-']);
  return rows;
}

function facts(list, job, rounds) {
  const at = job.progress || {}, left = secondsLeft(job, rounds);
  const rows = [['State', job.state + (at.phase && job.state === 'running' ? `, ${at.phase}` : '')],
    ['Rounds', `${job.round} of ${job.rounds}`],
    [at.phase === 'evaluate' ? 'Parts evaluated' : 'Clients of this round', at.clients_total ? `${at.clients_done} of ${at.clients_total}` : '-'],
    ['Daemons', String(at.daemons || 0)], ['Model', job.model], ['Parameters', job.params ? count(job.params) : '-'],
    ['Data', job.data], ['Strategy', job.strategy], ['Owner', job.owner || '-'], ['Submitted', dateOf(job.created_unix_ms)],
    [job.finished_unix_ms ? 'Took' : 'Since then', duration(((job.finished_unix_ms || Date.now()) - job.created_unix_ms) / 1000)],
    ...(job.archived_unix_ms ? [['Archived', dateOf(job.archived_unix_ms)]] : []),
    ...(left === null ? [] : [['Time left', `about ${duration(left)}`]]),
    ...(job.privacy ? [['Epsilon spent', `${fixed(job.privacy.epsilon, 4)} of ${job.privacy.epsilon_max}, delta ${job.privacy.delta}`],
      ['Not private', job.privacy.not_private.join(', ')]] : []),
    ['Last round', job.last ? duration(job.last.seconds) : '-'],
    ['Traffic of that round', job.last ? `up ${bytes(job.last.bytes_up)}, down ${bytes(job.last.bytes_down)}` : '-'],
    ...measured(job)];
  if (list.children.length !== rows.length) list.replaceChildren(...rows.map(() => el('div', {}, el('dt', {}), el('dd', {}))));
  rows.forEach(([name, value], i) => {
    setText(list.children[i].firstChild, name);
    setText(list.children[i].lastChild, value);
  });
}

// ---- who was left out ----

// What a robust rule said of a round (server/jobs/job_choice.c): { rule, counted, rows, out: [{ name, why }] }; null: nothing.
function choiceOf(round) {
  const found = /(?:^|; )([a-z-]+): (\d+) of (\d+) counted(?:; least: (.*))?$/.exec(round.choice || '');
  if (!found) return null;
  const out = (found[4] || '').split(', ').map((text) => /^(.+?)((?: [\d.e+-]+%)?(?: score [^ ]+)?(?: distance [^ ]+)?)$/.exec(text))
    .filter((m) => m && m[1] !== '...').flatMap((m) => m[1].split(' + ').map((name) => ({ name, why: m[2].trim() })));
  return { rule: found[1], counted: Number(found[2]), rows: Number(found[3]), out };
}

// A column for each round, the newest to the right, and a row for each client that was ever left out, the most often first.
function drawLeftOut(box, rounds) {
  const width = Math.max(240, box.clientWidth || 800), cell = 14, top = 6, left = Math.min(170, width / 3);
  const shown = rounds.map((r) => ({ round: r.round, choice: choiceOf(r) })).filter((r) => r.choice).slice(-Math.floor((width - left - 8) / cell));
  const times = new Map();
  for (const r of shown) for (const one of r.choice.out) times.set(one.name, (times.get(one.name) || 0) + 1);
  const order = (a, b) => b[1] - a[1] || a[0].localeCompare(b[0], undefined, { numeric: true });
  const names = [...times].sort(order).slice(0, ROWS_MAX).map(([name]) => name);
  const height = top + names.length * cell + 20, x = (i) => left + i * cell, y = (i) => top + i * cell;
  const node = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': names.length ? `left out most often: ${names[0]}, in ${times.get(names[0])} of ${shown.length} rounds` : 'nobody was left out' });
  names.forEach((name, i) => {
    const letters = Math.floor(left / 7) - 6;
    node.append(svg('text', { x: 0, y: y(i) + 11 }, `${name.length > letters ? name.slice(0, letters) + '…' : name} (${times.get(name)})`));
    shown.forEach((r, j) => {
      const one = r.choice.out.find((o) => o.name === name);
      const rect = svg('rect', { class: one ? 'out' : 'in', x: x(j), y: y(i), width: cell - 2, height: cell - 2 });
      rect.append(svg('title', {}, `round ${r.round}, ${name}: ${one ? `counted least${one.why ? ', ' + one.why : ''}` : 'counted'}`));
      node.append(rect);
    });
  });
  shown.forEach((r, j) => {
    if (!j || r.round % 10 === 0) node.append(svg('text', { x: x(j) + cell / 2, y: height - 6, 'text-anchor': 'middle' }, String(r.round)));
  });
  box.replaceChildren(names.length ? node : el('p', { class: 'note' }, shown.length ? 'No client was left out.' : ''));
  return shown.length;
}

function leftOutSection() {
  const box = el('div', {}), note = el('p', { class: 'note' });
  const node = el('section', { id: 'leftout' }, el('h2', {}, 'Who was left out'), box, note);
  node.hidden = true;
  return {
    node,
    draw(rounds) {
      node.hidden = !rounds.some(choiceOf);
      if (!node.hidden) drawLeftOut(box, rounds);
      setText(note, 'Rounds from left to right; marked: the robust rule counted the client least, with less than half of an equal share. '
        + 'A round names at most sixteen. Point at a mark for the score and the distance.');
    },
  };
}

function jobSection(withTable) {
  const title = el('h2', {}), list = el('dl', { class: 'facts' }), note = el('p', { class: 'note' }), curves = curvesOf(), out = leftOutSection();
  const node = el('section', { id: 'job' }, title, list, note, curves.node);
  const columns = [['Round', 'num'], ['Accuracy', 'num'], ['Loss', 'num'], ['Training loss', 'num'], ['Clients', 'num'],
    ['Rejected', 'num extra'], ['Daemons', 'num extra'], ['Seconds', 'num'], ['Up', 'num extra'], ['Down', 'num extra']];
  const rounds = withTable ? table(columns, 'rounds') : null;
  const body = rounds && rounds.querySelector('tbody');
  const rows = rounds && el('section', { id: 'rounds' }, el('h2', {}, 'Rounds, the newest first'), rounds);
  return {
    nodes: rows ? [node, out.node, rows] : [node],
    draw({ job, rounds: committed }) {
      setText(title, `${job.job} ${job.name}`);
      facts(list, job, committed);
      setText(note, job.reason || '');
      curves.draw(job, committed);
      if (!body) return;
      out.draw(committed);
      keepRows(body, committed.slice(-100).reverse(), (p) => String(p.round),
        (tr) => tr.append(...columns.map(([, cls]) => el('td', { class: cls }))),
        (tr, p) => [String(p.round), fixed(p.accuracy, 4), fixed(p.loss, 4), fixed(p.train_loss, 4), String(p.clients),
          String(p.clients_rejected), String(p.daemons), fixed(p.seconds, 2), bytes(p.bytes_up), bytes(p.bytes_down)]
          .forEach((text, i) => setText(tr.children[i], text)));
    },
  };
}

// ---- how data are divided ----

const CLASSES_NAMED = 12;
const classFill = (i, n) => (n ? `hsl(${Math.round(i * 360 / n)} 55% ${i % 2 ? 62 : 48}%)` : 'var(--train)');

// One column per client, as high as it has samples, with its classes stacked; one path per class.
function drawPartition(box, data) {
  const shown = data.shown, n = shown[0].classes ? shown[0].classes.length : 0;
  const width = Math.max(240, box.clientWidth || 500), height = 200, left = 48, right = 6, top = 8, bottom = 22;
  const most = Math.max(data.samples_max, 1), step = (width - left - right) / shown.length, bar = step > 5 ? step - 1 : step;
  const y = (v) => top + (1 - v / most) * (height - top - bottom);
  const kind = data.local ? 'site' : 'client';
  const node = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': `samples of each ${kind}${n ? ', by class' : ''}; the table below has the numbers` });
  for (const t of ticks(0, most, 4, 1).found) {
    node.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg('text', { x: left - 6, y: y(t) + 4, 'text-anchor': 'end' }, count(t)));
  }
  const from = shown.map(() => 0);
  for (let c = 0; c < Math.max(n, 1); c++) {
    let d = '';
    shown.forEach((one, i) => {
      const v = n ? one.classes[c] : one.samples;
      if (!v) return;
      d += `M${(left + i * step).toFixed(2)} ${y(from[i] + v).toFixed(2)}h${bar.toFixed(2)}V${y(from[i]).toFixed(2)}h${(-bar).toFixed(2)}z`;
      from[i] += v;
    });
    const path = svg('path', { class: n ? '' : 'train', d });
    if (n) path.setAttribute('fill', classFill(c, n));
    path.append(svg('title', {}, n ? 'class ' + className(data, c, n) : 'samples'));
    node.append(path);
  }
  const every = Math.max(1, Math.ceil(shown.length / Math.max(1, Math.floor((width - left) / (data.local ? 90 : 45)))));
  shown.forEach((one, i) => {
    if (i % every) return;
    node.append(svg('text', { x: left + (i + 0.5) * step, y: height - 6, 'text-anchor': 'middle' }, clientName(one)));
  });
  box.replaceChildren(node);
}

const clientName = (one) => one.daemon || String(one.client);
const className = (data, c, n) => c + (c === n - 1 && data.classes > n ? '+' : '');

function partitionSection() {
  const note = el('p', { class: 'note' }), box = el('div', {}), legend = el('ul', { class: 'legend' });
  const inside = table([['Client', ''], ['Samples', 'num'], ['Samples of each class', 'text']], 'samples of each client');
  const more = el('details', {}, el('summary', {}, 'The numbers'), inside), body = inside.querySelector('tbody');
  const node = el('section', { id: 'partition' }, el('h2', {}, 'Data of the clients'), note, box, legend, more);
  let told = null;
  node.hidden = true;
  return {
    node,
    draw(data) {
      node.hidden = !data || !data.shown.length;
      if (node.hidden) return;
      drawPartition(box, data);
      if (told === data) return;
      told = data;
      const n = data.shown[0].classes ? data.shown[0].classes.length : 0;
      setText(note, `${data.clients} ${data.local ? 'sites' : 'clients'}, ${data.samples} samples: ` +
        `${data.samples_min} to ${data.samples_max} each` + (n ? ', by class' : '') +
        (data.shown.length < data.clients ? `. ${data.shown.length} of them are shown.` : '.'));
      legend.replaceChildren(...(n > CLASSES_NAMED ? [] : [...Array(n).keys()].map((c) => el('li', {},
        svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, svg('rect', { fill: classFill(c, n), width: 12, height: 12 })),
        className(data, c, n)))));
      body.replaceChildren(...data.shown.map((one) => el('tr', {}, el('td', {}, clientName(one)),
        el('td', { class: 'num' }, String(one.samples)), el('td', { class: 'text' }, (one.classes || [])
          .map((v, c) => (v ? `${className(data, c, n)}: ${v}` : '')).filter(Boolean).join(', ')))));
    },
  };
}

// ---- daemons ----

const DAEMON_COLUMNS = [['Daemon', ''], ['State', ''], ['Job', ''], ['Clients', 'num'], ['Samples/s', 'num'], ['Time', ''],
  ['GPU', ''], ['Memory', 'extra'], ['', 'num extra'], ['Device', 'extra']];
const ACTIVITIES = ['compute', 'data', 'network', 'wait'];

function makeDaemonRow(tr, d) {
  tr.append(el('td', {}, d.name), el('td', {}), el('td', {}, el('a', {})), el('td', { class: 'num' }),
    el('td', { class: 'num' }), el('td', {}), el('td', {}), el('td', { class: 'extra' }), el('td', { class: 'num extra' }),
    el('td', { class: 'text extra' }));
}

// How a daemon's workers spent the last ten seconds: a bar of four parts, and numbers where there is room.
function activityBar(cell, d) {
  const a = d.activity;
  if (!a) {
    setText(cell, '-');
    return;
  }
  if (!cell.firstElementChild) {
    const bar = svg('svg', { class: 'activity', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img' }, svg('title', {}),
      ...ACTIVITIES.map((name) => svg('rect', { class: name, y: 0, height: 10 })));
    cell.replaceChildren(bar, el('span', { class: 'extra' }));
  }
  const bar = cell.firstChild, words = ACTIVITIES.map((name) => `${name} ${fixed(a[name] * 100, 0)} %`).join(', ');
  let x = 0;
  ACTIVITIES.forEach((name, i) => {
    const rect = bar.children[i + 1];
    rect.setAttribute('x', x);
    rect.setAttribute('width', a[name] * 100);
    x += a[name] * 100;
  });
  setText(bar.firstChild, words);
  bar.setAttribute('aria-label', `${d.name}: ${words}`);
  setText(cell.lastChild, ACTIVITIES.map((name) => fixed(a[name] * 100, 0)).join('/') + ' %');
}

// A share; NaN when one of the two is not known.
const part = (some, all) => (Number.isFinite(some) && Number.isFinite(all) ? some / all : NaN);

function gauge(cell, share, text, label) {
  if (!Number.isFinite(share)) {
    setText(cell, '-');
    return;
  }
  if (!cell.firstElementChild) cell.replaceChildren(el('progress', { max: 1, 'aria-label': label }), el('span', {}));
  cell.firstElementChild.value = share;
  setText(cell.lastChild, text);
}

function updateDaemonRow(tr, d) {
  const cell = tr.children, link = cell[2].firstChild, gpu = d.gpu || {};
  setText(cell[1], d.state);
  cell[1].className = 'state ' + d.state;
  if (d.job) link.setAttribute('href', '/jobs/' + d.job);
  else link.removeAttribute('href');
  setText(link, d.job || '');
  setText(cell[3], d.job ? `${d.items_done}/${d.items_total}` : '');
  setText(cell[4], d.activity ? fixed(d.activity.samples_per_second, d.activity.samples_per_second < 10 ? 1 : 0) : '');
  activityBar(cell[5], d);
  gauge(cell[6], part(gpu.percent, 100), `${gpu.percent} %`, 'GPU load of ' + d.name);
  gauge(cell[7], part(gpu.memory_used, gpu.memory_total), `${bytes(gpu.memory_used || 0)}`, 'GPU memory of ' + d.name);
  setText(cell[8], [Number.isFinite(gpu.temperature) ? `${gpu.temperature} °C` : '',
    Number.isFinite(gpu.power_watts) ? `${gpu.power_watts.toFixed(0)} W` : ''].filter(Boolean).join(' '));
  setText(cell[9], d.note ? `${d.device || ''} (${d.note})` : d.device || '');
}

function daemonsSection() {
  const box = table(DAEMON_COLUMNS, 'daemons'), all = box.querySelector('table'), note = el('p', { class: 'note' });
  const bodies = new Map(), tree = relayTree();
  all.querySelector('tbody').remove();
  const legend = el('ul', { class: 'legend' }, ...ACTIVITIES.map((name) => el('li', {},
    svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, svg('rect', { class: name, width: 12, height: 12 })), name)));
  legend.append(el('li', {}, 'in the last ten seconds, as is samples/s'));
  return {
    node: el('section', { id: 'daemons' }, el('h2', {}, 'Daemons'), tree.node, box, legend, note),
    draw(data) {
      tree.draw(data.daemons);
      const nodes = new Map();
      for (const d of data.daemons) nodes.set(d.node || '', [...(nodes.get(d.node || '') || []), d]);
      for (const [name, parts] of bodies) {
        if (nodes.has(name)) continue;
        parts.head.remove();
        parts.body.remove();
        bodies.delete(name);
      }
      for (const [name, daemons] of nodes) {
        if (!bodies.has(name)) {
          const cell = el('th', { class: 'node', colspan: DAEMON_COLUMNS.length, scope: 'rowgroup' });
          bodies.set(name, { head: el('tbody', {}, el('tr', {}, cell)), body: el('tbody', {}), cell });
          all.append(bodies.get(name).head, bodies.get(name).body);
        }
        const parts = bodies.get(name), n = daemons.length;
        setText(parts.cell, `${name || 'no node'}: ${n} ${n === 1 ? 'daemon' : 'daemons'}`);
        keepRows(parts.body, daemons, (d) => d.name, makeDaemonRow, updateDaemonRow);
      }
      const hidden = data.n_daemons - data.daemons.length;
      setText(note, hidden ? `${hidden} more are not shown.` : data.daemons.length ? '' : 'No daemon has connected yet.');
    },
  };
}

// ---- turns ----

const main = document.querySelector('main'), status = document.getElementById('status');
const wantedJob = location.pathname.startsWith('/jobs/') ? location.pathname.slice(6) : null;
const parts = { submit: submitSection(), acts: actsSection(wantedJob), jobs: jobsSection(() => turn().catch(() => {})), compare: compareSection(), file: fileSection(), log: logSection(), sites: sitesSection(), job: jobSection(wantedJob !== null), timeline: timelineSection(),
  partition: partitionSection(), daemons: daemonsSection() };
let shown = false, redraw = () => {}, population = null;

// The page without JavaScript stays until the first data has arrived.
function show(nodes) {
  if (!shown) main.replaceChildren(...nodes);
  shown = true;
}

// A population does not change once it is known, but sites come and go.
async function askPartition() {
  if (!population || population.local) {
    const data = await ask(`/api/jobs/${wantedJob}/partition`);
    population = data.partition && { ...data.partition, local: data.local };
  }
  return population;
}

// What rarely changes, or is long: the job file once, the rest every fifth turn and when the job has ended.
let turns = 0, stateBefore = '';
async function askSlowly(job) {
  if (turns++ % 5 && job.state === stateBefore) return;
  stateBefore = job.state;
  const [file, log, scores] = await Promise.all([ask(`/api/jobs/${wantedJob}/file`), ask(`/api/jobs/${wantedJob}/log`),
    ask(`/api/jobs/${wantedJob}/scores`)]);
  parts.file.draw(file);
  parts.log.draw(log);
  parts.sites.draw(scores.scores);
}

// A job that was deleted meanwhile is no longer compared.
async function askCompared(chosen) {
  const found = await Promise.all([...chosen].map((id) => ask('/api/jobs/' + id).catch((e) => {
    if (e.message !== GONE) throw e;
    chosen.delete(id);
    return null;
  })));
  return found.filter(Boolean);
}

async function turn() {
  if (wantedJob) {
    const [job, timeline, partition] = await Promise.all([ask('/api/jobs/' + wantedJob), ask('/api/rounds'), askPartition()]);
    const own = { spans: timeline.spans.filter((s) => s.job === wantedJob), rounds: timeline.rounds.filter((r) => r.job === wantedJob) };
    show([el('p', {}, el('a', { href: '/' }, 'All jobs')), parts.job.nodes[0], parts.acts.node, parts.timeline.node, parts.partition.node,
      ...parts.job.nodes.slice(1), parts.sites.node, parts.file.node, parts.log.node]);
    redraw = () => { parts.job.draw(job); parts.acts.draw(job); parts.timeline.draw(own); parts.partition.draw(partition); };
    await askSlowly(job.job);
  } else {
    const [jobs, daemons, timeline] = await Promise.all(['/api/jobs', '/api/daemons', '/api/rounds'].map(ask));
    const newest = [...jobs.jobs].reverse();
    const chosen = newest.find((j) => j.state === 'running') || newest[0];
    const job = chosen ? await ask('/api/jobs/' + chosen.job) : null;
    const compared = await askCompared(parts.jobs.chosen);
    show([parts.submit.node, parts.jobs.node, parts.compare.node, ...parts.job.nodes, parts.timeline.node, parts.daemons.node]);
    parts.job.nodes[0].hidden = !job;
    redraw = () => {
      parts.jobs.draw(jobs);
      parts.compare.draw(compared);
      if (job) parts.job.draw(job);
      parts.timeline.draw(timeline);
      parts.daemons.draw(daemons);
    };
  }
  redraw();
}

let good = '', failing = false;
async function live() {
  if (!document.hidden) {
    try {
      await turn();
      good = new Date().toLocaleTimeString();
      // Only once, not every two seconds: a screen reader reads it aloud.
      if (failing || !status.textContent) setText(status, 'live');
      failing = false;
    } catch (e) {
      failing = true;
      setText(status, `${e.name === 'TypeError' || e.name === 'TimeoutError' ? 'no answer from the server' : e.message}` +
        (good ? `; this page shows the state at ${good}` : ''));
    }
    status.className = failing ? 'bad' : '';
  }
  setTimeout(live, EVERY_MS);
}

window.addEventListener('resize', () => redraw());
document.addEventListener('visibilitychange', () => { if (!document.hidden && !failing) redraw(); });
if (pageOfLogin) startLoginPage();
else if (pageOfModels) startModelsPage();
else live();
const keepLogin = () => askLogin().catch(() => {}).finally(() => setTimeout(keepLogin, LOGIN_EVERY_MS));
keepLogin();
