"""Writes or checks a safetensors file with Python's own package.

usage: safetensors_exchange.py write|check PATH

There is a 2x3 tensor of every type, called like it; most hold arange(6) - 2.
"""

import sys

import safetensors
import torch
from safetensors.torch import save_file

types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}
values = {name: (torch.arange(6).reshape(2, 3) - 2).to(dtype) for name, dtype in types.items()}
values["U8"] = (torch.arange(6).reshape(2, 3) + 250).to(torch.uint8)
values["BOOL"] = torch.tensor([[True, False, True], [False, False, True]])
values["scalar"] = torch.tensor(0.5)
values["empty"] = torch.zeros((2, 0, 3), dtype=torch.int64)
metadata = {"writer": "lockstep \N{SNOWMAN}", "empty": ""}


def write(path):
    save_file(values, path, metadata)


def check(path):
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata, file.metadata()
        assert set(file.keys()) == values.keys(), file.keys()
        for name, value in values.items():
            found = file.get_tensor(name)
            assert found.dtype == value.dtype and found.shape == value.shape, (name, found)
            assert torch.equal(found, value), (name, found, value)
    with safetensors.safe_open(path, framework="numpy") as file:
        for name in values.keys() - {"BF16"}:  # NumPy has no such type
            found, expected = file.get_tensor(name), values[name].numpy()
            assert found.dtype == expected.dtype and found.shape == expected.shape, (name, found)
            assert found.tobytes() == expected.tobytes(), (name, found, expected)


{"write": write, "check": check}[sys.argv[1]](sys.argv[2])
