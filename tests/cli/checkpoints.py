"""Writes checkpoints of format version 1 without lockstep, from the description in docs/checkpoints.md."""

import json
import pathlib

import safetensors.torch


def _table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def tensors_in(data):
    """The bytes of each tensor, in the order in which they lie in the file."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    ranges = sorted(entry["data_offsets"] for entry in header.values())
    return [data[8 + length + begin : 8 + length + end] for begin, end in ranges]


def digest(data, tensor_checksums=True):
    listed = {"size": len(data), "crc32c": crc32c(data)}
    if tensor_checksums:
        listed["tensor_crc32c"] = "".join(crc32c(tensor) for tensor in tensors_in(data))
    return listed


def write_manifest(folder, manifest):
    text = json.dumps(manifest, indent=2)[:-2].encode()
    text += f',\n  "manifest_crc32c": "{crc32c(text)}"\n}}\n'.encode()
    (folder / "manifest.json").write_bytes(text)


def write_checkpoint(folder, step, files, run_id="3f2a9c01d4e5", tensor_checksums=True, **manifest):
    """`files`: by file name without its ending, tensors by name."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    listed = {}
    for name, tensors in files.items():
        data = safetensors.torch.save(tensors)
        (folder / f"{name}.safetensors").write_bytes(data)
        listed[f"{name}.safetensors"] = digest(data, tensor_checksums)
    state = {"epoch": step // 10, "next_batch": step % 10, "step": step, "batches": 2 * step, "samples": 64 * step}
    write_manifest(folder, {"format_version": 1, "run_id": run_id, "save_index": step, "state": state,
                            "config": {"epochs": 4, "max_grad_norm": 1.0}, **manifest, "files": listed})
    return folder
