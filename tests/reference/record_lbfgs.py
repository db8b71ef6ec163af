"""Records runs of torch.optim.LBFGS in fp64, with and without its line search and with clipped gradients.

    python3 tests/reference/record_lbfgs.py      (torch 2.13.0)

Writes lbfgs.json, beside this file. tests/reference/lbfgs_reference_test.cpp runs the Trainer on the same data, in
microbatches of unequal sizes; here a window is their concatenation.
"""

import json
import pathlib

import torch

from recorded_data import draw, windows

UPDATES = 8
SIZES = [4, 1, 3, 2]  # samples of an epoch's microbatches
RUNS = {
    "fixed steps": {"options": {"lr": 0.3, "max_iter": 4, "history_size": 5}, "accumulation": 4},
    "strong Wolfe": {"options": {"lr": 1.0, "max_iter": 5, "history_size": 3, "line_search_fn": "strong_wolfe"},
                     "accumulation": 4},
    "two windows an epoch": {"options": {"lr": 0.1, "max_iter": 3, "history_size": 4}, "accumulation": 3},
    "clipped": {"options": {"lr": 0.3, "max_iter": 3, "history_size": 2}, "accumulation": 4, "max_grad_norm": 2.5},
}

start, batches = draw(11, SIZES)


def train(run):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    parameters = list(net.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, start):
            parameter.copy_(value)
    optimizer = torch.optim.LBFGS(parameters, **run["options"])
    updates = []
    for data, target in windows(batches, run["accumulation"]):
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(data), target)
            loss.backward()
            if "max_grad_norm" in run:
                torch.nn.utils.clip_grad_norm_(parameters, run["max_grad_norm"])
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        weights = torch.cat([p.detach().flatten() for p in parameters]).tolist()
        updates.append({"losses": losses, "weights": weights})
        if len(updates) == UPDATES:
            return updates


path = pathlib.Path(__file__).with_name("lbfgs.json")
runs = []
for name, run in RUNS.items():
    lines = ",\n".join(json.dumps(update) for update in train(run))
    runs.append(f'{json.dumps({"name": name, **run})[:-1]}, "updates": [\n{lines}]}}')
inputs = {"torch": torch.__version__.split("+")[0],
          "start": torch.cat([p.flatten() for p in start]).tolist(),
          "batches": [{"data": data.tolist(), "target": target.tolist()} for data, target in batches]}
path.write_text(f'{json.dumps(inputs)[:-1]},\n"runs": [\n' + ",\n".join(runs) + "\n]}\n")
print(f"{path}: {len(runs)} runs, {path.stat().st_size} bytes")
