# SPDX-License-Identifier: Apache-2.0
"""What a process holds, sampled at idle points, and whether it grows.

Samples are compared only within one life of a process and only after the first ones of that life (caches, arenas of the
allocator and SQLite's pages fill up), and all of them are taken at points of equal load: nothing at work, the same two daemons
connected, the same number of jobs kept. The trend is Theil and Sen's (the median of the slopes of all pairs: Sen, "Estimates of
the regression coefficient based on Kendall's tau", 1968), which a few odd samples can't move. What leaks grows in both halves of a
life; what the allocator keeps after the highest tide so far is a step, and leaves one of the halves flat.
"""
import os
import statistics

WARM_UP = 3
# Each half needs some samples: with fewer, a step of the allocator is all that is seen.
SAMPLES_MIN = 12
# At any idle point, whatever the number of samples: the jobs of the soak reserve at most some 2 MiB each, and few run at once.
ANONYMOUS_MAX = 192 << 20
# Anonymous memory, by the median slope. Between two idle points lie some tens of jobs, hundreds of connections and
# several daemons that came and went, and the smallest model has 260 parameters: what forgets one small object for each
# of the connections, or one vector of the middle model (54,804 floats, 214 KiB) for one job in ten, is above this.
BYTES_PER_CYCLE_MAX = 24 << 10
# Descriptors and threads are exact numbers. They must come back to the level of the first two samples, and not at each one of
# the last third of them: a daemon keeps the buffers of its last job (in shared memory, a descriptor each) until the next one ends,
# and a stranger's connection is closed when its time to greet is over.
DESCRIPTORS_SLACK = 3


def status(pid):
    """Anonymous memory in bytes, descriptors, threads; None when the process has ended."""
    try:
        with open('/proc/%d/status' % pid, encoding='ascii', errors='replace') as f:
            fields = dict(line.split(':', 1) for line in f if ':' in line)
        return {'anon': int(fields['RssAnon'].split()[0]) << 10,
                'threads': int(fields['Threads']), 'fds': len(os.listdir('/proc/%d/fd' % pid)), 'open': targets(pid)}
    except (OSError, KeyError):
        return None


def targets(pid):
    """What its descriptors are, sorted; numbers of sockets and the like are left out."""
    found = []
    for fd in os.listdir('/proc/%d/fd' % pid):
        try:
            found.append(os.readlink('/proc/%d/fd/%s' % (pid, fd)).split(':')[0])
        except OSError:
            pass
    return sorted(found)


def theil_sen(points):
    """The median slope of (x, y) pairs; 0 of a single point."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1:] if b[0] != a[0]]
    return statistics.median(slopes) if slopes else 0.0


class Life:
    """Samples of one process, in the order of the cycles."""

    def __init__(self, name, pid):
        self.name, self.pid, self.samples = name, pid, []

    def add(self, cycle, sample):
        self.samples.append((cycle, sample))

    def faults(self, judge_memory=True):
        """Texts of what grew."""
        found, warm = [], self.samples[WARM_UP:]
        for key, slack in (('fds', DESCRIPTORS_SLACK), ('threads', 0)):
            values, late = [s[key] for _, s in self.samples], max(1, len(self.samples) // 3)
            if len(values) > 2 and min(values[-late:]) > max(values[:2]) + slack:
                found.append('%s (pid %d): %s grew from %s to %s: %s' % (
                    self.name, self.pid, key, values[:2], values[-late:], self.samples[-1][1]['open']))
        if judge_memory:
            found += self.memory_faults([(c, s['anon']) for c, s in warm])
        return found

    def memory_faults(self, points):
        half, highest = len(points) // 2, max((y for _, y in points), default=0)
        slopes = [theil_sen(part) for part in (points, points[:half], points[half:])]
        if highest > ANONYMOUS_MAX:
            yield '%s (pid %d): %d MiB of memory at an idle point' % (self.name, self.pid, highest >> 20)
        if len(points) >= SAMPLES_MIN and slopes[0] > BYTES_PER_CYCLE_MAX and min(slopes[1:]) > BYTES_PER_CYCLE_MAX / 2:
            yield '%s (pid %d): its memory grows by %.0f KiB a cycle over %d cycles, %.0f and %.0f in the halves (bound %d)' % (
                self.name, self.pid, slopes[0] / 1024, points[-1][0] - points[0][0], slopes[1] / 1024, slopes[2] / 1024,
                BYTES_PER_CYCLE_MAX >> 10)

    def row(self):
        """(name, samples, first, last, max of memory after the warm-up in MiB, KiB a cycle, descriptors, threads)."""
        warm = self.samples[WARM_UP:] or self.samples[-1:]
        anon = [s['anon'] for _, s in warm]
        fds = [s['fds'] for _, s in self.samples]
        threads = [s['threads'] for _, s in self.samples]
        slope = theil_sen([(c, s['anon']) for c, s in warm]) / 1024 if len(warm) >= 3 else None
        return ('%s %d' % (self.name, self.pid), len(self.samples), *('%.1f' % (v / 1048576) for v in
                (anon[0], anon[-1], max(anon))), '-' if slope is None else '%+.1f' % slope,
                '%d/%d/%d' % (fds[0], fds[-1], max(fds)), '%d/%d/%d' % (threads[0], threads[-1], max(threads)))


HEAD = ('process', 'samples', 'MiB first', 'last', 'max', 'KiB a cycle', 'descriptors first/last/max', 'threads')


def table(head, rows):
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return '\n'.join('  '.join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
                     for line in lines)


def self_test():
    """What can't fail proves nothing: a leak must be found, noise and one odd sample must not."""
    def life(anon, fds=lambda i: 20, n=27):
        made = Life('test', 1)
        for i in range(n):
            made.add(i, {'anon': int(anon(i)), 'open': [], 'fds': fds(i), 'threads': 5})
        return made.faults()
    mib = 1 << 20
    assert not life(lambda i: 30 * mib + (i * 7919 % 13) * 65536)
    assert not life(lambda i: 30 * mib + (40 * mib if i == 12 else 0))
    assert not life(lambda i: 30 * mib - 20 * mib * (0.3 ** i))
    assert not life(lambda i: (30 if i < 12 else 55) * mib)
    assert life(lambda i: 300 * mib)
    assert life(lambda i: 30 * mib + i * 40000 + (i * 7919 % 13) * 4096)
    assert life(lambda i: 30 * mib, fds=lambda i: 20 + i)
    assert not life(lambda i: 30 * mib, fds=lambda i: 35 if i % 7 == 5 else 20)
    assert life(lambda i: 30 * mib, fds=lambda i: 20 + i // 5, n=40)
