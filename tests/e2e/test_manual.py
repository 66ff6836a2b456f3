# SPDX-License-Identifier: Apache-2.0
"""What the programs print about themselves: man pages without a warning, completions that bash runs, examples that are taken."""
import json
import os
import re
import shutil
import subprocess

import pytest

import mfl_harness as h
import mfl_needs

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
SERVES = os.path.exists(h.program('mfl-serve'))  # http-parser was there
PROGRAMS = ('mfl-server', 'mfl-client', *(['mfl-serve'] if SERVES else []))
PAGES = [*([('mfl-serve', '--help=man'), ('mfl-serve', '--help=man5')] if SERVES else []), ('mfl-server', '--help=man'), ('mfl-server', '--help=man5'), ('mfl-client', '--help=man'), ('mfl-client', '--help=man5'),
         ('mfl', 'help', 'man'), ('mfl', 'help', 'man-job')]


def ask(name, *argv, status=0):
    done = subprocess.run([h.program(name), *argv], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize('page', PAGES, ids=' '.join)
def test_man_pages(page):
    """groff and mandoc have nothing to say about them, and they are ASCII with all parts that a page of this kind has."""
    text = ask(*page)
    assert text.isascii() and text.count('\n.SH NAME\n') == 1 and '.SH SEE ALSO' in text
    judges = [['groff', '-ww', '-man', '-Tascii'], ['mandoc', '-T', 'lint', '-W', 'warning']]
    judges = [argv for argv in judges if shutil.which(argv[0])]
    if not judges:
        pytest.skip(mfl_needs.lack('groff'))
    for argv in judges:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False)
        complaints = done.stderr if argv[0] == 'groff' else done.stdout
        assert done.returncode == 0 and not complaints, complaints


def test_manual_of_mfl_has_everything():
    text = ask('mfl', 'help', 'man').replace('\\-', '-')
    overview = ask('mfl', '--help')
    commands = re.findall(r'^  ([a-z]+)\b', overview[:overview.index('Every command')], re.M)
    assert len(commands) > 15
    for command in commands:
        part = re.search(r'\n\.SS mfl %s\b(.*?)(?=\n\.S[SH] )' % command, text, re.S)
        assert part, command
        options = ask('mfl', command, '--help').partition('Options:\n')[2]
        for option in re.findall(r'^  (?:-\w, )?(--[a-z-]+)', options, re.M):
            assert option in part[1] or '\\fB%s\\fR' % option in text.partition('.SH COMMANDS')[0], (command, option)
    for title in ('EXIT STATUS', 'ENVIRONMENT', 'FILES', 'JSON OUTPUT'):
        assert '.SH %s\n' % title in text


def test_job_keys_are_explained():
    """Every key of the parser's tables finds its words in the reference file."""
    text = ask('mfl', 'help', 'markdown-job')
    parts = re.findall(r'^### `(\S+)`\n+(.*)$', text, re.M)
    assert len(parts) > 45
    assert dict(parts)['training.lr'] == 'required without program; learning rate of the clients, above 0'
    assert dict(parts)['selection.daemons.max'] == 'at most this many work on the job; default: no limit'
    sections = {'model', 'selection', 'limits', 'evaluation', 'checkpoints', 'data', 'training', 'aggregation', 'selection.daemons'}
    assert not [key for key, words in parts if key not in sections and (not words or words.startswith(('Takes', '#')))]
    with open(os.path.join(ROOT, 'examples', 'reference.yaml'), encoding='utf-8') as f:
        text, reference = ask('mfl', 'help', 'job'), f.read()
    assert text.startswith(reference)
    table = text[len(reference):].splitlines()
    assert len(table) > 10 and all(line.startswith('#') for line in table if line)
    assert re.search(r'^# +time: real +selection: oort$', text, re.M)


def uncomment(text):
    """All that stands behind a '#' as a value: keys, and the lines of a list below its key, up to an empty line."""
    lines, inside = [], False
    for line in text.splitlines():
        key = re.match(r'# [a-z_]+:( |$)', line)
        inside = bool(key) or (inside and line.startswith('#'))
        lines.append(line[2:] if inside else line)
    return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('name', PROGRAMS)
