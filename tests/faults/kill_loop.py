"""Kills a training program again and again and lets it go on: it must end as one that was left alone.

usage: kill_loop.py KILLS CHECKPOINTS COMMAND...

`{}` in COMMAND stands for a folder of the run's own; CHECKPOINTS is where below it checkpoints go. The
command, with all processes it started, gets SIGKILL between 0 and 300 ms after its first new checkpoint,
and is started again. A run that ends is compared with the undisturbed one by the last line it prints, and
another is begun until there were KILLS.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE = 180  # seconds; a save of each two updates waits for the disk
KILLS, CHECKPOINTS, COMMAND = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
MOMENTS = random.Random(7)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


class Running:
    """The command in a folder, in a process group of its own."""

    def __init__(self, folder):
        self.output = tempfile.TemporaryFile("w+")
        command = [word.replace("{}", str(folder)) for word in COMMAND]
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT,
                                        env=ENVIRONMENT, start_new_session=True)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def printed(self):
        self.output.seek(0)
        return self.output.read()

    def until(self, holds, what):
        end = time.monotonic() + DEADLINE
        while not holds():
            if time.monotonic() > end:
                self.kill()
                sys.exit(f"failed: not within {DEADLINE} s: {what}; printed:\n{self.printed()}")
            time.sleep(0.002)

    def ended(self):
        return self.process.poll() is not None

    def result(self):
        if self.process.returncode != 0:
            sys.exit(f"failed: exit code {self.process.returncode}; printed:\n{self.printed()}")
        return self.printed().rstrip().rpartition("\n")[2]


def checkpoints(folder):
    path = folder / CHECKPOINTS
    return {entry.name for entry in path.glob("step-*")}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        undisturbed = Running(folder / "undisturbed")
        undisturbed.until(undisturbed.ended, "the end of the undisturbed run")
        expected = undisturbed.result()
        kills = runs = 0
        while kills < KILLS or checkpoints(folder / str(runs)):
            run_folder = folder / str(runs)
            before = checkpoints(run_folder)
            running = Running(run_folder)
            if kills < KILLS:
                running.until(lambda: running.ended() or checkpoints(run_folder) - before, "a new checkpoint")
                time.sleep(MOMENTS.uniform(0, 0.3))
                if not running.ended():
                    running.kill()
                    kills += 1
                    continue
            running.until(running.ended, "the end of a run")
            running.kill()  # what it may have left
            if running.result() != expected:
                sys.exit(f"failed: {running.result()}\ninstead of {expected}")
            runs += 1
        print(f"killed {kills} times, went on, and ended {runs} times as the undisturbed run: {expected}")


main()
