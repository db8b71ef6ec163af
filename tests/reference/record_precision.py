"""Records how Python trains a small net in bf16 and fp16 on the CPU: torch.autocast, torch.amp.GradScaler, clipping.

    python3 tests/reference/record_precision.py > tests/reference/precision.json

tests/reference/precision_reference_test.cpp trains the same net on the same data. Recorded with torch 2.13.0. The first
scale of fp16 is so large that the run begins with overflows, and the growth interval so short that more follow.
"""

import json
import sys

import torch

UPDATES = 10
LIMIT = 1.0
SCALER = dict(init_scale=2.0**22, growth_factor=2.0, backoff_factor=0.5, growth_interval=4)
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.05),
}


def sixty_fourths(*shape):
    """Short in JSON, and exact in every type."""
    return (torch.randn(*shape) * 64).round() / 64


torch.manual_seed(11)
start = [sixty_fourths(8, 4) / 2, sixty_fourths(8) / 2, sixty_fourths(3, 8) / 2, sixty_fourths(3) / 2]
batches = [(sixty_fourths(8, 4), torch.randint(3, (8,))) for _ in range(5)]


def train(kind, half):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), start):
            parameter.copy_(value)
    optimizer = OPTIMIZERS[kind](net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=half == torch.float16, **SCALER)
    losses, scales, norms, weights = [], [], [], []
    while len(weights) < UPDATES:
        data, target = batches[len(losses) % len(batches)]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half):
            loss = torch.nn.functional.cross_entropy(net(data), target)
        losses.append(loss.item())
        scale = scaler.get_scale()
        scales.append(scale)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < scale:
            continue
        norms.append(norm.item())
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]).tolist())
    return {"losses": losses, "scales": scales, "grad_norms": norms, "weights": weights}


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


runs = {f"{kind} {name}": train(kind, half)
        for kind in OPTIMIZERS for name, half in (("bf16-mixed", torch.bfloat16), ("fp16-mixed", torch.float16))}
json.dump({"torch": torch.__version__,
           "start": torch.cat([p.flatten() for p in start]).tolist(),
           "data": [d.tolist() for d, _ in batches],
           "target": [t.tolist() for _, t in batches],
           "runs": rounded(runs)}, sys.stdout)
print()
