# SPDX-License-Identifier: Apache-2.0
"""A linear model of scikit-learn, SGDClassifier with the logistic loss, as a training program for mfl-client (docs/programs.md).
`python linear.py initial.safetensors FEATURES CLASSES` writes the start, zeros."""
import sys

import numpy
from sklearn.linear_model import SGDClassifier
import mfl.train


def rows(data, samples, split="train"):
    x, y = data.batch(samples, split)
    return x.reshape(len(y), -1).astype(float), y


def train(params, client, round, config, data, samples, seed):
    x, y = rows(data, samples)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=config["lr"], alpha=config.get("alpha", 1e-4),
                          random_state=seed % 2**32)
    model.coef_, model.intercept_ = numpy.array(params["coef"], float), numpy.array(params["intercept"], float)
    model.classes_ = numpy.arange(len(model.intercept_))
    for _ in range(config.get("epochs", 1)):
        model.partial_fit(x, y, classes=model.classes_)
    return {"coef": model.coef_, "intercept": model.intercept_}, len(y), {"accuracy": model.score(x, y)}


def evaluate(params, config, data, samples):
    x, y = rows(data, samples, "test")
    z = x @ params["coef"].T + params["intercept"]
    loss = numpy.log1p(numpy.exp(-numpy.abs(z))) + numpy.maximum(z, 0) - z * (y[:, None] == numpy.arange(z.shape[1]))
    return len(y), {"loss": float(loss.sum(1).mean()), "correct": int((z.argmax(1) == y).sum())}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        features, classes = map(int, sys.argv[2:4])
        mfl.train.save(sys.argv[1], {"coef": numpy.zeros((classes, features)), "intercept": numpy.zeros(classes)})
    else:
        mfl.train.run(train, evaluate)
