# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of a server, asked by a test, and its pages as a browser makes them."""
import http.client
import os
import re
import shutil
import subprocess


def address_of(c):
    return re.findall(r'https?://([^/]+)/', c.server.log())[-1]  # of the last start


def request(c, path, method='GET', headers=None, timeout=10):
    """(status, headers, body)"""
    connection = http.client.HTTPConnection(address_of(c), timeout=timeout)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def get(c, path):
    status, _, body = request(c, path)
    assert status == 200, (path, status, body)
    return body.decode('utf-8')


# ---- a browser ----

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')


def browse(c, path, width, folder):
    """The page as a browser has made it, after a few turns, at a width; and what its console said."""
    done = subprocess.run([CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--enable-logging=stderr', '--v=0',
                           '--user-data-dir=' + os.path.join(folder, 'browser'), '--window-size=%d,1600' % width, '--virtual-time-budget=5000',
                           '--dump-dom', 'http://%s%s' % (address_of(c), path)],
                          text=True, capture_output=True, timeout=60, check=False, env={**os.environ, 'HOME': folder})
    return done.stdout, [line for line in done.stderr.split('\n') if 'CONSOLE' in line]


def section_of(page, name):
    start = page.index('<section id="%s"' % name)
    return page[start:page.index('</section>', start)]
