# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/mfl.sbatch in a real Slurm: a controller and two nodes of this test's own, all on this host.

Skipped with the reason where Slurm is not installed or does not start. The daemons of Slurm die with this process.
"""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
import mfl_harness as h  # noqa: E402
import mfl_needs  # noqa: E402

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'deploy', 'slurm', 'mfl.sbatch')
PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scontrol', 'scancel', 'setpriv')
CONF = '''
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=5
JobRequeue=1
GresTypes=gpu
SchedulerParameters=sched_min_interval=1000,batch_sched_delay=0,sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
'''


def free_ports(n):
    sockets = [h.socket.create_server(('127.0.0.1', 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    def __init__(self, directory):
        self.dir, self.daemons = directory, []
        self.path = '/usr/sbin:/sbin:' + os.environ['PATH']
        self.conf = os.path.join(directory, 'slurm.conf')
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(('MFL_', 'SLURM', 'SBATCH'))}
        self.env.update(SLURM_CONF=self.conf, PATH=self.path, LC_ALL='C.UTF-8', NO_COLOR='1', XDG_CONFIG_HOME='/nonexistent')
        self.bin = os.path.join(directory, 'bin')
        os.makedirs(self.bin)
        for name in ('mfl', 'mfl-server'):
            os.symlink(h.program(name), os.path.join(self.bin, name))
        # It tells which GPU it was given, and is the real one.
        self.write('bin/mfl-client', '#!/bin/sh\necho "visible: ${CUDA_VISIBLE_DEVICES-unset}"\nexec %s "$@"\n'
                   % os.path.abspath(h.program('mfl-client')), 0o755)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.dir, name)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def start(self):
        """Skips when this machine does not let it run."""
        d = self.dir
        os.mkdir(d + '/state')
        with open(d + '/munge.key', 'wb') as f:
            f.write(os.urandom(128))
        os.chmod(d + '/munge.key', 0o600)
        user = subprocess.run(['id', '-un'], capture_output=True, text=True, check=True).stdout.strip()
        self.write('slurm.conf', CONF.format(dir=d, ports=free_ports(3), user=user))
        self.write('gres.conf', 'NodeName=n1 Name=gpu ' + ('File=%s/gpu[0-1]\n' % d if self.make_gpus() else 'Count=2\n'))
        self.daemon('munged', '--foreground', '--force', '--socket=%s/munge.socket' % d, '--key-file=%s/munge.key' % d,
                    '--pid-file=%s/munge.pid' % d, '--log-file=%s/munge.log' % d, '--seed-file=%s/munge.seed' % d)
        self.wait(lambda: os.path.exists(d + '/munge.socket'), 5, 'munged')
        self.daemon('slurmctld', '-D', '-f', self.conf)
        for node in ('n1', 'n2'):
            self.daemon('slurmd', '-D', '-N', node, '-f', self.conf)
        self.wait(lambda: self.call('sinfo', '-h', '-o', '%T', '-N', check=False).stdout.split() == ['idle'] * 2, 20,
                  'two idle nodes')

    def make_gpus(self):
        """Slurm counts character devices as GPUs; these two are /dev/null."""
        try:
            for i in range(2):
                os.mknod('%s/gpu%d' % (self.dir, i), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            return False
        return True

    def daemon(self, name, *argv):
        log = os.path.join(self.dir, '%s-%d.out' % (name, len(self.daemons)))
        with open(log, 'wb') as out:
            self.daemons.append(subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', name, *argv], env=self.env, stdout=out,
                                                 stderr=out, stdin=subprocess.DEVNULL))

    def wait(self, condition, timeout, what):
        try:
            h.wait_until(condition, timeout, what)
        except TimeoutError as e:
            tails = [self.read(n)[-300:] for n in sorted(os.listdir(self.dir)) if n.endswith('.out')]
            pytest.skip('Slurm does not run here: %s\n%s' % (e, '\n'.join(tails)))

    def call(self, *argv, check=True, cwd=None):
        done = subprocess.run(argv, env=self.env, cwd=cwd or self.dir, capture_output=True, text=True, timeout=30, check=False,
                              stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, '%s: %s%s' % (argv, done.stdout, done.stderr)
        return done

    def read(self, name):
        try:
            with open(os.path.join(self.dir, name), encoding='utf-8', errors='replace') as f:
                return f.read()
        except OSError:
            return ''

    # -- batch jobs --

    def submit(self, job, *options, sbatch=()):
        """The batch job's id."""
        return self.call('sbatch', '--parsable', '--export=ALL,MFL_BIN=' + self.bin, *sbatch, SCRIPT, job, '--data', h.TINY,
                         '--listen', '127.0.0.1', '--backend', 'reference', *options).stdout.strip()

    def field(self, job, name):
        for word in self.call('scontrol', 'show', 'job', job).stdout.split():
            if word.startswith(name + '='):
                return word.split('=', 1)[1]
        return None

    def log(self, job):
        return self.read('slurm-%s.out' % job)

    def wait_state(self, job, states, timeout=40):
        def there():
            state = self.field(job, 'JobState')
            return state in states and state
        try:
            return h.wait_until(there, timeout, 'batch job %s to be %s' % (job, '/'.join(states)))
        except TimeoutError as e:
            raise AssertionError('%s: %s\n%s' % (e, self.field(job, 'JobState'), self.log(job))) from None

    def wait_end(self, job):
        """(state, exit status) once nothing of it is left."""
        state = self.wait_state(job, ('COMPLETED', 'FAILED', 'CANCELLED'))
        h.wait_until(lambda: not self.processes(job), 10, 'the last process of batch job %s' % job)
        return state, int(self.field(job, 'ExitCode').split(':')[0])

    def start_again(self, job):
        """Slurm holds a job that was requeued for two minutes: nodes take a start within the second of the last end for one
        that was revoked. This shortens them to two seconds."""
        self.wait_state(job, ('PENDING',))
        h.wait_until(lambda: not self.processes(job), 10, 'the last process of the run before')
        h.time.sleep(2)
        h.wait_until(lambda: self.call('scontrol', 'update', 'jobid=' + job, 'StartTime=now', check=False).returncode == 0, 15,
                     'the requeued job')

    def processes(self, job):
        """{pid: its program} of a batch job, by its environment."""
        marks = {b'SLURM_JOB_ID=' + job.encode(), b'SLURM_CONF=' + self.conf.encode()}
        found = {}
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open('/proc/%s/environ' % pid, 'rb') as f:
                    mine = marks <= set(f.read().split(b'\0'))
                with open('/proc/%s/cmdline' % pid, 'rb') as f:
                    argv = f.read().split(b'\0')
            except OSError:
                continue
            if mine:
                found[int(pid)] = os.path.basename(argv[0].decode()) + ' ' + b' '.join(argv[1:2]).decode(errors='replace')
        return found

    def wait_round(self, job, n):
        h.wait_until(lambda: '\nround %d/' % n in self.log(job), 20, 'round %d of %s' % (n, self.log(job)))

    def job_json(self, job, run=None):
        return json.loads(self.read(os.path.join(run or 'mfl-' + job, 'job.json')))

    def close(self):
        if self.daemons and self.daemons[-1].args[3] == 'slurmd':
            self.call('scancel', '--full', '--user', str(os.getuid()), check=False)
        for d in reversed(self.daemons):
            d.terminate()
            try:
                d.wait(5)
            except subprocess.TimeoutExpired:
                d.kill()
                d.wait()


