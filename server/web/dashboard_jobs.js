// SPDX-License-Identifier: Apache-2.0
// The list of jobs: filters, pages, and the choice of jobs to compare; their curves in one plot; and the parts of a job's page that are
// text. What is filtered and chosen is in the page's address, so that it survives a reload and can be sent to others.
'use strict';

const PAGE_ROWS = 20;
const COMPARE_MAX = 8;
const ARCHIVED = ['shown', 'only']; // hidden, if the address says neither
const STATES = ['waiting', 'running', 'done', 'failed', 'stopped'];

// ---- jobs ----

const JOB_COLUMNS = [['Compare', ''], ['Job', ''], ['Name', ''], ['State', ''], ['Rounds', ''], ['Accuracy', 'num'], ['Loss', 'num extra'],
  ['Last round', 'num extra'], ['Daemons', 'num extra'], ['Owner', 'extra'], ['Note', 'extra']];

function makeJobRow(tr, job) {
  const box = el('input', { type: 'checkbox', value: job.job, 'aria-label': 'compare ' + job.job });
  tr.append(el('td', {}, box), el('td', {}, el('a', { href: '/jobs/' + job.job }, job.job)), el('td', {}), el('td', {}),
    el('td', {}, el('progress', { 'aria-label': 'rounds of ' + job.job }), el('span', {})),
    el('td', { class: 'num' }), el('td', { class: 'num extra' }), el('td', { class: 'num extra' }),
    el('td', { class: 'num extra' }), el('td', { class: 'extra' }), el('td', { class: 'text extra' }, el('div', { class: 'brief' })));
}

function updateJobRow(tr, job) {
  const cell = tr.children, bar = cell[4].firstChild, shown = job.evaluated || job.best || {};
  const at = job.progress || {};
  const part = at.phase === 'train' && at.clients_total && at.round === job.round + 1 ? Math.max(at.clients_done / at.clients_total, at.trained) : 0;
  setText(cell[2], job.name);
  setText(cell[3], job.archived_unix_ms ? job.state + ', archived' : job.state);
  cell[3].className = 'state ' + job.state;
  bar.max = job.rounds;
  bar.value = Math.min(job.rounds, job.round + part);
  setText(cell[4].lastChild, `${job.round}/${job.rounds}`);
  const open = job.privacy && job.privacy.not_private.includes('accuracies');
  [shown.accuracy, shown.loss].map(x => fixed(x, 4)).forEach((text, i) => {
    setText(cell[5 + i], open && text ? text + '*' : text);
    cell[5 + i].title = open ? 'not private: without noise' : '';
  });
  setText(cell[7], job.last ? duration(job.last.seconds) : '');
  setText(cell[8], String(at.daemons || 0));
  setText(cell[9], job.owner || '');
  setText(cell[10].firstChild, job.reason || ''); // in one line: the job's page has all of it
  cell[10].title = job.reason || '';
}

// Every word must be somewhere in what a row says.
function matches(job, words, state, archived) {
  if (archived !== 'shown' && !job.archived_unix_ms !== !archived) return false;
  const text = [job.job, job.name, job.owner, job.model, job.data, job.strategy, job.reason].join(' ').toLowerCase();
  return (!state || job.state === state) && words.every((word) => text.includes(word));
}

function readAddress() {
  const query = new URLSearchParams(location.search), jobs = (query.get('compare') || '').split(',');
  return { q: query.get('q') || '', state: STATES.includes(query.get('state')) ? query.get('state') : '',
    archived: ARCHIVED.includes(query.get('archived')) ? query.get('archived') : '',
    page: Math.max(0, Number.parseInt(query.get('page'), 10) - 1 || 0),
    compare: new Set(jobs.filter((id) => /^j-[0-9]+$/.test(id)).slice(0, COMPARE_MAX)) };
}

function writeAddress(at) {
  const query = new URLSearchParams();
  if (at.q) query.set('q', at.q);
  if (at.state) query.set('state', at.state);
  if (at.archived) query.set('archived', at.archived);
  if (at.page) query.set('page', String(at.page + 1));
  const text = [query.toString(), at.compare.size ? 'compare=' + [...at.compare].join(',') : ''].filter(Boolean).join('&');
  history.replaceState(null, '', location.pathname + (text ? '?' + text : ''));
}

