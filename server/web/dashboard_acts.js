// SPDX-License-Identifier: Apache-2.0
// What people do from the dashboard after login (mfl login issue): submit a job; stop, clone, archive and delete one; load its models. The server decides who
// may; this page only hides what a login can't do. A request that changes something repeats the login's CSRF token.
'use strict';

const LOGIN_EVERY_MS = 60000;
const login = { now: null, certificate: null, changed: [] };
const pageOfLogin = location.pathname === '/login';

// Throws what the server says.
async function tell(path, body, csrf, more) {
  const answer = await fetch(path, { method: 'POST', body, headers: { 'X-MFL-CSRF': csrf, ...more }, signal: AbortSignal.timeout(30000) });
  const data = await answer.json().catch(() => ({ error: `the server says ${answer.status}` }));
  if (answer.status === 401 && !pageOfLogin) setLogin(null);
  if (!answer.ok) throw new Error(data.error || `the server says ${answer.status}`);
  return data;
}

function setLogin(now) {
  login.now = now;
  const box = document.getElementById('who');
  if (now) {
    const out = el('button', { type: 'button' }, 'Log out');
    out.addEventListener('click', () => tell('/api/logout', '', now.csrf).catch(() => {}).finally(() => setLogin(null)));
    box.replaceChildren(el('span', {}, `${now.who} (${now.may_change ? 'may change' : 'only looks'}) `), out);
  } else {
    box.replaceChildren(el('a', { href: '/login' }, 'Log in'));
    if (login.certificate) box.append(' ', certificateButton());
  }
  login.changed.forEach((f) => f());
}

// The certificate that the browser has shown to the server; no code is needed.
function certificateButton() {
  const button = el('button', { type: 'button', id: 'by-certificate' }, `Log in as ${login.certificate}`);
  button.addEventListener('click', () => tell('/api/login', '', 'login').then((now) => {
    setLogin(now);
    if (pageOfLogin) location.replace('/');
  }).catch((e) => button.after(' ' + e.message)));
  return button;
}

async function askLogin() {
  if (document.hidden && login.now) return;
  const answer = await fetch('/api/login', { cache: 'no-store', signal: AbortSignal.timeout(8000) });
  const data = await answer.json(), now = answer.ok ? data : null;
  login.certificate = data.certificate || null;
  if (!login.now !== !now || !document.getElementById('who').firstChild || (now && now.csrf !== login.now.csrf)) setLogin(now);
}

// ---- the page that takes a code ----

async function takeCode(code) {
  const said = document.getElementById('login-said');
  setText(said, '');
  try {
    setLogin(await tell('/api/login', code.trim(), 'login'));
    location.replace('/');
  } catch (e) {
    setText(said, e.message);
  }
}

function startLoginPage() {
  const form = document.getElementById('code'), code = location.hash.slice(1);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    takeCode(form.elements.code.value);
  });
  if (code) history.replaceState(null, '', '/login'); // the code must not stay in the history
  if (code) takeCode(code);
  else form.elements.code.focus();
}

// ---- a new job ----

const newToken = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, '0')).join('');

function submitSection() {
  const text = el('textarea', { id: 'job-text', rows: '14', spellcheck: 'false', autocomplete: 'off', required: '' });
  const file = el('input', { type: 'file', accept: '.yaml,.yml,text/yaml' }), go = el('button', { type: 'submit' }, 'Submit');
  const said = el('p', { id: 'submit-said', role: 'alert' });
  const form = el('form', {}, el('label', { for: 'job-text' }, 'Job file '), text, el('div', { class: 'filters' },
    el('label', {}, 'From a file ', file), go));
  const node = el('section', { id: 'submit' }, el('h2', {}, 'New job'), el('details', {}, el('summary', {}, 'Submit a job file'), form), said);
  let token = newToken();
  const show = () => { node.hidden = !login.now || !login.now.may_change; };
  file.addEventListener('change', async () => {
    if (!file.files.length) return;
    text.value = await file.files[0].text();
    token = newToken();
  });
  text.addEventListener('input', () => { token = newToken(); });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    go.disabled = true;
    setText(said, '');
    try {
      // With one token, sending again after a lost connection makes no second job.
      const { job } = await tell('/api/jobs', text.value, login.now ? login.now.csrf : '-', { 'X-MFL-Token': token });
      token = newToken();
      said.replaceChildren(el('a', { href: '/jobs/' + job }, job), ' was submitted');
    } catch (e) {
      setText(said, e.message);
    }
    go.disabled = false;
  });
  login.changed.push(show);
  show();
  return { node };
}

// ---- a job ----

const MODELS_MAX = 20;
function actsSection(id) {
  const said = el('p', { id: 'act-said', role: 'alert' }), bar = el('div', { class: 'filters' }), models = el('ul', { class: 'legend' });
  const loads = el('div', {}, el('h3', {}, 'Models, as safetensors'), models);
  const node = el('section', { id: 'acts' }, el('h2', {}, 'Work on this job'), bar, said, loads);
  let state = '', kept = '', archived = false;
  const make = (name, verb, done) => {
    const button = el('button', { type: 'button', 'data-act': verb }, name);
    button.addEventListener('click', async () => {
      const asked = { stop: `Stop ${id} now? The round that it works on is lost.`, delete: `Delete ${id}, its rounds and its models for good?` }[verb];
      if (asked && !confirm(asked)) return;
      button.disabled = true;
      setText(said, '');
      try {
        done(await tell(`/api/jobs/${id}/${verb}`, '', login.now ? login.now.csrf : '-', { 'X-MFL-Token': verb === 'clone' ? newToken() : '' }));
      } catch (e) {
        setText(said, e.message);
      }
      button.disabled = false;
    });
    return button;
  };
  const say = (answer) => setText(said, answer.done);
  const stop = make('Stop', 'stop', say), after = make('Stop after this round', 'stop-after-round', say);
  const clone = make('Clone', 'clone', ({ job }) => said.replaceChildren(el('a', { href: '/jobs/' + job }, job), ' was submitted'));
  const away = make('Archive', 'archive', (answer) => { archived = true; show(); say(answer); });
  const back = make('Take out of the archive', 'unarchive', (answer) => { archived = false; show(); say(answer); });
  const drop = make('Delete', 'delete', () => location.replace('/'));
  const show = () => {
    const ended = ['done', 'failed', 'stopped'].includes(state);
    node.hidden = !login.now;
    bar.hidden = !login.now || !login.now.may_change;
    stop.hidden = after.hidden = ended;
    drop.hidden = !ended;
    away.hidden = !ended || archived;
    back.hidden = !ended || !archived;
    loads.hidden = !kept;
  };
  bar.append(stop, after, clone, away, back, drop);
  login.changed.push(show);
  show();
  return {
    node,
    draw({ job, rounds }) {
      const names = rounds.filter((r) => r.kept).slice(-MODELS_MAX).map((r) => String(r.round)).reverse();
      const now = names.join(',');
      if (now !== kept) {
        models.replaceChildren(...['newest', 'best', ...names].map((name) => el('li', {}, el('a', { href: `/api/jobs/${id}/model/${name}`,
          download: '' }, /^[0-9]/.test(name) ? 'round ' + name : name))));
      }
      kept = now;
      state = job.state;
      archived = Boolean(job.archived_unix_ms);
      show();
    },
  };
}
