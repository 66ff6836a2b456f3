# SPDX-License-Identifier: Apache-2.0
"""Daily work with many jobs: --set, sweep, compare, filters of list, the archive, stop --all, delete by state and age."""
import json
import os
import select
import subprocess

import pytest

import mfl_harness as h


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    with h.start_cluster(tmp_path_factory.mktemp('daily')) as c:
        yield c


def job_file(c, **changes):
    return c.write('job.yaml', '# of this file every line stays\n' + h.job_text(**changes))


def text_of(c, job):
    return c.mfl_json('show', job)['text']


def test_set_changes_values_and_nothing_else(cluster):
    path = job_file(cluster, name='set', rounds=1)
    job = cluster.mfl('submit', path, '--watch', '--set', 'training.lr=0.25', '--set', 'seed=77').stdout.split()[0]
    with open(path) as f:
        before = f.read().splitlines()
    after = text_of(cluster, job).splitlines()
    assert len([line for line in after if line not in before]) <= 2 and 'seed: 77' in text_of(cluster, job)
    assert [line for line in before if line not in after and 'lr' not in line and 'seed' not in line] == []
    # `check` and `run` know it, too, and what the job then says is judged as always.
    assert 'seed' not in cluster.mfl('check', path, '--set', 'rounds=3').stderr
    wrong = h.mfl('check', path, '--set', 'training.lr=-1', status=5)
    assert 'training.lr: expected a number' in wrong.stderr
    assert "did you mean 'lr'" in h.mfl('check', path, '--set', 'training.rl=1', status=5).stderr
    for bad, text in (('rounds', 'expected KEY=VALUE'), ('=3', 'expected KEY=VALUE')):
        assert text in h.mfl('check', path, '--set', bad, status=2).stderr
    for bad, text in (('rounds=1, 2', 'expected one value'), ('rounds.x=1', 'is a single value')):
        assert text in h.mfl('check', path, '--set', bad, status=5).stderr
    added = h.mfl('check', path, '--set', 'limits.deadlines=3s', status=5).stderr
    assert "did you mean 'deadline'" in added and 'lines are counted with those that --set added' in added
    result = h.mfl('run', path, '--set', 'rounds=2', '--daemons', '1', '--backend', 'reference', '--data',
                   'tiny=synthetic:1,8,8:4:64:32:1', '--out', os.path.join(cluster.dir, 'out'), '--json', cwd=cluster.dir)
    assert '"round":2' in result.stdout.replace(' ', '')
    with open(os.path.join(cluster.dir, 'out', 'job.yaml')) as f:
        assert 'rounds: 2' in f.read()


def test_new_writes_an_example(tmp_path):
    folder = os.path.join(os.path.dirname(h.__file__), '..', '..', 'examples')
    files = sorted(f[:-5] for f in os.listdir(folder) if f.endswith('.yaml'))
    listed = h.mfl('new').stdout.split('\n\n')[0].splitlines()
    assert [line.split()[0] for line in listed] == files and all(len(line.split()) > 2 for line in listed)
    for name in files:
        with open(os.path.join(folder, name + '.yaml')) as f:
            assert h.mfl('new', name).stdout == f.read()
    path = str(tmp_path / 'job.yaml')
    h.mfl('new', 'demo', '-o', path, '--set', 'rounds=50', '--set', 'data.clients=20')
    assert json.loads(h.mfl('check', path, '--json').stdout)['rounds'] == 50
    assert 'exists' in h.mfl('new', 'demo', '-o', path, status=6).stderr
    assert json.loads(h.mfl('new', 'demo', '--json').stdout)['text'] == h.mfl('new', 'demo').stdout
    again = str(tmp_path / 'again.yaml')
    assert json.loads(h.mfl('new', 'demo', '-o', again, '--json').stdout) == {'file': again}
    assert "did you mean 'demo'" in h.mfl('new', 'dmeo', status=4).stderr
    assert 'name one' in h.mfl('new', '--set', 'a=1', status=2).stderr
    assert 'name one' in h.mfl('new', '-o', str(tmp_path / 'third.yaml'), status=2).stderr
    assert sorted(os.listdir(tmp_path)) == ['again.yaml', 'job.yaml']