function jobsSection(changed) {
  const at = readAddress(), box = table(JOB_COLUMNS, 'jobs'), body = box.querySelector('tbody'), note = el('p', { class: 'note' });
  const search = el('input', { type: 'search', placeholder: 'name, owner, model, data', value: at.q });
  const state = el('select', {}, el('option', { value: '' }, 'all'), ...STATES.map((s) => el('option', { value: s }, s)));
  const archived = el('select', {}, el('option', { value: '' }, 'hidden'), ...ARCHIVED.map((s) => el('option', { value: s }, s)));
  const newer = el('button', { type: 'button' }, 'Newer'), older = el('button', { type: 'button' }, 'Older');
  const where = el('span', { role: 'status' });
  const bar = el('div', { class: 'filters', role: 'search', 'aria-label': 'jobs' }, el('label', {}, 'Search ', search), el('label', {}, 'State ', state),
    el('label', {}, 'Archived ', archived),
    el('span', { class: 'pager' }, newer, where, older));
  let last = null;
  state.value = at.state;
  archived.value = at.archived;

  function draw(data) {
    last = data;
    const words = at.q.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...data.jobs].reverse().filter((job) => matches(job, words, at.state, at.archived));
    const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
    at.page = Math.min(at.page, pages - 1);
    const from = at.page * PAGE_ROWS, rows = found.slice(from, from + PAGE_ROWS);
    keepRows(body, rows, (job) => job.job, makeJobRow, updateJobRow);
    for (const tr of body.children) {
      const check = tr.firstChild.firstChild;
      check.checked = at.compare.has(tr.dataset.key);
      check.disabled = !check.checked && at.compare.size >= COMPARE_MAX;
    }
    setText(where, found.length ? ` ${from + 1} to ${from + rows.length} of ${found.length} ` : ' none ');
    newer.disabled = !at.page;
    older.disabled = at.page >= pages - 1;
    const hidden = data.n_jobs - data.jobs.length;
    setText(note, hidden ? `${hidden} older jobs are not among these; mfl list --all shows them.`
      : data.jobs.length ? '' : 'There is no job yet.');
  }

  function go(change) {
    Object.assign(at, change);
    writeAddress(at);
    if (last) draw(last);
  }
  search.addEventListener('input', () => go({ q: search.value.trim(), page: 0 }));
  state.addEventListener('change', () => go({ state: state.value, page: 0 }));
  archived.addEventListener('change', () => go({ archived: archived.value, page: 0 }));
  newer.addEventListener('click', () => go({ page: at.page - 1 }));
  older.addEventListener('click', () => go({ page: at.page + 1 }));
  body.addEventListener('change', (event) => {
    if (event.target.checked) at.compare.add(event.target.value);
    else at.compare.delete(event.target.value);
    go({});
    changed();
  });
  return { node: el('section', { id: 'jobs' }, el('h2', {}, 'Jobs'), bar, box, note), draw, chosen: at.compare };
}

// ---- several jobs in one plot ----

function compareSection() {
  const parts = [['Accuracy', 'accuracy'], ['Loss', 'loss']].map(([name, key]) => {
    const box = el('div', {});
    return { node: el('div', {}, el('h3', {}, name), box), box, key };
  });
  const columns = [['Job', ''], ['Name', ''], ['Model', 'extra'], ['Data', 'extra'], ['Strategy', ''], ['Rounds', 'num'], ['Best accuracy', 'num'],
    ['Last loss', 'num'], ['Took', 'num extra']];
  const box = table(columns, 'jobs that are compared'), body = box.querySelector('tbody');
  const node = el('section', { id: 'compare' }, el('h2', {}, 'Compared'), el('div', { class: 'curves' }, ...parts.map((p) => p.node)), box);
  node.hidden = true;
  return {
    node,
    draw(all) {
      node.hidden = !all.length;
      if (node.hidden) return;
      for (const { box: plot, key } of parts) {
        const lines = all.map(({ rounds }, i) => ({ cls: 'c' + i, points: rounds.map((r) => [r.round, r[key]]).filter((p) => Number.isFinite(p[1])) }));
        drawCurve(plot, lines, `${key} by round of ${all.map(({ job }) => job.job).join(', ')}`);
      }
      keepRows(body, all.map((one, i) => ({ ...one, i })), ({ job }) => job.job,
        (tr, { job }) => tr.append(el('td', {}, svg('svg', { class: 'key', viewBox: '0 0 22 8', 'aria-hidden': 'true' },
          svg('path', { d: 'M0 4H22' })), el('a', { href: '/jobs/' + job.job }, job.job)),
        ...columns.slice(1).map(([, cls]) => el('td', { class: cls }))),
        (tr, { job, i }) => {
          tr.firstChild.firstChild.firstChild.setAttribute('class', 'curve c' + i);
          [job.name, job.model, job.data, job.strategy, `${job.round}/${job.rounds}`, fixed(job.best ? job.best.accuracy : NaN, 4),
            fixed(job.evaluated ? job.evaluated.loss : NaN, 4), job.finished_unix_ms ? duration((job.finished_unix_ms - job.created_unix_ms) / 1000) : '']
            .forEach((text, k) => setText(tr.children[k + 1], text || ''));
        });
    },
  };
}

