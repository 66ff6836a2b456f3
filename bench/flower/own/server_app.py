# SPDX-License-Identifier: Apache-2.0
"""Deployment, server: FedAvg as it comes, with one SuperNode that hosts all clients."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fashion.server_app import Nodes
from own import work

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    Nodes(config["clients"], config["nodes"], fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(work.initial()),
        num_rounds=config["rounds"],
        evaluate_fn=lambda server_round, arrays: work.committed(server_round),
    )
