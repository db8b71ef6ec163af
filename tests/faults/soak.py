"""A long run of two ranks while one after another is killed: how much of the time is training?

usage: soak.py LOCKSTEP CRASH_PROGRAM UPDATES

First the run undisturbed, then the same with SIGKILL to a rank chosen at random, ten seconds apart on
average; the launcher starts all ranks again each time. Both must end alike. Prints the effective-training
ratio, the time that the updates of the disturbed run take at the speed it had between kills over the time
they took, beside what the formula gives:

    1 - kills (start + lost) / time

with the time from a start to the first checkpoint, measured before, and the work that is lost with each
kill: half an update since the last save, on average, and one that was being saved. The two must agree to
five points.
"""

import contextlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LOCKSTEP, PROGRAM, UPDATES = sys.argv[1], sys.argv[2], int(sys.argv[3])
MEAN_TIME_BETWEEN_KILLS = 10
SILENCE = 60  # seconds without a new checkpoint are a failure
MOMENTS = random.Random(7)


def newest(folder):
    return max((int(path.name[5:13]) for path in folder.glob("step-*")), default=0)


class Job:
    def __init__(self, folder, updates=UPDATES):
        self.folder, self.output = folder, tempfile.TemporaryFile("w+")
        self.launcher = subprocess.Popen(
            [LOCKSTEP, "launch", "-n", "2", "--restarts", "100000", "--",
             PROGRAM, str(folder), str(updates), "background"],
            stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"})

    def fail(self, why):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.output.seek(0)
        sys.exit(f"failed: {why}; printed:\n{self.output.read()[-3000:]}")

    def wait_for_checkpoint_after(self, step):
        """When there was one, or None when the job ended before."""
        end = time.monotonic() + SILENCE
        while newest(self.folder) <= step:
            if self.launcher.poll() is not None:
                return None
            if time.monotonic() > end:
                self.fail(f"no checkpoint after step {step} within {SILENCE} s")
            time.sleep(0.005)
        return time.monotonic()

    def ranks(self):
        with contextlib.suppress(OSError):
            children = pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
            return list(map(int, children.read_text().split()))
        return []

    def end(self):
        """The last line, without the launcher's prefix."""
        if self.launcher.wait() != 0:
            self.fail(f"exit code {self.launcher.returncode}")
        self.output.seek(0)
        lines = [line for line in self.output.read().splitlines() if "end " in line]
        return lines[-1].partition("end ")[2]


def main():
    with tempfile.TemporaryDirectory() as scratch:
        starts = []
        for number in range(3):
            launched = time.monotonic()
            job = Job(pathlib.Path(scratch, f"start-{number}"), updates=1)
            starts.append(job.wait_for_checkpoint_after(0) - launched)
            job.end()

        job = Job(pathlib.Path(scratch, "undisturbed"))
        expected = job.end()

        job = Job(pathlib.Path(scratch, "disturbed"))
        begin = up = job.wait_for_checkpoint_after(0)
        at_begin = first = newest(job.folder)
        trained = trained_for = kills = 0  # the former two between a start and the next kill
        while job.launcher.poll() is None:
            time.sleep(MOMENTS.expovariate(1 / MEAN_TIME_BETWEEN_KILLS))
            ranks = job.ranks()
            if not ranks:
                break
            reached, killed = newest(job.folder), time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(MOMENTS.choice(ranks), signal.SIGKILL)
            again = job.wait_for_checkpoint_after(reached)
            if again is None:
                break
            trained, trained_for, kills = trained + reached - first, trained_for + killed - up, kills + 1
            first, up = newest(job.folder), again
        result = job.end()
    if result != expected:
        sys.exit(f"failed: it ended otherwise: {result}, not {expected}")
    if not trained:
        sys.exit("failed: it ended before anything was killed")
    took, update, start = up - begin, trained_for / trained, statistics.median(starts)
    ratio = (first - at_begin) * update / took
    formula = 1 - kills * (start + 1.5 * update) / took
    print(f"soak: {UPDATES} updates of 2 ranks, {kills} kills in {took:.0f} s; the same end as undisturbed. "
          f"A start took {start:.2f} s. Effective training {ratio:.1%}, by the formula {formula:.1%}")
    sys.exit(abs(ratio - formula) > 0.05)


main()
