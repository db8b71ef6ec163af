"""Writes the seeds that the fuzz targets start from.

usage: make_corpus.py FOLDER [--large]

FOLDER gets a folder for each target. tests/faults/corpus is what this wrote; --large adds what is too large to be kept.
"""

import json
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
large = "--large" in sys.argv[2:]


def put(target, name, data):
    path = folder / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


whole = safetensors({"__metadata__": {"step": "7"}, "w": entry("F32", [2, 3], 0, 24), "flag": entry("BOOL", [2], 24, 26),
                     "nothing": entry("I64", [0, 3], 26, 26), "scalar": entry("F64", [], 26, 34)},
                    bytes(24) + b"\1\0" + bytes(8))
two = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
seeds = {
    "whole": whole,
    "empty": safetensors({}),
    "short_length": whole[:5],
    "long_length": safetensors(b"{}", length=2**63),
    "hundred_megabytes": safetensors(b"{}", length=100_000_000),
    "overflowed_shape": safetensors({"w": entry("F64", [2**33, 2**33], 0, 8)}, bytes(8)),
    "overflow_beside_zero": safetensors({"w": entry("F64", [0, 2**62, 2**62], 0, 0)}),
    "largest_dimension": safetensors({"w": entry("U8", [2**64 - 1], 0, 8)}, bytes(8)),
    "negative_dimension": safetensors({"w": entry("U8", [-1], 0, 8)}, bytes(8)),
    "float_dimension": safetensors({"w": entry("U8", [8.0], 0, 8)}, bytes(8)),
    "overlapping": safetensors({"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 4, 12)}, bytes(12)),
    "with_a_gap": safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 8, 12)}, bytes(12)),
    "end_before_begin": safetensors({"a": entry("U8", [4], 8, 4)}, bytes(8)),
    "beyond_the_end": safetensors({"a": entry("U8", [2**40], 0, 2**40)}, bytes(8)),
    "duplicate_keys": safetensors(two, bytes(2)),
    "unknown_dtype": safetensors({"a": entry("F8", [4], 0, 4)}, bytes(4)),
    "bool_of_two": safetensors({"a": entry("BOOL", [1], 0, 1)}, b"\2"),
    "deep": safetensors(b"[" * 2000 + b"]" * 2000),
    "deep_objects": safetensors(b'{"a":' * 500 + b"1" + b"}" * 500),
    "many_dimensions": safetensors({"a": entry("U8", [1] * 65, 0, 1)}, b"\0"),
    "not_utf8": safetensors(b'{"\xff\xfe":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
    "zero_byte": safetensors(b'{"a\0b":1}'),
    "trailing_bytes": whole + b"x",
}
for name, data in seeds.items():
    put("safetensors", name, data)
    # Which file it is, its length, its bytes.
    put("checkpoint", name, b"".join(struct.pack("<BH", kind, len(data)) + data for kind in (0, 3, 10)))
put("checkpoint", "no_model", struct.pack("<BH", 2, len(whole)) + whole)

manifest = {"format_version": 1, "run_id": "run", "save_index": 3, "state": {"step": 1, "batches": 2, "epoch": 0},
            "files": {"model.safetensors": {"size": 9, "crc32c": "e3069283", "tensor_crc32c": "e3069283"}}}


def changed(**members):
    # The checksum comes after the last member.
    return json.dumps({**manifest, **members}, indent=2).encode()[:-2]


digest = {"size": 1, "crc32c": "00000000"}
manifests = {
    "whole": changed(),
    "two_versions": changed(format_version=2),
    "absolute_name": changed(files={"/etc/passwd": digest}),
    "name_above": changed(files={"../model.safetensors": digest}),
    "negative_size": changed(files={"model.safetensors": {**digest, "size": -1}}),
    "largest_size": changed(files={"model.safetensors": {**digest, "size": 2**64 - 1}}),
    "half_a_checksum": changed(files={"model.safetensors": {**digest, "tensor_crc32c": "0000"}}),
    "texts_for_numbers": changed(state={"step": "1", "batches": [], "epoch": 1e300}),
    "deep": b'{"metadata":' + b"[" * 2000 + b"]" * 2000,
    "duplicate_keys": changed()[:-1] + b',"run_id":1,"run_id":2}',
    "no_checksum": b"\n" + changed(),
    "not_utf8": changed().replace(b'"run"', b'"\xff\xfe"'),
}
for name, data in manifests.items():
    put("manifest", name, data)

if large:
    entries = {f"layer.{i}.weight": entry("U8", [1], i, i + 1) for i in range(100_000)}
    put("safetensors", "hundred_thousand", safetensors(entries, bytes(100_000)))
    put("safetensors", "hundred_thousand_zeros", safetensors({f"{i}": entry("F32", [0], 0, 0) for i in range(100_000)}))
    put("safetensors", "very_deep", safetensors(b"[" * 10_000_000))
    put("manifest", "very_deep", b'{"metadata":' + b"[" * 10_000_000)
    put("manifest", "very_deep_objects", b'{"a":' * 2_000_000)
    put("manifest", "hundred_thousand", changed(metadata={str(i): i for i in range(100_000)}))
    put("manifest", "long_checksums", changed(files={"model.safetensors": {**digest, "tensor_crc32c": "0" * 8_000_000}}))
    put("manifest", "long_name", changed(files={"rank-" + "0" * 1_000_000 + ".safetensors": digest}))
