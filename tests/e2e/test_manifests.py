# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes and deploy/container without a cluster: every file is there and used, every patch has a target, what is
referred to exists, the programs take the arguments and files; and, where they can be had, what kustomize makes of it is valid by
the published schemas.
"""
import base64
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
import mfl_harness as h  # noqa: E402
import mfl_needs  # noqa: E402

yaml = mfl_needs.module('yaml')

DEPLOY = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'deploy'))
KUBERNETES, CONTAINER = os.path.join(DEPLOY, 'kubernetes'), os.path.join(DEPLOY, 'container')
OVERLAYS, COMPONENTS = ('cpu', 'gpu', 'site'), ('servers', 'monitoring', 'drain')
# Made by an administrator with `mfl pki` and kubectl: the README tells how.
SECRETS = {'mfl-server-tls', 'mfl-client-tls', 'mfl-drain-tls', 'mfl-relay-tls'}
NODES = ('node7', 'node8.example.org')


def load(path):
    with open(path, encoding='utf-8') as f:
        return [d for d in yaml.safe_load_all(f) if d]


def ident(doc):
    return doc['kind'], doc['metadata']['name']


class Kustomization:
    """What kustomize would read; it is only resolved, not applied. used: all files that it names."""

    def __init__(self, folder, used=None, below=None):
        self.folder, self.used = folder, used if used is not None else set()
        path = self.file('kustomization.yaml')
        self.doc, = load(path)
        self.resources = dict(below or {})
        for name in self.doc.get('resources', []):
            target = os.path.normpath(os.path.join(folder, name))
            if os.path.isdir(target):
                self.add(Kustomization(target, self.used).resources.values())
            else:
                self.add(load(self.file(name)))
        for generator in self.doc.get('configMapGenerator', []):
            data = {}
            for entry in generator['files']:
                key, _, name = entry.rpartition('=')
                with open(self.file(name), encoding='utf-8') as f:
                    data[key or os.path.basename(name)] = f.read()
            if generator.get('behavior') == 'replace':
                assert ('ConfigMap', generator['name']) in self.resources
                del self.resources['ConfigMap', generator['name']]
            self.add([{'kind': 'ConfigMap', 'metadata': {'name': generator['name']}, 'data': data}])
        for patch in self.doc.get('patches', []):
            targets = [ident(d) for d in load(self.file(patch['path']))] if 'path' in patch else \
                [(patch['target']['kind'], patch['target']['name'])]
            for target in targets:
                assert target in self.resources, '%s patches %s, which is not there' % (path, target)
            if 'patch' in patch:
                assert all(step['op'] in ('add', 'replace', 'remove') for step in yaml.safe_load(patch['patch']))
        for name in self.doc.get('components', []):
            Kustomization(os.path.normpath(os.path.join(folder, name)), self.used, self.resources)

    def file(self, name):
        path = os.path.join(self.folder, name)
        assert os.path.isfile(path), '%s names %s, which is not there' % (self.folder, name)
        self.used.add(os.path.normpath(path))
        return path

    def add(self, docs):
        for doc in docs:
            assert ident(doc) not in self.resources, '%s is there twice' % (ident(doc),)
            self.resources[ident(doc)] = doc


def overlay(name):
    return Kustomization(os.path.join(KUBERNETES, 'overlays', name))


def with_components(tmp_path):
    """The gpu overlay with all components, as an administrator would make it."""
    copy = os.path.join(tmp_path, 'kubernetes')
    shutil.copytree(KUBERNETES, copy)
    path = os.path.join(copy, 'overlays', 'gpu', 'kustomization.yaml')
    with open(path, 'a', encoding='utf-8') as f:
        f.write('components: [%s]\n' % ', '.join('../../components/' + c for c in COMPONENTS))
    return os.path.dirname(path), copy


@pytest.fixture(scope='module')
def nodes(tmp_path_factory):
    """What node.sh makes for a node with GPUs and one without: the folder of the overlay, and the secrets."""
    folder = tmp_path_factory.mktemp('nodes')
    copy, pki = folder / 'kubernetes', str(folder / 'pki')
    shutil.copytree(KUBERNETES, copy)
    h.mfl('pki', 'init', '--dir', pki)
    h.mfl('pki', 'issue', 'server', '--host', 'localhost', '--dir', pki)

    def run(*argv):
        return subprocess.run([copy / 'node.sh', '--pki', pki, *argv], capture_output=True, text=True, timeout=20, check=False,
                              env={'PATH': os.environ['PATH'], 'MFL': h.program('mfl')})
    for wrong in ('server', 'Node7', '--gpus=8'):
        done = run(wrong)
        assert done.returncode == 2 and wrong in done.stderr and not done.stdout, done
    first, second = run('--gpus', '8', '--drain', NODES[0]), run('--cpus', '6', '--tag', '1.2', NODES[1])
    assert first.returncode == 0 and second.returncode == 0, first.stderr + second.stderr
    # A node that has its certificate keeps it.
    assert run('--gpus', '8', '--drain', NODES[0]).stdout == first.stdout
    return copy / 'overlays' / 'nodes', first.stdout + second.stdout, folder / 'pki'


def test_each_node_has_a_secret_of_its_own(nodes):
    folder, text, pki = nodes
    secrets = {d['metadata']['name']: d['data'] for d in yaml.safe_load_all(text)}
    assert set(secrets) == {'mfl-client-tls-' + node for node in NODES}
    for node in NODES:
        there = {'ca.pem': 'ca.pem', node + '.pem': 'cert.pem', node + '.key': 'key.pem'}
        assert {k: base64.b64decode(v) for k, v in secrets['mfl-client-tls-' + node].items()} == \
            {k: (pki / 'issued' / node / v).read_bytes() for k, v in there.items()}
        daemons = folder / 'daemons' / node
        Kustomization(str(daemons))
        patch, = load(daemons / 'client.yaml')
        assert [v['secret']['secretName'] for v in pod(patch)['volumes']] == ['mfl-client-tls-' + node]
    assert not any(b'PRIVATE KEY' in p.read_bytes() for p in folder.glob('**/*') if p.is_file())


def test_kustomize_builds_a_daemon_set_for_each_node(nodes):
    docs, _ = build(nodes[0])
    found = {d['metadata']['name']: d for d in docs if d['kind'] == 'DaemonSet'}
    assert set(found) == {'mfl-client-' + node for node in NODES}
    maps = {d['metadata']['name'] for d in docs if d['kind'] == 'ConfigMap'}
    for node in NODES:
        doc = found['mfl-client-' + node]
        spec = pod(doc)
        terms = spec['affinity']['nodeAffinity']['requiredDuringSchedulingIgnoredDuringExecution']['nodeSelectorTerms']
        assert terms == [{'matchFields': [{'key': 'metadata.name', 'operator': 'In', 'values': [node]}]}]
        assert doc['spec']['selector']['matchLabels']['mfl.node'] == node
        assert not spec.get('nodeSelector') and spec['serviceAccountName'] == 'mfl'
        sources = {v['name']: v for v in spec['volumes']}
        assert sources['tls']['secret'] == {'secretName': 'mfl-client-tls-' + node, 'defaultMode': 0o440}
        assert sources['config']['configMap']['name'] in maps
    gpu, cpu = (pod(found['mfl-client-' + node])['containers'][0] for node in NODES)
    assert gpu['command'] == ['mfl-client', '--all-gpus'] and gpu['resources']['limits']['nvidia.com/gpu'] == 8
    assert gpu['image'] == 'registry.example.org/mfl-client-cuda:latest' and 'preStop' in gpu['lifecycle']
    assert cpu['command'] == ['mfl-client', '--gpu=none', '--workers=6'] and 'nvidia.com/gpu' not in cpu['resources']['limits']
    assert cpu['image'] == 'registry.example.org/mfl-client:1.2' and 'lifecycle' not in cpu


def test_every_file_is_used_and_every_patch_has_a_target(tmp_path):
    used = set()
    for name in OVERLAYS:
        used |= overlay(name).used
    folder, copy = with_components(tmp_path)
    used |= {p.replace(copy, KUBERNETES) for p in Kustomization(folder).used}
    there = {p for p in glob.glob(KUBERNETES + '/**/*.yaml', recursive=True)}
    assert used == there, 'left out: %s' % sorted(there - used)


def pod(doc):
    return doc['spec']['template']['spec']


@pytest.mark.parametrize('name,top', [('gpu', ('StatefulSet', 'mfl-server')), ('site', ('Deployment', 'mfl-relay'))])
def test_what_is_referred_to_is_there(name, top):
    resources = overlay(name).resources
    pods = {key: doc for key, doc in resources.items() if key[0] in ('StatefulSet', 'DaemonSet', 'Deployment')}
    assert set(pods) == {top, ('DaemonSet', 'mfl-client')}
    labels = []
    for doc in pods.values():
        spec, labels_of = pod(doc), doc['spec']['template']['metadata']['labels']
        labels.append(labels_of)
        assert doc['spec']['selector']['matchLabels'].items() <= labels_of.items()
        assert ('ServiceAccount', spec['serviceAccountName']) in resources
        volumes = {v['name'] for v in spec['volumes']} | \
            {v['metadata']['name'] for v in doc['spec'].get('volumeClaimTemplates', [])}
        mounts = {m['name'] for c in spec['containers'] for m in c['volumeMounts']}
        assert mounts == volumes
        for volume in spec['volumes']:
            if 'configMap' in volume:
                assert ('ConfigMap', volume['configMap']['name']) in resources
            assert volume.get('secret', {}).get('secretName', 'mfl-server-tls') in SECRETS
        for container in spec['containers']:
            security = container['securityContext']
            assert security['readOnlyRootFilesystem'] and not security['allowPrivilegeEscalation']
            assert security['capabilities'] == {'drop': ['ALL']} and 'memory' in container['resources']['limits']
        assert spec['securityContext']['runAsNonRoot'] and spec['securityContext']['seccompProfile'] == {'type': 'RuntimeDefault'}
    for (kind, name), doc in resources.items():
        selector = {'Service': lambda d: d['spec']['selector'], 'NetworkPolicy': lambda d: d['spec']['podSelector']['matchLabels'],
                    'PodDisruptionBudget': lambda d: d['spec']['selector']['matchLabels']}.get(kind)
        assert not selector or any(selector(doc).items() <= one.items() for one in labels), (kind, name)
    assert ('Service', resources[top]['spec'].get('serviceName', top[1])) in resources
    with open(os.path.join(KUBERNETES, 'README.md'), encoding='utf-8') as f:
        readme = f.read()
    assert all(secret in readme for secret in SECRETS)


def test_the_programs_take_what_the_manifests_give_them(tmp_path):
    """Up to the certificates, which are not there: unknown keys or options would be found before."""
    resources = overlay('cpu').resources
    for kind in ('server', 'client'):
        (tmp_path / (kind + '.yaml')).write_text(resources['ConfigMap', 'mfl-' + kind]['data'][kind + '.yaml'])

    def run(name, argv):
        argv = [a.replace('/etc/mfl/', str(tmp_path) + '/').replace('$(NODE_NAME)', 'node7').replace('$(CPUS)', '2')
                .replace('/etc/mfl-tls', '/nonexistent') for a in argv]
        return subprocess.run([h.program(name), *argv], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False,
                              env={'PATH': os.environ['PATH']})
    server = pod(resources['StatefulSet', 'mfl-server'])['containers'][0]
    with open(tmp_path / 'server.yaml', 'r+', encoding='utf-8') as f:
        text = f.read().replace('/etc/mfl-tls', '/nonexistent').replace('/var/lib/mfl', str(tmp_path))
        f.seek(0)
        f.write(text)
        f.truncate()
    done = run('mfl-server', server['args'])
    assert done.returncode == 78 and '/nonexistent' in done.stderr, done.stderr
    base = pod(resources['DaemonSet', 'mfl-client'])['containers'][0]
    patch, = load(os.path.join(KUBERNETES, 'overlays', 'cpu', 'client.yaml'))
    command = pod(patch)['containers'][0]['command']
    assert command[0] == 'mfl-client'
    done = run('mfl-client', command[1:] + base['args'])
    assert done.returncode == 78 and '/nonexistent/' in done.stderr, done.stderr
    for probe in ('startupProbe', 'livenessProbe', 'readinessProbe'):
        argv = server[probe]['exec']['command']
        assert argv[0] == 'mfl' and server[probe]['timeoutSeconds'] > 4
        assert 'Connection refused' in h.mfl(*argv[1:], '127.0.0.1:9', status=3).stderr


def test_a_relay_of_a_site(tmp_path):
    """mfl-server takes the relay's file, up to the certificates; daemons know the relay's service, and the relay alone leaves the cluster."""
    docs = {ident(d): d for d in build(os.path.join(KUBERNETES, 'overlays', 'site'))[0]}
    maps = {name.rsplit('-', 1)[0]: d['data'] for (kind, name), d in docs.items() if kind == 'ConfigMap'}
    relay = yaml.safe_load(maps['mfl-relay']['relay.yaml'])
    assert yaml.safe_load(maps['mfl-client']['client.yaml'])['server'] == 'mfl-relay:7433' and ('Service', 'mfl-relay') in docs
    (tmp_path / 'relay.yaml').write_text(maps['mfl-relay']['relay.yaml'].replace('/etc/mfl-tls', '/nonexistent'))
    argv = [a.replace('/etc/mfl/', str(tmp_path) + '/') for a in pod(docs['Deployment', 'mfl-relay'])['containers'][0]['args']]
    done = subprocess.run([h.program('mfl-server'), *argv], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 78 and '/nonexistent' in done.stderr, done.stderr
    assert docs['Deployment', 'mfl-relay']['spec']['strategy'] == {'type': 'Recreate'}  # two of one name refuse each other
    with open(os.path.join(KUBERNETES, 'README.md'), encoding='utf-8') as f:
        assert 'mfl pki issue relay %s --host mfl-relay --host mfl-relay.mfl.svc' % relay['name'] in f.read()
    out = {name: [rule.get('to') for rule in d['spec']['egress']] for (kind, name), d in docs.items() if kind == 'NetworkPolicy'}
    assert None in out['mfl-relay'] and None not in out['mfl-client']
    server = overlay('cpu').resources['NetworkPolicy', 'mfl-server']['spec']['ingress'][0]['from']
    assert {'namespaceSelector': {}, 'podSelector': {'matchLabels': docs['Service', 'mfl-relay']['spec']['selector']}} in server


def test_three_servers(tmp_path):
    """What kustomize makes of the component is what mfl-server takes, up to the certificates; etcd and servers know each other's names."""
    folder, _ = with_components(tmp_path)
    docs = {ident(d): d for d in build(folder)[0]}
    server, etcd = docs['StatefulSet', 'mfl-server'], docs['StatefulSet', 'mfl-etcd']
    assert server['spec']['replicas'] == etcd['spec']['replicas'] == 3
    container = pod(server)['containers'][0]
    assert all('exec' not in container[p] and container[p]['tcpSocket'] for p in ('startupProbe', 'livenessProbe', 'readinessProbe'))
    text = next(d for (kind, name), d in docs.items() if kind == 'ConfigMap' and name.startswith('mfl-server'))['data']['server.yaml']
    config = yaml.safe_load(text)
    names = ['mfl-server-%d' % i for i in range(3)]
    assert [one.partition('=')[0] for one in config['cluster']['servers']] == names
    assert all(one.partition('=')[2] == '%s.%s.mfl.svc:7433' % (one.partition('=')[0], server['spec']['serviceName'])
               for one in config['cluster']['servers'])
    assert config['cluster']['etcd'] == ['http://mfl-etcd-%d.%s:2379' % (i, etcd['spec']['serviceName']) for i in range(3)]
    (tmp_path / 'server.yaml').write_text(text.replace('/etc/mfl-tls', '/nonexistent').replace('/var/lib/mfl', str(tmp_path)))
    argv = [a.replace('/etc/mfl/', str(tmp_path) + '/').replace('/etc/mfl-tls', '/nonexistent') for a in container['args'] if 'http' not in a]
    for name, words in ((names[1], '/nonexistent'), ('mfl-server-3', 'has no mfl-server-3=HOST:PORT')):
        done = subprocess.run([h.program('mfl-server'), *(a.replace('$(POD_NAME)', name) for a in argv)], capture_output=True, text=True,
                              timeout=20, check=False)
        assert done.returncode == 78 and words in done.stderr, done.stderr


