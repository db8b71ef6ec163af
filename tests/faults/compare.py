"""The crash matrix of Python's training tools beside ours, as one table.

usage: compare.py CRASH_PROGRAM PYTHON [TOOL...]

PYTHON is that of an environment with torch and what it has of accelerate, lightning and
pytorch-accelerated; what is missing is said. Two saves of each tool, with good ones before them, are struck
at every call that changes its folder: the process is killed there, or the disk is full from there on. Then
the tool resumes by its own means.
"""

import collections
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from crash_points import OPENS, Phase, Point, Program, copy_folder, faults_of, strike

FIRST, LAST, TOTAL = 2, 4, 6
FAULTS = ("SIGKILL", "ENOSPC")


def verdict(point, outcome, end):
    """What the next run found; it ends with `end`, unless the tool never ends as it should."""
    if not outcome.resumed.updates:
        return "error"
    before = max(point.phase.first, point.phase.first + point.call.update - 1)
    if outcome.loaded is None or (end and outcome.resumed.end and outcome.resumed.end != end):
        return "wrong"
    if outcome.resumed.error:
        return "error"
    return "right" if outcome.loaded >= before else "older"


def measured(program):
    """Counts of (fault, what came of it)."""
    def order(folder, last):
        return f"{folder} {last} foreground"  # ours reads the last word

    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch).resolve()
        folder, start = work / "checkpoints", work / "start"
        reference = program.run(order(folder, TOTAL))
        names = set(os.listdir(folder))
        if not reference.end:
            raise RuntimeError(f"{reference.error}; {program.said()}")
        copy_folder(None, folder)
        program.run(order(folder, FIRST))
        copy_folder(folder, start)
        undisturbed = program.run(order(folder, LAST), folder)
        resumed = program.run(order(folder, TOTAL))
        if undisturbed.updates + resumed.updates[:1] != reference.updates[FIRST:LAST + 1]:
            raise RuntimeError(f"it does not resume when left alone: {undisturbed.error} {resumed.error}")
        end = reference.end if resumed.end == reference.end else None
        phase = Phase("saves", start, FIRST, LAST)
        for call in undisturbed.calls:
            if call.name in OPENS and not call.creates:
                continue
            for fault in faults_of(call):
                if fault not in FAULTS:
                    continue
                point = Point(phase, call, fault)
                outcome = strike(program, point, folder, order, TOTAL, reference)
                if outcome is None:
                    counts[fault, "another call was hit"] += 1
                    continue
                counts[fault, "points"] += 1
                counts[fault, verdict(point, outcome, end)] += 1
                if call.update < LAST - FIRST:  # else no update is left to go on with
                    counts[fault, "could go on"] += 1
                    counts[fault, "goes on"] += outcome.struck.reached_its_last_update(phase)
                counts[fault, "named"] += "No space left on device" in (outcome.struck.error or "")
                counts[fault, "left over"] += bool(set(outcome.left) - names)
    return counts


def row(title, counts):
    names = ("points", "right", "older", "error", "wrong", "goes on", "could go on", "named", "left over",
             "another call was hit")
    kill, full = ({what: counts[fault, what] for what in names} for fault in FAULTS)
    cells = [title, kill["points"], kill["right"], kill["older"], kill["error"], kill["wrong"],
             kill["left over"],
             full["points"], f"{full['goes on']} of {full['could go on']}", full["named"],
             full["right"] + full["older"], full["wrong"]]
    missed = kill["another call was hit"] + full["another call was hit"]
    note = f" ({missed} points hit another call)" if missed else ""
    return "| " + " | ".join(map(str, cells)) + " |" + note


def main():
    crash_program, python, *only = sys.argv[1:]
    script = pathlib.Path(__file__).with_name("python_tools.py")
    listed = subprocess.run([python, script, "list"], check=True, capture_output=True, text=True).stdout
    tools = json.loads(listed)
    versions = {tool["package"]: tool["version"] for tool in tools.values()}
    print(f"{datetime.date.today()}, " + ", ".join(f"{name} {version or 'not installed'}"
                                                   for name, version in versions.items()))
    print("| tool | points of a kill | resumes right | older | error | silently wrong | leaves something | "
          "points of a full disk | training goes on | cause named | then resumes | silently wrong |")
    print("|" + " --- |" * 12, flush=True)
    commands = {"lockstep": ("**lockstep**", [crash_program])}
    for name, tool in tools.items():
        if tool["version"]:
            commands[name] = (tool["title"], [python, script, name])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, (title, command) in commands.items():
        if only and name not in only:
            continue
        try:
            with Program(command, environment) as program:
                print(row(title, measured(program)), flush=True)
        except RuntimeError as problem:
            print(f"| {title} | void: {problem} |", flush=True)


if shutil.which("strace") is None:
    sys.exit("strace is not installed")
main()
