"""Checks that TensorBoard reads from a run's event files what its metrics.jsonl says.

usage: tensorboard_check.py RUN_DIR

Every tag has the same steps and values, each step once and rising, after kills and resumes too. Prints the
number of scalars, of histograms and the last configuration as JSON.
"""

import json
import pathlib
import sys

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def logged(file):
    """Tag -> {step: value}: the events of the newest history."""
    events = []
    for line in file.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # torn by a kill
        if event["event"] == "start":
            events = []
        if event["event"] == "resume":
            events = [old for old in events if old["step"] <= event["step"]]
        events.append(event)
    result = {}
    for event in events:
        for tag, value in event["values"].items():
            result.setdefault(tag, {})[event["step"]] = numpy.float32(float(value))
    return result


def main(run_dir):
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    expected = logged(run_dir / "metrics.jsonl")
    if set(tags["scalars"]) != set(expected):
        sys.exit(f"TensorBoard has {sorted(tags['scalars'])}, metrics.jsonl {sorted(expected)}")
    count = 0
    for tag, values in expected.items():
        found = accumulator.Scalars(tag)
        if [event.step for event in found] != list(values):
            sys.exit(f"{tag} has steps {[event.step for event in found]} instead of {list(values)}")
        if not numpy.array_equal([event.value for event in found], list(values.values()), equal_nan=True):
            sys.exit(f"{tag} is {[event.value for event in found]} instead of {list(values.values())}")
        count += len(found)
    histograms = {
        tag: [
            (event.step, value.min, value.max, value.num, value.sum, value.sum_squares,
             list(value.bucket_limit), list(value.bucket))
            for event in accumulator.Histograms(tag)
            for value in [event.histogram_value]
        ]
        for tag in tags["histograms"]
    }
    config = accumulator.Tensors("config")[-1].tensor_proto.string_val[0].decode() if tags["tensors"] else None
    print(json.dumps({"scalars": count, "histograms": histograms, "config": config}))


main(pathlib.Path(sys.argv[1]))
