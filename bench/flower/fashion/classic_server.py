# SPDX-License-Identifier: Apache-2.0
"""Classic API, server: python -m fashion.classic_server PORT ROUNDS CLIENTS PARAMETERS DATA REPORT"""

import sys

import flwr
import torch
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from fashion import task
from fashion.report import Report


def main(port, rounds, clients, parameters, data, report):
    clients, parameters = int(clients), int(parameters)
    torch.set_num_threads(2)  # it evaluates while its clients wait
    out = Report(report, parameters, data)

    def evaluate(server_round, arrays, config):
        result = out.evaluated(server_round, arrays)
        return (0.0, {}) if result is None else (0.0, {"accuracy": result})

    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_evaluate_clients=0,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(task.initial(parameters)),
        on_fit_config_fn=lambda server_round: {"round": server_round},
        evaluate_fn=evaluate,
    )
    start_server(
        server_address=f"127.0.0.1:{port}", config=ServerConfig(num_rounds=int(rounds)), strategy=strategy
    )


if __name__ == "__main__":
    print("flwr", flwr.__version__, "torch", torch.__version__, flush=True)
    main(*sys.argv[1:])
