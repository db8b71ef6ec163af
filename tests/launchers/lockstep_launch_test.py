"""What `lockstep launch` promises, case by case.

usage: lockstep_launch_test.py LOCKSTEP

The ranks are small Python programs that write down what happens to them. Every run has a deadline, after
which it is killed, with its ranks, and fails with what was printed.
"""

import collections
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import Failed, check, run_cases

LOCKSTEP = sys.argv[1]
DEADLINE = 30
FOLDER = tempfile.TemporaryDirectory()
LEFT_BY_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                  "OMP_NUM_THREADS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in LEFT_BY_OTHERS}

# What every rank begins with. note() appends to a file that the test reads.
RANK_PROGRAM = """
import json, os, signal, subprocess, sys, time
rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def note(**what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps({"rank": rank, "start": start, "pid": os.getpid(), **what}) + "\\n")
def answer(sent, code):
    signal.signal(sent, lambda number, frame: (note(signal=number), code is None or sys.exit(code)))
def wait_for_end():
    note(waiting=True)
    while True:
        time.sleep(0.05)  # no longer, since a signal just before it does not shorten it
"""


class Launch:
    """`lockstep launch` under way. `program`: what each rank runs after RANK_PROGRAM."""

    def __init__(self, ranks, program, *options, command=None, environment=(), **popen):
        handle, self.file = tempfile.mkstemp(dir=FOLDER.name)
        os.close(handle)
        command = command or [sys.executable, "-S", "-E", "-c", RANK_PROGRAM + program]
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        self.process = subprocess.Popen(
            [LOCKSTEP, "launch", "-n", str(ranks), *options, "--", *command],
            env={**ENVIRONMENT, "NOTES": self.file, **dict(environment)}, **popen)

    def notes(self, *names):
        """What the ranks wrote down with all of these names."""
        notes = [json.loads(line) for line in pathlib.Path(self.file).read_text().splitlines()]
        return [note for note in notes if all(name in note for name in names)]

    def wait_for(self, count, *names):
        end = time.monotonic() + DEADLINE
        while len(self.notes(*names)) < count:
            if time.monotonic() > end:
                self.process.kill()
                raise Failed(f"not {count} of {names}, but {self.notes()}: {self.process.communicate()}")
            time.sleep(0.01)

    def end(self):
        """Waits; then .code, .output and .errors are there."""
        try:
            self.output, self.errors = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed(f"no end in {DEADLINE} s: {self.process.communicate()} {self.notes()}")
        self.code = self.process.returncode
        return self


def run(*arguments, **options):
    return Launch(*arguments, **options).end()


def runs(pid):
    """Whether the process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def check_all_gone(pids):
    end = time.monotonic() + DEADLINE
    while left := [pid for pid in pids if runs(pid)]:
        check(time.monotonic() < end, f"processes {left} are left")
        time.sleep(0.01)


def said(launch):
    """The launcher's own lines."""
    return [line for line in launch.errors.decode().splitlines() if line.startswith("lockstep: ")]


def test_ranks_are_told_who_they_are():
    around = {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "7", "TORCHELASTIC_RUN_ID": "x",
              "GROUP_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    launch = run(3, "note(environment=dict(os.environ), input=sys.stdin.read())", environment=around)
    check(launch.code == 0 and said(launch) == [], f"{launch.code} {launch.errors}")
    notes = sorted(launch.notes("environment"), key=lambda note: note["rank"])
    check(len(notes) == 3, notes)
    cores = len(os.sched_getaffinity(0))
    for rank, note in enumerate(notes):
        environment = note["environment"]
        expected = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3",
                    "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(max(1, cores // 3)),
                    "TORCHELASTIC_RESTART_COUNT": "0"}
        for name, value in expected.items():
            check(environment.get(name) == value, f"{name} is {environment.get(name)}, not {value}")
        for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "GROUP_RANK"):
            check(name not in environment, f"{name} of a launcher around is left")
        check(0 < int(environment["MASTER_PORT"]) < 65536, environment["MASTER_PORT"])
        check(environment["MASTER_PORT"] == notes[0]["environment"]["MASTER_PORT"], "several ports")
        check(note["input"] == "", "the ranks share the launcher's input")


def test_what_is_set_stays():
    program = "note(set=[os.environ['OMP_NUM_THREADS'], os.environ['MASTER_PORT']])"
    launch = run(2, program, "--port", "4321", environment={"OMP_NUM_THREADS": "5"})
    check([note["set"] for note in launch.notes("set")] == [["5", "4321"]] * 2, launch.notes())