@pytest.fixture(scope='module', name='slurm')
def _slurm():
    if not all(map(mfl_needs.which, PROGRAMS)):
        pytest.skip(mfl_needs.lack('slurmctld'))
    directory = tempfile.mkdtemp(prefix='mfl-slurm-', dir='/tmp')
    os.chmod(directory, 0o755)
    slurm = Slurm(directory)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
        shutil.rmtree(directory, ignore_errors=True)


def reference_digest(slurm, job, tmp_path):
    """Of `mfl run` of the same file."""
    out = str(tmp_path / 'run')
    done = h.mfl('run', os.path.join(slurm.dir, job), '--data', h.TINY, '--backend', 'reference', '--daemons', 1, '--out', out,
                 '--json')
    result = json.loads(done.stdout.splitlines()[-1])
    return result['digest'], result['accuracy']


def test_two_nodes_give_the_digest_of_mfl_run(slurm, tmp_path):
    slurm.write('job.yaml', h.job_text())
    job = slurm.submit('job.yaml', sbatch=('-N2', '--ntasks-per-node=2'))
    assert slurm.wait_end(job) == ('COMPLETED', 0), slurm.log(job)
    digest, accuracy = reference_digest(slurm, 'job.yaml', tmp_path)
    assert h.params_digest(os.path.join(slurm.dir, 'mfl-%s.safetensors' % job)) == digest
    shown = slurm.job_json(job)
    assert (shown['job']['state'], shown['job']['last']['digest'], shown['job']['last']['accuracy']) == \
        ('done', digest, accuracy)
    # Both nodes of Slurm are this host, so the tasks of both found each other in its shared memory.
    assert max(n['daemons'] for n in shown['nodes']) > 1
    run = os.path.join(slurm.dir, 'mfl-' + job)
    assert sorted(n for n in os.listdir(run + '/daemons') if n.endswith('.log')) == \
        ['n%d-cpu%d.log' % (n, i) for n in (1, 2) for i in (0, 1)]
    for name in ('n1-cpu0', 'n2-cpu1'):
        log = slurm.read(run + '/daemons/%s.log' % name)
        assert 'TLS: certificate of' in log and 'ended: stopped' in log, log
    assert not os.path.exists(run + '/pki') and os.stat(run).st_mode & 0o77 == 0


