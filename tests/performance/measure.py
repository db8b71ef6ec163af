"""Measures lockstep against what docs/performance.md compares it with, prints one table, and writes performance.json.

    measure.py --program PROGRAM --python PYTHON --output performance.json [--only M2,M7] [--rounds 7]
    measure.py --program PROGRAM --smoke

PROGRAM is performance_workloads, PYTHON one that has torch and the peers. run.sh calls this with both. Exits 1 if a gate
fails. `--smoke` checks in two minutes, without Python's torch, that everything runs, that the losses are equal, and that
the instructions of an update are within the gate.

How it measures: one thread, pinned to one core, and two processes on two cores where ranks are measured. Losses of the first 20 updates must agree to 1e-5, else a row is void.
Rows of a workload run in rounds, every other one backwards; a ratio is the median of the ratios of the rounds.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import functools
import hashlib
import json
import math
import os
import pathlib
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CORES = sorted(os.sched_getaffinity(0))
CORE = CORES[-1]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
if os.path.isdir("/dev/shm"):
    ENVIRONMENT["TMPDIR"] = "/dev/shm"  # logs and checkpoints of all rows: loops are measured, not disks
# But for those whose subject is saving: a folder on a disk.
DISK = ENVIRONMENT.setdefault("LOCKSTEP_PERFORMANCE_DISK", "/var/tmp")

# A row of a workload: who runs it, and which way.
LOCKSTEP, FLOOR, STOCK = ("c++", "trainer"), ("c++", "flat"), ("c++", "stock")
OWN_PASSES = ("c++", "forward_backward")
DEFAULT, TUNED = ("raw", "default"), ("raw", "tuned")
LIGHTNING, ACCELERATE = ("lightning", "quiet"), ("accelerate", "default")
PYTORCH_ACCELERATED = ("pytorch_accelerated", "quiet")
OUR_LOADER, TORCH_LOADER, PYTHON_LOADER = ("c++", "lockstep"), ("c++", "torch"), ("raw", "torch")

# Two processes at once: the ranks of one run, each bound to a core or not, or each by itself.
ON_RANKS, BOUND, TWICE = " on 2 ranks", " on 2 bound ranks", " twice"
LOCKSTEP_ON_RANKS, LOCKSTEP_TWICE = ("c++" + ON_RANKS, "trainer"), ("c++" + TWICE, "trainer")
LOCKSTEP_BOUND = ("c++" + BOUND, "trainer")
DDP_DEFAULT, DDP_TUNED = ("raw" + ON_RANKS, "default"), ("raw" + ON_RANKS, "tuned")
DEFAULT_TWICE, TUNED_TWICE = ("raw" + TWICE, "default"), ("raw" + TWICE, "tuned")

WITHOUT_AVERAGE, STREAM = ("c++", "without_average"), ("c++", "stream")

IN_BACKGROUND, AT_ONCE, COPY = ("c++", "background"), ("c++", "at_once"), ("c++", "copy")
OUR_FILE, BY_HAND, TORCH_SAVE = ("c++", "file"), ("c++", "by_hand"), ("raw", "torch_save")

AT_MOST, AT_LEAST = "<=", ">="


def over(workload, a, b):
    """The time of a over that of b, in the same round."""
    return {"needs": [(workload, a), (workload, b)], "value": lambda a, b: a / b}


def percent_of_averaging(workload):
    """What averaging adds to the update alone, in the whole update."""
    alone = f"update-{workload}"
    return {"needs": [(alone, LOCKSTEP), (alone, WITHOUT_AVERAGE), (workload, LOCKSTEP)],
            "value": lambda a, b, whole: 100 * (a - b) / whole}


def over_cost_of_ranks(workload, ours, theirs):
    """What it adds to an update that two processes are one run: ours over theirs. Each a pair of rows, joined and not."""
    def value(ours, ours_apart, theirs, theirs_apart):
        if theirs <= theirs_apart:
            raise Unmeasured("the peer's two ranks cost nothing: the machine is too noisy")
        return (ours - ours_apart) / (theirs - theirs_apart)
    return {"needs": [(workload, row) for row in (*ours, *theirs)], "value": value}


# Metric, what it is, how it follows from the times of rows, gate, goal.
TIMED = [
    ("M2", "everything on, over the flat floor", over("W6", LOCKSTEP, FLOOR), AT_MOST, 1.05, 1.01),
    ("M3", "tiny MLP: Python default", over("W1", DEFAULT, LOCKSTEP), AT_LEAST, 3.4, 3.7),
    ("M3", "tiny MLP: Python tuned", over("W1", TUNED, LOCKSTEP), AT_LEAST, 2.4, 2.6),
    ("M4", "everything on: Lightning", over("W6", LIGHTNING, LOCKSTEP), AT_LEAST, 9, 10),
    ("M4", "everything on: Accelerate", over("W6", ACCELERATE, LOCKSTEP), AT_LEAST, 4, 4.5),
    ("M4", "everything on: pytorch-accelerated", over("W6", PYTORCH_ACCELERATED, LOCKSTEP), AT_LEAST, 3.8, 4.3),
    ("M5", "200 layers, update alone: Python tuned", over("update-W4", TUNED, LOCKSTEP), AT_LEAST, 20, 100),
    ("M5", "200 layers, update alone: Python default", over("update-W4", DEFAULT, LOCKSTEP), AT_LEAST, 80, 400),
    ("M6", "200 layers: Python tuned", over("W4", TUNED, LOCKSTEP), AT_LEAST, 1.9, 2.1),
    ("M6", "200 layers: Python default", over("W4", DEFAULT, LOCKSTEP), AT_LEAST, 4.3, 4.8),
    ("M6", "200 layers: stock LibTorch", over("W4", STOCK, LOCKSTEP), AT_LEAST, 2.1, 2.4),
    ("M7", "200 layers, over its own passes", over("W4", LOCKSTEP, OWN_PASSES), AT_MOST, 1.12, 1.05),
    ("M8", "10 x 1M floats, update over 10 streams", over("update-W5", LOCKSTEP, STREAM), AT_MOST, 1.4, 1.1),
    ("M9", "small conv net: Python tuned", over("W2", TUNED, LOCKSTEP), AT_LEAST, 1.0, 1.03),
    ("M9", "transformer: Python tuned", over("W3", TUNED, LOCKSTEP), AT_LEAST, 1.0, 1.03),
    ("M10", "averaging, % of an update, transformer", percent_of_averaging("W3"), AT_MOST, 1, 0.5),
    ("M10", "averaging, % of an update, 200 layers", percent_of_averaging("W4"), AT_MOST, 0.5, 0.1),
    ("M11", "shuffled batch: Python's DataLoader", over("batches", PYTHON_LOADER, OUR_LOADER), AT_LEAST, 8, 12),
    ("M11", "shuffled batch: C++ DataLoader", over("batches", TORCH_LOADER, OUR_LOADER), AT_LEAST, 3.5, 5),
    ("M12", "a save of 126 MB holds a run up, over a copy", over("saves-large", IN_BACKGROUND, COPY), AT_MOST, 1.3, 1.1),
    ("M12", "a save at once holds it up, over one in the background", over("saves-large", AT_ONCE, IN_BACKGROUND),
     AT_LEAST, 6, 8),
    ("M14", "1,200 small tensors, durable: torch.save, not durable", over("saves-small", TORCH_SAVE, OUR_FILE),
     AT_LEAST, 10, 20),
    ("M14", "1,200 small tensors, durable, over the bytes", over("saves-small", OUR_FILE, BY_HAND), AT_MOST, 1.5, 1.1),
    ("M15", "126 MB, durable, over the bytes", over("saves-large", OUR_FILE, BY_HAND), AT_MOST, 1.1, 1.02),
    ("M17", "cost of two ranks, tiny MLP: DDP default",
     over_cost_of_ranks("W1", (LOCKSTEP_ON_RANKS, LOCKSTEP_TWICE), (DDP_DEFAULT, DEFAULT_TWICE)), AT_MOST, 0.5, 0.3),
    ("M17", "cost of two ranks, tiny MLP: DDP tuned",
     over_cost_of_ranks("W1", (LOCKSTEP_ON_RANKS, LOCKSTEP_TWICE), (DDP_TUNED, TUNED_TWICE)), AT_MOST, 0.5, 0.3),
    ("M18", "weak scaling to two ranks, transformer", over("W3", LOCKSTEP, LOCKSTEP_BOUND), AT_LEAST, 0.88, 0.95),
]
# Windows of a run that hold what happens once in a while; others get some 80 ms.
WINDOWS = {"W6": 100, "batches": 1875, "saves-large": 1, "saves-small": 1}
SECONDS_OF_A_RUN = 0.6
SECONDS_OF_AN_ANSWER = 300


class Unmeasured(Exception):
    """Why a row or a metric has no value."""


class Worker:
    """A process that answers lines with JSON."""

    def __init__(self, command, cores=(CORE,)):
        self.process = subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), *command], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT)

    def ask(self, *words):
        self.send(*words)
        return checked(self.receive())

    def send(self, *words):
        with contextlib.suppress(BrokenPipeError):  # receive() says it
            print(*words, file=self.process.stdin, flush=True)

    def receive(self):
        deadline = threading.Timer(SECONDS_OF_AN_ANSWER, self.process.kill)
        deadline.start()
        line = self.process.stdout.readline()
        deadline.cancel()
        return json.loads(line or '{"error": "the process has ended"}')

    def libtorch(self):
        maps = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text()
        return re.search(r"(/\S+/libtorch_cpu\.so)", maps)[1]


class Pair:
    """Two processes on two cores that answer a line at the same time. Bound to a core each, as mpirun and srun bind them,
    or to both: Python's suffer from the first, since Gloo's own thread spins while the one that it interrupts holds a
    lock, until the scheduler ends that."""

    def __init__(self, command, are_ranks, bound):
        cores = CORES[-2:]
        self.workers = [Worker(command, [cores[rank % len(cores)]] if bound else cores) for rank in range(2)]
        self.are_ranks, self.runs, self.folder = are_ranks, 0, tempfile.TemporaryDirectory(prefix="performance-")

    def ask(self, *words):
        if words[0] == "time" and len(CORES) < 2:
            raise Unmeasured("two cores are needed")
        self.runs += 1
        for rank, worker in enumerate(self.workers):
            place = [rank, len(self.workers), f"file://{self.folder.name}/{self.runs}"]
            worker.send(*words, *(place if self.are_ranks and words[0] != "info" else []))
        first, second = [checked(reply) for reply in [worker.receive() for worker in self.workers]]
        if self.are_ranks and "losses" in first:  # in the order of the batches
            return {"losses": [loss for both in zip(first["losses"], second["losses"]) for loss in both]}
        if "seconds" in first:
            return {"seconds": [statistics.mean(both) for both in zip(first["seconds"], second["seconds"])]}
        return first

    def libtorch(self):
        return self.workers[0].libtorch()


class Bench:
    """The workers, and what was measured with them."""

    def __init__(self, program, python, rounds):
        self.program, self.python, self.rounds = program, python, rounds
        self.workers, self.info, self.times, self.unmeasured, self.loss_error, self.busy = {}, {}, {}, {}, {}, 0
        self.floor_losses = {}
        info = self.worker("c++").ask("info")
        self.info["c++"] = info
        self.library = pathlib.Path(self.worker("c++").libtorch())
        self.libtorch = digest(self.library)

    def worker(self, name):
        if name not in self.workers:
            who = name.split()[0]
            command = [self.program] if who == "c++" else [self.python, HERE / "peers.py", who]
            worker = self.workers[name] = Worker(command) if name == who else Pair(
                command, are_ranks=name != who + TWICE, bound=name == who + BOUND)
            if who != "c++":
                try:
                    self.info[name] = worker.ask("info")
                    if self.info[name]["capability"] != self.info["c++"]["capability"]:
                        raise Unmeasured("another CPU capability than the C++ side")
                    if digest(pathlib.Path(worker.libtorch())) != self.libtorch:
                        raise Unmeasured("another libtorch than the C++ side")
                except Unmeasured as why:
                    self.workers[name] = why
        if isinstance(self.workers[name], Unmeasured):
            raise self.workers[name]
        return self.workers[name]

    def check_losses(self, workload, row):
        """The first 20 updates against those of the flat floor."""
        if not workload.startswith("W") or row == OWN_PASSES:
            return  # nothing is trained
        of_all_ranks = (0, 2, "-") if row[0].endswith((ON_RANKS, BOUND)) else ()
        if (workload, of_all_ranks) not in self.floor_losses:
            floor = self.worker("c++").ask("losses", workload, "flat", 20, *of_all_ranks)
            self.floor_losses[workload, of_all_ranks] = floor["losses"]
        expected = self.floor_losses[workload, of_all_ranks]
        losses = self.worker(row[0]).ask("losses", workload, row[1], 20)["losses"]
        error = max((abs(a - b) / abs(b) for a, b in zip(losses, expected)), default=math.inf)
        self.loss_error[f"{workload} {' '.join(row)}"] = error
        if len(losses) != len(expected) or not error <= 1e-5:
            raise Unmeasured(f"void: the losses differ by {error:.1e}")

    def seconds(self, workload, row, plan):
        return statistics.median(self.worker(row[0]).ask("time", workload, row[1], *plan)["seconds"])

    def plan(self, workload, row):
        """Warm-up, updates and window of one run."""
        window = WINDOWS.get(workload, 5)
        cost = self.seconds(workload, row, (window, 2 * window, window))
        window = WINDOWS.get(workload, max(1, round(0.08 / cost)))
        return window, window * max(2, math.ceil(SECONDS_OF_A_RUN / (window * cost))), window

    def run(self, workload, rows):
        """Times the rows of a workload in rounds, there and back."""
        self.busy = max(self.busy, busy_share())
        plans = {}
        for row in rows:
            try:
                self.check_losses(workload, row)
                plans[row] = self.plan(workload, row)
            except Unmeasured as why:
                self.unmeasured[workload, row] = why
        for i in range(self.rounds):
            for row in list(plans) if i % 2 == 0 else reversed(list(plans)):
                self.times.setdefault((workload, row), []).append(self.seconds(workload, row, plans[row]))
        say(f"{workload}: " + ", ".join(f"{' '.join(row)} {statistics.median(self.times[workload, row]) * 1e3:.4g} ms"
                                        for row in plans))

    def values(self, needs, value):
        """Of each round."""
        for need in needs:
            if need in self.unmeasured:
                raise self.unmeasured[need]
        return [value(*times) for times in zip(*(self.times[need] for need in needs))]


def checked(reply):
    if "error" in reply:
        raise Unmeasured(reply["error"].splitlines()[0])
    return reply


def say(text):
    print(f"# {text}", file=sys.stderr, flush=True)


def digest(path, known={}):
    if path not in known:
        known[path] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return known[path]


def busy_share():
    """Of all cores in a second in which we do nothing."""
    def read():
        numbers = [int(n) for n in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]
    total, idle = read()
    time.sleep(1)
    total_after, idle_after = read()
    return 1 - (idle_after - idle) / max(1, total_after - total)


COUNTED_UPDATES = 100


@functools.cache
def profile_of_updates(program, way):
    """By callgrind, between two marks of the stopwatch, so that start-up and warm-up are left out."""
    updates = str(COUNTED_UPDATES)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out",
                        "--dump-before=performance::Stopwatch::mark()", program, "time", "W1", way, "20", updates, updates],
                       capture_output=True, check=True, env=ENVIRONMENT)
        return pathlib.Path(folder, "out.2").read_text()


def instructions_of_an_update(program, way, without=None):
    """But those of a library whose path contains `without`."""
    names, library, total, of_a_call = {}, "", 0, False
    for line in profile_of_updates(program, way).splitlines():
        if found := re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            name = names.setdefault(found[2], found[3])
            library = library if found[1] else name
        elif re.match(r"[-+*\d]", line):
            if not of_a_call and (without is None or without not in library):
                total += int(line.split()[1])
            of_a_call = False
        elif line.startswith("calls="):
            of_a_call = True  # the next line is of what it called
    return total / COUNTED_UPDATES


def m1(bench):
    if not shutil.which("valgrind"):
        raise Unmeasured("valgrind is missing: apt-get install valgrind")
    bench.check_losses("W1", LOCKSTEP)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        trainer, floor = pool.map(lambda row: instructions_of_an_update(bench.program, row[1]), (LOCKSTEP, FLOOR))
    say(f"instructions of an update: trainer {trainer:.0f}, flat {floor:.0f}")
    return [trainer / floor]


def instructions_of_hooks(bench):
    """What twenty empty hooks add to an update of the tiny MLP, in percent. The C library is left out: hooks ask for no
    memory, but what its allocator does for the same requests depends on where the memory lies, by more than hooks cost."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        without, hooked = pool.map(lambda way: instructions_of_an_update(bench.program, way, without="/libc.so"),
                                   ("trainer", "hooked"))
    say(f"instructions of an update: trainer {without:.0f}, with twenty empty hooks {hooked:.0f}")
    return 100 * (hooked / without - 1)


