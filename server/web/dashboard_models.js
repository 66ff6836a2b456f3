// SPDX-License-Identifier: Apache-2.0
// The pages of registered models: all of them, and one (/models?model=NAME) with its versions, their validations by site as bars, and who
// serves which. All of it needs a login, because sites told it to those who may ask them.
'use strict';

const pageOfModels = location.pathname === '/models';
const wantedModel = new URLSearchParams(location.search).get('model');
const VERSIONS_SHOWN = 6; // in the bars: the newest
const modelLink = (name) => el('a', { href: '/models?model=' + encodeURIComponent(name) }, name);
const milliseconds = (us) => (Number.isFinite(us) && us !== null ? (us / 1000).toFixed(us < 10000 ? 2 : 0) + ' ms' : '');

async function look(path) {
  const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(8000) });
  const data = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new Error('login');
  return answer.ok ? data : { error: data.error || `the server says ${answer.status}` };
}

// ---- all models ----

const MODEL_COLUMNS = [['Model', ''], ['Versions', 'num'], ['Aliases', ''], ['Newest: accuracy', 'num'], ['Validated at', 'num extra'], ['Served by', 'num'],
  ['Registered', 'extra']];

function modelsSection() {
  const box = table(MODEL_COLUMNS, 'models'), body = box.querySelector('tbody'), note = el('p', { class: 'note' });
  return {
    node: el('section', { id: 'models' }, el('h2', {}, 'Models'), box, note),
    draw(all) {
      const names = [...new Set(all.versions.map((v) => v.name))];
      keepRows(body, names, (name) => name,
        (tr, name) => tr.append(el('td', {}, modelLink(name)), ...MODEL_COLUMNS.slice(1).map(([, cls]) => el('td', { class: cls }))),
        (tr, name) => {
          const versions = all.versions.filter((v) => v.name === name), newest = versions[versions.length - 1];
          [String(versions.length), versions.flatMap((v) => v.aliases.map((a) => `${a}: ${v.version}`)).join(', '), fixed(newest.accuracy, 4),
            newest.validated ? `${newest.validated} sites` : '', String(servedBy(all, versions).length), dateOf(newest.time_ms)]
            .forEach((text, k) => setText(tr.children[k + 1], text));
        });
      setText(note, names.length ? '' : 'No model is registered yet: mfl model register JOB --as NAME.');
    },
  };
}

const servedBy = (all, versions) => all.serving.filter((s) => versions.some((v) => v.job === s.job && v.round === s.round));

// ---- one model ----

function versionsSection(name) {
  const columns = [['Version', ''], ['Aliases', ''], ['Job', ''], ['Round', 'num'], ['Accuracy', 'num'], ['Loss', 'num extra'], ['Validated at', 'num'],
    ['Registered', 'extra'], ['By', 'extra']];
  const box = table(columns, 'versions'), body = box.querySelector('tbody');
  return {
    node: el('section', { id: 'versions' }, el('h2', {}, name), box),
    draw(versions) {
      keepRows(body, [...versions].reverse(), (v) => String(v.version),
        (tr, v) => tr.append(el('td', {}, `${name}@${v.version}`), el('td', {}), el('td', {}, el('a', { href: '/jobs/' + v.job }, v.job)),
          ...columns.slice(3).map(([, cls]) => el('td', { class: cls }))),
        (tr, v) => {
          setText(tr.children[1], v.aliases.join(', '));
          [String(v.round), fixed(v.accuracy, 4), fixed(v.loss, 4), v.validated ? `${v.validated} sites` : '', dateOf(v.time_ms), v.who]
            .forEach((text, k) => setText(tr.children[k + 3], text));
        });
    },
  };
}

// One group of bars for each site, one bar for each version: the accuracy in the newest validation, or the loss where it has none.
function drawBars(box, rows, reports, key) {
  const width = Math.max(240, box.clientWidth || 600), left = 130, right = 58, bar = 14, gap = 10;
  const height = rows.length * (reports.length * bar + gap) + 8;
  const value = (report, row) => (row.find(report) || {})[key];
  const most = key === 'accuracy' ? 1 : Math.max(...rows.flatMap((row) => reports.map((r) => value(r, row)).filter(Number.isFinite)), 1e-9);
  const node = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': `${key} by site and version` });
  rows.forEach((row, i) => {
    const top = 4 + i * (reports.length * bar + gap);
    node.append(svg('text', { x: left - 8, y: top + reports.length * bar / 2 + 4, 'text-anchor': 'end' }, row.name.slice(0, 18)));
    reports.forEach((report, k) => {
      const v = value(report, row), y = top + k * bar, told = Number.isFinite(v) && v !== null;
      if (told) node.append(svg('rect', { class: 'bar c' + k, x: left, y, height: bar - 2, width: Math.max(1, v / most * (width - left - right)) }));
      const site = row.find(report), why = !site ? 'not asked' : site.few ? 'few samples' : site.status && site.status !== 'answered' ? site.status : '';
      node.append(svg('text', { x: told ? left + v / most * (width - left - right) + 5 : left, y: y + bar - 4 }, told ? v.toFixed(4) : why));
    });
  });
  box.replaceChildren(node);
}

