#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A soak: hours of daemons that come and go, jobs that are submitted and stopped, a disk that fills, a server that is killed.

    soak.py [--minutes 60] [--seed 1] [--folder DIR] [--keep] [--backend auto] [--busy 40]

It goes in cycles: a busy part, in which everything happens at once (actors.py), then an idle point: whatever was done to
processes and disk is undone, every job must end, each end must be true of what the ledger says was done (ledger.py), a model must
be that of an undisturbed run, the files must be accounted for, and what server and lasting daemons hold is measured (measure.py).
The server is killed in the first and the last third; the middle is one long life, so that a slow leak is seen.

FOLDER/actions.log tells every action with its time. Ends with a table of sums, and with 1 when something was not as it must be
(the folder stays then), else 0. MFL_BUILD names the build; with a sanitizer its reports count, memory does not.

In the background start it by `setsid nohup`: when the shell of its process group ends while a daemon is stopped, the kernel sends
SIGHUP to all of the group, and watchers would end.
"""
import argparse
import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
# pylint: disable=wrong-import-position
import actors  # noqa: E402
import ledger as book  # noqa: E402
import measure  # noqa: E402
import mfl_harness as h  # noqa: E402
import stage as st  # noqa: E402

JOBS_KEPT = 8
# Nothing that these jobs do takes a minute undisturbed; a job that has not ended so long after everything was undone hangs.
HANG_SECONDS = 240
AUDIT_ROWS = 1000  # as many as the server tells at once


def references(folder, backend):
    """The models of the kinds whose models do not depend on what happens: one daemon, alone, undisturbed."""
    with h.start_cluster(os.path.join(folder, 'reference'), 1, backend=backend, data=(book.TINY, book.PICTURES)) as c:
        c.wait_daemons(1, 30)
        for kind in book.KINDS:
            if kind.exact:
                with c.operator() as o:
                    job = o.submit(h.yaml_of(kind.doc))
                c.wait_job(job, 120)
                kind.digests = c.digests(job)


# ---- the idle point ----

def undo(stage, chaos):
    """Everything that was done to processes, rules and disk."""
    stage.free()
    chaos.end_all()
    for name in list(stage.frozen):
        stage.thaw(name)
    for argv in (['drain', '--all', '--undo'], *(['drain', n, '--undo'] for n in st.KEEPERS + st.PASSING)):
        stage.json('root', *argv, ok=(0, 4))
    status, rules = stage.json('root', 'daemons', 'rules')
    for rule in rules['rules'] if status == 0 else ():
        stage.json('root', 'daemons', 'enable', rule['pattern'])


def resolve(stage):
    """Submissions whose answer was lost, and stops of what waits for ever."""
    pending, stage.ledger.pending = stage.ledger.pending, []
    for who, kind, token, argv in pending:
        if not actors.send(stage, who, kind, token, argv, again=True):
            stage.fault('%s of %s: no answer, though everything is well' % (argv, who))
        if argv[0] == 'submit':
            os.remove(argv[1])
    for job in stage.ledger.there():
        job.pinned = 0
        if job.kind.endless and not job.end:
            actors.stop(stage, job.owner, job)


def listed(stage):
    _, found = stage.json('root', 'list')
    return {j['job']: j for j in found['jobs']} if found else None


def settle_ledger(stage):
    """Deletions whose answer was lost; then the server's jobs must be the ledger's."""
    server = listed(stage)
    for job in stage.ledger.there():
        if job.deleting and job.id not in server:
            stage.ledger.deleted.add(job.id)
        job.deleting = job.id in stage.ledger.deleted
    ours = {j.id for j in stage.ledger.there()}
    for job in sorted(set(server) - ours):
        stage.fault('%s is there, and nobody has submitted it, or it was deleted' % job)
    for job in sorted(ours - set(server)):
        stage.fault('%s is gone, and nobody has deleted it' % job)


def await_ends(stage):
    last = {}

    def all_ended():
        last.update(listed(stage) or {})
        return all(j['state'] in actors.ENDED for j in last.values())
    try:
        h.wait_until(lambda: all_ended() or time.sleep(0.3), HANG_SECONDS, 'the end of all jobs')
    except TimeoutError as e:
        stage.fault('%s: %s' % (e, [(j['job'], j['state'], j['reason'], j['progress']) for j in last.values()
                                    if j['state'] not in actors.ENDED]))


def judge_all(stage):
    for job in stage.ledger.there():
        status, detail = stage.json('root', 'show', job.id, ok=(0,))
        if status == 0:
            stage.ledger.judge(detail)


def end_watchers(stage, rng, watchers):
    """A watcher's exit status is the job's end."""
    for job, watcher, says_end, began in watchers:
        if watcher.poll() is None and rng.random() < 0.3:
            watcher.kill()
            watcher.wait()
            continue
        try:
            status = watcher.wait(60)
        except Exception:  # pylint: disable=broad-except
            watcher.kill()
            watcher.wait()
            stage.fault('pid %d watches %s, which is %s' % (watcher.pid, job.id, job.end))
            continue
        gone = job.id in stage.ledger.deleted and status in (1, 4)
        wanted = (0,) if job.end and job.end[0] == 'done' else (1,) if says_end else (0, 1)
        if status == 3 and stage.was_away(began):
            continue  # who finds nobody at all is told so at once; only who had a server waits for it
        if status not in wanted and not gone:
            stage.fault('pid %d, which watched %s, ended with %d: %s' % (watcher.pid, job.id, status, job.end))


def check_audit(stage):
    """Whatever was answered, and not in the last moments before a kill or on a full disk, is in the book."""
    expected, stage.ledger.audit = stage.ledger.audit, collections.Counter()
    _, found = stage.json('root', 'audit', '--last', AUDIT_ROWS)
    entries = found['entries'] if found else []
    numbers = [e['seq'] for e in entries]
    if numbers != sorted(set(numbers)):
        stage.fault('the numbers in the audit do not rise')
    seen = collections.Counter((e['who'], e['action'], e['object'], e['result']) for e in entries)
    for entry, n in expected.items():
        if seen[entry] < n:
            stage.fault('not in the audit: %s' % (entry,))


def one_more_job(stage):
    """The same small job on the same two daemons before each sample."""
    path = stage.write('same.yaml', h.yaml_of(book.KINDS[0].doc))
    status, answer = stage.json('root', 'submit', path)
    if status:
        return
    stage.ledger.submitted(answer['job'], book.KINDS[0], 'root')
    stage.cli('root', 'wait', answer['job'])


def wait_idle(stage):
    """The lasting daemons alone, with nothing to do."""
    def idle():
        _, found = stage.json('root', 'daemons')
        states = {d['name']: d['state'] for d in found['daemons'] if d['state'] not in ('lost', 'refused')} if found else {}
        return states == dict.fromkeys(st.KEEPERS, 'idle') or time.sleep(0.3)
    try:
        h.wait_until(idle, 60, 'the two lasting daemons to be idle, and no other')
    except TimeoutError as e:
        stage.fault('%s: %s' % (e, stage.json('root', 'daemons')[1]))


def check_files(stage):
    try:
        h.wait_until(lambda: not stage.stray() or time.sleep(0.2), 10, '')
    except TimeoutError:
        stage.fault('files of nobody in the state directory: %s' % stage.stray())
    left = stage.stray_shared()
    if len(left) > len(st.KEEPERS):
        stage.fault('files of %d daemons in shared memory, and %d are there' % (len(left), len(st.KEEPERS)))


def sweep_shared(stage, backend):
    """What the killed have left in shared memory goes with the next one's start."""
    daemon = stage.start_daemon('t1', backend=backend)

    def connected():
        with open(daemon.log_path, encoding='utf-8', errors='replace') as f:
            f.seek(daemon.said)
            return 'connected to' in f.read() or time.sleep(0.1)
    try:
        h.wait_until(connected, 60, 't1 to connect')
    except TimeoutError as e:
        stage.fault(str(e))
    stage.end_daemon('t1')