def on_terminal(folder, dialogue, *argv):
    """mfl on a terminal of its own, in folder: after each text that it prints, what is typed. Returns its exit status and all that was shown."""
    pid, fd = os.forkpty()
    if not pid:
        os.chdir(folder)
        os.execv(h.program('mfl'), ['mfl', *argv])
    shown = after = b''
    for text, typed in [*dialogue, (None, b'')]:
        while text is None or text.encode() not in after:
            assert select.select([fd], [], [], 5 * h.PATIENCE)[0], 'no %r in: %s' % (text, shown.decode())
            try:
                piece = os.read(fd, 4096)
            except OSError:  # it has ended
                piece = b''
            if not piece:
                break
            shown, after = shown + piece, after + piece
        if text is not None:
            assert text.encode() in after, shown.decode()
            after = after[after.index(text.encode()) + len(text):]
            os.write(fd, typed)
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace('\r', '')


def test_new_asks_on_a_terminal(tmp_path):
    status, shown = on_terminal(tmp_path, [('Example', b'?\n'), ('Example', b'dmeo\n'), ("did you mean 'demo'", b''), ('Example', b'\n'), ('Name', b'mine\n'),
                                           ('Data set', b'pets\n'), ('Clients', b'-3\n'), ('data.clients', b''), ('Clients', b'7\n'), ('Rounds', b'many\n'), ('rounds', b''),
                                           ('Rounds', b'3\n'), ('Learning rate [0.02]', b'\n'), ('File [demo.yaml]', b'\n')], 'new')
    assert status == 0 and 'shakespeare' in shown and "'mfl run demo.yaml'" in shown
    job = json.loads(h.mfl('check', str(tmp_path / 'demo.yaml'), '--json').stdout)
    assert (job['name'], job['rounds']) == ('mine', 3)
    text = (tmp_path / 'demo.yaml').read_text()
    assert 'name: pets' in text and 'clients: 7' in text and 'lr: 0.02' in text and 'Fashion-MNIST' not in text
    # Sites with data of their own; a name that is taken is asked for again, and --output answers the last question.
    answers = [('Example', b'\n'), ('Name', b'\n'), ('Data set', b'pets\n'), ('Clients', b'sites\n'), ('Rounds', b'\n'), ('Learning', b'\n')]
    status, shown = on_terminal(tmp_path, [*answers, ('File', b'demo.yaml\n'), ('exists', b''), ('File', b'sites.yaml\n')], 'new')
    assert status == 0 and 'partition: local' in (tmp_path / 'sites.yaml').read_text()
    assert h.mfl('check', str(tmp_path / 'sites.yaml')).returncode == 0
    assert on_terminal(tmp_path, answers, 'new', '-o', 'third.yaml')[0] == 0
    assert (tmp_path / 'third.yaml').read_text() == (tmp_path / 'sites.yaml').read_text()
    status, shown = on_terminal(tmp_path, [('third.yaml exists', b'')], 'new', '-o', 'third.yaml')
    assert status == 6 and 'Example' not in shown


def test_new_that_is_ended_leaves_no_file(tmp_path):
    for typed, status in ((b'\x03', -2), (b'\x04', 130)):  # Ctrl-C, the terminal's end of input
        for dialogue in ([('Example', typed)], [('Example', b'\n'), ('Name', b'\n'), ('Data set', typed)]):
            assert on_terminal(tmp_path, dialogue, 'new')[0] == status
    with open(os.devnull) as nothing:  # a pipe: nobody is asked
        assert 'Example' not in subprocess.run([h.program('mfl'), 'new'], stdin=nothing, stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path).stdout
    assert os.listdir(tmp_path) == []


def test_a_sweep_is_a_job_for_each_combination(cluster):
    path = job_file(cluster, name='sweep', rounds=2)
    argv = ['sweep', path, '--set', 'training.lr=0.01,0.1', '--set', 'seed=1..2', '--token', 'night']
    jobs = cluster.mfl_json(*argv)['jobs']
    names = ['sweep-lr0.01-seed1', 'sweep-lr0.01-seed2', 'sweep-lr0.1-seed1', 'sweep-lr0.1-seed2']
    assert [j['name'] for j in jobs] == names and not any(j['existed'] for j in jobs)
    again = cluster.mfl(*argv, '--watch', timeout=120).stdout
    assert again.count('was submitted before') == 4 and again.count(': done') == 4
    table = again.split('\n\n')[1].splitlines()
    assert table[0].split() == ['JOB', 'NAME', 'seed', 'training.lr', 'STATE', 'ROUND', 'ACCURACY', 'BEST', 'LOSS', 'SECONDS']
    assert [line.split()[0] for line in table[1:5]] == ['a', 'b', 'c', 'd']
    assert 'accuracy over rounds' in again
    # By pattern; a setting that is the same everywhere is not shown.
    found = cluster.mfl_json('compare', 'sweep-lr0.01*')['jobs']
    assert [j['settings'] for j in found] == [{'seed': '1'}, {'seed': '2'}]
    assert [len(j['rounds']) for j in found] == [2, 2]
    # The same seed and lr give the same model as the job by itself.
    single = cluster.mfl('submit', path, '--set', 'training.lr=0.1', '--set', 'seed=2', '--watch').stdout.split()[0]
    assert cluster.digests(single) == cluster.digests(jobs[3]['job'])
    assert "no job's name matches" in cluster.mfl('compare', 'nothing*', status=4).stderr


