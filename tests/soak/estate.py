#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small estate in use: one server, a relay, four daemons in two places, registered models, and mfl-serve that follows one of them.

    estate.py [--minutes 20] [--seed 1] [--folder DIR] [--keep] [--busy 10]

soak.py beats one server; this one looks for what a week leaves behind. In cycles, jobs of several kinds are submitted, watched, pulled, forgotten
in part and deleted, while daemons and the relay are killed, stopped and drained. Then everything is let go, and at that idle point:
  - every job has ended, and one of an exact kind has the model that it had in the first cycle;
  - mfl-serve answers with the version that the alias has;
  - the state directory has the folders of the jobs that the server lists, and nothing in uploads;
  - no process has a child that is a zombie, no log grows, and nothing lies in shared memory for daemons that are gone;
  - descriptors, threads and memory of the processes that are never killed have not grown (measure.py).
Ends with a table of these processes and the most frequent lines of each log; 1 if something was not as it must be."""
import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
# pylint: disable=wrong-import-position
import measure  # noqa: E402
import mfl_harness as h  # noqa: E402
import mfl_serve  # noqa: E402
from mfl_relay import Tree  # noqa: E402

PLACES = {'keep': '', 'home': '', 'near': 'a', 'far': 'a'}
JOBS_KEPT, VERSIONS_KEPT = 8, 3
HANG_SECONDS = 60  # times h.PATIENCE
QUIET_SECONDS = 2
MEMORY_SAMPLES = 40  # with fewer, the filling of caches and of SQLite's pages is all that is seen: cycles are shorter than those of soak.py
# Whether the model is the same whoever is there.
KINDS = {
    'plain': (True, {'rounds': 4, 'debug': {'deltas': '64MiB'}}),
    'scaffold': (True, {'aggregation': {'strategy': 'scaffold'}}),
    'median': (True, {'model': 'logistic', 'aggregation': {'strategy': 'median'}}),
    'ditto': (True, {'aggregation': {'strategy': 'ditto'}, 'evaluation': {'on': 'clients', 'split': 0.2}}),
    'packed': (True, {'rounds': 3, 'compression': {'up': {'bits': 8}}}),
    'buffered': (False, {'rounds': 5, 'aggregation': {'strategy': 'fedbuff', 'buffer': 2}}),
    'sites': (False, {'data': {'partition': 'local', 'clients': None}, 'limits': {'deadline': '20s', 'quorum': 0.5, 'retries': 20}}),
}


class Estate(Tree):
    def __init__(self, folder, rng):
        super().__init__(folder, {'reconnect_grace': '1s', 'http': '127.0.0.1:0'})
        self.rng, self.begin, self.faults = rng, time.monotonic(), []
        self.first, self.kinds, self.watchers, self.lives = {}, {}, [], {}
        self.counts, self.read_to = collections.Counter(), {}
        self.share()
        self.start_server()
        self.start_relay('a')
        for name, place in PLACES.items():
            self.start_below(name, place, node='host-of-' + (place or 'server'))
        self.wait_daemons(len(PLACES))
        self.serve = None

    def fault(self, text):
        if text in self.faults:
            return  # it is still so
        print('FAULT %6.1f %s' % (time.monotonic() - self.begin, text), flush=True)
        self.faults.append(text)

    def ask(self, *argv, ok=(0,)):
        """What `mfl --json` says; None if it ends with another status than 0."""
        done = h.mfl(*argv, '--json', server=self.address, status=None)
        self.counts['mfl ' + argv[0]] += 1
        if done.returncode not in ok:
            self.fault('mfl %s: %d: %s' % (' '.join(argv), done.returncode, done.stderr.strip()))
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout.strip() else None

    def listed(self):
        return {j['job']: j for j in self.ask('list')['jobs']}

    # ---- a busy part ----

    def begin_job(self):
        kind = self.rng.choice(sorted(KINDS))
        self.n = getattr(self, 'n', 0) + 1
        path = self.write('job.yaml', h.job_text(name=kind, **KINDS[kind][1]))
        job = self.ask('submit', path)['job']
        self.kinds[job] = kind
        watch = self.rng.choice((['watch', job], ['logs', job, '--follow'], ['pull', job, '--format', 'jsonl', '--follow', '-o', '-']))
        self.watchers.append(subprocess.Popen([h.program('mfl'), *watch, '--server', self.address], stdin=subprocess.DEVNULL,  # pylint: disable=consider-using-with
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def act(self):
        jobs = self.listed()
        ended = [j for j in jobs if jobs[j]['state'] == 'done']
        one = self.rng.choice([n for n in PLACES if n != 'keep'])
        choice = self.rng.choice(('kill', 'stop', 'relay', 'freeze', 'drain', 'pull', 'show', 'forget', 'infer', 'page', 'unwatch'))
        self.counts[choice] += 1
        if choice == 'kill':
            self.daemons[one].kill()
            self.start_again(one)
        elif choice == 'stop':
            self.daemons[one].stop()
            self.start_again(one)
        elif choice == 'relay' and self.rng.random() < 0.4:
            self.relays['a'].kill()
            self.restart_relay('a')
        elif choice == 'freeze':
            self.freeze(self.rng.choice((self.daemons[one], self.relays['a'])))
        elif choice == 'drain':
            self.ask('drain', one, ok=(0, 4))
            self.ask('drain', one, '--undo', ok=(0, 4))
        elif choice == 'pull' and ended:
            self.ask('pull', self.rng.choice(ended), '-o', os.path.join(self.dir, 'pulled.safetensors'))
        elif choice == 'show':
            self.ask('show', self.rng.choice(sorted(jobs)))
            self.ask('daemons')
        elif choice == 'forget':
            self.forget([j for j in ended if self.kinds.get(j) == 'plain'])
        elif choice == 'infer':
            self.infer()
        elif choice == 'unwatch' and self.watchers:
            self.rng.choice(self.watchers).kill()

    def freeze(self, process):
        process.signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.2, 1.5))
        process.signal(signal.SIGCONT)

    def forget(self, jobs):
        """Not one that has a registered model: it stays."""
        if jobs:
            told = self.ask('forget', self.rng.choice(jobs), str(self.rng.randrange(8)), ok=(0, 5, 6))
            if told:
                self.kinds[told['job']] = 'without a client'

    def infer(self):
        if self.serve:
            connection = self.serve.connect()
            status, _ = mfl_serve.infer(connection, 'm', mfl_serve.question([[[[128] * 8] * 8]], 'UINT8'))
            connection.close()
            if status != 200:
                self.fault('mfl-serve answers %d' % status)

    def busy(self, seconds):
        end = time.monotonic() + seconds
        for _ in range(3):
            self.begin_job()
        while time.monotonic() < end:
            self.act()
            time.sleep(self.rng.uniform(0.05, 0.4))

    # ---- an idle point ----

    def settle(self):
        self.wait_daemons(len(PLACES), 30)
        try:
            h.wait_until(lambda: all(j['state'] in h.ENDED for j in self.listed().values()) or time.sleep(0.3), HANG_SECONDS, 'the end of all jobs')
        except TimeoutError as e:
            self.fault('%s: %s' % (e, [(i, j['state'], j['reason'], j['round']) for i, j in self.listed().items() if j['state'] not in h.ENDED]))
            raise SystemExit(1) from None
        for watcher in self.watchers:
            if watcher.wait(60) not in (0, 1, -signal.SIGKILL):
                self.fault('%s ended with %d' % (' '.join(watcher.args[1:]), watcher.returncode))
        self.watchers = []

    def judge(self):
        for job, info in self.listed().items():
            kind = self.kinds.pop(job, None) if info['state'] != 'done' else self.kinds.get(job)
            if kind and info['state'] != 'done':
                self.fault('%s (%s) has %s: %s' % (job, kind, info['state'], info['reason']))
            if kind in KINDS and KINDS[kind][0]:
                digests = self.digests(job)
                if self.first.setdefault(kind, digests) != digests:
                    self.fault('%s (%s) has another model than the first one' % (job, kind))

    def publish(self):
        """The newest job of a kind whose models have the same shape; few versions are kept."""
        done = [j for j in self.listed() if self.kinds.get(j) in ('plain', 'scaffold', 'without a client')]
        if not done:
            return
        self.ask('model', 'register', done[-1], '--as', 'm')
        known = {v['version']: v for v in self.ask('model', 'list')['versions']}
        versions = sorted(known)
        self.ask('model', 'alias', 'm@champion', str(versions[-1]))
        for version in versions[:-VERSIONS_KEPT]:
            self.ask('model', 'remove', 'm@%d' % version, ok=(0, 6))  # 6: an earlier alias of the rollback
        if not self.serve:
            self.serve = mfl_serve.Serve(self.dir, config={'cache_dir': os.path.join(self.dir, 'cache')},
                                         options=('--server', self.address, '--follow', 'm=m@champion', '--backend', 'reference'), ready=False)
            self.serve.wait_ready(30)
        newest = known[versions[-1]]
        h.wait_until(lambda: any((v['job'], v['round']) == (newest['job'], newest['round']) for v in self.ask('model', 'serving')['serving']), 20,
                     'the new version to be served')
        self.infer()

    def tidy(self):
        jobs = sorted(self.listed())
        for job in jobs[:-JOBS_KEPT]:
            self.ask('delete', job, ok=(0, 6))

    def processes(self):
        found = {'server': self.server, 'relay': self.relays['a'], **self.daemons}
        return {**found, 'serve': self.serve} if self.serve else found

    def look(self, cycle):
        folders, listed = set(os.listdir(os.path.join(self.state_dir, 'jobs'))), set(self.listed())
        for job in sorted(folders ^ listed):
            self.fault('%s %s' % (job, 'is in the state directory, and the server does not list it' if job in folders else 'has no folder'))
        left = os.listdir(os.path.join(self.state_dir, 'uploads'))
        if left:
            self.fault('left in uploads: %s' % left)
        pids = {str(p.pid): name for name, p in self.processes().items()}
        for stat in [line.split() for line in subprocess.run(['ps', '-eo', 'ppid,stat,pid'], capture_output=True, text=True, check=True).stdout.splitlines()]:
            if stat[0] in pids and stat[1].startswith('Z'):
                self.fault('%s has a zombie, %s' % (pids[stat[0]], stat[2]))
        for name in ('server', 'serve', 'keep'):
            if name in self.processes():
                pid = self.processes()[name].pid
                self.lives.setdefault(name, measure.Life(name, pid)).add(cycle, measure.status(pid))

    def sizes(self):
        return {name: os.path.getsize(p.log_path) for name, p in self.processes().items()}

    def quiet(self):
        """Nothing happens, and so nobody writes."""
        h.wait_until(lambda: self.still(), 20, 'the logs to come to rest')

    def still(self):
        before = self.sizes()
        time.sleep(QUIET_SECONDS)
        return before == self.sizes()

    def finish(self):
        for process in self.processes().values():
            status = process.stop(20)
            if status:
                self.fault('%s ended with %d' % (process.log_path, status))
        if self.shared_files():
            self.fault('left in shared memory: %s' % self.shared_files())

    def lines(self):
        for name, process in sorted(self.processes().items()):
            most = collections.Counter(re.sub(r'[0-9a-f]*\d[0-9a-f]*', '#', line[9:]) for line in process.log().splitlines()).most_common(4)
            for line, n in most:
                print('%-7s %6d  %s' % (name, n, line[:150]))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument('--minutes', type=float, default=20)
    options.add_argument('--busy', type=float, default=10, help='seconds of each cycle')
    options.add_argument('--seed', default='1')
    options.add_argument('--folder')
    options.add_argument('--keep', action='store_true')
    args = options.parse_args()
    measure.self_test()
    folder = args.folder or tempfile.mkdtemp(prefix='mfl-estate-')
    end, cycle = time.monotonic() + 60 * args.minutes, 0
    with Estate(folder, random.Random(args.seed)) as estate:
        while True:
            estate.busy(args.busy)
            estate.settle()
            estate.judge()
            estate.publish()
            estate.tidy()
            estate.quiet()
            estate.look(cycle)
            cycle += 1
            if time.monotonic() >= end:
                break
        estate.finish()
        faults = estate.faults + [text for life in estate.lives.values() for text in life.faults(len(life.samples) >= MEMORY_SAMPLES)]
        print(measure.table(measure.HEAD, [life.row() for life in estate.lives.values()]))
        estate.lines()
        print('%d cycles, %d jobs; %s' % (cycle, estate.n, ', '.join('%s %d' % one for one in sorted(estate.counts.items()))))
    for text in faults:
        print('FAULT', text)
    if not faults and not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print('the folder stays:', folder)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
