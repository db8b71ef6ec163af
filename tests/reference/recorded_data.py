"""Data of the recorded runs: drawn from a seed, short in JSON, in microbatches of unequal sizes."""

import torch


def sixty_fourths(*shape):
    """Exact in every type."""
    return (torch.randn(*shape, dtype=torch.float64) * 64).round() / 64


def draw(seed, sizes):
    """Weights and biases to start from, 3 to 3 to 1, and the microbatches of an epoch."""
    torch.manual_seed(seed)
    start = [sixty_fourths(3, 3), sixty_fourths(3), sixty_fourths(1, 3), sixty_fourths(1)]
    return start, [(sixty_fourths(n, 3), sixty_fourths(n, 1)) for n in sizes]


def windows(batches, accumulation):
    """Epoch after epoch: each window's microbatches, joined."""
    while True:
        for first in range(0, len(batches), accumulation):
            window = batches[first:first + accumulation]
            yield torch.cat([data for data, _ in window]), torch.cat([target for _, target in window])