function validationsSection() {
  const box = el('div', { class: 'bars' }), note = el('p', { class: 'note' }), legend = el('ul', { class: 'legend' });
  return {
    node: el('section', { id: 'validations' }, el('h2', {}, 'Validations by site'), legend, box, note),
    draw(versions, answer) {
      if (answer.error) {
        setText(note, answer.error);
        return;
      }
      const found = versions.slice(-VERSIONS_SHOWN).map((v) => ({ v, report: answer.reports.find((r) => r.job && r.digest === v.digest) })).filter((one) => one.report);
      const reports = found.map((one) => one.report);
      const sites = [...new Set(reports.flatMap((r) => r.sites.map((s) => s.site)))].sort();
      const rows = sites.map((site) => ({ name: site, find: (r) => r.sites.find((s) => s.site === site) }));
      if (reports.some((r) => r.few)) rows.push({ name: 'sites with few', find: (r) => r.few });
      rows.push({ name: 'all', find: (r) => r.all });
      const key = reports.some((r) => Number.isFinite(r.all.accuracy) && r.all.accuracy !== null) ? 'accuracy' : 'loss';
      legend.replaceChildren(...found.map(({ v, report }, k) => el('li', {},
        svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' }, svg('rect', { class: 'bar c' + k, width: 12, height: 12 })),
        `version ${v.version} (${[...v.aliases, dateOf(report.time_ms)].join(', ')})`)));
      if (reports.length) drawBars(box, rows, reports, key);
      else box.replaceChildren();
      setText(note, reports.length ? `The ${key} on each site's test samples in the newest validation.`
        : `No version was validated: mfl validate ${wantedModel}@${versions.length ? versions[versions.length - 1].version : 1}.`);
    },
  };
}

function servingSection() {
  const columns = [['Server', ''], ['As', ''], ['Follows', 'extra'], ['Version', ''], ['Requests', 'num'], ['Failed', 'num'], ['p50', 'num'], ['p99', 'num'],
    ['Told', 'extra']];
  const box = table(columns, 'servers'), body = box.querySelector('tbody'), note = el('p', { class: 'note' });
  return {
    node: el('section', { id: 'serving' }, el('h2', {}, 'Served by'), box, note),
    draw(versions, serving) {
      keepRows(body, serving, (s) => [s.who, s.address, s.name].join(' '),
        (tr) => tr.append(...columns.map(([, cls]) => el('td', { class: cls }))),
        (tr, s) => {
          const v = versions.find((one) => one.job === s.job && one.round === s.round);
          [`${s.who} (${s.host})`, s.name, s.model, v ? `${v.name}@${v.version}` : s.job ? `${s.job} round ${s.round}` : 'none yet', count(s.requests),
            count(s.failed), milliseconds(s.p50_us), milliseconds(s.p99_us), new Date(s.time_ms).toLocaleTimeString()]
            .forEach((text, k) => setText(tr.children[k], text));
        });
      setText(note, serving.length ? 'Latency: of the last two seconds with requests.' : 'No mfl-serve serves it: mfl-serve --follow NAME=MODEL@ALIAS.');
    },
  };
}

// ---- turns ----

function startModelsPage() {
  const parts = wantedModel ? [versionsSection(wantedModel), validationsSection(), servingSection()] : [modelsSection()];
  const without = main.firstElementChild;
  const follows = (s, versions) => s.model === wantedModel || s.model.startsWith(wantedModel + '@') || versions.some((v) => v.job === s.job && v.round === s.round);

  async function once() {
    const [registry, serving] = await Promise.all([look('/api/models'), look('/api/serving')]);
    const all = { versions: registry.versions || [], serving: serving.serving || [] };
    if (!parts[0].node.isConnected) main.replaceChildren(...(wantedModel ? [el('p', {}, el('a', { href: '/models' }, 'All models'))] : []), ...parts.map((p) => p.node));
    if (!wantedModel) {
      parts[0].draw(all);
    } else {
      const versions = all.versions.filter((v) => v.name === wantedModel);
      parts[0].draw(versions);
      parts[1].draw(versions, await look('/api/validations'));
      parts[2].draw(versions, all.serving.filter((s) => follows(s, versions)));
    }
    setText(status, registry.error || 'live');
  }

  async function turns() {
    if (!document.hidden) {
      try {
        await once();
        status.className = '';
      } catch (e) {
        if (e.message === 'login') main.replaceChildren(without);
        setText(status, e.message === 'login' ? '' : 'no answer from the server');
        status.className = e.message === 'login' ? '' : 'bad';
      }
    }
    setTimeout(turns, EVERY_MS);
  }
  login.changed.push(() => once().catch(() => {}));
  turns();
}