// ---- a job's page ----

const dateOf = (ms) => new Date(ms).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });

// Judged by the last five rounds, as `mfl watch` does; null: unknown, or it has ended.
function secondsLeft(job, rounds) {
  const last = rounds.slice(-5), at = job.progress || {};
  if (!last.length || job.state !== 'running') return null;
  const each = last.reduce((sum, r) => sum + r.seconds, 0) / last.length;
  const begun = at.phase === 'train' ? Math.max(at.trained, at.clients_total ? at.clients_done / at.clients_total : 0) : at.round > job.round ? 1 : 0;
  return Math.max(0, each * (job.rounds - job.round - Math.min(begun, 1)));
}

function fileSection() {
  const text = el('pre', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'job file' }), note = el('p', { class: 'note' });
  return {
    node: el('section', { id: 'file' }, el('h2', {}, 'Job file'), text, note),
    draw(data) {
      setText(text, data.text || '');
      setText(note, `Again: mfl clone ${data.job}. The models: mfl models ${data.job}; mfl pull ${data.job} --round best.`);
    },
  };
}

function logSection() {
  const text = el('pre', { class: 'wide log', tabindex: '0', role: 'region', 'aria-label': 'log' }), note = el('p', { class: 'note' });
  return {
    node: el('section', { id: 'log' }, el('h2', {}, 'Log'), text, note),
    draw(data) {
      const below = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
      setText(text, data.lines.map((line) => `${new Date(line.time_ms).toLocaleTimeString()} ${line.text}`).join('\n'));
      if (below) text.scrollTop = text.scrollHeight;
      const hidden = data.n_lines - data.lines.length;
      setText(note, hidden ? `${hidden} earlier lines: mfl logs ${data.job}` : '');
    },
  };
}

const SITES_MAX = 100;
function sitesSection() {
  const box = table([['Client', ''], ['Samples', 'num'], ['Accuracy', 'num'], ['Loss', 'num']], 'scores of clients');
  const body = box.querySelector('tbody'), note = el('p', { class: 'note' });
  const node = el('section', { id: 'sites' }, el('h2', {}, 'Clients, the worst first'), box, note);
  node.hidden = true;
  return {
    node,
    draw(scores) {
      node.hidden = !scores || !scores.clients.length;
      if (node.hidden) return;
      const rows = scores.clients.slice(0, SITES_MAX);
      body.replaceChildren(...rows.map((c) => el('tr', {}, el('td', {}, c.site || String(c.client)), el('td', { class: 'num' }, String(c.samples)),
        el('td', { class: 'num' }, c.samples ? fixed(c.correct / c.samples, 4) : ''),
        el('td', { class: 'num' }, c.samples ? fixed(c.loss_sum / c.samples, 4) : ''))));
      setText(note, `Scored in round ${scores.round}.` + (rows.length < scores.clients.length ? ` ${scores.clients.length - rows.length} more are not shown.` : ''));
    },
  };
}

// ---- asking ----

const GONE = 'that job no longer exists';
const known = new Map();
async function ask(path) {
  const answer = await fetch(path, { cache: 'no-cache', signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error(answer.status === 404 ? GONE : `the server says ${answer.status}`);
  const tag = answer.headers.get('etag');
  const before = known.get(path);
  if (before && tag && before.tag === tag) return before.data;
  const data = await answer.json();
  known.set(path, { tag, data });
  return data;
}
