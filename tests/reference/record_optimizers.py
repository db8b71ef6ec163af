"""Records 50 updates of torch.optim.AdamW, Adam and SGD for every combination of their options.

    python3 tests/reference/record_optimizers.py      (torch 2.13.0)

Writes optimizers.json, beside this file; tests/reference/optimizers_reference_test.cpp says how it is read. What these
optimizers do to one element depends on nothing but its own start and gradients. So a parameter here has SPECIES
elements, and the test tiles parameters of any size from them. Start and gradients are small binary fractions, exact in
every type down to bf16, and so are three times the gradients.

The runs in half types are what is meant by fp32 master weights: the optimizer steps an fp32 copy of the parameter on
its gradient in fp32, and the copy is rounded into the parameter. They are those that minimize with weight decay.
"""

import itertools
import json
import pathlib

import torch

SPECIES = 7
UPDATES = 50
RECORDED = [1, 2, 3, 10, 25, 50]

# Digits that give back the number.
TYPES = {"fp64": (torch.float64, 16), "fp32": (torch.float32, 9), "bf16": (torch.bfloat16, 5), "fp16": (torch.float16, 6)}


def start():
    return torch.tensor([((29 * species) % 31 - 15) / 8 for species in range(SPECIES)], dtype=torch.float64)


def gradient(update):
    """Smaller by and by, so that amsgrad has a maximum to remember; an element's own is zero now and then."""
    scale = 0.5 ** (update // 12)
    return torch.tensor([((37 * species + 23 * update) % 61 - 30) / 64 * scale for species in range(SPECIES)],
                        dtype=torch.float64)


def has_gradient(parameter, update):
    return update % parameter["period"] in parameter["present"]


def run_of(optimizer, groups, parameters=None, lr_factors=(1,)):
    """`parameters`: the group of each, and at which updates, modulo the period, it has a gradient."""
    if parameters is None:
        parameters = [{"group": i, "period": 1, "present": [0]} for i in range(len(groups))]
    return {"optimizer": optimizer, "groups": groups, "parameters": parameters, "lr_factors": list(lr_factors)}


RUNS = []
for optimizer, amsgrad, maximize, weight_decay in itertools.product(
        ("AdamW", "Adam"), (False, True), (False, True), (0.0, 0.1)):
    RUNS.append(run_of(optimizer, [{"lr": 0.02, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": weight_decay,
                                    "amsgrad": amsgrad, "maximize": maximize}]))
for (momentum, dampening, nesterov), weight_decay, maximize in itertools.product(
        ((0.0, 0.0, False), (0.0, 0.1, False), (0.9, 0.0, False), (0.9, 0.1, False), (0.9, 0.0, True)),
        (0.0, 0.1), (False, True)):
    RUNS.append(run_of("SGD", [{"lr": 0.05, "momentum": momentum, "dampening": dampening, "nesterov": nesterov,
                                "weight_decay": weight_decay, "maximize": maximize}]))

TWO_ADAM_GROUPS = [
    {"lr": 0.02, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.1, "amsgrad": False, "maximize": False},
    {"lr": 0.05, "betas": [0.7, 0.95], "eps": 1e-3, "weight_decay": 0.02, "amsgrad": True, "maximize": True}]
TWO_SGD_GROUPS = [
    {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "weight_decay": 0.1, "maximize": False},
    {"lr": 0.02, "momentum": 0.6, "dampening": 0.0, "nesterov": True, "weight_decay": 0.02, "maximize": True}]
SOMETIMES = [{"group": 0, "period": 1, "present": [0]},
             {"group": 0, "period": 3, "present": [0, 2]},  # not at the first update
             {"group": 0, "period": 5, "present": [0]}]
for optimizer, groups in (("AdamW", TWO_ADAM_GROUPS), ("Adam", TWO_ADAM_GROUPS), ("SGD", TWO_SGD_GROUPS)):
    RUNS.append(run_of(optimizer, groups))
    RUNS.append(run_of(optimizer, groups[:1], lr_factors=(1, 0.25, 2, 0.5, 0)))
    RUNS.append(run_of(optimizer, groups[:1], parameters=SOMETIMES))


def follow(run, precision):
    dtype, digits = TYPES[precision]
    half = dtype.itemsize == 2
    parameters = [start().to(dtype) for _ in run["parameters"]]
    stepped = [p.float() if half else p for p in parameters]
    groups = []
    for i, options in enumerate(run["groups"]):
        groups.append({**options, "params": [p for p, own in zip(stepped, run["parameters"]) if own["group"] == i]})
    optimizer = getattr(torch.optim, run["optimizer"])(groups, foreach=False)
    recorded = []
    for update in range(1, UPDATES + 1):
        factor = run["lr_factors"][(update - 1) % len(run["lr_factors"])]
        for group, options in zip(optimizer.param_groups, run["groups"]):
            group["lr"] = options["lr"] * factor
        for parameter, own in zip(stepped, run["parameters"]):
            parameter.grad = gradient(update).to(dtype).to(parameter.dtype) if has_gradient(own, update) else None
        optimizer.step()
        for parameter, master in zip(parameters, stepped):
            parameter.copy_(master)
        if update in RECORDED:
            recorded.append([[float(f"{x:.{digits}g}") for x in p.double().tolist()] for p in parameters])
    return recorded


path = pathlib.Path(__file__).with_name("optimizers.json")
lines = []
for precision, (dtype, _) in TYPES.items():
    for run in RUNS:
        first = run["groups"][0]
        if dtype.itemsize == 2 and (first["maximize"] or not first["weight_decay"]):
            continue
        lines.append(json.dumps({"precision": precision, **run, "weights": follow(run, precision)},
                                separators=(",", ":")))
head = {"torch": torch.__version__.split("+")[0], "updates": RECORDED, "start": start().tolist(),
        "gradients": [gradient(update).tolist() for update in range(1, UPDATES + 1)]}
path.write_text(f'{json.dumps(head)[:-1]},\n"runs": [\n' + ",\n".join(lines) + "\n]}\n")
print(f"{path}: {len(lines)} runs, {path.stat().st_size} bytes")