def test_example_names_every_key(tmp_path, name):
    """As it is, and with every '#' in front of a key removed, the program takes it; the manual has the same keys."""
    text = ask(name, '--help=yaml')
    keys = re.findall(r'^(?:# )?([a-z_]+):(?: |$)', text, re.M)
    manual = re.findall(r'^\.TP\n\\fB([a-z_]+):\\fR', ask(name, '--help=man5'), re.M)
    assert sorted(keys) == sorted(set(manual)) and len(keys) > 10
    for i, version in enumerate((text, uncomment(text))):
        path = tmp_path / ('%d.yaml' % i)
        path.write_text(version)
        if i:
            assert set(re.findall(r'^([a-z_]+):', version, re.M)) == set(keys)
        # Options are judged behind the file: 2 says that the file was good.
        done = subprocess.run([h.program(name), '--config', str(path), '--log-level', 'loud'], capture_output=True, text=True,
                              timeout=30, check=False)
        assert done.returncode == 2 and '--log-level loud' in done.stderr, done.stderr


def test_help_that_could_not_be_written_is_a_failure():
    for name, *argv in [(name, '--help') for name in PROGRAMS] + [
            ('mfl-client', '--version'), ('mfl', '--help'), ('mfl', '--version'), ('mfl', 'help', 'json'),
            ('mfl', 'run', '--help')]:
        with open('/dev/full', 'w', encoding='ascii') as full:
            done = subprocess.run([h.program(name), *argv], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
        assert done.returncode and 'standard output: No space left on device' in done.stderr, (name, argv, done)


@pytest.mark.parametrize('closed', [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_closed_descriptor_is_no_reason_to_abort(tmp_path, closed):
    """What can't be written is a failure, as on a full disk; and nothing takes the place of a terminal."""
    def run(name, *argv):
        done = subprocess.run([h.program(name), *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=30, check=False, preexec_fn=lambda: [os.close(fd) for fd in closed])
        return done.returncode, done.stderr

    written = [('mfl', 'presets'), ('mfl', '--version'), ('mfl', 'help', 'run'), ('mfl', 'presets', '--json'),
               ('mfl', 'check', os.path.join(ROOT, 'examples', 'demo.yaml')), ('mfl-server', '--help'), ('mfl-client', '--version')]
    for argv in written:
        status, err = run(*argv)
        assert (status > 0) == (1 in closed), (argv, status)
        assert closed != (1,) or 'standard output: Bad file descriptor' in err, err
    for argv, expected in [(('mfl', 'list', '--server', '127.0.0.1:1'), 3), (('mfl', 'wait', 'x', '--server', '127.0.0.1:1'), 3),
                           (('mfl', 'nonsense'), 2), (('mfl-server', '--nonsense'), 2), (('mfl-client', '--nonsense'), 2)]:
        assert run(*argv)[0] == expected, argv
    (tmp_path / 'job.yaml').write_text(h.job_text(rounds=1))  # one that has connections, files and children
    assert (run('mfl', 'run', str(tmp_path / 'job.yaml'), '--data', h.TINY, '--backend', 'reference', '--out',
                str(tmp_path / 'out'))[0] > 0) == (1 in closed)
    assert 1 in closed or (tmp_path / 'out' / 'model.safetensors').stat().st_size > 100


def test_help_comes_first(tmp_path):
    """--help is of use when the configuration is broken; the width is one that terminals have."""
    for name in PROGRAMS:
        text = ask(name, '--config', str(tmp_path / 'missing.yaml'), '--help')
        assert 'usage: %s' % name in text and max(map(len, text.splitlines())) <= 100


# ---- an example without a download, and what a run says ----

def test_table_with_categories(tmp_path):
    """Made by the example's script, checked beside its data, trained; a value that nobody declared has a line and a column."""
    example = os.path.join(ROOT, 'examples', 'categories.yaml')
    table = subprocess.run(['/usr/bin/python3', os.path.join(ROOT, 'examples', 'categories.py')], capture_output=True, text=True,
                           timeout=30, check=True).stdout
    (tmp_path / 'loans.csv').write_text(table)
    data = 'loans=csv:%s,test_fraction=0.2' % (tmp_path / 'loans.csv')
    checked = h.mfl('check', example, '--data', data + ',normalise=columns', '--json')
    assert json.loads(checked.stdout)['samples'] == {
        'shape': [6], 'classes': 2, 'targets': 0, 'train_samples': 3200, 'test_samples': 800, 'clients': 10, 'samples_min': 320,
        'samples_max': 320} and checked.stderr == ''
    assert 'income varies by' in h.mfl('check', example, '--data', data).stderr
    done = h.mfl('run', example, '--data', data + ',normalise=columns', '--backend', 'reference', '--json', cwd=tmp_path)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result['state'] == 'done' and result['accuracy'] > 0.8 and result['out'] == 'mfl-run'
    with open(tmp_path / 'mfl-run' / 'rounds.csv', encoding='ascii') as f:
        accuracies = [line.split(',')[1] for line in f.read().splitlines()[1:]]
    assert len(accuracies) == 5 and all(len(a) <= 7 for a in accuracies), accuracies  # of 800 samples
    (tmp_path / 'loans.csv').write_text(table.replace('own,b', 'lease,b', 1))
    line = table.splitlines().index(next(row for row in table.splitlines() if 'own,b' in row)) + 1
    refused = h.mfl('check', example, '--data', data, status=5).stderr
    assert 'loans.csv:%d: column 2 (housing): expected one of own, rent, free, got \'lease\'' % line in refused


def test_head_that_does_not_fit_its_data(tmp_path):
    """The words of the server, before there is one."""
    job = tmp_path / 'job.yaml'
    job.write_text(h.job_text(model={'layers': ['flatten', {'dense': {'units': 5}}]}))
    assert h.mfl('check', job).stdout
    for argv in (('check', job, '--data', h.TINY), ('run', job, '--data', h.TINY, '--backend', 'reference')):
        done = h.mfl(*argv, status=None, cwd=tmp_path)
        assert done.returncode and done.stderr.count('the last layer gives 5; it must give one number for each of the 4') == 1
        assert 'must give' not in done.stdout
    assert os.listdir(tmp_path) == ['job.yaml']  # nothing was trained
    missing = h.mfl('run', job, status=4, cwd=tmp_path).stderr
    assert "the job's data set is 'tiny': give its folder with --data tiny=FORMAT:DIR" in missing
    assert os.listdir(tmp_path) == ['job.yaml']


def test_a_normal_start_says_nothing_of_waiting(tmp_path):
    (tmp_path / 'job.yaml').write_text(h.job_text(rounds=1))
    done = h.mfl('run', 'job.yaml', '--data', h.TINY, '--backend', 'reference', cwd=tmp_path)
    assert 'waiting' not in done.stdout + done.stderr and ': done\n' in done.stdout


# ---- help on a terminal of 80 columns ----

def test_no_line_of_help_is_too_long():
    overview = ask('mfl', 'help')
    names = sorted(set(re.findall(r'^  ([a-z]+)', overview.split('Every command takes')[0], re.M)))
    assert len(names) > 30 and {'run', 'archive', 'model'} <= set(names)
    for name in ('', *names, 'json', 'exit', 'tls'):  # 'job' is a YAML file
        text = ask('mfl', 'help', *([name] if name else []))
        long = [line for line in text.splitlines() if len(line) > 80 and len(line.split()) > 1]
        assert not long, (name, long)
        assert not [line for line in text.splitlines() if line != line.rstrip()], name
        broken = [line for line in text.splitlines() if line.endswith(' \\') and (line.count("'") % 2 or ' # ' in line)]
        assert not broken, (name, broken)  # there the shell takes the backslash for text
    assert 'take jobs that have ended off the list' in ' '.join(overview.split())
    model = ask('mfl', 'help', 'model')
    assert "\n  promote NAME@ALIAS [VERSION] the same, if the version's newest validation\n                               passes the gates:" in model


# ---- completion ----

@pytest.fixture(scope='module')
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp('completion')
    for name in PROGRAMS:
        (folder / name).write_text(ask(name, '--help=completion'))
    (folder / 'mfl').write_text(ask('mfl', 'help', 'completion'))
    (folder / '_mfl').write_text(ask('mfl', 'help', 'completion-zsh'))
    (folder / 'mfl.fish').write_text(ask('mfl', 'help', 'completion-fish'))
    (folder / 'drive.zsh').write_text(DRIVE_ZSH)
    return folder


def complete(scripts, *words, cwd=None, env=None):
    """What bash would offer at the last of words, which it has cut at '=' and ':'."""
    name = words[0]
    script = '''. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); PATH=%s:$PATH
_%s; printf '%%s\\n' "${COMPREPLY[@]}"''' % (os.path.dirname(h.program(name)), name.replace('-', '_'))
    done = subprocess.run(['bash', '--norc', '-uc', script, 'bash', str(scripts / name), *words], capture_output=True, text=True,
                          timeout=30, cwd=cwd, env={**os.environ, **(env or {})}, check=False)
    assert not done.stderr, done.stderr
    return done.stdout.split()


# A zsh on a terminal of its own, whose every offer is written to $2. The completion is $1, the line $3, and ends with a tab.
DRIVE_ZSH = '''zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -d $2.dump; source $1; out=$2
compadd() {
        local -a got
        if (( \\${@[(I)-[OAD]]} )); then builtin compadd \\"\\$@\\"; return; fi
        builtin compadd -A got \\"\\$@\\"
        print -rl -- \\$got >>\\$out
        builtin compadd \\"\\$@\\"
}
ended() { print -r -- : >>\\$out; exit }
comppostfuncs=(ended)
bindkey '^I' complete-word
print ready"
while zpty -r shell line; do [[ $line != *ready* ]] || break; done
zpty -w -n shell "$3"$'\\t'
while zpty -r shell line; do :; done
'''


def offers_of_zsh(scripts, line, cwd, env):
    out = scripts / 'offers'
    out.write_text('')
    subprocess.run(['zsh', '-f', str(scripts / 'drive.zsh'), str(scripts / '_mfl'), str(out), line], cwd=cwd, env=env, timeout=60,
                   check=True, stdout=subprocess.DEVNULL)
    said = out.read_text().split()
    assert said[-1] == ':', said  # otherwise it has not ended
    return [offer.replace('\\', '') for offer in said[:-1]]  # zsh quotes what it will insert


def offers_of_fish(scripts, line, cwd, env):
    done = subprocess.run(['fish', '--no-config', '-c', "source '%s'; complete -C '%s'" % (scripts / 'mfl.fish', line)], cwd=cwd,
                          env=dict(env, HOME=str(cwd)), timeout=60, check=True, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return [offer.split('\t')[0].removeprefix('--backend=') for offer in done.stdout.splitlines()]


@pytest.mark.parametrize('shell', ['zsh', 'fish'])
def test_completion_of_other_shells(shell, scripts, tmp_path):
    """The shell is asked what it would offer, with the same answers as bash."""
    mfl_needs.program(shell)
    ask_shell = {'zsh': offers_of_zsh, 'fish': offers_of_fish}[shell]
    (tmp_path / 'job.yaml').write_text('')
    (tmp_path / 'jobs').mkdir()
    with h.start_cluster(str(tmp_path / 'c'), daemons=1) as c:
        job, _ = c.run_job(rounds=1)
        for rule in (('disable', 'x*'), ('allow', 'd?')):
            c.mfl('daemons', *rule)
        path = os.path.dirname(h.program('mfl')) + ':' + os.environ['PATH']
        env = {'PATH': path, 'MFL_SERVER': c.address, 'TERM': 'dumb', 'LC_ALL': 'C.UTF-8', 'XDG_CONFIG_HOME': '/nonexistent'}

        def offered(line, **more):
            return sorted(ask_shell(scripts, line, tmp_path, {**env, **more}))
        assert offered('mfl su') == ['submit']
        assert {'run', 'pki', 'help', 'daemons'} <= set(offered('mfl '))
        assert offered('mfl --server x submit --wa') == ['--watch']
        assert offered('mfl run --backend re') == ['reference']
        assert offered('mfl run --backend=') == ['auto', 'cpu', 'cuda', 'reference']
        assert offered('mfl submit jo')[0].startswith('job')
        assert offered('mfl pki re') == ['renew', 'revoke']
        assert offered('mfl presets lene') == ['lenet5']
        assert 'tls' in offered('mfl help tl')
        assert offered('mfl show ') == [job, 'last']
        assert offered('mfl --server %s pull j-' % c.address, MFL_SERVER='127.0.0.1:9') == [job]
        assert offered('mfl drain ') == ['d1']
        assert offered('mfl daemons enable ') == ['x*'] and offered('mfl daemons disallow ') == ['d?']
        assert offered('mfl show ', MFL_SERVER='127.0.0.1:9') == ['last']


def test_completion_of_words(scripts, tmp_path):
    (tmp_path / 'job.yaml').write_text('')
    (tmp_path / 'jobs').mkdir()
    assert complete(scripts, 'mfl', 'su') == ['submit']
    assert {'run', 'pki', 'help'} <= set(complete(scripts, 'mfl', ''))
    assert complete(scripts, 'mfl', '--server', 'x', 'submit', '--wa') == ['--watch']
    assert complete(scripts, 'mfl', 'run', '--backend', '=', 're') == ['reference']
    assert complete(scripts, 'mfl', 'run', '--backend', '=') == ['auto', 'cpu', 'reference', 'cuda']
    assert complete(scripts, 'mfl', 'submit', 'job.', cwd=tmp_path) == ['job.yaml']
    assert complete(scripts, 'mfl', 'submit', 'x', 'job.', cwd=tmp_path) == []
    assert complete(scripts, 'mfl', 'data', '') == ['show', 'stats']
    assert complete(scripts, 'mfl', 'data', 'show', 'job.', cwd=tmp_path) == ['job.yaml']
    assert complete(scripts, 'mfl', 'pki', 're') == ['renew', 'revoke']
    assert complete(scripts, 'mfl', 'run', '--out', 'jo', cwd=tmp_path) == ['jobs']
    assert complete(scripts, 'mfl', 'presets', 'lene') == ['lenet5']
    assert complete(scripts, 'mfl', 'help', 'tl') == ['tls']
    assert complete(scripts, 'mfl-server', '--log-level', '') == ['error', 'warning', 'info', 'debug']
    assert complete(scripts, 'mfl-server', '--insecure-l') == ['--insecure-listen']
    assert complete(scripts, 'mfl-client', '--collective', 'n') == ['nccl']
    assert complete(scripts, 'mfl-client', '--share-dir', 'jo', cwd=tmp_path) == ['jobs']
    assert sorted(complete(scripts, 'mfl-client', '--config', 'jo', cwd=tmp_path)) == ['job.yaml', 'jobs']


def test_completion_of_names(scripts, tmp_path):
    """Jobs and daemons of the server that the line or the environment names; without one, silence."""
    with h.start_cluster(str(tmp_path), daemons=1) as c:
        job = c.submit(rounds=1)
        host, port = c.server.address.rsplit(':', 1)
        env = {'MFL_SERVER': c.server.address}
        assert complete(scripts, 'mfl', 'show', '', env=env) == ['last', job]
        assert complete(scripts, 'mfl', '--server', host, ':', port, 'show', 'j-') == [job]
        assert complete(scripts, 'mfl', '--server', '=', host, ':', port, 'pull', 'j-') == [job]
        c.wait_daemons(1)
        assert complete(scripts, 'mfl', 'drain', '', env=env) == ['d1']
        assert complete(scripts, 'mfl', 'daemons', 'disable', '', env=env) == ['d1']
        for rule in (('disable', 'x*'), ('disable', 'cn:y-*'), ('allow', 'd?')):
            c.mfl('daemons', *rule)
        assert complete(scripts, 'mfl', '--server', c.server.address, 'daemons', 'enable', '') == ['cn:y-\\*', 'x\\*']
        assert complete(scripts, 'mfl', 'daemons', 'enable', 'cn', ':', 'y', env=env) == ['y-\\*']
        assert complete(scripts, 'mfl', 'daemons', 'enable', 'cn', ':', env=env) == ['y-\\*']
        assert complete(scripts, 'mfl', 'daemons', 'disallow', '', env=env) == ['d\\?']
        assert complete(scripts, 'mfl', 'daemons', 'rules', '', env=env) == []
    assert complete(scripts, 'mfl', 'show', '', env={'MFL_SERVER': '127.0.0.1:9'}) == ['last']


def test_completion_runs_nothing_that_a_server_says(scripts, tmp_path):
    """compgen -W expands words as the shell does: names from a server that means no good must not get that far."""
    bad = tmp_path / 'mfl'
    bad.write_text("""#!/bin/sh
echo '{"jobs":[{"job":"$(touch ran)"},{"job":"j-000001"}],"daemons":[{"name":"`touch ran`","node":"n"},{"name":"d1","node":"n"}]}'
""")
    bad.chmod(0o755)
    script = '. "$1"; COMP_WORDS=("$2" "$3" ""); COMP_CWORD=2; _mfl; printf "%s\\n" "${COMPREPLY[@]}"'
    for command, offered in (('show', ['last', 'j-000001']), ('drain', ['d1'])):
        done = subprocess.run(['bash', '--norc', '-uc', script, 'bash', str(scripts / 'mfl'), str(bad), command], capture_output=True,
                              text=True, timeout=30, cwd=tmp_path, check=True)
        assert done.stdout.split() == offered and not done.stderr, done
    assert not (tmp_path / 'ran').exists()
