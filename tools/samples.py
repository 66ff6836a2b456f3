#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the samples of output in README.md and docs/*.md, and finds those that are no longer what the programs print.

samples.py BUILD            replaces the samples whose form has changed (minutes: it trains the demo)
samples.py --all BUILD      replaces every sample
samples.py --check BUILD    writes nothing, and fails where the form of a sample has changed

A sample is a fenced block below the line <!-- sample: NAME -->; NAME is a recipe of this file. A check runs a short job in place
of the real one, and compares forms: in both texts, `form` replaces what differs from run to run. Every other fenced block names
its language: sh, yaml, python, text for a picture, and so on.
"""
import difflib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
GENERATED = {'docs/configuration.md'}  # tools/docs.py makes it
SAMPLE = re.compile(r'^<!-- sample: ([\w-]+) -->\n```\n(.*?)^```$', re.M | re.S)
FENCE = re.compile(r'^(```+)([^\n]*)\n.*?^\1$', re.M | re.S)
PROCESSOR = 'Intel(R) Xeon(R) Processor'  # stands for the name of the machine's processor
SHORT = 'fashion-mnist=synthetic:1,28,28:10:2000:100:1'


def pages():
    return ['README.md'] + ['docs/' + name for name in sorted(os.listdir(os.path.join(ROOT, 'docs')))
                            if name.endswith('.md') and 'docs/' + name not in GENERATED]


def read(page):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


def form(text):
    """The text without what differs from run to run: a number with its unit is 0, a node's id is ID, a bar or a curve is one #, blanks
    between columns are one blank, and the share of trained clients, which the first moments of a round lack, is always there."""
    text = re.sub(r'\b[0-9a-f]{12}\b', 'ID', text)
    text = re.sub(r'[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]+', '#', text)
    text = re.sub(r'\d+(?:[.:,]\d+)*(?: [kMGT]?B\b)?', '0', text)
    text = re.sub(r'(clients 0/0) +(?:0% +)?', r'\1 0% ', text)
    return '\n'.join(re.sub(r' +', ' ', line).rstrip() for line in text.strip('\n').split('\n'))


# ---- recipes ----

def screen_of(argv, folder, columns, rows):
    """What a command writes to a terminal of that size."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
    env = {**{k: v for k, v in os.environ.items() if not k.startswith('MFL_')}, 'TERM': 'xterm', 'LC_ALL': 'C.UTF-8', 'NO_COLOR': '1',
           'XDG_CONFIG_HOME': '/nonexistent'}
    with subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.PIPE) as process:
        os.close(child)
        out = b''
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            out += part
        os.close(parent)
        said = process.stderr.read().decode()
    assert process.returncode == 0, said
    return out.decode().replace('\r\n', '\n')


def live(h, folder, real):
    """./dev demo in its last round. On a terminal of six lines there is no room for the table of daemons."""
    if real:
        job, data = os.path.join(ROOT, 'examples', 'demo.yaml'), []
    else:
        job, data = os.path.join(folder, 'job.yaml'), ['--data', SHORT]
        with open(job, 'w', encoding='utf-8') as f:
            # Rounds long enough that each of them is drawn several times.
            text = re.sub('^model: .*', 'model: mlp', read('examples/demo.yaml'), flags=re.M)
            f.write(re.sub(r'\bepochs: 1\b', 'epochs: 60', text))
    out = screen_of([h.program('mfl'), 'run', job, '--daemons', '2', '--out', 'out', *data], folder, 100, 6)
    frames = [re.sub(r'\x1b\[[?\d]*[a-zA-Z]|\r', '', frame) for frame in out.split('\x1b[J')]
    wanted = [f for f in frames if re.search(r' %s/4  .* left\n' % ('3' if real else '[1-3]'), f) and 'running · train · 2 daemons' in f]
    assert wanted, out
    return wanted[len(wanted) // 2]


def node(h, folder, real):
    """Two daemons of one node that add their updates in shared memory, and what a job's last round cost them."""
    with h.Cluster(os.path.join(folder, 'node')) as cluster:
        cluster.start_server()
        cluster.share()
        for name in ('d1', 'd2'):
            cluster.start_daemon(name, data=(SHORT,), backend='cpu', node=None, collective='shm')
        h.wait_until(lambda: len(cluster.mfl_json('daemons')['daemons']) == 2, 20, 'two daemons')
        cluster.run_job(model='mlp', rounds=3, data={'name': 'fashion-mnist'}, selection={'daemons': {'min': 2}})
        h.wait_until(lambda: all(d['state'] == 'idle' and d['activity'] and d['samples_per_second'] and d['clients_per_second']
                                 for d in cluster.mfl_json('daemons')['daemons']), 20, 'two idle daemons that have told their speed')
        daemons = cluster.mfl('daemons').stdout
        for d in cluster.mfl_json('daemons')['daemons']:
            daemons = daemons.replace(d['device'], PROCESSOR)
        network = cluster.mfl('show', 'last').stdout
    network = re.search(r'^network\n(?:.+\n)+', network, re.M)[0]
    return '%s\n%s' % (daemons.partition('\n\n')[0].strip('\n') + '\n', network)


RECIPES = {'live': live, 'node': node}


# ---- pages ----

def check_fences(page, text):
    """Blocks that show neither a language nor a sample."""
    named = {m.start() + m.group().index('```') for m in SAMPLE.finditer(text)}
    for m in FENCE.finditer(text):
        if not m[2].strip() and m.start() not in named:
            yield '%s:%d: a block without a language has a line <!-- sample: NAME --> above it (tools/samples.py), or "text"' % (
                page, text.count('\n', 0, m.start()) + 1)


def harness(build):
    os.environ['MFL_BUILD'] = os.path.abspath(build)
    sys.path.insert(0, os.path.join(ROOT, 'tests', 'lib'))
    import mfl_harness
    return mfl_harness


def make(build, name, real):
    with tempfile.TemporaryDirectory(prefix='mfl-samples-') as folder:
        lines = RECIPES[name](harness(build), folder, real).strip('\n').split('\n')
    return '\n'.join(line.rstrip() for line in lines) + '\n'


def compare(page, name, have, made):
    """What differs in form, as lines; empty: nothing."""
    return '\n'.join(difflib.unified_diff(form(have).split('\n'), form(made).split('\n'), '%s: sample %s' % (page, name), 'the programs',
                                          lineterm=''))


def main():
    flag = sys.argv[1] if sys.argv[1].startswith('--') else ''
    build, stale = sys.argv[-1], 0
    for page in pages():
        text = read(page)
        for line in check_fences(page, text):
            print(line)
            stale += 1
        for m in SAMPLE.finditer(text):
            name, have = m[1], m[2]
            said = 'every sample was asked for' if flag == '--all' else compare(page, name, have, make(build, name, False))
            if not said:
                continue
            print(said)
            stale += 1
            if flag != '--check':
                text = text.replace(m[0], m[0].replace(have, make(build, name, True)))
                with open(os.path.join(ROOT, page), 'w', encoding='utf-8') as f:
                    f.write(text)
                print('samples: wrote %s of %s' % (name, page))
    return 1 if stale and flag == '--check' else 0


if __name__ == '__main__':
    sys.exit(main())
