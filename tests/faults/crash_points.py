"""Strikes a training program at chosen system calls, by strace's injection, and starts its next run.

A program is a server on a socket, its standard input, as crash_program.cpp says: it forks a fresh child for
each order, so that a run costs no start. Whatever tells updates apart is a hash of the weights before each
of them.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

DEADLINE = 60  # seconds for each thing that is waited for
WRITES = ("write", "pwrite64", "writev", "sendfile", "copy_file_range")
OPENS = ("open", "openat", "creat")
ENTRIES = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat")
REMOVALS = ("unlink", "unlinkat", "rmdir")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync")
SIZES = ("ftruncate", "truncate", "fallocate")
CALLS = (*WRITES, *OPENS, *ENTRIES, *REMOVALS, *SYNCS, *SIZES)
TAKES_SPACE = (*WRITES, *ENTRIES, *SYNCS, *SIZES)

# A disk that is full stays so; the others pass.
INJECTIONS = {
    "SIGKILL": "signal=KILL:when={n}",
    "ENOSPC": "error=ENOSPC:when={n}+",
    "EDQUOT": "error=EDQUOT:when={n}",
    "EIO": "error=EIO:when={n}",
    "EINTR": "error=EINTR:when={n}",
    "lost write": "retval=1:when={n}",  # says that one byte was written, and takes none
}
CAUSES = {"ENOSPC": "No space left on device", "EDQUOT": "Disk quota exceeded", "EIO": "Input/output error",
          "EINTR": "Interrupted system call"}


@dataclasses.dataclass
class Run:
    updates: list  # the hash of the weights before each
    end: str | None = None
    error: str | None = None
    status: int = 0
    calls: list = dataclasses.field(default_factory=list)  # traced ones

    def reached_its_last_update(self, phase):
        return len(self.updates) == phase.last - phase.first

    @property
    def killed(self):
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


@dataclasses.dataclass
class Call:
    thread: int  # in order of their first call
    name: str
    ordinal: int  # among the calls of this name by this thread
    update: int  # how many updates had begun
    label: str  # what is the same in every run
    inside: bool  # the folder
    creates: bool
    failed: bool
    injected: bool


def read_calls(log, folder):
    """The calls in strace's log, in order."""
    calls, ordinals, threads, update = [], {}, {}, 0
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(?:(\d+) +)?(\w+)\((.*)", line)
        if not match:
            continue
        thread, name, rest = threads.setdefault(match[1], len(threads)), match[2], match[3]
        if name == "sendto":
            update += '"update ' in rest
            continue
        ordinals[thread, name] = ordinals.get((thread, name), 0) + 1
        arguments = rest.rsplit(") = ", 1)[0]
        if name in WRITES:
            arguments = arguments.partition(", ")[0]  # without the bytes
        paths = [path for pair in re.findall(r'"([^"]*)"|<([^<>]*)>', arguments) for path in pair if path]
        paths = [path.removesuffix(" (deleted)") for path in paths]
        inside = any(path == folder or path.startswith(folder + "/") for path in paths)
        label = " ".join([name, *(path.removeprefix(folder + "/") for path in paths if inside)])
        label = re.sub(r"\d+(-\d+)\b(?=[/ ]|$)", r"PID\1", re.sub(r"tmp\w{8}\b", "tmpXXXXXXXX", label))
        calls.append(Call(thread, name, ordinals[thread, name], update, label, inside, "O_CREAT" in rest,
                          " = -1 " in rest, "(INJECTED)" in rest))
    return calls


class Program:
    """A server, which forks a child for each order."""

    def __init__(self, command, environment=None):
        ours, theirs = socket.socketpair()
        self.name = " ".join(map(str, command))
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), stdin=theirs, stdout=self.output,
                                        stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        theirs.close()
        ours.settimeout(DEADLINE)
        self.socket, self.lines = ours, ours.makefile("r")
        self.folder = pathlib.Path(tempfile.mkdtemp())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self):
        self.output.seek(0)
        return self.output.read()[-3000:]

    def run(self, order, folder=None, injection=None, first_thread_only=False):
        """Follows an order; traced, if `folder` is that of its checkpoints, and struck by `injection`."""
        run, tracer, heard = Run(updates=[]), None, []
        try:
            self.socket.sendall((order + "\n").encode())
            for line in self.lines:
                heard.append(line)
                word, _, text = line.rstrip("\n").partition(" ")
                if word == "ready":
                    if folder is not None:
                        tracer = self.trace(int(text), injection, first_thread_only)
                    self.socket.sendall(b"g")
                elif word == "update":
                    run.updates.append(text)
                elif word == "end":
                    run.end = text
                elif word == "error":
                    run.error = text
                elif word == "exit":
                    run.status = int(text)
                    break
            else:
                raise OSError("the program ended")
            if tracer:
                tracer.communicate(timeout=DEADLINE)
                run.calls = read_calls(self.folder / "log", str(folder))
            return run
        except (OSError, subprocess.TimeoutExpired) as problem:
            if tracer:
                tracer.kill()
            raise RuntimeError(f"{self.name}, {order}, {injection}: {problem!r}; heard {heard[-3:]}, printed "
                               f"{self.said()}") from problem

    def trace(self, process, injection, first_thread_only):
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        inject = ["-e", f"inject={injection}"] if injection else []
        threads = [] if first_thread_only else ["-f"]
        tracer = subprocess.Popen(["strace", *threads, "-y", "-s", "80", "-o", log, "-e", "signal=none",
                                   "-e", "trace=sendto," + ",".join(CALLS), *inject, "-p", str(process)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = tracer.stderr.readline()
        if "attached" not in said:
            tracer.kill()
            raise RuntimeError(f"strace cannot trace: {said}{tracer.stderr.read()}")
        return tracer


@dataclasses.dataclass
class Phase:
    """A run that is struck: from what lies in `start` (nothing, if unset) to update `last`."""

    name: str
    start: pathlib.Path | None
    first: int  # the update that `start` is at
    last: int


@dataclasses.dataclass
class Point:
    phase: Phase
    call: Call
    fault: str

    def __str__(self):
        update = self.phase.first + self.call.update
        return f"{self.fault} at {self.phase.name}, update {update}, {self.call.label}"


def faults_of(call):
    if not call.inside or call.failed:
        return
    yield "SIGKILL"
    if call.creates or call.name in TAKES_SPACE:
        yield "ENOSPC"
        yield "EDQUOT"
    yield "EIO"
    yield "EINTR"
    if call.name in ("write", "pwrite64"):
        yield "lost write"


def copy_folder(source, target):
    shutil.rmtree(target, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, target, symlinks=True)


@dataclasses.dataclass
class Outcome:
    struck: Run
    resumed: Run
    loaded: int | None  # the update whose weights the next run began with; unset: unknown weights, or none
    left: list  # names in the folder after the next run


def strike(program, point, folder, order, total, reference):
    """Strikes a run at a point and starts the next one. Nothing if another call was hit: strace counts for each
    thread, and one may come to as many calls of a name before the other.
    """
    phase, call = point.phase, point.call
    copy_folder(phase.start, folder)
    injection = f"{call.name}:" + INJECTIONS[point.fault].format(n=call.ordinal)
    struck = program.run(order(folder, phase.last), folder, injection, first_thread_only=call.thread == 0)
    place = (call.thread, call.name, call.ordinal)
    hit = next((c for c in struck.calls if (c.thread, c.name, c.ordinal) == place), None)
    first = next((c for c in struck.calls if c.injected), hit)
    if hit is None or hit is not first or hit.label != call.label:
        return None
    if (point.fault == "SIGKILL") != struck.killed:
        return None
    if point.fault == "lost write" and sum(c.injected for c in struck.calls) > 1:
        return None  # all that is kept may have been lost
    resumed = program.run(order(folder, total))
    begun_with = resumed.updates[0] if resumed.updates else None
    loaded = reference.updates.index(begun_with) if begun_with in reference.updates else None
    left = sorted(entry.name for entry in os.scandir(folder)) if folder.exists() else []
    return Outcome(struck, resumed, loaded, left)
