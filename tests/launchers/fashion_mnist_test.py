"""Two ranks of the Fashion-MNIST example, started by one launcher after another, end with the same weights.

usage: fashion_mnist_test.py CASE PROGRAM LOCKSTEP PYTHON REFERENCE

CASE is a function below. "lockstep" writes the result that the others compare with into the file REFERENCE.
PYTHON has Torch, and with it torchrun. Ends with 77 and a reason where the machine lacks what the case needs.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import slurm

CASE, PROGRAM, LOCKSTEP, PYTHON, REFERENCE = sys.argv[1:]
STEPS = 60
FLAGS = ["--max-steps", str(STEPS), "--batch-size", "32", "--no-evaluate", "--checkpoint-every", "8",
         "--set", "train.log_every=1"]
SAMPLES_OF_A_STEP = 32 * 2 * 2  # a microbatch, those of a window, ranks
EXIT_STOPPED = 75
EXIT_NOT_RUN = 77
DEADLINE = 120
# What another launcher around this test may have left, and threads, whose number changes the last bits.
LEFT_BY_OTHERS = re.compile("RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TORCHELASTIC_|OMPI_|PMI_|MPI_|MV2_|SLURM_")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LEFT_BY_OTHERS.match(name)}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
FOLDER = tempfile.TemporaryDirectory()
RUN_DIR = pathlib.Path(FOLDER.name, "run")
EXAMPLE = [PROGRAM, "--run-dir", str(RUN_DIR), *FLAGS]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node=2"]


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def not_run(reason):
    print(f"not run: {reason}")
    sys.exit(EXIT_NOT_RUN)


class Running:
    """Commands under way, each in a process group of its own that is killed at the deadline."""

    def __init__(self, *commands, environments=(ENVIRONMENT,)):
        self.output = tempfile.TemporaryFile("w+")
        pipes = {"stdout": self.output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        self.processes = [subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
                          for command, environment in zip(commands, environments)]

    def end(self):
        """The first exit code that is not 0, and all that was printed."""
        end = time.monotonic() + DEADLINE
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(f"none within {DEADLINE} s")
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.output.seek(0)
        return next((code for code in codes if code != 0), 0), self.output.read()


def run(command, environment=ENVIRONMENT):
    return Running(command, environments=[environment]).end()


def results_in(output):
    """What rank 0 prints as JSON at the end of each run, whatever the launcher puts before it."""
    return [json.loads(text) for text in re.findall(r'\{"step":.*\}', output)]


def check_end(code, output):
    check(code == 0, f"exit code {code}:\n{output}")
    results = results_in(output)
    check(len(results) == 1, f"{len(results)} results instead of one:\n{output}")
    result = results[0]
    check(result["step"] == STEPS and result["samples"] == STEPS * SAMPLES_OF_A_STEP, f"counts: {result}")
    check(re.fullmatch("[0-9a-f]{64}", result["weights_sha256"]), f"no digest: {result}")
    check((RUN_DIR / "model.safetensors").is_file() and (RUN_DIR / "metrics.jsonl").is_file(), "no files")
    print(result, flush=True)
    return result


def check_same_end(code, output):
    result = check_end(code, output)
    expected = json.loads(pathlib.Path(REFERENCE).read_text())
    check(result == expected, f"another result:\n  {result}\n  {expected}")


def check_stopped(code, output, reason):
    check(code == EXIT_STOPPED, f"exit code {code}:\n{output}")
    results = results_in(output)
    check(len(results) == 1 and results[0]["stop_reason"] == reason, f"not stopped by {reason}:\n{output}")
    check(results[0]["step"] < STEPS, f"stopped too late: {results}")


def wait_until(holds, what):
    end = time.monotonic() + DEADLINE
    while not holds():
        check(time.monotonic() < end, f"not within {DEADLINE} s: {what}")
        time.sleep(0.01)


def wait_for_updates():
    file = RUN_DIR / "metrics.jsonl"
    wait_until(lambda: file.exists() and '"event":"train"' in file.read_text(), "a first update")


def rank_process(launcher, rank):
    """The process that this launcher started as that rank."""
    for child in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    sys.exit(f"failed: {launcher} has no rank {rank}")


def lockstep():
    code, output = run([LOCKSTEP, "launch", "-n", "2", "--", *EXAMPLE])
    result = check_end(code, output)
    check(re.search(r"(?m)^\[0\] \{", output), f"the result is not rank 0's:\n{output}")
    pathlib.Path(REFERENCE).write_text(json.dumps(result))


def torchrun():
    check_same_end(*run([*TORCHRUN, *EXAMPLE]))
    code, output = run([*TORCHRUN, PROGRAM, "--data-dir", FOLDER.name])
    check(code == 1, f"exit code {code} without data:\n{output}")
    cause = output[output.find("Root Cause"):]
    check("[cannot-read-idx]" in cause, f"torchrun does not show the cause:\n{output}")


def mpirun():
    if shutil.which("mpirun") is None:
        not_run("mpirun is not installed (Debian: openmpi-bin)")
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        not_run(f"mpirun is not Open MPI's: {version}")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    check_same_end(*run(["mpirun", *as_root, "--oversubscribe", "-np", "2", *EXAMPLE]))


@contextlib.contextmanager
def slurm_here():
    if reason := slurm.missing():
        not_run(reason)
    with slurm.Slurm(ENVIRONMENT) as here:
        yield here


def srun():
    with slurm_here() as here:
        check_same_end(*run(["srun", "-n", "2", *EXAMPLE], here.environment))


def requeue():
    """The batch script of docs/distributed.md, warned as before the end of a job's time."""
    page = (pathlib.Path(__file__).parents[2] / "docs/distributed.md").read_text()
    script = re.search(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page, re.S)[1]
    check("./my_program" in script, f"the script has changed:\n{script}")
    batch = pathlib.Path(FOLDER.name, "batch.sh")
    batch.write_text(script.replace("./my_program", " ".join(EXAMPLE)))
    log = pathlib.Path(FOLDER.name, "log")
    with slurm_here() as here:
        code, said = run(["sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0",
                          f"--output={log}", str(batch)], here.environment)
        check(code == 0, f"sbatch: {said}")
        job = said.strip()
        show = lambda: here.ask("scontrol", "show", "job", job)
        wait_for_updates()
        here.ask("scancel", "--signal=USR1", job)
        ended = re.compile("JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)")
        wait_until(lambda: ended.search(show()), "the end of the job")
        check("JobState=COMPLETED" in show() and "Restarts=1" in show(), f"{show()}\n{log.read_text()}")
    results = results_in(log.read_text())
    check(len(results) == 2 and results[0]["stop_reason"] == "SIGUSR1", log.read_text())
    check(results[1] == json.loads(pathlib.Path(REFERENCE).read_text()), f"another result: {results}")
    print(results)