def m19(bench):
    """User time of the compiler for a translation unit with the Trainer, over the same model trained by hand."""
    cache = next(parent / "CMakeCache.txt" for parent in bench.program.parents if (parent / "CMakeCache.txt").exists())
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)", cache.read_text(), re.M)[1]
    torch = bench.library.parent.parent / "include"
    folders = ["-I", HERE.parent.parent / "include", "-isystem", torch, "-isystem", torch / "torch/csrc/api/include"]

    def user_seconds(source):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([compiler, "-std=c++20", "-O2", *folders, "-c", HERE / source, "-o", "/dev/null"], check=True)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    ratios = []
    for i in range(3):  # half a minute each; user time is steady
        order = ["compile_trainer.cpp", "compile_loop.cpp"]
        seconds = {source: user_seconds(source) for source in (order if i % 2 == 0 else reversed(order))}
        ratios.append(seconds[order[0]] / seconds[order[1]])
    say(f"compiling: {seconds}")
    return ratios


def m20(bench):
    def peak(way):
        run = subprocess.run([bench.program, "memory", "W1", way, "500"], capture_output=True, text=True, check=True,
                             env=ENVIRONMENT)
        return json.loads(run.stdout)["peak"] / 1024
    return [peak("trainer") - peak("flat") for _ in range(bench.rounds)]