def idle_point(stage, chaos, cycle, watchers, the_readers):
    stage.log('soak', 'idle point of cycle %d' % cycle)
    undo(stage, chaos)
    resolve(stage)
    settle_ledger(stage)
    await_ends(stage)
    judge_all(stage)
    end_watchers(stage, chaos.rng, watchers)
    for name in stage.running():
        stage.end_daemon(name)
    sweep_shared(stage, chaos.backend)
    wait_idle(stage)
    one_more_job(stage)
    judge_all(stage)
    for job in sorted(stage.ledger.there(), key=lambda j: j.id)[:-JOBS_KEPT]:
        actors.delete(stage, 'root', job)
    settle_ledger(stage)
    check_audit(stage)
    wait_idle(stage)
    check_files(stage)
    stage.check_logs()
    measure_all(stage, cycle, the_readers)


def measure_all(stage, cycle, the_readers):
    for r in the_readers:
        r.idle.clear()
        r.quiet.set()
    for r in the_readers:
        r.idle.wait(15)
    stage.life('server', stage.server.pid)
    pids = [stage.server.pid, *(stage.daemons[n].pid for n in st.KEEPERS)]
    for pid in pids:
        sample = stage.settled(pid)
        if sample:
            stage.lives[pid].add(cycle, sample)
        else:
            stage.fault('%s (pid %d) has ended' % (stage.lives[pid].name, pid))
    for r in the_readers:
        r.quiet.clear()
    server = stage.lives[stage.server.pid].samples
    told = ['%.1f MiB, %d descriptors' % (s['anon'] / 1048576, s['fds']) for pid in pids
            for s in [x[1] for x in stage.lives[pid].samples[-1:]]]
    stage.log('soak', 'cycle %d: %d jobs, %s; server %s (sample %d of its life); daemons %s; %d faults' % (
        cycle, len(stage.ledger.jobs), ', '.join('%d %s' % (n, s) for s, n in sorted(stage.ledger.ends.items())),
        told[0] if told else '-', len(server), '; '.join(told[1:]), len(stage.ledger.faults)), show=True)


