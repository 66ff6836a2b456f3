# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a round, recomputed from the seed: weighted draws, virtual time, power-of-choice, Oort. Shares no code with the
programs; exact logarithms and powers are the series that common/exact/exact.h describes."""
import math
import struct

import numpy as np

import mfl_harness as h
from federated import SELECT, Stream

TRACE = 12  # common/base/rng.h
LN2_HIGH, LN2_LOW = float.fromhex('0x1.62e42fefa38p-1'), float.fromhex('0x1.ef35793c7673p-45')
NEVER = 2 ** 64 - 1


def u64(stream):
    low = stream.next()
    return low | stream.next() << 32


def unit(stream):
    return ((u64(stream) >> 11) + 0.5) * 2.0 ** -53


def exact_log(x):
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m * 2, e - 1
    s = (m - 1) / (m + 1)
    s2, total = s * s, 0.0
    for k in range(23, 0, -2):
        total = total * s2 + 1.0 / k
    return (2 * s * total + e * LN2_LOW) + e * LN2_HIGH


def exact_exp(x):
    k = int(x * float.fromhex('0x1.71547652b82fep+0') - 0.5)
    r, total = (x - k * LN2_HIGH) - k * LN2_LOW, 1.0
    for i in range(15, 0, -1):
        total = 1 + total * r / i
    return math.ldexp(total, k)


def exact_power(x, y):
    if y in (0, 1):
        return 1.0 if y == 0 else x
    e = y * exact_log(x)
    return exact_exp(e) if e <= 0 else 1 / exact_exp(-e)


def weighted(stream, weights, n):
    """One after another, in proportion to the weights that are left: a linear search over cumulative sums."""
    left, drawn = list(weights), []
    while len(drawn) < n and sum(left):
        total = sum(left)
        m = u64(stream) * total
        while m & NEVER < (2 ** 64 - total) % total:
            m = u64(stream) * total
        at = m >> 64
        i = int(np.searchsorted(np.cumsum(np.array(left, dtype=object)), at, side='right'))
        drawn.append(i)
        left[i] = 0
    return drawn


def uniform(stream, population, n):
    """The first n of a shuffle from the front."""
    v = list(range(population))
    if n >= population:
        return v
    for i in range(n):
        j = i + stream.below(population - i)
        v[i], v[j] = v[j], v[i]
    return sorted(v[:n])


def model_duration(seed, client, rows, mu, sigma, speed):
    """Microseconds of three forward passes of each row: log-normal, by Marsaglia's polar method."""
    stream = Stream(seed, TRACE, client, 0)
    while True:
        u, v = 2 * unit(stream) - 1, 2 * unit(stream) - 1
        s = u * u + v * v
        if 2.0 ** -100 < s < 1:
            break
    x = mu + sigma * (u * math.sqrt(-2 * exact_log(s) / s))
    factor = exact_exp(x) if x <= 0 else 1 / exact_exp(-x)
    return math.ceil(3 * float(rows) * (factor / speed) * 1e6)


def first(durations, drawn, wanted):
    """The first `wanted` of the drawn to be done, and how long that takes."""
    kept = sorted(drawn, key=lambda k: (durations[k], k))[:wanted]
    return sorted(kept), max(durations[k] for k in kept)


class Row:
    """What a checkpoint remembers of one client."""

    def __init__(self, words):
        self.samples, self.loss, self.square, both = words
        self.round, self.times = both & 0xffffffff, both >> 32

    def utility(self, size):
        return size * math.sqrt(self.square * 2.0 ** -24 / self.samples if self.samples else 0)


def memory(c, job, r):
    """The rows of the checkpoint of round r, and Oort's threshold."""
    dtype, shape, data = h.read_safetensors('%s/state/jobs/%s/round-%06d.safetensors' % (c.dir, job, r))['selection/clients']
    assert dtype == 'I64' and shape[1] == 4
    rows = [struct.unpack_from('<4q', data, 32 * i) for i in range(shape[0])]
    return [Row(words) for words in rows[:-1]], rows[-1][0]