def m13(bench):
    """Updates of a small transformer while 126 MB are written, over those alone. The thread that writes needs a core."""
    if len(CORES) < 2:
        raise Unmeasured("two cores are needed")
    worker = Worker([bench.program], CORES[-2:])
    ratios = []
    for _ in range(bench.rounds):
        seconds = worker.ask("beside", "W3", 120)
        if not seconds["beside"]:
            raise Unmeasured("no update fell into a save")
        ratios.append(statistics.median(seconds["beside"]) / statistics.median(seconds["alone"]))
    say(f"updates beside a save {statistics.median(seconds['beside']) * 1e3:.4g} ms, "
        f"alone {statistics.median(seconds['alone']) * 1e3:.4g} ms")
    return ratios


def m16(bench):
    """From SIGKILL to the first new update: the Python loop over ours. Both begin as processes of their own."""
    commands = {"c++": [bench.program], "raw": [bench.python, HERE / "peers.py", "raw"]}

    def seconds(who, folder):
        for last in (False, True):
            worker = Worker(commands[who])
            worker.send("resume", folder)
            if last:
                worker.process.stdout.readline()
                passed = time.perf_counter() - killed
            else:
                for _ in range(50):
                    worker.receive()
            killed = time.perf_counter()
            worker.process.kill()
            worker.process.wait()
        return passed

    bench.worker("raw")  # compares versions
    ratios = []
    for _ in range(bench.rounds):
        passed = {}
        for who in commands:
            with tempfile.TemporaryDirectory(prefix="resume-", dir=DISK) as folder:
                passed[who] = seconds(who, folder)
        ratios.append(passed["raw"] / passed["c++"])
    say(f"from SIGKILL to the first new update: ours {passed['c++']:.3g} s, Python {passed['raw']:.3g} s")
    return ratios


