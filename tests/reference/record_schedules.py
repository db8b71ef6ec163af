"""Records the learning-rate multipliers of torch's own schedulers in schedules.json, beside this file.

    python3 tests/reference/record_schedules.py      (torch 2.13.0)

Each case names our schedule as JSON and lists torch's rate at counts 0, 1, 2, ... for a base rate of 1. Those
of ReduceLROnPlateau list the metric's values and, after each, the rate. All numbers are Python floats, 64
bits wide.
"""

import json
import math
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler as lr

warnings.filterwarnings("ignore")


def new_optimizer(rate=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=rate)


def rates(make, count):
    optimizer = new_optimizer()
    scheduler = make(optimizer)
    found = []
    for _ in range(count):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def warmup(optimizer, steps, start):
    return lr.LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=steps)


def sequence(milestones, *makers):
    return lambda o: lr.SequentialLR(o, [make(o) for make in makers], milestones)


def one_cycle(total, **options):
    return lambda o: lr.OneCycleLR(o, max_lr=1.0, total_steps=total, cycle_momentum=False, **options)


cases = [
    ("StepLR", {"multi_step_decay": {"milestones": [7, 14, 21, 28], "gamma": 0.3}},
     lambda o: lr.StepLR(o, 7, gamma=0.3), 32),
    ("MultiStepLR", {"multi_step_decay": {"milestones": [1, 4, 20], "gamma": 0.1}},
     lambda o: lr.MultiStepLR(o, [1, 4, 20], gamma=0.1), 25),
    ("ExponentialLR", {"exponential_decay": {"gamma": 0.93}}, lambda o: lr.ExponentialLR(o, 0.93), 60),
    ("PolynomialLR, power 1", {"polynomial_decay": {"total_steps": 23, "power": 1.0, "minimum_factor": 0.0}},
     lambda o: lr.PolynomialLR(o, total_iters=23, power=1.0), 30),
    ("PolynomialLR, power 2.5",
     {"polynomial_decay": {"total_steps": 40, "power": 2.5, "minimum_factor": 0.0}},
     lambda o: lr.PolynomialLR(o, total_iters=40, power=2.5), 45),
    ("CosineAnnealingWarmRestarts, equal periods",
     {"cosine_restarts": {"period": 9, "period_multiplier": 1, "minimum_factor": 0.05}},
     lambda o: lr.CosineAnnealingWarmRestarts(o, 9, 1, eta_min=0.05), 40),
    ("CosineAnnealingWarmRestarts, doubling periods",
     {"cosine_restarts": {"period": 5, "period_multiplier": 2, "minimum_factor": 0.0}},
     lambda o: lr.CosineAnnealingWarmRestarts(o, 5, 2), 80),
    ("OneCycleLR, its defaults",
     {"one_cycle": {"total_steps": 50, "warmup_fraction": 0.3, "start_factor": 0.04, "minimum_factor": 4e-6,
                    "anneal": "cosine", "three_phase": False}},
     one_cycle(50), 50),
    ("OneCycleLR, linear, a peak between two steps",
     {"one_cycle": {"total_steps": 47, "warmup_fraction": 0.25, "start_factor": 0.1, "minimum_factor": 0.001,
                    "anneal": "linear", "three_phase": False}},
     one_cycle(47, pct_start=0.25, div_factor=10.0, final_div_factor=100.0, anneal_strategy="linear"), 47),
    ("OneCycleLR, three phases, cosine",
     {"one_cycle": {"total_steps": 53, "warmup_fraction": 0.4, "start_factor": 0.04, "minimum_factor": 4e-6,
                    "anneal": "cosine", "three_phase": True}},
     one_cycle(53, pct_start=0.4, three_phase=True), 53),
    ("OneCycleLR, three phases, linear",
     {"one_cycle": {"total_steps": 30, "warmup_fraction": 0.3, "start_factor": 0.1, "minimum_factor": 0.01,
                    "anneal": "linear", "three_phase": True}},
     one_cycle(30, pct_start=0.3, div_factor=10.0, final_div_factor=10.0, anneal_strategy="linear",
               three_phase=True), 30),
    ("LinearLR, then CosineAnnealingLR",
     {"warmup_decay": {"total_steps": 50, "warmup_steps": 10, "start_factor": 0.1, "minimum_factor": 0.02,
                       "decay": "cosine"}},
     sequence([10], lambda o: warmup(o, 10, 0.1), lambda o: lr.CosineAnnealingLR(o, 40, eta_min=0.02)), 51),
    ("LinearLR up, then LinearLR down",
     {"warmup_decay": {"total_steps": 30, "warmup_steps": 6, "start_factor": 0.25, "minimum_factor": 0.1,
                       "decay": "linear"}},
     sequence([6], lambda o: warmup(o, 6, 0.25), lambda o: lr.LinearLR(o, 1.0, 0.1, 24)), 35),
    ("LinearLR up, ConstantLR, LinearLR down",
     {"warmup_stable_decay": {"total_steps": 40, "warmup_steps": 5, "decay_steps": 15, "start_factor": 0.2,
                              "minimum_factor": 0.05, "decay": "linear"}},
     sequence([5, 25], lambda o: warmup(o, 5, 0.2), lambda o: lr.ConstantLR(o, 1.0, 1),
              lambda o: lr.LinearLR(o, 1.0, 0.05, 15)), 45),
    ("LambdaLR of the inverse square root",
     {"inverse_sqrt_decay": {"warmup_steps": 8, "start_factor": 0.0}},
     lambda o: lr.LambdaLR(o, lambda t: t / 8 if t < 8 else math.sqrt(8 / t)), 60),
    ("SequentialLR of ExponentialLR, StepLR and CosineAnnealingWarmRestarts",
     {"sequential": {"parts": [{"exponential_decay": {"gamma": 0.9}},
                               {"multi_step_decay": {"milestones": [4, 8], "gamma": 0.5}},
                               {"cosine_restarts": {"period": 6, "period_multiplier": 1,
                                                    "minimum_factor": 0.1}}],
                     "milestones": [7, 16]}},
     sequence([7, 16], lambda o: lr.ExponentialLR(o, 0.9), lambda o: lr.MultiStepLR(o, [4, 8], gamma=0.5),
              lambda o: lr.CosineAnnealingWarmRestarts(o, 6, 1, eta_min=0.1)), 35),
]