def test_lines_arrive_whole_and_in_order():
    program = """
for i in range(400):
    line = ("%d %s\\n" % (i, "x" * (i % 97))).encode()
    for stream, name in ((1, b"out "), (2, b"err ")):
        text = name + line
        os.write(stream, text[:i % 7])
        os.write(stream, text[i % 7:])
"""
    launch = run(3, program, stderr=subprocess.STDOUT)
    check(launch.code == 0, launch.output[-500:])
    seen = collections.defaultdict(list)
    for line in launch.output.decode().splitlines():
        match = re.fullmatch(r"\[(\d)\] (out|err) (\d+) (x*)", line)
        check(match and len(match[4]) == int(match[3]) % 97, f"a torn line: {line!r}")
        seen[match[1], match[2]].append(int(match[3]))
    check([*seen.values()] == [[*range(400)]] * 6, "lines are missing")


def test_each_stream_stays_what_it_is():
    launch = run(2, "print('to output'); print('to errors', file=sys.stderr)")
    check(sorted(launch.output.splitlines()) == [b"[0] to output", b"[1] to output"], launch.output)
    check(sorted(launch.errors.splitlines()) == [b"[0] to errors", b"[1] to errors"], launch.errors)


def test_empty_lines_odd_bytes_and_a_last_line_without_its_end_are_kept():
    launch = run(1, r"os.write(1, b'\n\xff\x00\t\na'); os.write(1, b'b')")
    check(launch.output == b"[0] \n[0] \xff\x00\t\n[0] ab\n", launch.output)


def test_a_progress_bar_stays_readable():
    program = r"""
for i in range(200):
    os.write(2, b"\r%d of 199" % i)
os.write(2, b"\nwindows\r\n\rlast\r")
"""
    launch = run(1, program)
    lines = launch.errors.split(b"\n")
    check(b"\r" not in launch.errors, "carriage returns are left")
    check(lines[0] == b"[0] 0 of 199", lines)
    check(lines[-4:] == [b"[0] 199 of 199", b"[0] windows", b"[0] last", b""], lines)
    check(len(lines) < 20, f"{len(lines)} lines")


def test_a_rank_goes_on_when_nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    launch = Launch(2, "print('x' * 100000, flush=True); note(printed=True)", stdout=writer)
    os.close(writer)
    launch.end()
    check(launch.code == 0 and len(launch.notes("printed")) == 2, f"{launch.code} {launch.notes()}")


def test_all_are_stopped_when_one_fails():
    launch = Launch(3, """
answer(signal.SIGTERM, 0)
if rank == 1:
    while not os.path.exists(os.environ["NOTES"] + ".go"):
        time.sleep(0.01)
    sys.exit(7)
wait_for_end()
""")
    launch.wait_for(2, "waiting")
    pathlib.Path(launch.file + ".go").touch()
    launch.end()
    check(launch.code == 7, launch.code)
    check(said(launch) == ["lockstep: rank 1 of 3 ended with code 7; the others are stopped"], launch.errors)
    signals = sorted((note["rank"], note["signal"]) for note in launch.notes("signal"))
    check(signals == [(0, signal.SIGTERM), (2, signal.SIGTERM)], launch.notes())


def test_a_rank_that_does_not_stop_is_killed():
    launch = run(2, """
if rank == 0:
    while not os.path.getsize(os.environ["NOTES"]):
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait_for_end()
""", "--grace", "0.2")
    check(launch.code == 3, launch.code)
    check_all_gone(note["pid"] for note in launch.notes("waiting"))


def test_a_signal_that_kills_a_rank_is_named():
    launch = run(2, "os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else wait_for_end()")
    check(launch.code == 128 + signal.SIGKILL, launch.code)
    expected = "lockstep: rank 0 of 2 was killed by signal 9 (Killed); the others are stopped"
    check(said(launch) == [expected], launch.errors)


def test_signals_reach_all_ranks():
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        launch = Launch(3, f"answer({int(sent)}, 75); wait_for_end()", "--restarts", "3")
        launch.wait_for(3, "waiting")
        launch.process.send_signal(sent)
        launch.end()
        check(launch.code == 75, f"{sent.name}: {launch.code} {launch.errors}")
        ranks = sorted(note["rank"] for note in launch.notes("signal"))
        check(ranks == [0, 1, 2], f"{sent.name}: {launch.notes()}")
        check(said(launch) == ["lockstep: stopped on request; the same command goes on"], launch.errors)


def test_a_request_to_save_reaches_all_ranks_and_ends_none():
    launch = Launch(3, "answer(signal.SIGUSR2, None); answer(signal.SIGTERM, 75); wait_for_end()")
    launch.wait_for(3, "waiting")
    launch.process.send_signal(signal.SIGUSR2)
    launch.wait_for(3, "signal")
    launch.process.send_signal(signal.SIGTERM)
    launch.end()
    check(launch.code == 75, f"{launch.code} {launch.errors}")
    signals = [[note["signal"] for note in launch.notes("signal") if note["rank"] == rank] for rank in range(3)]
    check(signals == [[signal.SIGUSR2, signal.SIGTERM]] * 3, signals)


