"""Checks the file that weights_file_test.cpp writes.

usage: pt_check.py PATH
"""

import sys

import torch

expected = {"w": torch.tensor([1.5, -2.0]), "half": torch.ones(2, 2, dtype=torch.bfloat16), "column": torch.tensor([1, 4]),
            "empty": torch.empty(0, 3), "flag": torch.tensor(True)}
for mmap in (False, True):
    found = torch.load(sys.argv[1], weights_only=True, mmap=mmap)
    assert type(found) is dict and list(found) == list(expected), found
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, (name, found[name])
        assert torch.equal(found[name], value) and not found[name].requires_grad, (name, found[name])
        assert found[name].untyped_storage().nbytes() == value.nbytes, name