def test_a_relay_for_each_rack(slurm, tmp_path):
    """n1 is the server's own rack, n2 has a relay, which is killed once; the digest is that of one machine."""
    slurm.write('job.yaml', h.job_text(rounds=30))
    job = slurm.submit('job.yaml', '--nodes-per-relay', '1', sbatch=('-N2', '--ntasks-per-node=2'))
    run = os.path.join(slurm.dir, 'mfl-' + job)

    def relay():
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open('/proc/%s/cmdline' % pid, 'rb') as f:
                    argv = f.read().split(b'\0')
            except OSError:
                continue
            if argv[0].endswith(b'mfl-server') and b'relay-n2' in argv and any(run.encode() in a for a in argv):
                return int(pid)
        return 0

    def read(name):
        path = os.path.join(run, name)
        return slurm.read(path) if os.path.exists(path) else ''
    h.wait_until(lambda: 'n2-cpu0' in read('server.log'), 60, 'a daemon below the relay')
    os.kill(h.wait_until(relay, 10, 'the relay'), signal.SIGKILL)
    assert slurm.wait_end(job) == ('COMPLETED', 0), slurm.log(job)
    assert 'the relay on n2 has ended; it is started again' in slurm.log(job)
    assert read('relays/n2.log').count('relay relay-n2 is connected to') == 2
    assert 'relay relay-n2 is up' in read('server.log')
    address = read('relays/of-n2').strip()
    for name in ('n2-cpu0', 'n2-cpu1'):
        assert address in read('daemons/%s.log' % name)
    assert address not in read('daemons/n1-cpu0.log') and not os.path.exists(run + '/relays/of-n1')
    assert h.params_digest(os.path.join(slurm.dir, 'mfl-%s.safetensors' % job)) == reference_digest(slurm, 'job.yaml', tmp_path)[0]
    assert relay() == 0


@pytest.mark.parametrize('options', [('-N1', '--gpus-per-node=2'), ('-n2', '--gpus-per-task=1', '--nodelist=n1')])
def test_a_daemon_for_each_gpu_by_its_place_on_the_node(slurm, options):
    if not os.path.exists(slurm.dir + '/gpu0'):
        pytest.skip('this user may not make devices')
    slurm.write('job.yaml', h.job_text())
    job = slurm.submit('job.yaml', sbatch=options)
    assert slurm.wait_end(job) == ('COMPLETED', 0), slurm.log(job)
    logs = 'mfl-%s/daemons/' % job
    assert sorted(n for n in os.listdir(os.path.join(slurm.dir, logs)) if n.endswith('.log')) == ['n1-gpu0.log', 'n1-gpu1.log']
    for i in (0, 1):
        assert 'visible: %d\n' % i in slurm.read(logs + 'n1-gpu%d.log' % i)


