# SPDX-License-Identifier: Apache-2.0
"""Deployment, server: FedAvg as it comes. A SuperNode gets one message a round and hosts its share of the clients:
Flower starts a process for each message, so a message for each client would cost a start of Python and PyTorch for each."""

import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fashion import task
from fashion.report import Report

app = ServerApp()


class Nodes(FedAvg):
    """Tells each SuperNode which clients it hosts."""

    def __init__(self, clients, nodes, **options):
        super().__init__(**options)
        self.clients, self.nodes = clients, nodes

    def configure_train(self, server_round, arrays, config, grid):
        while len(nodes := sorted(grid.get_node_ids())) < self.nodes:
            time.sleep(0.1)
        messages = []
        for i, node in enumerate(nodes):
            order = ConfigRecord({"server-round": server_round, "hosted": list(range(i, self.clients, len(nodes)))})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: order})
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node))
        return messages


@app.main()
def main(grid, context):
    config = context.run_config
    torch.set_num_threads(2)  # it evaluates while its clients wait
    out = Report(config["report"], config["parameters"], config["data"])

    def evaluate(server_round, arrays):
        result = out.evaluated(server_round, arrays.to_numpy_ndarrays())
        return None if result is None else MetricRecord({"accuracy": result})

    Nodes(config["clients"], config["nodes"], fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial(config["parameters"])),
        num_rounds=config["rounds"],
        evaluate_fn=evaluate,
    )