def test_a_sweep_is_checked_before_anything_is_sent(cluster):
    path = job_file(cluster, name='wrong')
    n = len(cluster.mfl_json('list')['jobs'])
    for argv, status, text in (
            ([], 2, 'nothing to sweep over'),
            (['--set', 'training.lr=0.1,-1'], 5, 'wrong-lr-1: '),
            (['--set', 'name=a,b'], 2, 'names its jobs itself'),
            (['--set', 'seed=1..257'], 2, 'more than 256'),
            (['--set', 'seed=1..20', '--set', 'rounds=1..20'], 2, 'more than 256 combinations'),
            (['--set', 'seed'], 2, 'expected KEY=VALUE'),
            (['--set', 'seed=1', '--token', 'x' * 60], 2, '--token')):
        assert text in cluster.mfl('sweep', path, *argv, status=status).stderr, argv
    assert len(cluster.mfl_json('list')['jobs']) == n
    # Values that are no names: the jobs are numbered.
    jobs = cluster.mfl_json('sweep', path, '--set', "training.optimizer=sgd,{kind: adam}", status=5)
    assert 'error' in jobs


def test_lists_are_filtered(cluster):
    path = job_file(cluster, name='listed', rounds=1)
    job = cluster.mfl('submit', path, '--watch').stdout.split()[0]

    def names(*argv):
        return [j['name'] for j in cluster.mfl_json('list', *argv)['jobs']]

    assert names('--name', 'listed') == ['listed'] == names('--name', 'l?st*', '--state', 'done,failed')
    assert names('--state', 'failed', '--name', 'listed') == [] == names('--since', '0s')
    assert names('--last', '1') == ['listed'] == names('--since', '2d', '--done')[-1:]
    assert 'no job matches' in cluster.mfl('list', '--state', 'failed', '--name', 'listed').stdout
    assert 'is no state' in cluster.mfl('list', '--state', 'dead', status=2).stderr
    assert 'expected a time' in cluster.mfl('list', '--since', 'yesterday', status=2).stderr
    assert cluster.mfl('ls').stdout == cluster.mfl('list').stdout == cluster.mfl('status').stdout
    assert job in cluster.mfl('ls').stdout


def test_many_jobs_end_at_once(cluster):
    path = job_file(cluster, name='many', rounds=10000)
    jobs = [cluster.mfl('submit', path, '--set', 'seed=%d' % i).stdout.split()[0] for i in (1, 2)]
    other = cluster.mfl('submit', path, '--set', 'name=other').stdout.split()[0]
    stopped = cluster.mfl('stop', '--all', '--name', 'man?')
    assert sorted(line.split()[0] for line in stopped.stdout.splitlines()) == jobs
    assert cluster.info(other)['state'] in ('waiting', 'running')
    assert cluster.mfl_json('cancel', '--all')['jobs'][0]['job'] == other
    assert 'no job matches' in cluster.mfl('stop', '--all').stdout
    for argv, text in ((['delete'], 'say which jobs'), (['delete', '--name', 'x'], 'say which jobs'),
                       (['delete', '--state', 'running'], 'stop it first'), (['delete', other, '--done'], 'not both'),
                       (['stop'], 'name a job'), (['stop', other, '--name', 'x'], 'goes with --all'),
                       (['delete', '--done', '--state', 'failed'], 'write one of them')):
        assert text in cluster.mfl(*argv, status=2).stderr, argv
    assert 'no job matches' in cluster.mfl('delete', '--state', 'stopped', '--before', '1d').stdout
    deleted = cluster.mfl('rm', '--state', 'stopped', '--before', '0s', '--name', 'many').stdout
    left = [j['job'] for j in cluster.mfl_json('list')['jobs']]
    assert sorted(line.split()[0] for line in deleted.splitlines()) == jobs and other in left and not set(jobs) & set(left)


