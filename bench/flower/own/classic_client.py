# SPDX-License-Identifier: Apache-2.0
"""Classic API, all clients in one process, which trains one of them at a time: python -m own.classic_client PORT CLIENTS"""

import sys
import threading

from flwr.client import NumPyClient, start_client

from own import work

LOCK = threading.Lock()


class Client(NumPyClient):
    def __init__(self, client):
        self.client = client

    def fit(self, parameters, config):
        with LOCK:
            arrays, n = work.train(parameters, self.client, config["round"])
        return arrays, n, {}


def main(port, clients):
    def connect(client):
        start_client(server_address=f"127.0.0.1:{port}", client=Client(client).to_client(), insecure=True)

    threads = [threading.Thread(target=connect, args=(client,)) for client in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