noisy = [1.0, 0.9, 0.95, 0.93, 0.94, 0.91, 0.905, 0.9, 0.5, 0.5, 0.49999, 0.4996, 0.6, 0.7, float("nan"), 0.3,
         0.3, 0.31, 0.32, 0.33, 0.34, 0.35, 0.36, 0.37, 0.38, 0.39, 0.4, 0.2]
plateau_cases = [
    ({"direction": "minimize", "factor": 0.1, "patience": 2, "threshold": 1e-4, "threshold_mode": "relative",
      "cooldown": 0, "minimum_factor": 0.0}, noisy),
    ({"direction": "minimize", "factor": 0.5, "patience": 1, "threshold": 0.01, "threshold_mode": "absolute",
      "cooldown": 3, "minimum_factor": 0.2}, noisy),
    ({"direction": "maximize", "factor": 0.3, "patience": 0, "threshold": 0.05, "threshold_mode": "relative",
      "cooldown": 1, "minimum_factor": 0.0}, [-v for v in noisy]),
    ({"direction": "maximize", "factor": 0.3, "patience": 3, "threshold": 0.0, "threshold_mode": "absolute",
      "cooldown": 0, "minimum_factor": 0.001}, [1 - v for v in noisy]),
]


def plateau_record(options, values):
    optimizer = new_optimizer()
    scheduler = lr.ReduceLROnPlateau(
        optimizer, mode={"minimize": "min", "maximize": "max"}[options["direction"]],
        factor=options["factor"], patience=options["patience"], threshold=options["threshold"],
        threshold_mode={"relative": "rel", "absolute": "abs"}[options["threshold_mode"]],
        cooldown=options["cooldown"], min_lr=options["minimum_factor"], eps=0)
    steps = []
    for value in values:
        scheduler.step(value)
        steps.append({"value": "nan" if math.isnan(value) else value,
                      "factor": float(optimizer.param_groups[0]["lr"]), "best": scheduler.best,
                      "bad_evaluations": scheduler.num_bad_epochs,
                      "cooldown_left": scheduler.cooldown_counter})
    return {"schedule": {"plateau": {"metric": "validation/loss", **options}}, "steps": steps}


record = {
    "torch": torch.__version__.split("+")[0],
    "factors": [{"name": name, "schedule": schedule, "factors": rates(make, count)}
                for name, schedule, make, count in cases],
    "plateaus": [plateau_record(options, values) for options, values in plateau_cases],
}
path = pathlib.Path(__file__).with_name("schedules.json")
lines = {key: [json.dumps(case, allow_nan=False) for case in record[key]] for key in ("factors", "plateaus")}
path.write_text('{"torch": %s,\n"factors": [\n%s\n],\n"plateaus": [\n%s\n]}\n' % (
    json.dumps(record["torch"]), ",\n".join(lines["factors"]), ",\n".join(lines["plateaus"])))
print(f"{path}: {len(cases)} schedules, {len(plateau_cases)} plateaus")
