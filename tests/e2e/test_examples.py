# SPDX-License-Identifier: Apache-2.0
"""The examples: the gallery lists all of them, each is valid, each trains, and each says how to get its data."""
import json
import os
import re
import subprocess
import zipfile

import pytest

import mfl_harness as h
import mfl_needs

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
EXAMPLES = os.path.join(ROOT, 'examples')
JOBS = sorted(name for name in os.listdir(EXAMPLES) if name.endswith('.yaml'))
FASHION = '/usr/share/datasets/fashion-mnist'
# Made-up data of the same shape and number of classes, few enough that a round takes seconds: training and test samples.
STAND_INS = {'fashion-mnist': 'fashion-mnist=synthetic:1,28,28:10:%d:%d:1', 'cifar10': 'cifar10=synthetic:3,32,32:10:%d:%d:1'}
SAMPLES = {'demo.yaml': (100, 10), 'custom-graph.yaml': (64, 10), 'residual.yaml': (200, 10), 'dirichlet-fedadam.yaml': (6000, 20), 'private.yaml': (4000, 20)}

# What `mfl run` does not have: certificates, policies.
NEED_MORE = {'secure.yaml': 'secure_sum: needs TLS', 'private-sites.yaml': 'give this daemon a place for it, policy: {dir: DIR}'}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as f:
        return f.read()


def data_of(job):
    return re.search(r'^data:\s*(?:\{|\n  )name: ([\w-]+)', read('examples', job), re.M)[1]


def run(*argv, **more):
    return subprocess.run([h.program('mfl'), *argv], capture_output=True, text=True, timeout=300, check=False, cwd=more.get('cwd', ROOT))


def test_gallery_lists_every_file():
    rows = re.findall(r'^\| \[(.+?)\]\((.+?)\) \| (.+?) \| (.+?) \| (.+?) \|$', read('examples', 'README.md'), re.M)
    assert [row[0] for row in rows] == [row[1] for row in rows] and all(all(row) for row in rows)
    assert sorted(row[0] for row in rows) == JOBS


def test_gallery_names_every_data_set():
    gallery = read('examples', 'README.md')
    assert not [job for job in JOBS if '`%s`' % data_of(job) not in gallery]


@pytest.mark.parametrize('job', JOBS)
def test_is_valid(job):
    done = run('check', 'examples/' + job)
    assert done.returncode == 0 and done.stdout.startswith('examples/%s: valid' % job) and not done.stderr, done.stderr


@pytest.mark.parametrize('job', [job for job in JOBS if data_of(job) != 'fashion-mnist'])
def test_missing_data_has_one_command(tmp_path, job):
    """A run without its data prints the command that gets them and the option for them; the gallery has the same two."""
    done = run('run', 'examples/' + job, '--out', str(tmp_path / 'out'))
    said = re.search(r"data set is '%s'; this command gets it: (.+) -- then add (--data \S+)$" % data_of(job), done.stderr, re.M)
    assert done.returncode == 4 and said, done.stderr
    gallery = read('examples', 'README.md').replace('\\|', '|')
    assert '`%s`' % said[1] in gallery and '`%s`' % said[2] in gallery
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('job', [job for job in JOBS if data_of(job) == 'fashion-mnist'])
def test_fits_its_data(job):
    if not os.path.isdir(FASHION):
        pytest.skip(mfl_needs.lack('Fashion-MNIST'))
    done = run('check', 'examples/' + job, '--data', 'fashion-mnist=idx:' + FASHION)
    assert done.returncode == 0 and '60000 for training' in done.stdout, done.stderr


def npy(shape, data):
    header = ("{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % (shape,)).ljust(117) + '\n'
    return b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header.encode() + data


def write_scenes(path):
    """Pictures of the shape that segmentation.py makes: pixels are their class's grey, and some have no label."""
    with zipfile.ZipFile(path, 'w') as archive:
        for split, n in ('train', 40), ('test', 8):
            labels = bytes(i * i // 97 % 11 for i in range(n * 48 * 48))
            archive.writestr('x_%s.npy' % split, npy((n, 1, 48, 48), bytes(20 * label for label in labels)))
            archive.writestr('y_%s.npy' % split, npy((n, 48, 48), bytes(255 if i % 13 == 0 else label
                                                                        for i, label in enumerate(labels))))


def make_data(job, folder):
    name = data_of(job)
    if name in STAND_INS:
        return STAND_INS[name] % SAMPLES.get(job, (1000, 20))
    if name == 'scenes':
        write_scenes(folder / 'scenes.npz')
        return 'scenes=npz:%s,ignore_index=255' % (folder / 'scenes.npz')
    command = re.search(r'^\| `%s` \| `python3 examples/(\w+\.py) > [\w.]+` \| `--data (\S+)`' % name, read('examples', 'README.md'), re.M)
    if command:
        made = subprocess.run(['/usr/bin/python3', os.path.join(EXAMPLES, command[1])], capture_output=True, text=True, timeout=30,
                              check=True).stdout
        (folder / (name + '.csv')).write_text(made)
        return command[2].replace('csv:', 'csv:%s/' % folder, 1)
    assert name == 'shakespeare'
    speeches = ['SPEAKER %d:\n%s\n' % (k, 'To be, or not to be, that is question %d of many. ' % k * 4) for k in range(100)]
    (folder / 'input.txt').write_text('\n'.join(speeches))
    return 'shakespeare=text:%s,owner=speaker,test_fraction=0.5' % (folder / 'input.txt')


@pytest.mark.parametrize('job', JOBS)
def test_trains_a_round(tmp_path, job):
    text, n = re.subn(r'^rounds: \d+', 'rounds: 1', read('examples', job), flags=re.M)
    assert n == 1
    (tmp_path / job).write_text(text.replace('examples/', EXAMPLES + '/'))
    done = run('run', job, '--data', make_data(job, tmp_path), '--out', 'out', '--json', cwd=tmp_path)
    if job in NEED_MORE:
        assert done.returncode != 0 and NEED_MORE[job] in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['event'], result['state'], result['rounds']) == ('result', 'done', 1)
    assert (result['mean_iou'] is not None) == (job == 'segmentation.yaml')
    assert (tmp_path / 'out' / 'model.safetensors').stat().st_size > 100


def test_pictures_and_masks_as_files_give_the_same_model(tmp_path):
    if not os.path.isdir(FASHION):
        pytest.skip(mfl_needs.lack('Fashion-MNIST'))
    (tmp_path / 'job.yaml').write_text(read('examples', 'segmentation.yaml').replace('rounds: 8', 'rounds: 1'))
    models = []
    for made, option in re.findall(r'^#   python3 examples/segmentation\.py (\S+)\n#   mfl run \S+ --data (\S+)$', read('examples', 'segmentation.yaml'), re.M):
        subprocess.run(['/usr/bin/python3', os.path.join(EXAMPLES, 'segmentation.py'), made, FASHION, '40'], cwd=tmp_path, timeout=60, check=True)
        done = run('run', 'job.yaml', '--data', option, '--out', 'out-' + made, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        models.append((tmp_path / ('out-' + made) / 'model.safetensors').read_bytes())
    assert len(models) == 2 and models[0] == models[1]
    next((tmp_path / 'scenes' / 'train' / 'masks').iterdir()).unlink()
    done = run('check', 'job.yaml', '--data', option, cwd=tmp_path)
    assert done.returncode != 0 and 'there is no mask scenes/train/masks/' in done.stderr, done.stderr
