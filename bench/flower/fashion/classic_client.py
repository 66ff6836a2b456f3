# SPDX-License-Identifier: Apache-2.0
"""Classic API, several clients in one process, which trains one of them at a time:
python -m fashion.classic_client PORT CLIENTS PARAMETERS DATA CLIENT...

Each client has its own connection and thread. They share the network, the data set and a lock, so that a process never
uses more than its one core and its caches."""

import sys
import threading

import torch
from flwr.client import NumPyClient, start_client

from fashion import task

torch.set_num_threads(1)
LOCK = threading.Lock()


class Client(NumPyClient):
    def __init__(self, clients, parameters, data, client, net):
        self.clients, self.parameters, self.data, self.client, self.net = clients, parameters, data, client, net

    def fit(self, parameters, config):
        if self.parameters:
            return parameters, 1, {}
        with LOCK:
            task.set_weights(self.net, parameters)
            samples = task.train(self.net, self.data, self.clients, self.client, config["round"])
            return task.get_weights(self.net), samples, {}


def main(port, clients, parameters, data, *mine):
    parameters = int(parameters)
    net = None if parameters else task.new_net()
    if net:
        task.load(data, "train")

    def connect(client):
        numpy_client = Client(int(clients), parameters, data, int(client), net)
        start_client(server_address=f"127.0.0.1:{port}", client=numpy_client.to_client(), insecure=True)

    threads = [threading.Thread(target=connect, args=(client,)) for client in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
