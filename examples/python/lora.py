# SPDX-License-Identifier: Apache-2.0
"""LoRA fine-tuning of a Hugging Face model that is made from a configuration, with nothing from a hub (docs/programs.md): only the adapters
are the job's params; the program makes the rest from a seed, on each machine alike. `python lora.py initial.safetensors` writes the start."""
import math
import sys

import torch
import transformers
import mfl.train

RANK, VOCABULARY = 4, 64


class Lora(torch.nn.Module):
    """y = base(x) + B A x (Hu et al. 2021); base is GPT-2's Conv1D, which stays as it is."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.A = torch.nn.Parameter(torch.empty(RANK, base.weight.shape[0]))
        self.B = torch.nn.Parameter(torch.zeros(base.weight.shape[1], RANK))
        torch.nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


def make():
    torch.manual_seed(42)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn)
    return model


model = make()


def adapters():
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def text(client, n=16):
    """A language of the client's own: each token is followed by the next one but `client`."""
    start = torch.arange(n)[:, None] * 3
    return (start + (client % 3 + 1) * torch.arange(32)[None]) % VOCABULARY


def train(params, client, round, config, seed):
    mfl.train.load(model, params)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(list(adapters().values()), lr=config["lr"])
    tokens = text(client)
    for _ in range(config.get("steps", 4)):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return adapters(), len(tokens), {"loss": loss.item()}


@torch.no_grad()
def evaluate(params, config):
    mfl.train.load(model, params)
    losses = [model(input_ids=text(k), labels=text(k)).loss.item() for k in range(3)]
    return 3, {"loss": sum(losses) / 3}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        mfl.train.save(sys.argv[1], adapters())
    else:
        mfl.train.run(train, evaluate)
