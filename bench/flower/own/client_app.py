# SPDX-License-Identifier: Apache-2.0
"""Deployment, client: one message is one round of all clients, trained one after another; their mean goes back. A process for each
message is Flower's way, so that a message for each client would cost a start of Python and PyTorch for each."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own import work

app = ClientApp()


@app.train()
def train(message, context):
    order, start = message.content["config"], message.content["arrays"].to_numpy_ndarrays()
    total, mean = 0, None
    for client in order["hosted"]:
        arrays, n = work.train([array.copy() for array in start], client, order["server-round"])
        total += n
        if mean is None:
            mean = arrays
        else:
            for so_far, new in zip(mean, arrays):
                so_far += (new - so_far) * (n / total)
    content = RecordDict({"arrays": ArrayRecord(mean), "metrics": MetricRecord({"num-examples": total})})
    return Message(content=content, reply_to=message)
