"""Records 50 updates of small runs in fp64 and fp32: torch.optim, clip_grad_norm_, LambdaLR, AveragedModel.

    python3 tests/reference/record_trajectories.py      (torch 2.13.0)

Writes trajectories.json, beside this file. tests/reference/trajectories_reference_test.cpp runs the Trainer on the same
data. Accumulation is what Python need not do: the mean loss over the concatenation of a window's microbatches, which
hold unequal numbers of samples, in one backward pass. An epoch's last window is short.
"""

import json
import math
import pathlib

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from recorded_data import draw, windows

UPDATES = 50
SIZES = [4, 1, 2, 3, 5, 2, 1, 4]  # samples of an epoch's microbatches
RUNS = {
    "AdamW": {"options": {"lr": 0.03, "weight_decay": 0.1}, "no_decay_lr": 0.05, "accumulation": 3,
              "max_grad_norm": 0.3, "ema_decay": 0.9,
              "schedule": {"total_steps": 45, "warmup_steps": 8, "start_factor": 0.1, "minimum_factor": 0.05,
                           "decay": "cosine"}},
    "AdamW amsgrad": {"options": {"lr": 0.02, "weight_decay": 0.02, "betas": [0.8, 0.95], "eps": 1e-6,
                                  "amsgrad": True}},
    "SGD": {"options": {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.02}, "max_grad_norm": 0.5},
    "SGD Nesterov": {"options": {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
                     "accumulation": 3, "max_grad_norm": 0.2, "ema_decay": 0.7,
                     "schedule": {"total_steps": 60, "warmup_steps": 5, "start_factor": 0.0, "minimum_factor": 0.2,
                                  "decay": "linear"}},
}


def multiplier(schedule, update):
    total, warmup = schedule["total_steps"], schedule["warmup_steps"]
    if update < warmup:
        return schedule["start_factor"] + (1 - schedule["start_factor"]) * update / warmup
    done = min(1.0, (update - warmup) / (total - warmup))
    high = (1 + math.cos(math.pi * done)) / 2 if schedule["decay"] == "cosine" else 1 - done
    return schedule["minimum_factor"] + (1 - schedule["minimum_factor"]) * high


start, batches = draw(5, SIZES)


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()


def train(name, run, dtype):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).to(dtype)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), start):
            parameter.copy_(value)
    parameters = list(net.parameters())
    groups = parameters
    if "no_decay_lr" in run:
        groups = [{"params": [p for p in parameters if p.dim() > 1]},
                  {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0, "lr": run["no_decay_lr"]}]
    optimizer = getattr(torch.optim, name.split()[0])(groups, **run["options"])
    schedule = run.get("schedule")
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: multiplier(schedule, update) if schedule else 1.0)
    average = None
    if "ema_decay" in run:
        average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(run["ema_decay"]))
        average.update_parameters(net)  # the first call copies
    updates = []
    for data, target in windows(batches, run.get("accumulation", 1)):
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        loss = torch.nn.functional.mse_loss(net(data.to(dtype)), target.to(dtype))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, run.get("max_grad_norm", math.inf))
        optimizer.step()
        scheduler.step()
        update = {"loss": loss.item(), "grad_norm": norm.item(), "rates": rates, "weights": flat(net)}
        if average:
            average.update_parameters(net)
            update["average"] = flat(average.module)
        updates.append(update)
        if len(updates) == UPDATES:
            return updates


def rounded(value, digits):
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    return {k: rounded(v, 16 if k == "rates" else digits) for k, v in value.items()}  # Python's rates are doubles


path = pathlib.Path(__file__).with_name("trajectories.json")
runs = []
for name, run in RUNS.items():
    for precision, dtype, digits in (("fp64", torch.float64, 16), ("fp32", torch.float32, 9)):
        lines = ",\n".join(json.dumps(rounded(update, digits)) for update in train(name, run, dtype))
        head = json.dumps({"name": name, "precision": precision, **run})[:-1]
        runs.append(f'{head}, "updates": [\n{lines}]}}')
inputs = {"torch": torch.__version__.split("+")[0],
          "start": torch.cat([p.flatten() for p in start]).tolist(),
          "batches": [{"data": data.tolist(), "target": target.tolist()} for data, target in batches]}
path.write_text(f'{json.dumps(inputs)[:-1]},\n"runs": [\n' + ",\n".join(runs) + "\n]}\n")
print(f"{path}: {len(runs)} runs, {path.stat().st_size} bytes")