def test_ranks_that_a_signal_ends_are_not_started_again():
    launch = Launch(2, "wait_for_end()", "--restarts", "3")
    launch.wait_for(2, "waiting")
    launch.process.send_signal(signal.SIGTERM)
    launch.end()
    check(launch.code == 128 + signal.SIGTERM, launch.code)
    check(len(launch.notes("waiting")) == 2, launch.notes())


def test_a_rank_that_saves_is_not_asked_twice():
    launch = Launch(2, """
def save(number, frame):
    note(signal=number)
    if rank == 0:
        time.sleep(0.5)
    sys.exit(75 if rank == 0 else 1)
signal.signal(signal.SIGTERM, save)
wait_for_end()
""")
    launch.wait_for(2, "waiting")
    launch.process.send_signal(signal.SIGTERM)
    launch.end()
    check(launch.code == 1, launch.code)
    check(len(launch.notes("signal")) == 2, launch.notes())


def test_control_c_on_a_terminal_arrives_once():
    terminal, end = pty.openpty()
    program = "answer(signal.SIGINT, None); wait_for_end()"

    def take_terminal():
        os.setsid()
        import fcntl, termios
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    launch = Launch(2, program, stdin=end, preexec_fn=take_terminal)
    os.close(end)
    launch.wait_for(2, "waiting")
    os.write(terminal, b"\x03")
    launch.wait_for(2, "signal")
    time.sleep(0.2)  # for a second one, if there is
    counts = collections.Counter(note["rank"] for note in launch.notes("signal"))
    launch.process.kill()
    launch.end()
    os.close(terminal)
    check(counts == {0: 1, 1: 1}, counts)


def test_all_are_started_again_as_often_as_told():
    program = """
note(port=os.environ["MASTER_PORT"])
sys.exit(4 if rank == 1 and start < 2 else 0)
"""
    launch = run(2, program, "--restarts", "5")
    check(launch.code == 0, launch.errors)
    started = {(note["rank"], note["start"]) for note in launch.notes("port")}
    check(started >= {(1, 0), (1, 1), (0, 2), (1, 2)}, launch.notes())
    check(len({note["port"] for note in launch.notes("port")}) > 1, f"ports: {launch.notes('port')}")
    again = [line for line in said(launch) if "again" in line]
    check(again == [f"lockstep: starting all ranks again ({n} of 5)" for n in (1, 2)], launch.errors)

    launch = run(2, program, "--restarts", "1")
    check(launch.code == 4, f"{launch.code} {launch.errors}")
    check(max(note["start"] for note in launch.notes("port")) == 1, launch.notes())


def test_what_another_start_cannot_mend_is_not_tried_again():
    for code in (75, 2, 126, 127):
        launch = run(2, f"note(here=True); sys.exit({code})", "--restarts", "3")
        check(launch.code == code, f"{launch.code}, not {code}")
        check(len(launch.notes("here")) <= 2, launch.notes())


def test_a_failure_counts_more_than_a_stop():
    launch = run(2, "sys.exit(75 if rank == 0 else 9)")
    check(launch.code == 9, launch.code)


def test_no_rank_outlives_a_launcher_that_is_killed():
    launch = Launch(3, "signal.signal(signal.SIGTERM, signal.SIG_IGN); wait_for_end()")
    launch.wait_for(3, "waiting")
    launch.process.kill()
    launch.end()
    check_all_gone(note["pid"] for note in launch.notes("waiting"))


def test_what_a_rank_has_started_does_not_outlive_it():
    program = "note(child=subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    launch = run(2, program)
    check(launch.code == 0, launch.errors)
    check(len(launch.notes("child")) == 2, launch.notes())
    check_all_gone(note["child"] for note in launch.notes("child"))


def test_a_program_that_cannot_be_started_is_named():
    no_program = pathlib.Path(FOLDER.name, "text")
    no_program.touch(0o644)
    for program, code, reason in (("/no/such/program", 127, "No such file or directory"),
                                  (str(no_program), 126, "Permission denied")):
        launch = run(3, "", "--restarts", "2", command=[program])
        check(launch.code == code, launch.code)
        check(said(launch) == [f"lockstep: cannot start the ranks: {program}: {reason}"], launch.errors)


def test_a_wrong_command_line_ends_with_2():
    for arguments in ("", "lunch", "launch", "launch -n 2", "launch -- true", "launch -n 0 -- true",
                      "launch -n 2 --port 65536 -- true", "launch -n 2 --restarts -1 -- true"):
        done = subprocess.run([LOCKSTEP, *arguments.split()], capture_output=True, timeout=DEADLINE)
        check(done.returncode == 2 and done.stderr, f"{arguments}: {done}")


def test_it_starts_without_torch():
    libraries = subprocess.run(["ldd", LOCKSTEP], capture_output=True, text=True, check=True).stdout
    check("libc.so" in libraries and not re.search("torch|c10", libraries), libraries)


run_cases(globals(), at_least=20)
