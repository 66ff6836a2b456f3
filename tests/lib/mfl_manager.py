# SPDX-License-Identifier: Apache-2.0
"""A service manager as services see it: what they tell by $NOTIFY_SOCKET."""
import os
import socket

import mfl_harness as h


class Manager:
    """Receives what services tell, line by line. Who waits for something else must poll: a full socket makes them wait."""

    def __init__(self, directory):
        self.path = os.path.join(str(directory), 'notify')
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []

    def env(self, watchdog_ms=0, **more):
        env = {'NOTIFY_SOCKET': self.path, **more}
        if watchdog_ms:
            env['WATCHDOG_USEC'] = str(watchdog_ms * 1000)
        return env

    def poll(self):
        self.socket.settimeout(0)
        while True:
            try:
                self.heard += self.socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def wait(self, what, timeout=20):
        """The first line from here on that begins with it; what came before is forgotten."""
        def found():
            self.poll()
            for i, line in enumerate(self.heard):
                if line.startswith(what):
                    del self.heard[:i + 1]
                    return line
            return None
        try:
            return h.wait_until(found, timeout, what)
        except TimeoutError as e:
            raise TimeoutError('%s; heard: %s' % (e, self.heard[-20:])) from None

    def forget(self):
        self.poll()
        self.heard.clear()