# ---- kustomize and the schemas ----

def build(folder):
    """The documents that kustomize makes of it; skips where there is none, or one that is too old for components."""
    for argv in (['kubectl', 'kustomize'], ['kustomize', 'build']):
        if not shutil.which(argv[0]):
            continue
        done = subprocess.run([*argv, folder], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode and 'unknown field' in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        return [d for d in yaml.safe_load_all(done.stdout) if d], done.stdout
    pytest.skip('neither kubectl (1.27 or newer) nor kustomize here; Debian has neither')
    return None


def container_of(docs, kind):
    return [pod(d)['containers'][0] for d in docs if d['kind'] == kind and d['metadata']['name'] != 'mfl-etcd'][0]


def test_kustomize_builds_the_overlays(tmp_path):
    for name in OVERLAYS:
        docs, _ = build(os.path.join(KUBERNETES, 'overlays', name))
        client = container_of(docs, 'DaemonSet')
        assert client['command'][0] == 'mfl-client' and '--name=$(NODE_NAME)' in client['args']
        assert client['resources']['limits'].get('nvidia.com/gpu', 0) == (8 if name == 'gpu' else 0)
        assert client['image'].startswith('registry.example.org/mfl-client')
        assert all(d['metadata'].get('namespace', 'mfl') == 'mfl' for d in docs)
        assert name == 'site' or '--insecure-http' not in container_of(docs, 'StatefulSet')['args']
    docs, _ = build(with_components(tmp_path)[0])
    assert container_of(docs, 'StatefulSet')['args'][-2:] == ['--http=0.0.0.0:7434', '--insecure-http']
    assert 'mfl drain "$name" --wait' in container_of(docs, 'DaemonSet')['lifecycle']['preStop']['exec']['command'][2]


@functools.lru_cache(None)
def validator():
    """A Python that has kubernetes_validate: this one, or one in the build folder, installed from PyPI once."""
    venv = os.path.join(h.BUILD, 'kubernetes-validate')
    own, whole = os.path.join(venv, 'bin', 'python'), os.path.join(venv, 'whole')
    for python in [sys.executable] + [own] * os.path.exists(whole):
        if os.path.exists(python) and \
                not subprocess.run([python, '-c', 'import kubernetes_validate'], capture_output=True, check=False).returncode:
            return python
    try:
        for argv in ([sys.executable, '-m', 'venv', '--clear', venv],
                     [own, '-m', 'pip', 'install', '-q', '--retries', '1', '--timeout', '10', 'kubernetes-validate==1.37.0']):
            subprocess.run(argv, check=True, capture_output=True, timeout=90)
        # What was broken off has some versions' schemas and not others.
        with open(whole, 'w', encoding='ascii'):
            pass
    except (subprocess.SubprocessError, OSError) as e:
        pytest.skip('kubernetes-validate can not be installed here, which takes PyPI and python3-venv: %s' % e)
    return own


VALIDATE = '''
import json, sys, yaml, kubernetes_validate as k
unknown = []
for doc in yaml.safe_load_all(open(sys.argv[2])):
    try:
        k.validate(doc, sys.argv[1], strict=True)
    except k.SchemaNotFoundError:
        unknown.append(doc["kind"])
print(json.dumps(unknown))
'''


@pytest.mark.parametrize('version', ['1.29', '1.34'])
def test_schemas(tmp_path, nodes, version):
    folders = [os.path.join(KUBERNETES, 'overlays', name) for name in OVERLAYS] + [with_components(tmp_path)[0]]
    texts = [build(folder)[1] for folder in folders]
    python = validator()
    for i, text in enumerate([build(nodes[0])[1] + nodes[1]] + texts):
        path = tmp_path / ('%d.yaml' % i)
        path.write_text(text)
        done = subprocess.run([python, '-c', VALIDATE, version, path], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        # The Prometheus Operator's own kind is in no schema of Kubernetes.
        assert json.loads(done.stdout) == (['ServiceMonitor'] if i == len(texts) else [])
    broken = path.read_text().replace('serviceName: mfl-server-headless', 'serviceNam: mfl-server-headless')
    path.write_text(broken)
    assert subprocess.run([python, '-c', VALIDATE, version, path], capture_output=True, check=False, timeout=60).returncode


# ---- the drain hook ----

def test_drain_hook_drains_this_node_alone_and_takes_it_back(tmp_path):
    """Its shell text with a program `mfl` that tells what it was asked."""
    patch, = load(os.path.join(KUBERNETES, 'components', 'drain', 'client.yaml'))
    container = pod(patch)['containers'][0]
    command = container['lifecycle']['preStop']['exec']['command']
    listing = json.dumps({'daemons': [{'name': n, 'node': 'x', 'gpu': {'uuid': None}} for n in
                                      ('node7-gpu0', 'node70-gpu0', 'node7-gpu1', 'other-cpu')]}, separators=(',', ':'))
    (tmp_path / 'list').write_text(listing)
    (tmp_path / 'mfl').write_text('#!/bin/sh\n[ "$1" = daemons ] && exec cat %s/list\necho "$@" >>%s/said\n' % (tmp_path, tmp_path))
    os.chmod(tmp_path / 'mfl', 0o755)
    subprocess.run(command, check=True, timeout=20, env={'PATH': '%s:%s' % (tmp_path, os.environ['PATH']), 'NODE_NAME': 'node7',
                                                         'DRAIN_SECONDS': '5'})
    assert (tmp_path / 'said').read_text().splitlines() == \
        ['drain node7-gpu%d%s' % (i, more) for more in ('', ' --wait', ' --undo') for i in (0, 1)]


# ---- images ----

def test_containerfile_and_compose():
    with open(os.path.join(CONTAINER, 'Containerfile'), encoding='utf-8') as f:
        text = re.sub(r'\\\n', ' ', f.read())
    stages = re.findall(r'^FROM (\S+) AS (\S+)$', text, re.M)
    names = [name for _, name in stages]
    arguments = set(re.findall(r'^ARG (\w+)=', text, re.M))
    for base, name in stages:
        known = base in names[:names.index(name)] or base.strip('${}') in arguments
        assert known, 'stage %s is made from %s' % (name, base)
    assert {'server', 'client', 'client-cuda', 'cli'} <= set(names)
    for source in re.findall(r'--from=(\S+)', text):
        assert source in names
    for name in ('server', 'client', 'client-cuda', 'cli'):
        body = re.split(r'^FROM ', text, flags=re.M)[names.index(name) + 1]
        assert 'USER 10001:10001' in body and 'ENTRYPOINT' in body
    # Programs without the modules of their backends would train with plain loops.
    client, cuda = (re.split(r'^FROM ', text, flags=re.M)[names.index(n) + 1] for n in ('client', 'client-cuda'))
    assert '/install/usr/lib/mfl /usr/lib/mfl' in client and '--from=build-cuda /install/ /' in cuda
    compose, = load(os.path.join(CONTAINER, 'compose.yaml'))
    for name, service in compose['services'].items():
        assert service['build']['target'] in names and service['user'] == '10001:10001', name
        context = os.path.join(CONTAINER, service['build']['context'])
        assert os.path.isfile(os.path.join(context, service['build']['dockerfile']))
    h.mfl('check', os.path.join(CONTAINER, 'job.yaml'))