def stop():
    """A signal to one rank, or to the launcher, stops all at one update; the same command goes on."""
    command = [LOCKSTEP, "launch", "-n", "2", "--restarts", "3", "--", *EXAMPLE]
    for sent, to_rank in ((signal.SIGTERM, 1), (signal.SIGUSR1, None)):
        shutil.rmtree(RUN_DIR, ignore_errors=True)
        running = Running(command)
        wait_for_updates()
        launcher = running.processes[0].pid
        os.kill(launcher if to_rank is None else rank_process(launcher, to_rank), sent)
        check_stopped(*running.end(), sent.name)
        check_same_end(*run(command))


def restart():
    """A launcher that starts all ranks again after one was killed comes to the same end."""
    for launcher in ([LOCKSTEP, "launch", "-n", "2", "--restarts", "1", "--"],
                     [*TORCHRUN, "--max-restarts=1"]):
        shutil.rmtree(RUN_DIR, ignore_errors=True)
        running = Running([*launcher, *EXAMPLE])
        wait_for_updates()
        os.kill(rank_process(running.processes[0].pid, 1), signal.SIGKILL)
        check_same_end(*running.end())


@contextlib.contextmanager
def two_hosts_here():
    """Two network namespaces with one cable; yields what a command begins with to run on each.

    A host knows both names, its own as an address of itself alone, as Debian writes it into /etc/hosts.
    """
    program = shutil.which("ip", path=slurm.PATH)
    if program is None or os.geteuid() != 0:
        not_run("network namespaces need root and ip (Debian: iproute2)")
    addresses = ["10.77.0.1", "10.77.0.2"]
    names = [f"lockstep-{os.getpid()}-{host}" for host in (0, 1)]
    cables = [f"ls{os.getpid()}-{host}" for host in (0, 1)]

    def ip(*arguments):
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            not_run(f"no network namespaces: ip {' '.join(arguments)}: {done.stderr}")

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(subprocess.run, [program, "netns", "del", name])
        ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        prefixes = []
        for host in (0, 1):
            ip("link", "set", cables[host], "netns", names[host])
            ip("-n", names[host], "address", "add", f"{addresses[host]}/24", "dev", cables[host])
            for device in ("lo", cables[host]):
                ip("-n", names[host], "link", "set", device, "up")
            hosts = pathlib.Path(FOLDER.name, f"hosts-{host}")
            other = 1 - host
            hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 host-{host}\n{addresses[other]} host-{other}\n")
            prefixes.append([program, "netns", "exec", names[host], "sh", "-c",
                             f'hostname host-{host} && mount --bind {hosts} /etc/hosts && exec "$@"', "sh"])
        # Names of its own, so that this machine keeps its name.
        yield [["unshare", "--uts", *prefix] for prefix in prefixes]


def two_hosts():
    with two_hosts_here() as on:
        shell = {**ENVIRONMENT, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": "host-0", "MASTER_PORT": "29500"}
        check_same_end(*Running(*([*on[rank], *EXAMPLE] for rank in (0, 1)),
                                environments=[{**shell, "RANK": str(rank)} for rank in (0, 1)]).end())
        shutil.rmtree(RUN_DIR)
        agent = [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nnodes=2", "--nproc-per-node=1",
                 "--rdzv-backend=c10d", "--rdzv-endpoint=host-0:29500"]
        check_same_end(*Running(*([*on[host], *agent, *EXAMPLE] for host in (0, 1)),
                                environments=[ENVIRONMENT] * 2).end())


if CASE.startswith("_") or not callable(globals().get(CASE)):
    sys.exit(f"no case {CASE}")
globals()[CASE]()