OTHERS = [
    ("M13", "an update while 126 MB are written, over one alone", m13, AT_MOST, 1.15, 1.05),
    ("M16", "from SIGKILL to a new update: Python's loop", m16, AT_LEAST, 1.7, 2.5),
    ("M1", "tiny MLP, instructions over the floor", m1, AT_MOST, 1.01, 1.002),
    ("M19", "compiling a program, over torch's headers alone", m19, AT_MOST, 1.25, 1.10),
    ("M20", "peak memory over the flat floor, MiB", m20, AT_MOST, 4, 1),
]


def measure(bench, only):
    """All metrics as rows of the table."""
    timed = [metric for metric in TIMED if metric[0] in only]
    needs = dict.fromkeys(need for metric in timed for need in metric[2]["needs"])
    for workload in dict.fromkeys(workload for workload, _ in needs):
        bench.run(workload, [row for of, row in needs if of == workload])
    measurements = [(name, what, lambda bench, how=how: bench.values(**how), sense, gate, goal)
                    for name, what, how, sense, gate, goal in timed]
    measurements += [other for other in OTHERS if other[0] in only]
    results = []
    for name, what, function, sense, gate, goal in sorted(measurements, key=lambda m: int(m[0][1:])):
        result = {"metric": name, "what": what, "sense": sense, "gate": gate, "goal": goal}
        try:
            result["rounds"] = function(bench)
            value = result["value"] = statistics.median(result["rounds"])
            result["gate_holds"], result["goal_holds"] = (value <= limit if sense == AT_MOST else value >= limit
                                                          for limit in (gate, goal))
        except Unmeasured as why:
            result["skipped"] = str(why)
            result["gate_holds"] = None if not str(why).startswith("void") else False
        results.append(result)
    return results


