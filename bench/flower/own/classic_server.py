# SPDX-License-Identifier: Apache-2.0
"""Classic API, server: python -m own.classic_server PORT ROUNDS CLIENTS"""

import sys

from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from own import work


def main(port, rounds, clients):
    clients = int(clients)
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_evaluate_clients=0,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(work.initial()),
        on_fit_config_fn=lambda server_round: {"round": server_round},
        evaluate_fn=lambda server_round, arrays, config: work.committed(server_round),
    )
    start_server(server_address=f"127.0.0.1:{port}", config=ServerConfig(num_rounds=int(rounds)), strategy=strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
