# SPDX-License-Identifier: Apache-2.0
"""Jobs with noise: the model is clipping, an exact sum, noise from the key and a fixed divisor, recomputed; epsilon is `mfl privacy`'s;
the budget ends the job; kills never give two sums one noise."""
import csv
import glob
import hashlib
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess

import numpy as np
import pytest

import mfl_harness as h
import mfl_needs as needs
import mfl_pages
import mfl_tap
from federated import Momentum, federated_average, pulled

KEY = bytes(range(1, 33))
PRIVACY = {'kind': 'central', 'clip': 0.05, 'noise': 0.5, 'epsilon_max': 30, 'delta': 1e-5}
DELTA = ['--delta', '1e-5']


def use_key(c, key=KEY):
    """Before the server's first need of it."""
    path = os.path.join(c.state_dir, 'noise.key')
    os.makedirs(c.state_dir, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'wb') as f:
        f.write(key)


def derive(key, what, job, number, digest=bytes(32)):
    return hashlib.sha256(key + what.encode().ljust(16, b'\0') + job.encode().ljust(32, b'\0') + struct.pack('<Q', number) + digest).digest()


class Words:
    """AES-256 in counter mode, of OpenSSL's command; a part is the counter's upper half."""

    def __init__(self, key, part):
        self.argv = ['openssl', 'enc', '-aes-256-ctr', '-nopad', '-K', key.hex(), '-iv', '%016x%016x' % (part, 0)]
        self.words, self.at = [], 0

    def u32(self):
        if self.at == len(self.words):
            n = max(1 << 20, 2 * len(self.words) * 4)
            out = subprocess.run(self.argv, input=bytes(n), stdout=subprocess.PIPE, check=True).stdout
            self.words = struct.unpack('<%dI' % (n // 4), out)
        self.at += 1
        return self.words[self.at - 1]

    def u64(self):
        low = self.u32()
        return low | self.u32() << 32

    def below(self, n):
        while True:
            v = self.u32() & (1 << (n - 1).bit_length()) - 1
            if v < n:
                return v

    def ratio(self, n, d):
        bits = (d - 1).bit_length()
        while True:
            v = self.u64() & (1 << min(bits, 64)) - 1
            if bits > 64:
                v |= (self.u64() & (1 << bits - 64) - 1) << 64
            if v < d:
                return v < n

    def decays(self, n, d):
        """exp(-n / d): Canonne, Kamath and Steinke 2020, algorithm 1."""
        while n > d:
            if not self.decays_one():
                return False
            n -= d
        k = 1
        while self.ratio(n, d) and not self.below(k):
            k += 1
        return k % 2 == 1

    def decays_one(self):
        k = 1
        while not self.below(k):
            k += 1
        return k % 2 == 1

    def gaussian(self, sigma):
        """Algorithms 2 and 3, for a whole sigma."""
        t = sigma + 1
        while True:
            u, v = self.below(t), 0
            if not self.decays(u, t):
                continue
            while self.decays_one():
                v += 1
            negative, size = self.u32() & 1, u + t * v
            if negative and not size:
                continue
            if self.decays((size * t - sigma ** 2) ** 2, 2 * sigma ** 2 * t ** 2):
                return -size if negative else size


def noise_of(job, number, sums, sigma):
    key = derive(KEY, 'noise', job, number, hashlib.sha256(sums.astype('<i8').tobytes()).digest())
    out = []
    for part in range((len(sums) + 1023) // 1024):
        words = Words(key, part)
        out += [words.gaussian(sigma) for _ in range(min(1024, len(sums) - 1024 * part))]
    return np.array(out)


def spent(noise, rate, rounds):
    return json.loads(h.mfl('privacy', '--sigma', noise, '--q', rate, '--rounds', rounds, *DELTA, '--json').stdout)['epsilon']


class Sums(mfl_tap.Tap):
    """Keeps the sums that go up, and the scale."""

    def __init__(self, target):
        self.sums, self.scale = [], None
        super().__init__(target)

    def _frame(self, source):
        kind, body, data = super()._frame(source)
        if kind == 'announce' and body['weight'] and body['bytes']:
            assert len(body['data']) == body['bytes'], 'a small update comes inside of its announce'
            self.sums.append(np.frombuffer(body['data'], '<i8'))
        if kind == 'task':
            self.scale = body['scale_bits']
        return kind, body, data


@needs.needs_program('openssl')
@pytest.mark.parametrize('strategy', ['fedavg', 'fedavgm'])
def test_a_model_is_clipped_sums_and_noise(cluster, strategy):
    c, sizes, rounds = cluster(0), [10, 20, 40, 50, 60, 90, 130], 3
    use_key(c)
    tap = Sums(c.address)
    c.start_daemon('d1', server=tap.address, workers=2)
    c.wait_daemons(1)
    job, _ = c.run_job(model='logistic', seed=21, rounds=rounds, data={'partition': 'size', 'clients': 7, 'sizes': sizes},
                       aggregation={'strategy': strategy}, privacy=PRIVACY, evaluation={'every': 0},
                       training={'lr': 0.1, 'epochs': 2, 'batch': 10})
    tap.close()
    clip, sigma = PRIVACY['clip'], PRIVACY['noise'] * PRIVACY['clip']
    assert tap.scale == 29 and len(tap.sums) == rounds  # the largest s with sigma * 2^s <= 2^24
    clipped = []

    def release(clients, r, local):
        total = np.zeros(260)
        for k in clients:
            delta = np.concatenate([k.d[0].ravel(), k.d[1].ravel()])
            norm = np.sqrt((delta ** 2).sum())
            clipped.append(norm > clip)
            total += delta * min(1, clip / norm)
        sums = tap.sums[r - 1]
        assert np.abs(sums / 2.0 ** tap.scale - total).max() < 1e-6
        noisy = sums + noise_of(job, r, sums, int(np.ceil(sigma * 2 ** tap.scale * (1 + 2.0 ** -50))))
        assert np.abs(noisy - sums).std() > sigma * 2 ** tap.scale / 2
        d = noisy / 7 * 2.0 ** -tap.scale
        return d[:256].reshape(4, 64), d[256:]
    more = {} if strategy == 'fedavg' else {'server': lambda: Heavy(0.9)}
    w, b, _ = federated_average(seed=21, rounds=rounds, clients=sizes, lr=lambda r: 0.1, batch=10, epochs=2,
                                optimizer=lambda: Momentum(0), method=release, **more)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-6 and np.abs(got_b - b).max() < 1e-6
    assert any(clipped) and (strategy == 'fedavgm' or sum(clipped) > 5)


class Heavy:
    """fedavgm, as server/strategy/strategy_fedavgm.c has it: v = beta v + d, w + v."""

    def __init__(self, beta):
        self.beta, self.v = beta, 0

    def step(self, d, _):
        self.v = self.beta * self.v + d
        return self.v


POISSON = {'rounds': 4, 'data': {'partition': 'iid', 'clients': 40}, 'selection': {'kind': 'poisson', 'rate': 0.3},
           'privacy': dict(PRIVACY, noise=1.0), 'evaluation': {'every': 2}, 'limits': {'quorum': 0.1}}


def rounds_of(c, job):
    return json.loads(c.mfl('show', job, '--json').stdout)['rounds']


def finish(c, **job):
    id, digests = c.run_job(60, **dict(POISSON, **job))
    return id, digests, rounds_of(c, id)


def test_one_model_for_any_number_of_daemons(cluster):
    seen = {}
    for name, daemons, workers, more in [('1', 1, 1, {}), ('2', 2, 2, {}), ('4', 4, 1, {}),
                                         ('packed', 2, 1, {'compression': {'up': 'lossless'}})]:
        c = cluster(0)
        use_key(c)
        for i in range(daemons):
            c.start_daemon('d%d' % i, workers=workers)
        c.wait_daemons(daemons)
        _, seen[name], rounds = finish(c, **more)
        assert [r['epsilon'] for r in rounds] == pytest.approx([spent(1, 0.3, r + 1) for r in range(4)], abs=1e-6)
        cohorts = [r['clients'] for r in rounds]
        assert len(set(cohorts)) > 1
        c.close()
    assert seen['1'] == seen['2'] == seen['4'] == seen['packed']
    c = cluster(1)  # makes a key of its own: other noise, and other cohorts
    c.wait_daemons(1)
    job, digests, rounds = finish(c)
    assert not set(digests) & set(seen['1']) and [r['clients'] for r in rounds] != cohorts
    path = os.path.join(c.state_dir, 'noise.key')
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.path.getsize(path) == 32
    again, other, rounds_again = finish(c)  # the same job once more is another one
    assert other != digests
    check_key_stays(c, job, path)


def test_a_clip_that_follows_the_clients(cluster):
    """The clip begins with 0.1 and goes to the median length, by the same noise for any number of daemons; a round costs what one of fixed clip
    costs."""
    seen = {}
    spec = {'privacy': dict(PRIVACY, clip='adaptive', noise=1.0), 'rounds': 8, 'selection': None, 'training': {'lr': 0.5}}
    for daemons in (1, 3):
        c = cluster(0)
        use_key(c)
        for i in range(daemons):
            c.start_daemon('d%d' % i)
        c.wait_daemons(daemons)
        job, digests, rounds = finish(c, **spec)
        seen[daemons] = digests, [r['clip'] for r in rounds]
        assert [r['epsilon'] for r in rounds] == pytest.approx([spent(1, 1, r + 1) for r in range(8)], abs=1e-5)
        assert c.mfl_json('show', job)['job']['privacy']['clip'] == rounds[-1]['clip']
        c.close()
    assert seen[1] == seen[3]
    clips = np.array(seen[1][1])
    assert clips[0] == 0.1 and clips[-1] > 0.15, clips  # most changes are longer at first
    steps = np.log(clips[1:] / clips[:-1])
    assert np.all(np.abs(steps) < 0.2 * (0.5 + 5 / 20)) and len(set(steps)) == 7, steps


def check_key_stays(c, job, path):
    """Neither a pull nor a back-up nor a log has it."""
    with open(path, 'rb') as f:
        key = f.read()
    backup = os.path.join(c.dir, 'backup')
    subprocess.run([h.program('mfl-server'), '--state-dir', c.state_dir, '--backup', backup], check=True, stdout=subprocess.PIPE)
    c.mfl('pull', job, '--output', c.dir + '/pulled.safetensors')
    files = [p for p in glob.glob(backup + '/**', recursive=True) if os.path.isfile(p)] + glob.glob(c.dir + '/*.log') + \
        [c.dir + '/pulled.safetensors', c.state_dir + '/mfl.db']
    assert len(files) > 4
    for name in files:
        with open(name, 'rb') as f:
            data = f.read()
        assert key not in data and key.hex().encode() not in data, name


def test_what_people_are_told(cluster, tmp_path):
    c = cluster(1)
    c.wait_daemons(1)
    job, _, rounds = finish(c)
    info = c.info(job)
    want = spent(1, 0.3, 4)
    assert rounds[-1]['epsilon'] == pytest.approx(want, abs=1e-6)
    shown = json.loads(c.mfl('show', job, '--json').stdout)['job']['privacy']
    assert shown['epsilon'] == pytest.approx(want, abs=1e-6)
    assert shown['kind'] == 'central' and shown['clip'] == 0.05 and shown['noise'] == 1 and shown['epsilon_max'] == 30
    assert {'losses', 'accuracies'} <= set(shown['not_private'])
    text = c.mfl('show', job).stdout
    assert 'epsilon %.4f of 30 spent, at delta 1e-05' % want in text and 'are not private' in text
    assert info['state'] == 'JOB_DONE' or info['state'] == 'done', info
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**POISSON))
    out = tmp_path / 'out'
    h.mfl('run', path, '--data', h.TINY, '--backend', 'reference', '--out', out, cwd=tmp_path)
    with open(glob.glob(str(out) + '/**/*.csv', recursive=True)[0], newline='', encoding='utf-8') as f:
        rows = list(csv.DictReader(f))
    assert float(rows[-1]['epsilon']) == pytest.approx(want, abs=1e-6)
    plain, _ = c.run_job(rounds=1)
    assert json.loads(c.mfl('show', plain, '--json').stdout)['job']['privacy'] is None and rounds_of(c, plain)[0]['epsilon'] is None


def test_what_has_no_noise_is_marked_wherever_it_is_shown(cluster, tmp_path):
    """Accuracies and losses, of a job with privacy and of one without beside it. A model's file has none: whoever gets the model may have it."""
    c = cluster(1, config={'http': '127.0.0.1:0'})
    c.wait_daemons(1)
    job, _, rounds = finish(c)
    plain, _ = c.run_job(rounds=2)
    kept = c.mfl_json('show', plain)['rounds']
    open_figures = 'losses, accuracies, measures, counts and logs are not private'
    mark, legend = '%.4f*' % rounds[-1]['accuracy'], '* not private'

    def line(text, word):
        return next(row for row in text.splitlines() if word in row)

    for words in (['list'], ['compare', job, plain]):
        text = c.mfl(*words).stdout
        assert mark in line(text, job) and '*' not in line(text, plain) and legend in text, text
    for one, known in ((job, False), (plain, True)):
        rows = re.findall(r'<td class=num[^>]*>(%.4f\*?)</td>' % (rounds if one == job else kept)[-1]['accuracy'], mfl_pages.get(c, '/jobs/' + one))
        assert rows and all(row.endswith('*') != known for row in rows), (one, rows)
    assert '*' not in c.mfl('compare', plain).stdout and '%.4f' % kept[-1]['accuracy'] in c.mfl('compare', plain).stdout
    for words in (['watch'], ['pull', '--format', 'csv'], ['pull', '--format', 'jsonl'], ['pull', '--format', 'tensorboard']):
        out = ['-o', tmp_path / words[-1]] if len(words) > 1 else []
        assert open_figures in c.mfl(words[0], job, *words[1:], *out).stderr
        assert 'private' not in c.mfl(words[0], plain, *words[1:], *(['-o', tmp_path / ('plain-' + words[-1])] if out else [])).stderr
    for one, known in ((job, False), (plain, True)):
        path = tmp_path / (one + '.safetensors')
        done = c.mfl('pull', one, '-o', path)
        assert ('are not private: they are not in the file' in done.stderr) != known
        with open(path, 'rb') as f:
            meta = json.loads(f.read(int.from_bytes(f.read(8), 'little')))['__metadata__']
        assert meta['round'] and ('accuracy' in meta) == known and ('loss' in meta) == known, meta


def test_the_budget_ends_the_job(cluster, tmp_path):
    limit = (spent(1, 0.3, 3) + spent(1, 0.3, 4)) / 2
    job = dict(POISSON, rounds=9, evaluation={'every': 5}, privacy=dict(PRIVACY, noise=1.0, epsilon_max=limit))
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**job))
    said = h.mfl('check', path).stdout
    assert 'the budget allows 3 of 9 rounds' in said and 'epsilon %.4f after 3 rounds' % spent(1, 0.3, 3) in said
    assert json.loads(h.mfl('check', path, '--json').stdout)['privacy']['rounds'] == 3
    c = cluster(1)
    c.wait_daemons(1)
    id = c.submit(**job)
    c.wait_job(id, state='stopped')
    assert 'stopped after round 3: another round would pass privacy.epsilon_max' in c.info(id)['reason']
    rounds = rounds_of(c, id)
    assert [r['round'] for r in rounds] == [1, 2, 3] and rounds[-1]['epsilon'] <= limit
    assert rounds[-1]['accuracy'] is not None  # the last one is evaluated
    path.write_text(h.job_text(**dict(job, privacy=dict(PRIVACY, noise=1.0, epsilon_max=0.1))))
    for words in (['check', path], ['submit', path, '--server', c.address]):
        done = h.mfl(*words, status=None)
        assert done.returncode and 'the first round would cost epsilon' in done.stderr, done.stderr
    with c.operator() as o:  # who asks the server past the command line
        id = o.submit(h.job_text(**dict(job, privacy=dict(PRIVACY, noise=1.0, epsilon_max=0.1))))
    c.wait_job(id, state='failed')
    assert 'the first round would cost epsilon' in c.info(id)['reason']