def test_killed_and_requeued_it_ends_with_the_same_digest(slurm, tmp_path):
    # So many rounds that the job is far from its end when the script looks whether one more was committed.
    rounds = 80
    slurm.write('long.yaml', h.job_text(rounds=rounds, training={'epochs': 5}))
    job = slurm.submit('long.yaml', sbatch=('-N2', '--ntasks-per-node=1'))
    slurm.wait_round(job, 2)
    # The server alone: the script starts it again where the daemons look for it.
    servers = [pid for pid, argv in slurm.processes(job).items() if argv.startswith('mfl-server')]
    assert len(servers) == 1, slurm.processes(job)
    os.kill(servers[0], signal.SIGKILL)
    slurm.wait_round(job, 3)
    assert 'it is started again' in slurm.log(job)
    # Everything, as when the node fails.
    for pid in slurm.processes(job):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert slurm.wait_end(job)[0] == 'FAILED'
    slurm.call('scontrol', 'requeue', job)
    slurm.start_again(job)
    h.wait_until(lambda: 'run 1,' in slurm.log(job), 20, 'the second run')
    resumed = len(slurm.log(job))
    h.wait_until(lambda: re.search(r'\nround \d+/', slurm.log(job)[resumed:]), 20, 'a round of the second run')
    # Near its time limit it puts itself into the queue again. Nothing is committed before it has said so.
    stopped = [pid for pid, argv in slurm.processes(job).items() if argv.startswith('mfl-client')]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    slurm.call('scancel', '--batch', '--signal=USR1', job)
    h.wait_until(lambda: 'the time limit is near' in slurm.log(job), 20, 'the script to hear of its limit')
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    slurm.start_again(job)
    assert slurm.wait_end(job) == ('COMPLETED', 0), slurm.log(job)
    assert 'run 1,' in slurm.log(job) and 'into the queue again' in slurm.log(job) and 'run 2,' in slurm.log(job)
    digest, _ = reference_digest(slurm, 'long.yaml', tmp_path)
    assert h.params_digest(os.path.join(slurm.dir, 'mfl-%s.safetensors' % job)) == digest
    assert [r['round'] for r in slurm.job_json(job)['rounds']] == list(range(1, rounds + 1))


def test_what_fails_is_a_batch_job_that_failed(slurm):
    slurm.write('bad.yaml', h.job_text(training={'epochs': 400, 'batch': 1}, limits={'deadline': '1s', 'retries': 0}))
    slurm.write('job.yaml', h.job_text())
    slurm.write('wrong.yaml', 'rounds: many\n')
    failing = slurm.submit('bad.yaml')
    no_data = slurm.submit('job.yaml', '--data', 'mine=idx:/nonexistent')
    wrong = [(slurm.submit(*argv), status) for argv, status in
             ((('wrong.yaml',), 5), (('missing.yaml',), 2), (('job.yaml', '--per-node', 'x'), 2),
              (('job.yaml', '--nodes-per-relay', '08'), 2))]
    assert slurm.wait_end(failing) == ('FAILED', 1)
    assert 'failed: round 1' in slurm.log(failing)
    assert slurm.wait_end(no_data) == ('FAILED', 1)
    assert 'all daemons have ended' in slurm.log(no_data) and '/nonexistent' in slurm.log(no_data)
    for job, status in wrong:
        assert slurm.wait_end(job) == ('FAILED', status), slurm.log(job)


def test_scancel_leaves_no_process_and_resume_goes_on(slurm, tmp_path):
    slurm.write('long.yaml', h.job_text(rounds=6, training={'epochs': 5}))
    job = slurm.submit('long.yaml', sbatch=('-N2', '--ntasks-per-node=1'))
    slurm.wait_round(job, 2)
    names = {argv.split()[0] for argv in slurm.processes(job).values()}
    assert {'mfl-server', 'mfl-client', 'mfl'} <= names
    slurm.call('scancel', job)
    assert slurm.wait_end(job)[0] == 'CANCELLED'
    assert not os.path.exists(slurm.dir + '/mfl-%s/pki' % job)
    again = slurm.submit('long.yaml', '--resume', 'mfl-' + job, '--output', 'resumed.safetensors')
    assert slurm.wait_end(again) == ('COMPLETED', 0), slurm.log(again)
    assert h.params_digest(os.path.join(slurm.dir, 'resumed.safetensors')) == reference_digest(slurm, 'long.yaml', tmp_path)[0]
    assert slurm.log(again).count('\nround 1/') == 0  # it was not done again, only told
