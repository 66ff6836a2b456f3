# SPDX-License-Identifier: Apache-2.0
"""Deployment, client: one message is one client's round. The process keeps its data and its network where Flower
keeps the process."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fashion import task

torch.set_num_threads(1)
app = ClientApp()
_net = []


@app.train()
def train(message, context):
    run, order = context.run_config, message.content["config"]
    arrays, samples = message.content["arrays"], 1
    if not run["parameters"]:
        if not _net:
            _net.append(task.new_net())
        task.set_weights(_net[0], arrays.to_numpy_ndarrays())
        samples = task.train(_net[0], run["data"], run["clients"], order["client"], order["server-round"])
        arrays = ArrayRecord(task.get_weights(_net[0]))
    metrics = MetricRecord({"num-examples": samples})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
