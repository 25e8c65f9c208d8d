"""A cluster of Slurm with this host as its only node, where Debian's packages for it are installed and the tests run as root."""

import os
import pathlib
import shutil
import socket
import subprocess

from tests.support import harness

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
# None: it can be started.
WHY_NOT = ("the tests do not run as root" if os.geteuid() != 0 else
           next((f"{p} is not installed" for p in PROGRAMS if not shutil.which(p)), None))

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
"""


class Cluster:
    """Context manager. `env` is the environment by which srun and sbatch find it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.processes = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        cpus = os.cpu_count()
        (self.folder / "slurm.conf").write_text(CONF.format(
            host=socket.gethostname().split(".")[0], folder=self.folder, ctld=harness.free_port(),
            slurmd=harness.free_port(), cpus=cpus))
        munge = [f"--{what}={self.folder}/munge.{what.split('-')[0]}" for what in ("socket", "pid-file", "log-file", "seed-file")]
        self.begin("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        harness.wait_until((self.folder / "munge.socket").exists)
        self.begin("slurmctld", "-D")
        self.begin("slurmd", "-D")
        harness.wait_until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T").stdout)

    def begin(self, *command):
        log = open(self.folder / f"{command[0]}.log", "wb")
        self.processes.append(subprocess.Popen(command, env=os.environ | self.env, stdout=log, stderr=log))
        log.close()

    def run(self, *command, timeout=120, env=None, **options):
        return subprocess.run([str(c) for c in command], env=harness.CLEAN | self.env | (env or {}), timeout=timeout,
                              capture_output=True, text=True, **options)

    def __exit__(self, *_):
        # What a failed test has left: it would outlive slurmd.
        self.run("scancel", "--user", "root")
        harness.wait_until(lambda: not self.run("squeue", "-h").stdout)
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
