# SPDX-License-Identifier: Apache-2.0
"""Deployment, server: FedAvg as it comes, with one message for each client, dealt out to the SuperNodes in turn."""

import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fashion import task
from fashion.report import Report

app = ServerApp()


class Clients(FedAvg):
    """More clients than SuperNodes: a message says which client to be."""

    def __init__(self, clients, nodes, **options):
        super().__init__(**options)
        self.clients, self.nodes = clients, nodes

    def configure_train(self, server_round, arrays, config, grid):
        while len(nodes := sorted(grid.get_node_ids())) < self.nodes:
            time.sleep(0.1)
        for client in range(self.clients):
            content = RecordDict(
                {
                    self.arrayrecord_key: arrays,
                    self.configrecord_key: ConfigRecord({"server-round": server_round, "client": client}),
                }
            )
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[client % len(nodes)])


@app.main()
def main(grid, context):
    config = context.run_config
    torch.set_num_threads(2)  # it evaluates while its clients wait
    out = Report(config["report"], config["parameters"], config["data"])

    def evaluate(server_round, arrays):
        result = out.evaluated(server_round, arrays.to_numpy_ndarrays())
        return None if result is None else MetricRecord({"accuracy": result})

    Clients(config["clients"], config["nodes"], fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial(config["parameters"])),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate,
    )