def test_nobody_drawn_releases_noise(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, digests, rounds = finish(c, selection={'kind': 'poisson', 'rate': 1e-6})
    assert [r['clients'] for r in rounds] == [0] * 4 and len(set(digests)) == 4


def test_sites_are_a_fixed_number(cluster):
    c = cluster(2)
    c.wait_daemons(2)
    job, _ = c.run_job(data={'partition': 'local', 'clients': None}, selection=None, privacy=dict(PRIVACY, noise=1.0, clients=5), rounds=2)
    assert [r['clients'] for r in rounds_of(c, job)] == [2, 2]
    assert rounds_of(c, job)[1]['epsilon'] == pytest.approx(spent(1, 1, 2), abs=1e-6)


# ---- correlated noise ----

def test_correlated_noise(tmp_path):
    """With mechanism bisr the sum of the noise of rounds 1 to t has the deviation that the matrix says, also if the server is killed in
    between: a round has one noise. All rounds together cost one release."""
    rounds, apart, clients, noise, clip = 8, 4, 8, 100.0, 1e-4  # what clients learn is small beside the noise
    with h.Cluster(tmp_path) as c:
        c.start_server()
        c.start_daemon('d')
        c.wait_daemons(1)
        job = c.submit(rounds=rounds, model={'preset': 'mlp'}, data={'clients': clients}, evaluation={'every': 0}, checkpoints={'keep': 20},
                       selection={'kind': 'separated', 'separation': apart}, limits={'retries': 20},
                       privacy={'kind': 'central', 'clip': clip, 'noise': noise, 'epsilon_max': 1, 'delta': 1e-5, 'mechanism': 'bisr'})
        c.wait_info(job, lambda info: info['round'] >= 3, 60, 'some rounds')
        c.server.kill()
        c.start_server()
        c.wait_job(job, 90)
        rows = c.mfl_json('show', job)['rounds']
        assert len({r['epsilon'] for r in rows}) == 1 and abs(rows[0]['epsilon'] - spent(noise, 1, 1)) < 1e-4
        matrix = json.loads(h.mfl('privacy', '--mechanism', 'bisr', '--sigma', noise, '--rounds', rounds, '--separation', apart, *DELTA,
                                  '--json').stdout)
        r = np.ones(rounds)
        for j in range(1, rounds):
            r[j] = r[j - 1] * (2 * j - 3) / (2 * j) if j < matrix['bands'] else 0
        params = []
        for t in range(rounds + 1):
            path = c.dir + '/%d.safetensors' % t
            if not t:
                continue
            c.mfl('pull', job, '--round', t, '--output', path)
            params.append(np.concatenate([np.frombuffer(d, '<f4') for _, (_, _, d) in sorted(h.read_safetensors(path).items())]))
        unit = noise * clip * matrix['sensitivity'] / (clients / apart)
        # From round 1 on: the sum of rounds 2 to t.
        prefix = np.cumsum(r)
        for t in range(1, rounds):
            factors = prefix[:t + 1].copy()
            factors[-1] -= 1  # less round 1's own draw; draw i of rounds 1 to t + 1 has the factor prefix[t + 1 - i]
            want = unit * np.linalg.norm(factors)
            got = np.std(params[t] - params[0])
            assert abs(got / want - 1) < 0.03, (t, got, want)
        c.check_alive()


def test_correlated_noise_has_one_key(tmp_path):
    """Noise of another key does not take back what earlier noise has added: the job stops."""
    with h.Cluster(tmp_path) as c:
        c.start_server()
        daemon = c.start_daemon('d')
        c.wait_daemons(1)
        job = c.submit(rounds=200, model={'preset': 'mlp'}, data={'clients': 8}, evaluation={'every': 0}, limits={'retries': 20},
                       selection={'kind': 'separated', 'separation': 4},
                       privacy={'kind': 'central', 'clip': 1e-4, 'noise': 100.0, 'epsilon_max': 1, 'delta': 1e-5, 'mechanism': 'bsr'})
        c.wait_info(job, lambda info: info['round'] >= 2, 60, 'some rounds')
        c.server.kill()
        os.unlink(c.dir + '/state/noise.key')
        c.start_server()
        info = c.wait_info(job, lambda info: info['state'] in h.ENDED, 60, 'the end')
        assert 'noise.key is another' in info['reason'] and 'clone' in info['reason']
        assert daemon.alive()
