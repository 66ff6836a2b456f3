# SPDX-License-Identifier: Apache-2.0
"""mfl-conformance test --smoke on the watched device (tests/emu/watch.h): no race, and every kernel of the backend runs, but for
those that are named here with the reason. Prints what the requests of the dearest kernels cost, by count.

    test_smoke.py PATH_OF_mfl-conformance
"""
import fnmatch
import os
import subprocess
import sys
import tempfile

# Kernels that no small network launches, by what would.
BEYOND = {
    'ops_bias:bias_act_*single': 'behind a library that does not add the bias itself, of channels that are no multiple of a vector',
    'ops_bias:bias_act_grad_*': 'behind a library, for an activation in front of a convolution',
    'ops_norm:norm_chunk*': 'batches of more rows than one block takes',
    'ops_norm:norm_backward_rows*': 'the same, backward',
    'ops_norm:norm_join': 'the same',
    'recurrent_*16:gru_*_step': 'a GRU too wide for one block in 16 bits',
    'ops_attention:attention_drop': 'attention by products that is computed again, with dropout',
}


def read_counts(path):
    total = {}
    with open(path, encoding='ascii') as file:
        for line in file:
            name, *numbers = line.split()
            before = total.get(name, [0] * len(numbers))
            total[name] = [a + int(b) for a, b in zip(before, numbers)]
    return total


def print_dearest(total):
    rows = [(n[2] / n[3], name, 'passes of shared memory', n[2], n[3]) for name, n in total.items() if n[3] > 1000]
    rows += [(n[5] / n[6], name, 'sectors of global memory', n[5], n[6]) for name, n in total.items() if n[6] > 1000]
    for ratio, name, what, got, ideal in sorted(rows, reverse=True)[:40]:
        print(f'# {name}: {got} {what}, {ratio:.2f} times the least')


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'counts')
        done = subprocess.run([sys.argv[1], 'test', '--backend', 'cuda', '--smoke', '--precision', 'all'],
                              env=dict(os.environ, MFL_EMU_COUNTS=path), check=False)
        total = read_counts(path)
    print_dearest(total)
    idle = sorted(name for name, n in total.items() if not n[0])
    missing = [name for name in idle if not any(fnmatch.fnmatch(name, p) for p in BEYOND)]
    stale = [p for p in BEYOND if not fnmatch.filter(idle, p)]
    for name in missing:
        print(f'{name}: no case of --smoke (kernels/conformance/conformance_smoke.c) launches it')
    for pattern in stale:
        print(f'{pattern}: is launched: take it out of the list of exceptions')
    print(f'# {len(total)} kernels, {len(idle)} of them not launched')
    return 1 if done.returncode or missing or stale else 0


if __name__ == '__main__':
    sys.exit(main())
