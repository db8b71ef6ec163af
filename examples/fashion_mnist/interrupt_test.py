"""Interrupts the Fashion-MNIST example in every way and checks that it ends as if nothing had happened.

usage: interrupt_test.py PROGRAM

Trains 40 updates undisturbed, then the same with SIGTERM, with SIGINT and with several SIGKILLs on the way.
Results, weights and every logged value must be equal to the last bit, although the interrupted runs prepare
their batches with another number of threads. Also checks the exit codes that scripts rely on.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

FLAGS = ["--max-steps", "40", "--batch-size", "32", "--evaluate-every", "10", "--checkpoint-every", "7"]
EXIT_STOPPED = 75
MEASUREMENT = re.compile("(samples|steps)_per_second$|time/|memory/")
# On a busy machine, threads that spin while they wait for each other take ten times as long.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


def rows(run_dir, start=0):
    """The events in metrics.jsonl from byte `start` on."""
    file = run_dir / "metrics.jsonl"
    result = []
    for line in file.read_bytes()[start:].splitlines() if file.exists() else ():
        try:
            result.append(json.loads(line))
        except json.JSONDecodeError:
            pass  # torn by a kill, or not yet whole
    return result


def run(run_dir, *flags, send=None, after_step=0):
    """Runs the program, with `send` some moments after it logged something at update `after_step` or later.

    Returns its exit code, its standard output as JSON (None if empty) and its standard error.
    """
    file = run_dir / "metrics.jsonl"
    size = file.stat().st_size if file.exists() else 0
    command = [PROGRAM, "--run-dir", run_dir, *FLAGS, *flags]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
    while send and process.poll() is None:
        if any(row["step"] >= after_step for row in rows(run_dir, size)):
            time.sleep(MOMENTS.uniform(0, 0.3))
            process.send_signal(send)
            break
        time.sleep(0.01)
    output, error = process.communicate()
    return process.returncode, json.loads(output) if output else None, error


def logged_values(run_dir):
    """(event, step) -> its values, each time it was logged. What the machine was doing is no part of them."""
    values = {}
    for row in rows(run_dir):
        if row["event"] in ("train", "evaluate"):
            kept = {name: value for name, value in row["values"].items() if not MEASUREMENT.match(name)}
            values.setdefault((row["event"], row["step"]), []).append(kept)
    return values


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def check_ends_alike(run_dir, reference_dir, reference, what):
    code, result, error = run(run_dir)
    check(code == 0, f"{what}: the last run exits with {code}:\n{error}")
    check(result == reference, f"{what}: the result differs:\n  {result}\n  {reference}")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (run_dir, reference_dir)]
    check(weights[0] == weights[1], f"{what}: model.safetensors differs")
    values, expected = logged_values(run_dir), logged_values(reference_dir)
    check(values.keys() == expected.keys(), f"{what}: other updates were logged: {sorted(values)}")
    for event, versions in values.items():
        right = expected[event][0]
        for version in versions:
            check(version == right, f"{what}: {event} differs:\n  {version}\n  {right}")
    print(f"{what}: the same to the last bit", flush=True)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        reference_dir = folder / "undisturbed"
        code, reference, error = run(reference_dir)
        check(code == 0, f"undisturbed: exits with {code}:\n{error}")
        check(reference["step"] == 40 and reference["samples"] == 40 * 2 * 32, f"counts: {reference}")
        check(re.fullmatch("[0-9a-f]{64}", reference["weights_sha256"]), f"no digest: {reference}")
        check(0.3 < reference["test/accuracy"] < 1, f"test accuracy: {reference}")
        check(reference["stop_reason"] is None, f"stop reason: {reference}")
        logged = {step for event, step in logged_values(reference_dir) if event == "train"}
        check(logged == {10, 20, 30, 40}, f"undisturbed: logged at {logged}")
        check_ends_alike(reference_dir, reference_dir, reference, "the same command after the end")

        for sent, after_step in ((signal.SIGTERM, 10), (signal.SIGINT, 20)):
            run_dir = folder / sent.name
            code, stopped, error = run(run_dir, "--workers", "2", send=sent, after_step=after_step)
            check(code == EXIT_STOPPED, f"{sent.name}: exits with {code}:\n{error}")
            check(after_step <= stopped["step"] < 40, f"{sent.name}: stops at {stopped}")
            check(stopped["stop_reason"] == sent.name, f"{sent.name}: stop reason: {stopped}")
            check(stopped["test/accuracy"] is None, f"{sent.name}: tests although stopped: {stopped}")
            check("the same command" in error, f"{sent.name}: does not say how to go on:\n{error}")
            check_ends_alike(run_dir, reference_dir, reference, sent.name)

        run_dir = folder / "SIGKILL"
        for after_step in (0, 7, 20, 30):
            code, _, error = run(run_dir, "--workers", "3", send=signal.SIGKILL, after_step=after_step)
            check(code == -signal.SIGKILL, f"SIGKILL came too late: {code}\n{error}")
        check_ends_alike(run_dir, reference_dir, reference, "SIGKILL, four times")

        code, output, error = run(reference_dir, "--no-resume")
        refused = code == 1 and output is None and "[checkpoint-directory-not-empty]" in error
        check(refused, f"--no-resume in a used folder: {code} {error}")
        code, output, error = run(folder / "no-data", "--data-dir", name)
        refused = code == 1 and output is None and "[cannot-read-idx]" in error
        check(refused, f"no data: {code} {error}")
        code, output, error = run(folder / "usage", "--evaluate-every", "often")
        refused = code == 2 and output is None and "--evaluate-every" in error
        check(refused, f"usage: {code} {error}")


PROGRAM = sys.argv[1]
MOMENTS = random.Random(7)
main()