def table(results):
    rows = [["metric", "", "measured", "gate", "goal", "", ""]]
    for r in results:
        limits = [f"{r['sense']} {r[limit]:g}" for limit in ("gate", "goal")]
        if "skipped" in r:
            rows.append([r["metric"], r["what"], "-", *limits, f"skipped: {r['skipped']}", ""])
        else:
            rows.append([r["metric"], r["what"], f"{r['value']:.4g}", *limits,
                         f"gate {'holds' if r['gate_holds'] else 'FAILS'}",
                         f"goal {'holds' if r['goal_holds'] else 'missed'}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("-" * max(3, width) for width in widths) + " |", *lines[1:]])


def smoke(bench):
    for workload in ("W1", "W2", "W3", "W4", "W6"):
        for row in (LOCKSTEP, STOCK):
            bench.check_losses(workload, row)
        for row in (LOCKSTEP, FLOOR, STOCK, OWN_PASSES):
            assert bench.seconds(workload, row, (1, 4, 2)) > 0
    bench.check_losses("W1", LOCKSTEP_ON_RANKS)
    for row in (OUR_LOADER, TORCH_LOADER):
        assert bench.seconds("batches", row, (1, 4, 2)) > 0
    for row in (OUR_FILE, BY_HAND):
        assert bench.seconds("saves-small", row, (1, 2, 1)) > 0
    print(f"losses agree to {max(bench.loss_error.values()):.1e}")
    ratio = m1(bench)[0]
    print(f"M1, instructions over the flat floor: {ratio:.4f} (gate 1.01)")
    hooks = instructions_of_hooks(bench)
    print(f"twenty empty hooks, % of the instructions of an update: {hooks:.3f} (gate 0.1)")
    return ratio <= 1.01 and hooks < 0.1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--only", type=lambda text: set(text.split(",")))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments.program, arguments.python, arguments.rounds)
    if arguments.smoke:
        try:
            sys.exit(not smoke(bench))
        except Unmeasured as why:
            sys.exit(str(why))

    results = measure(bench, arguments.only or {metric[0] for metric in TIMED + OTHERS})
    print(table(results))
    loaded = f"the machine was loaded: up to {bench.busy:.0%} of its cores were busy beside this"
    if bench.busy > 0.1:
        print(f"\n{loaded}; repeat this when it is not")
    medians = {f"{workload} {' '.join(row)}": statistics.median(times) for (workload, row), times in bench.times.items()}
    if arguments.output:
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        arguments.output.write_text(json.dumps({
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cpu": cpu[1] if cpu else platform.processor(), "cores": os.cpu_count(), "busy": bench.busy,
            "libtorch": bench.libtorch, "versions": bench.info, "rounds": bench.rounds,
            "seconds": medians, "loss_error": bench.loss_error, "metrics": results}, indent=1) + "\n")
    sys.exit(any(result["gate_holds"] is False for result in results))


if __name__ == "__main__":
    main()
