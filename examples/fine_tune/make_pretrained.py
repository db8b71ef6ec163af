#!/usr/bin/env python3
"""Writes pretrained.safetensors: a network that tells in which of four rings around the centre a point lies.

Needs torch and safetensors. The names begin with "backbone." and "classifier.", as such files often differ from
the module they are loaded into.
"""
from pathlib import Path

import torch
from safetensors.torch import save_file

torch.manual_seed(0)
backbone = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Tanh())
classifier = torch.nn.Linear(16, 4)
optimizer = torch.optim.Adam([*backbone.parameters(), *classifier.parameters()], lr=0.01)
for _ in range(1500):
    points = torch.rand(256, 2) * 2 - 1
    rings = (points.norm(dim=1) * 3).long().clamp(max=3)
    loss = torch.nn.functional.cross_entropy(classifier(backbone(points)), rings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")

weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
weights |= {f"classifier.{name}": tensor for name, tensor in classifier.state_dict().items()}
save_file(weights, Path(__file__).with_name("pretrained.safetensors"))
