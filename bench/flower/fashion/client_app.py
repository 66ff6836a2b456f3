# SPDX-License-Identifier: Apache-2.0
"""Deployment, client: one message is one round of all clients that the SuperNode hosts, trained one after another. Their
mean goes back, weighted by samples, as the server would weight them."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fashion import task

torch.set_num_threads(1)
app = ClientApp()


def train_hosted(run, order, start):
    net, total, mean = task.new_net(), 0, None
    for client in order["hosted"]:
        task.set_weights(net, start)
        samples = task.train(net, run["data"], run["clients"], client, order["server-round"])
        total += samples
        weights = task.get_weights(net)
        if mean is None:
            mean = weights
        else:
            for so_far, new in zip(mean, weights):
                so_far += (new - so_far) * (samples / total)
    return mean, total


@app.train()
def train(message, context):
    run, order = context.run_config, message.content["config"]
    arrays, samples = message.content["arrays"], 1
    if not run["parameters"]:
        mean, samples = train_hosted(run, order, arrays.to_numpy_ndarrays())
        arrays = ArrayRecord(mean)
    metrics = MetricRecord({"num-examples": samples})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