def test_an_archived_job_is_off_the_list_and_nowhere_else(cluster):
    path = job_file(cluster, name='kept', rounds=1)
    jobs = [cluster.mfl('submit', path, '--set', 'seed=%d' % i, '--watch').stdout.split()[0] for i in (1, 2, 3)]
    first, others = jobs[0], jobs[1:]

    def listed(*argv):
        return [j['job'] for j in cluster.mfl_json('list', '--name', 'kept', *argv)['jobs']]

    cluster.mfl('model', 'register', first, '--as', 'kept')
    digest = cluster.mfl_json('pull', first, '-o', os.path.join(cluster.dir, 'before.safetensors'))['digest']
    assert cluster.mfl('archive', first).stdout == first + ': archived\n'
    assert listed() == others and listed('--archived') == [first] and listed('--all') == jobs == listed('--all', '--done')
    assert cluster.mfl_json('show', first)['job']['archived_unix_ms'] > cluster.mfl_json('show', first)['job']['finished_unix_ms']
    assert 'archived   ' in cluster.mfl('show', first).stdout and 'archived   ' not in cluster.mfl('show', others[0]).stdout
    assert cluster.mfl_json('pull', first, '-o', os.path.join(cluster.dir, 'after.safetensors'))['digest'] == digest
    assert [v['job'] for v in cluster.mfl_json('model', 'list')['versions'] if v['name'] == 'kept'] == [first]
    cluster.mfl('clone', first)
    clone = cluster.mfl_json('list', '--name', 'kept', '--last', '1')['jobs'][0]['job']  # a job of its own, which is not archived
    assert clone not in jobs
    cluster.mfl('wait', clone)
    # Of many: those that `mfl list` would show; those with other states stay.
    told = cluster.mfl_json('archive', '--done', '--name', 'kept')['jobs']
    assert [t['job'] for t in told] == [*others, clone] and {t['text'] for t in told} == {'archived'}
    assert 'no job matches' in cluster.mfl('archive', '--done', '--name', 'kept').stdout and listed() == []
    assert 'no job matches' in cluster.mfl('delete', '--done', '--name', 'kept').stdout  # what nobody sees is not deleted by the way
    assert [e['object'] for e in cluster.mfl_json('audit')['entries'] if e['action'] == 'archive'] == [first, *others, clone]
    # It outlives the server, and comes back.
    cluster.server.kill()
    cluster.start_server()
    cluster.wait_daemons(1)
    assert listed() == [] and listed('--archived') == [*jobs, clone]
    assert cluster.mfl('archive', first).stdout == first + ': it was archived already\n'
    assert cluster.mfl('unarchive', first).stdout == first + ': no longer archived\n'
    assert cluster.mfl('unarchive', first).stdout == first + ': it was not archived\n'
    assert cluster.mfl('archive', first).stdout == first + ': archived\n' and listed() == []
    assert cluster.mfl('archive', first, '--undo').stdout == first + ': no longer archived\n'
    assert first in cluster.mfl('status', first).stdout and cluster.mfl('ls', first).stdout == cluster.mfl('show', first).stdout
    assert listed() == [first] and cluster.mfl_json('show', first)['job']['archived_unix_ms'] is None
    assert len(cluster.mfl_json('unarchive', '--done', '--name', 'kept')['jobs']) == 3 and listed() == [*jobs, clone]
    cluster.mfl('archive', clone)
    assert cluster.mfl_json('delete', '--done', '--name', 'kept', '--archived')['jobs'] == [{'job': clone, 'name': 'kept', 'text': 'deleted'}]
    assert listed('--all') == jobs


def test_what_the_archive_refuses(cluster):
    path = job_file(cluster, name='busy', rounds=10000)
    job = cluster.mfl('submit', path).stdout.split()[0]
    for argv, status, text in ((['archive'], 2, 'say which jobs: mfl archive JOB'), (['unarchive', '--name', 'x'], 2, 'say which jobs: mfl unarchive'),
                               (['archive', '--state', 'running'], 2, "can't be archived"), (['archive', job, '--done'], 2, 'not both'),
                               (['archive', job], 6, 'has not ended'), (['archive', 'j-999999'], 4, 'j-999999'),
                               (['list', '--archived', '--all'], 2, 'write one of them'), (['hide', job], 2, "did you mean 'archive'")):
        assert text in cluster.mfl(*argv, status=status).stderr, argv
    cluster.mfl('stop', job)
    assert cluster.info(job)['archived_ms'] == 0
