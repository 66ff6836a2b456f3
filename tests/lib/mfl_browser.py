# SPDX-License-Identifier: Apache-2.0
"""A browser that a test drives: headless Chromium, told over a pipe (https://chromedevtools.github.io/devtools-protocol/)."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import mfl_harness
from mfl_pages import CHROMIUM

KEYS = {'Tab': (9, ''), 'Enter': (13, '\r'), ' ': (32, ' ')}
# What the browser answers of an expression whose page was left while it was worked out: a redirect came.
LEFT = {'Inspected target navigated or closed', 'Execution context was destroyed.', 'Cannot find context with specified id'}


class PageLeft(Exception):
    pass


class Browser:
    """One page. What its console says, and requests that failed, are in `said`."""

    def __init__(self, folder, width=1200, height=900):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def place():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)
        theirs_in, theirs_out = [os.dup(fd) if fd < 5 else fd for fd in (theirs_in, theirs_out)]
        self.profile = tempfile.mkdtemp(prefix='mfl-browser-')  # its binary logs are not for a test's report
        with open(os.path.join(folder, 'browser.log'), 'wb') as log:
            self.process = subprocess.Popen(
                [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe', '--disable-dev-shm-usage',
                 '--user-data-dir=' + self.profile, 'about:blank'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=place, env={**os.environ, 'HOME': folder})
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write, self.rest, self.number, self.session, self.said = ours_in, ours_out, b'', 0, None, []
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(domain + '.enable')
        self.call('Emulation.setScrollbarsHidden', hidden=True)
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
        os.close(self.read)
        os.close(self.write)

    def _next(self, until):
        while b'\0' not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0, until - time.monotonic()))
            assert ready, 'the browser does not answer'
            more = os.read(self.read, 1 << 16)
            assert more, 'the browser has ended'
            self.rest += more
        text, self.rest = self.rest.split(b'\0', 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        os.write(self.write, json.dumps(message).encode() + b'\0')
        until = time.monotonic() + 60
        while True:
            answer = self._next(until)
            if answer.get('method') == 'Runtime.exceptionThrown':
                self.said.append(answer['params']['exceptionDetails'].get('exception', {}).get('description', 'an exception'))
            if answer.get('method') == 'Log.entryAdded' and answer['params']['entry']['level'] == 'error':
                self.said.append(answer['params']['entry']['text'])
            if answer.get('method') == 'Page.javascriptDialogOpening':
                self.number += 1
                os.write(self.write, json.dumps({'id': self.number, 'method': 'Page.handleJavaScriptDialog', 'params': {'accept': True},
                                                 'sessionId': self.session}).encode() + b'\0')
            if answer.get('id') == message['id']:
                if answer.get('error', {}).get('message') in LEFT:
                    raise PageLeft(answer['error']['message'])
                assert 'error' not in answer, (method, answer)
                return answer['result']

    def resize(self, width, height=900):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)

    def go(self, url):
        self.call('Page.navigate', url=url)

    def eval(self, code):
        result = self.call('Runtime.evaluate', expression=code, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in result, (code, result)
        return result['result'].get('value')

    def wait(self, code, what, timeout=20):
        """Until the expression is true; an element is, and while a page loads nothing is."""
        code = '(() => { try { const v = %s; return v instanceof Node || v; } catch (e) { return null; } })()' % code

        def seen():
            try:
                return self.eval(code)
            except PageLeft:
                return None

        return mfl_harness.wait_until(seen, timeout, what)

    def key(self, name):
        code, text = KEYS[name]
        for kind in ('keyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=name, windowsVirtualKeyCode=code, text=text if kind == 'keyDown' else '')

    def type(self, text):
        self.call('Input.insertText', text=text)

    def picture(self, path):
        """A screenshot of the whole page, as a PNG."""
        data = base64.b64decode(self.call('Page.captureScreenshot', format='png', captureBeyondViewport=True)['data'])
        with open(path, 'wb') as f:
            f.write(data)
        return data

    def landmarks(self):
        """Roles and names, as a screen reader has them."""
        nodes = self.call('Accessibility.getFullAXTree')['nodes']
        return [(n['role']['value'], n.get('name', {}).get('value', '')) for n in nodes if not n.get('ignored')]