def power_of_choice(seed, r, sizes, rows, candidates, n):
    drawn = weighted(Stream(seed, SELECT, r, 0), sizes, candidates)

    def rank(i):
        row = rows[drawn[i]]
        known = row.times > 0
        return (known, -(row.loss / max(row.samples, 1)) if known else 0, i)
    return sorted(drawn[i] for i in sorted(range(len(drawn)), key=rank)[:n])


def by_score(stream, scored, k):
    """scored: (score, client), the best first."""
    best = scored[0][0] if scored else 0
    weights = [int(2.0 ** 32 * (s / best) if best > 0 else 0) + 1 for s, _ in scored]
    return [scored[i][1] for i in weighted(stream, weights, k)]


def oort(seed, r, sizes, rows, threshold, durations, n, exploration=0.9, decay=0.98, floor=0.3, penalty=2, cut_off=0.95, clip=0.9,
         window=5):
    """Lai et al. 2021, algorithm 1; n of the clients, all of whom are on."""
    stream, population = Stream(seed, SELECT, r, 0), len(sizes)
    preferred = NEVER if threshold >= 100 else sorted(durations)[min(population * threshold // 100, population - 1)]

    def punished(k, score):
        t = durations[k]
        return score if t <= preferred else score * exact_power(max(preferred, 1) / t, penalty)

    def order(scored):
        return sorted(scored, key=lambda s: (-s[0], s[1]))
    known = [k for k in range(population) if rows[k].times]
    fresh = order([(punished(k, float(sizes[k])), k) for k in range(population) if not rows[k].times and sizes[k]])
    utility = {k: rows[k].utility(sizes[k]) for k in known}
    clipped = sorted(utility.values())[min(int(clip * len(known)), len(known) - 1)] if known else 0
    stale = 0.1 * exact_log(float(r))
    scored = order([(punished(k, (min(utility[k], clipped) / clipped if clipped > 0 else 1) + math.sqrt(stale / rows[k].round)), k)
                    for k in known])
    explore = min(math.ceil(max(exploration * exact_power(decay, r - 1), floor) * n), n)
    explore = min(max(explore, n - min(n, len(known))), len(fresh))
    exploit = min(n - explore, len(known))
    pool = [s for i, s in enumerate(scored) if i < exploit or s[0] >= cut_off * scored[exploit - 1][0]] if exploit else []
    taken = by_score(stream, pool, exploit)
    return taken + by_score(stream, fresh[:window * explore], explore)


def versions(seed, durations, concurrency, buffer, staleness_max, on=None, deadline=NEVER):
    """An asynchronous job's versions: (start, end, {client: the version that it starts from}, how many updates were dropped) of each. on:
    spans (from, until) of clients that are not always on; times are whole numbers."""
    now, version, running, on = 0, 0, [], on or {}
    while True:
        version, start, arrived, dropped, draws = version + 1, now, {}, 0, 0
        while True:
            for turn in sorted(t for t in running if t[0] <= now):
                if len(arrived) < buffer:
                    running.remove(turn)
                    _, client, base, lost = turn
                    if lost or version - 1 - base > staleness_max:
                        dropped += 1
                    else:
                        arrived[client] = base
            if len(arrived) == buffer:
                break
            busy = {t[1] for t in running} | set(arrived)
            idle = [k for k in range(len(durations)) if k not in busy and (k not in on or on[k][0] <= now < on[k][1])]
            n = min(concurrency - len(running), len(idle))
            if n < len(idle) and n:
                chosen = [idle[i] for i in uniform(Stream(seed, SELECT, version, draws << 32), len(idle), n)]
                draws += 1
            else:
                chosen = idle[:n]
            for k in chosen:
                end = min(now + durations[k], on[k][1] if k in on else NEVER, now + deadline)
                running.append((end, k, version - 1, end < now + durations[k]))
            times = [t[0] for t in running]
            if len(running) < concurrency:
                times += [span[0] for k, span in on.items() if span[0] > now]
            now = min(times)
        yield start, now, arrived, dropped
