"""Every crash point of a save, of a retirement and of a first resume.

usage: crash_matrix.py CRASH_PROGRAM foreground|background [--long]

strace makes each call fail, or kills the process at it, that writes, syncs, opens, renames, creates or
removes anything in the checkpoint folder. The next run must go on from the checkpoint before or the one
after, with the right weights to the right end, and leave no temporary folder; a run that survives the fault
must end as an undisturbed one. The short form takes every 11th point of the whole list. Ends with 77 where
strace is missing or may not trace.

Saved in the background, a checkpoint may still be on its way while the next update is: then `before` is one
earlier.
"""

import collections
import pathlib
import shutil
import subprocess
import sys
import tempfile

from crash_points import CAUSES, Phase, Point, Program, copy_folder, faults_of, strike

TOTAL = 7
STRIDE = 11  # prime to the number of faults of a call, so that all of them come up
NOT_RUN = 77


PROGRAM, HOW, *OPTIONS = sys.argv[1:]


def order(folder, last):
    return f"{folder} {last} {HOW}"


def prepared_phases(program, reference, work):
    """Undisturbed runs, one going on where the other ended; each is checked against the whole one and gives the
    next its start."""
    phases, start, first = [], None, 0
    for name, last in (("first saves", 2), ("saves that retire", 4), ("resuming over left-overs", 5)):
        phase = Phase(name, start, first, last)
        folder = work / "checkpoints"
        copy_folder(start, folder)
        run = program.run(order(folder, last))
        assert run.updates == reference.updates[first:last], (run, reference)
        start, first = work / f"after-{last}", last
        copy_folder(folder, start)
        phases.append((phase, run.end))
    # What a writer that was killed leaves.
    left_over = phases[-1][0].start / ".tmp-step-00000005-99-1"
    shutil.copytree(phases[-1][0].start / "step-00000004", left_over)
    (left_over / "manifest.json").unlink()
    shutil.copytree(left_over, left_over.with_name(".tmp-retired-step-00000002-99-2"))
    left_over.with_name(".tmp-link-last-99-3").symlink_to("step-00000004")
    return phases


def problem(point, end, outcome, reference):
    """What is wrong; empty if nothing is."""
    struck, resumed = outcome.struck, outcome.resumed
    first, call = point.phase.first, point.call
    if struck.end is not None and struck.end != end:
        return f"it went on to another end: {struck.end}"
    if struck.error is not None and CAUSES.get(point.fault, "?") not in struck.error:
        return f"its error names another cause: {struck.error}"
    if resumed.end != reference.end:
        return f"the next run ended otherwise: {resumed.end} {resumed.error}"
    oldest = max(first, first + call.update - (2 if HOW == "background" else 1))
    newest = first + len(struck.updates)
    if outcome.loaded is None or not oldest <= outcome.loaded <= newest:
        return f"the next run went on after update {outcome.loaded}, not {oldest} to {newest}"
    if resumed.updates != reference.updates[outcome.loaded:]:
        return "the next run computed other weights"
    left_overs = [name for name in outcome.left if name.startswith(".tmp")]
    if left_overs:
        return f"left over: {left_overs}"
    return ""


def main():
    if shutil.which("strace") is None:
        print("not run: strace is not installed")
        sys.exit(NOT_RUN)
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        print("not run: strace may not trace here")
        sys.exit(NOT_RUN)
    tried, survived, went_on = collections.Counter(), collections.Counter(), collections.Counter()
    failures, missed = [], 0
    with tempfile.TemporaryDirectory() as scratch, Program([PROGRAM]) as program:
        work = pathlib.Path(scratch).resolve()
        folder = work / "checkpoints"
        reference = program.run(order(folder, TOTAL))
        assert reference.end and len(set(reference.updates)) == TOTAL, (reference, program.said())
        points = []
        for phase, end in prepared_phases(program, reference, work):
            copy_folder(phase.start, folder)
            undisturbed = program.run(order(folder, phase.last), folder)
            assert undisturbed.end == end, undisturbed
            points += [(Point(phase, call, fault), end)
                       for call in undisturbed.calls for fault in faults_of(call)]
        print(f"{len(points)} points", flush=True)
        for point, end in points if "--long" in OPTIONS else points[::STRIDE]:
            outcome = strike(program, point, folder, order, TOTAL, reference)
            if outcome is None:
                missed += 1
                continue
            tried[point.fault] += 1
            if text := problem(point, end, outcome, reference):
                failures.append(f"{point}: {text}")
            else:
                survived[point.fault] += 1
                went_on[point.fault] += outcome.struck.reached_its_last_update(point.phase)
    for fault in tried:
        print(f"{fault}: {survived[fault]} of {tried[fault]} points survived" +
              ("" if fault == "SIGKILL" else f", at {went_on[fault]} of them training went on"))
    print(f"crash points, saving in the {HOW}: {survived.total()} of {tried.total()} survived")
    if missed:
        print(f"not tried, since another thread makes the same call before: {missed} points")
    print("\n".join(failures))
    sys.exit(bool(failures) or missed > tried.total() / 5)


main()
