"""A SLURM of one node, for as long as a test runs."""

import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
# Its servers are not on a user's path.
PATH = os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin"


def missing():
    """Why there can be none here; nothing if there can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "only root can start slurmd"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm:
    """With its own munged, ports and folder, so that it meets no other. Its commands need `environment`."""

    def __init__(self, environment):
        # A short path, since there are sockets in it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.host = socket.gethostname().split(".")[0]
        self.environment = {**environment, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.servers = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (self.folder / "spool").mkdir()
        (self.folder / "state").mkdir()
        munge = self.folder / "munge.socket"
        control_port, node_port = free_ports(2)
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={self.host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,builtin_interval=1,batch_sched_delay=0
ReturnToService=2
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmdParameters=config_overrides
NodeName={self.host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={self.host} Default=YES MaxTime=INFINITE State=UP
""")
        self.serve("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}",
                   f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed",
                   f"--log-file={self.folder}/munged.log")
        self.wait_until(munge.exists)
        self.serve("slurmctld", "-D", "-c")
        self.serve("slurmd", "-D", "-N", self.host)
        self.wait_until(lambda: "State=IDLE" in self.ask("scontrol", "show", "node", self.host))

    def serve(self, *command):
        with open(self.folder / f"{command[0]}.out", "w") as out:
            self.servers.append(subprocess.Popen(command, env=self.environment, stdout=out, stderr=out))

    def ask(self, *command):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def wait_until(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end or any(server.poll() is not None for server in self.servers):
                raise RuntimeError(f"SLURM does not come up:\n{self.log()}")
            time.sleep(0.1)

    def log(self):
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in self.folder.glob("*.out"))

    def __exit__(self, *_):
        for server in reversed(self.servers):
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