# ---- the whole ----

def kill_times(rng, share, start, busy):
    """When the server goes in this cycle: not in the middle of the soak, which is one life."""
    if 0.35 <= share < 0.8:
        return []
    return [start + rng.uniform(0.2, 0.9) * busy for _ in range(rng.choice((1, 1, 1, 2)))]


def run_cycles(stage, options, the_readers):
    start, cycle = time.monotonic(), 0
    length = options.minutes * 60
    chaos = None
    while cycle == 0 or time.monotonic() - start < length:
        now, seed = time.monotonic(), '%s-%d' % (options.seed, cycle)
        chaos = actors.Chaos(stage, seed, options.backend)
        kills = kill_times(random.Random(seed + ' kills'), (now - start) / length, now, options.busy)
        stage.log('soak', 'cycle %d begins; the server goes at %s' % (cycle, ['%.1f' % (k - now) for k in kills]))
        people = [actors.Operator(stage, who, seed, now + options.busy) for who in ('ann', 'bob', 'root')]
        for p in people:
            p.start()
        try:
            chaos.run(now + options.busy, kills)
        finally:
            stage.free()
            chaos.end_all()
            for p in people:
                p.join()
        idle_point(stage, chaos, cycle, [w for p in people for w in p.watchers], the_readers)
        cycle += 1
    return cycle


def finish(stage):
    """Everything is stopped in order, and nothing is left behind."""
    for name in list(st.KEEPERS):
        stage.end_daemon(name)
    stage.down('SIGTERM')
    if os.listdir(stage.share_dir):
        stage.fault('left in shared memory: %s' % os.listdir(stage.share_dir))
    if stage.stray():
        stage.fault('files of nobody in the state directory at the end: %s' % stage.stray())
    stage.check_logs()


def report(stage, cycles, the_readers):
    for life in stage.lives.values():
        for text in life.faults(judge_memory=not stage.sanitized):
            stage.fault(text)
    rows = sorted(stage.counts.items()) + [(r.name + ' pages', r.n_read) for r in the_readers]
    for r in the_readers:
        if not r.n_read:
            stage.fault('the %s has read nothing' % r.name)
    print('\n' + measure.table(('done', 'times'), rows))
    print('\n' + measure.table(('jobs', ''), [('submitted', len(stage.ledger.jobs)), *sorted(stage.ledger.ends.items()),
                                              ('deleted', len(stage.ledger.deleted))]))
    lives = [life.row() for life in stage.lives.values() if life.samples]
    print('\n' + measure.table(measure.HEAD, lives))
    print('\n%d cycles, %.0f s, disk %s' % (cycles, stage.log.seconds(), 'of %d MiB' % st.DISK_MIB if stage.mounted else
                                           'with injected faults: no file system can be mounted here'))
    for text in stage.ledger.faults:
        print('FAULT ' + text)
    print('%d faults' % len(stage.ledger.faults))
    return 1 if stage.ledger.faults else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--seed', default='1')
    parser.add_argument('--folder', help='where everything lies (default: a new one, removed when all is well)')
    parser.add_argument('--keep', action='store_true', help='keep the folder')
    parser.add_argument('--backend', default='auto')
    parser.add_argument('--busy', type=float, default=40, help='seconds of a busy part')
    return parser.parse_args()


def main():
    options, mounted = parse(), st.enter_namespace()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('soak: ended by SIGTERM'))  # and so is everything that it has started
    measure.self_test()
    book.self_test()
    folder = options.folder or tempfile.mkdtemp(prefix='mfl-soak-')
    os.makedirs(folder, exist_ok=True)
    print('soak: seed %s, %g minutes; every action: %s' % (options.seed, options.minutes, os.path.join(folder, 'soak', 'actions.log')),
          flush=True)
    references(folder, options.backend)
    stage = st.Stage(os.path.join(folder, 'soak'), random.Random(options.seed + ' stage'), mounted, st.sanitized())
    the_readers = actors.readers(stage)
    status = 1
    try:
        stage.up()
        stage.start_keepers(options.backend)
        for r in the_readers:
            r.start()
        cycles = run_cycles(stage, options, the_readers)
        for r in the_readers:
            r.ended.set()
            r.join(15)
        finish(stage)
        status = report(stage, cycles, the_readers)
    finally:
        stage.close()
        if mounted:
            for target in (stage.state_dir, stage.share_dir):
                st.subprocess.run(['umount', '--lazy', target], check=False)
        if status or options.keep or options.folder:
            print('kept: ' + folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == '__main__':
    sys.exit(main())
