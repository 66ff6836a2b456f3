# SPDX-License-Identifier: Apache-2.0
"""The dashboard's pages of registered models: after login, versions, validations by site as bars, and who serves which."""
import http.client
import json
import os
import struct

import numpy
import pytest

import mfl_harness as h
import mfl_needs
import mfl_serve as s
from mfl_browser import Browser
from mfl_pages import CHROMIUM, address_of


def ask(c, path, cookie=None):
    connection = http.client.HTTPConnection(address_of(c), timeout=20)
    connection.request('GET', path, headers={'Cookie': cookie} if cookie else {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def data_of(c, name, seed):
    """Two classes, which are told apart by the sign of a sum; each site's noise is another."""
    rng = numpy.random.default_rng(seed)
    arrays = {}
    for part, n in (('train', 60), ('test', 40)):
        x = rng.normal(size=(n, 4)).astype('float32')
        arrays['x_' + part], arrays['y_' + part] = x, (x.sum(1) + seed * rng.normal(size=n) > 0).astype('int64')
    path = os.path.join(c.dir, name + '.npz')
    numpy.savez(path, **arrays)
    return path


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
def test_models_in_a_browser(tmp_path):
    sites = ('clinic-east', 'clinic-west', 'hospital-a')
    with h.Cluster(tmp_path / 'cluster', {'http': '127.0.0.1:0'}) as c:
        c.start_server()
        for i, site in enumerate(sites):
            c.start_daemon(site, data=['ward=npz:' + data_of(c, site, i)])
        c.wait_daemons(3)
        job, _ = c.run_job(name='ward', model={'layers': [{'dense': {'units': 2}}]}, rounds=3, data={'name': 'ward', 'partition': 'local', 'clients': None},
                           training={'lr': 0.5, 'batch': 10, 'epochs': 3}, checkpoints={'keep': 3})
        for n in ('1', '3'):
            c.mfl('model', 'register', job, '--as', 'ward', '--round', n)
        c.mfl('model', 'alias', 'ward@champion', '2')
        reports = c.mfl_json('validate', 'ward@1', 'ward@2')['models']
        options = ('--server', c.address, '--follow', 'w=ward@champion')
        for path in ('/api/models', '/api/validations', '/api/serving'):
            assert ask(c, path)[0] == 401
        assert b'mfl model reports' in ask(c, '/models')[1]
        with s.Serve(tmp_path, config={'cache_dir': str(tmp_path / 'cache')}, options=options) as serve, Browser(str(tmp_path)) as browser:
            for _ in range(20):
                assert s.infer(serve.connect(), 'w', s.question([[1.0, 2.0, 3.0, 4.0]]))[0] == 200
            browser.go('http://%s/models' % address_of(c))
            browser.wait("document.querySelector('#models').textContent.includes('after login')", 'the page without a login')
            browser.go(c.mfl_json('login', 'issue')['url'])
            browser.wait("document.getElementById('who').textContent.includes('local')", 'the login')
            browser.go('http://%s/models' % address_of(c))
            browser.wait("[...document.querySelectorAll('#models td')].map((e) => e.textContent).join('|').startsWith('ward|2|champion: 2|')", 'the list')
            browser.picture(str(tmp_path / 'models.png'))
            browser.eval("document.querySelector('#models td a').focus()")
            browser.key('Enter')
            browser.wait("document.querySelectorAll('#versions tbody tr').length === 2", 'the versions')
            browser.wait("document.querySelectorAll('#validations .bars rect').length === 8", 'a bar for each site, and all, of each version')
            texts = browser.eval("[...document.querySelectorAll('#validations .bars text')].map((e) => e.textContent).join('|')").split('|')
            sites_told = [{one['site']: one['accuracy'] for one in r['sites']} for r in reports]
            expected = [text for site in sites for text in (site, *['%.4f' % told[site] for told in sites_told])]
            assert texts == expected + ['all', *['%.4f' % r['all']['accuracy'] for r in reports]]
            browser.wait("document.querySelector('#serving tbody tr').textContent.includes('ward@2') && "
                         "document.querySelector('#serving tbody tr').children[4].textContent === '20' && "
                         "document.querySelector('#serving tbody tr').children[7].textContent.endsWith(' ms')", 'the server')
            for width in (1200, 800, 400):
                browser.resize(width)
                roles = browser.landmarks()
                assert {'banner', 'main', 'contentinfo', 'navigation'} <= {role for role, _ in roles}
                assert {'ward', 'Validations by site', 'Served by'} <= {name for role, name in roles if role == 'heading'}, roles
                assert all(name for role, name in roles if role in ('button', 'textbox', 'link', 'searchbox', 'combobox'))
                assert browser.eval('document.documentElement.scrollWidth') <= width
                data = browser.picture(str(tmp_path / 'model.png'))
                assert struct.unpack('>I', data[16:20])[0] == width and len(data) > 5000
            serve.kill()
            browser.wait("document.querySelector('#serving .note').textContent.includes('No mfl-serve')", 'the end of the server')
            assert not [said for said in browser.said if '401' not in said], browser.said
