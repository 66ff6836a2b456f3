# SPDX-License-Identifier: Apache-2.0
"""What secure sums put on the wire: bytes that are uniform, that have nothing in common with those of the same update in another job, and that are
hardly more than float32 in a ring of 32 bits. tests/unit/server/test_secure_sum.c asks the first two of members alone."""
import numpy as np

import mfl_harness as h
from mfl_tap import TlsTap
from test_policy import LOCAL
from test_secure import SUM, Sites, data

JOB = {'data': LOCAL, 'model': {'preset': 'mlp'}, 'aggregation': {'weighting': 'uniform'}, 'evaluation': {'every': 0}}


def params_of(c, job):
    return next(j['params'] for j in c.mfl_json('list')['jobs'] if j['job'] == job)


# ---- what can be read from it ----

class Uploads(TlsTap):
    """Keeps what each daemon uploads."""

    def __init__(self, c):
        self.bytes = {}
        super().__init__(c.address, c.ca, (c.cert, c.key), lambda *_: None)

    def _changed(self, name, up, envelope, payload, data):
        if up and envelope.get('chunk') is not None:
            self.bytes.setdefault(name, bytearray()).extend(payload)
        return super()._changed(name, up, envelope, payload, data)

    def take(self):
        found = {name: np.frombuffer(bytes(b), '<u8') for name, b in self.bytes.items()}
        self.bytes = {}
        return found


def chi_square(words):
    count = np.bincount(words.view(np.uint8), minlength=256)
    mean = count.sum() / 256
    return ((count - mean) ** 2).sum() / mean


def is_uniform(words):
    """255 degrees of freedom, deviation 22.6: beyond 6 deviations once in a hundred million times."""
    return 120 < chi_square(words) < 420


def test_masked_uploads_tell_nothing(tmp_path):
    """The same job twice: the same updates, which plain jobs upload with the same bytes."""
    with Sites(tmp_path, 3) as c:
        c.start_server()
        tap = Uploads(c)
        for i, name in enumerate(c.names):
            c.start_daemon(name, data=data(i), server=tap.address, node='host-of-' + name)
        c.wait_daemons(3, 20)

        def twice(**job):
            once = {**JOB, 'rounds': 1, **job}
            (_, a), first, (_, b), second = c.run_job(60, **once), tap.take(), c.run_job(60, **once), tap.take()
            assert a == b and set(first) == set(second) == set(c.names)
            return first, second

        first, second = twice()
        for name in c.names:
            assert (first[name] == second[name]).all() and not is_uniform(first[name])
        first, second = twice(secure_sum=SUM)
        seen = []
        for name in c.names:
            assert len(first[name]) == len(second[name]) > 50000
            seen += [first[name], second[name], first[name] - second[name], first[name] ^ second[name]]
            for other in c.names:
                if other != name:
                    seen += [first[name] - second[other], first[name] + first[other]]
        assert all(map(is_uniform, seen)), [chi_square(words) for words in seen]
        assert not any((first[name] == second[name]).any() for name in c.names)
        tap.close()
        c.check_alive()


# ---- how much it is ----

def test_a_ring_of_32_bits_travels_as_float32(tmp_path):
    """All bytes from daemons to the server, with TLS, keys, shares, signatures and heartbeats. The first round is wider, because no range is
    known yet: what counts is what six rounds more take."""
    with Sites(tmp_path, 5) as c:
        c.start_server()
        proxy = h.Proxy(c.address)
        for i, name in enumerate(c.names):
            c.start_daemon(name, data=data(i), server=proxy.address, node='host-of-' + name)
        c.wait_daemons(5, 20)

        def bytes_of(rounds, **job):
            before = proxy.bytes_up
            job, _ = c.run_job(120, **{**JOB, 'rounds': rounds, **job})
            assert {r['clients'] for r in c.rounds(job)} == {5}
            return proxy.bytes_up - before, params_of(c, job)

        def per_param(**job):
            few, n = bytes_of(2, **job)
            return (bytes_of(8, **job)[0] - few) / (6 * 5 * n)

        plain, masked = per_param(), per_param(compression={'up': {'bits': 16}}, secure_sum={'bits': 32})
        print('bytes per parameter: plain %.3f, masked %.3f' % (plain, masked))
        assert 4 <= plain <= 1.05 * 4
        assert 4 <= masked <= 1.05 * 4
        proxy.close()
        c.check_alive()
