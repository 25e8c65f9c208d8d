"""deploy/: what its files say of millrace-train is so, and those that can be run here do what they say."""

import ast
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, slurm, training  # noqa: E402
from tests.support.command_table import CODES  # noqa: E402

DEPLOY = harness.ROOT / "deploy"
MANIFESTS = ("kubernetes-job.yaml", "kubernetes-trainjob.yaml")
OPEN_MPI = "mpirun.openmpi"
# Options of other programs, by file.
OTHERS = {
    "Dockerfile": {"--preset", "--build", "--target", "--from", "--no-install-recommends", "--build-arg", "--rm", "--gpus", "--init",
                   "--entrypoint"},
    "compose.yaml": {"--abort-on-container-failure"},
    "kubernetes-job.yaml": {"--prefix", "--max-log-requests"},
    "mpirun.sh": {"--host"},
    "ray_train.py": {"--head", "--address", "--ranks", "--cpus", "--cpus-only", "--restarts", "--strategy", "--program"},
    "slurm.sbatch": {"--job-name", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--time", "--requeue",
                     "--open-mode", "--output", "--signal", "--kill-on-bad-exit"},
}
# Variables that millrace-train and LibTorch read, other than MILLRACE_ and those of launchers.
KNOWN = {"OMP_NUM_THREADS"}


def text(name):
    return (DEPLOY / name).read_text()


def files():
    return sorted(p.name for p in DEPLOY.iterdir() if p.is_file() and p.suffix not in (".md", ".dockerignore"))


def exit_codes():
    """{code: (start it again, podFailurePolicy)} of docs/scale.md."""
    out = {}
    for codes, _, again, policy in re.findall(r"^\| ([\d, ]+) \|([^|]*)\|([^|]*)\| (\w+) \|$",
                                              (harness.ROOT / "docs/scale.md").read_text(), re.M):
        out |= {int(code): (again.strip(), policy) for code in codes.split(",")}
    return out


def codes_in(found):
    return {int(code) for code in re.findall(r"\d+", found)}


class Files(unittest.TestCase):
    """What they say."""

    def test_the_table_has_every_exit_code(self):
        signals = (harness.ROOT / "train/README.md").read_text()
        asked = {int(code) for row in re.findall(r"^\| SIG[^|]*\|[^|]*\| ([\d, ]+)\|$", signals, re.M) for code in row.split(",")}
        self.assertEqual(asked, {128 + s for s in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR2, signal.SIGTERM)})
        killed = {128 + s for s in (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV)}
        self.assertEqual(set(exit_codes()), set(CODES) | asked | killed)

    def test_pod_failure_policies_are_those_of_the_table(self):
        wanted = {}
        for code, (_, policy) in exit_codes().items():
            wanted.setdefault(policy, set()).add(code)
        wanted.pop("Count")  # what Kubernetes does by itself
        for name in MANIFESTS:
            rules = re.findall(r"- action: (\w+)\n +onExitCodes: \{containerName: (\w+), operator: In, values: \[([\d, ]+)\]\}", text(name))
            self.assertEqual({action: codes_in(values) for action, _, values in rules}, wanted, name)
            for _, container, values in rules:
                self.assertIn(f"- name: {container}\n", text(name))
                listed = [int(v) for v in values.split(",")]
                self.assertEqual(listed, sorted(set(listed)), "Kubernetes refuses others")

    def test_what_is_started_again_is_what_the_table_says(self):
        again = {code for code, (said, _) in exit_codes().items() if said.startswith("yes") and not code & 127 in (1, 2, 12, 15)}
        self.assertEqual(again, {4, 6, 134, 135, 137, 139})
        ray = text("ray_train.py")
        lost = re.search(r"^LOST = (\d+)$", ray, re.M)[1]
        lists = {"slurm.sbatch": re.search(r"^ +(4 [| \d]+)\)", text("slurm.sbatch"), re.M)[1],
                 "mpirun.sh": re.search(r"in (4 [| \d]+)\)", text("mpirun.sh"))[1],
                 "skypilot.yaml": re.search(r"recover_on_exit_codes: \[(.*)\]", text("skypilot.yaml"))[1],
                 "ray_train.py": " ".join(re.findall(r"^(?:AGAIN|KILLED) = \{(.*)\}", ray, re.M)).replace("LOST", lost)}
        for name, found in lists.items():
            self.assertEqual(codes_in(found), again, name)

    def test_scripts_say_what_they_need(self):
        done = subprocess.run([DEPLOY / "mpirun.sh"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: HOSTS=host0:8,host1:8 ", done.stderr)
        # A folder with a module of this name that is not there: as where Ray is not installed.
        code = "import sys; sys.modules['ray'] = None; sys.argv = ['ray_train.py']; exec(open(%r).read())" % str(DEPLOY / "ray_train.py")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Ray is not installed here", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_every_option_exists(self):
        known = set(re.findall(r"--[a-z][a-z-]+", harness.run("millrace-train", "--help").stdout))
        for name in files():
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text(name)):
                self.assertTrue(option in known or option in OTHERS.get(name, ()), f"{name}: {option}")

    def test_every_variable_exists(self):
        known = {v["name"] for v in json.loads(harness.run("millrace", "env", "--json").stdout)["variables"]}
        launchers = "".join((harness.ROOT / source).read_text() for source in ("engine/host/job_place.cc", "train/launch/local_ranks.cc"))
        names = r"\b(?:(?:MILLRACE|PET|SKYPILOT|JOB_COMPLETION|MASTER|OMP)_[A-Z_]+|RANK|LOCAL_RANK|WORLD_SIZE)\b"
        for name in files():
            for variable in re.findall(names, text(name)):
                self.assertTrue(variable in known | KNOWN or f'"{variable}"' in launchers, f"{name}: {variable}")

    def test_they_can_be_read(self):
        for name in files():
            first = text(name).splitlines()
            self.assertRegex(first[1 if first[0].startswith("#!") else 0], r'^(# |""")\w', f"{name} begins with what it is")
            self.assertLessEqual(max(map(len, first)), 150, name)
            if name.endswith(".py"):
                ast.parse(text(name))
            elif name.endswith((".sh", ".sbatch")):
                for tool in (["bash", "-n"], ["shellcheck"]):
                    if shutil.which(tool[0]):
                        done = subprocess.run([*tool, DEPLOY / name], capture_output=True, text=True)
                        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            elif name.endswith(".yaml"):
                self.assertNotIn("\t", text(name))
                try:
                    import yaml
                except ImportError:
                    continue
                self.assertTrue(all(isinstance(d, dict) for d in yaml.safe_load_all(text(name))))

    def test_the_image_has_the_libraries_of_the_programs(self):
        tool = shutil.which("readelf") or shutil.which("llvm-readelf-19")
        if not tool or not re.search(r'^VERSION_ID="12"', pathlib.Path("/etc/os-release").read_text(), re.M):
            self.skipTest("this is not the image's Debian 12, or has no readelf")
        listed = set(re.search(r"^FROM debian:12\nRUN (.*?)&& *\\\n +rm", text("Dockerfile"), re.M | re.S)[1].split())
        said = "".join(subprocess.run([tool, "-d", harness.BIN / program], capture_output=True, text=True).stdout
                       for program in ("millrace", "millrace-train"))
        libraries = sorted(set(re.findall(r"\(NEEDED\).*\[(.*)\]", said)))
        self.assertIn("libfmt.so.9", libraries)
        owners = subprocess.run(["dpkg-query", "-S", *(f"*/{library}" for library in libraries)], capture_output=True, text=True).stdout
        for library in libraries:
            packages = {line.split(":")[0] for line in owners.splitlines() if line.endswith(f"/{library}")}
            if packages and not packages & {"libc6", "libgcc-s1"}:  # LibTorch's are no package's
                self.assertTrue(packages & listed, f"{library}, of {packages}")

    def test_the_pages_name_every_file(self):
        for name in files():
            self.assertIn(f"`{name}`", text("README.md"))
            self.assertIn(f"(../deploy/{name})", (harness.ROOT / "docs/scale.md").read_text())


def manifest_arguments(name):
    return re.findall(r"^ +- (--[\w-]+=\S+)$", text(name), re.M)


class Runs(training.WithShards):
    """What they do, two ranks each."""

    def start(self, *command, env=None):
        log = open(self.folder / "log", "ab")
        process = subprocess.Popen([str(c) for c in command], cwd=self.folder, stdout=log, stderr=log,
                                   env=harness.CLEAN | training.ALONE | {"TRAIN": str(harness.BIN / "millrace-train")} | (env or {}))
        log.close()
        self.addCleanup(lambda: process.poll() is None and process.terminate())
        return process

    def said(self):
        return (self.folder / "log").read_text(errors="replace")

    def words(self, *more):
        return [*training.TINY, "--shards", self.shards, "--checkpoint-dir", self.folder / "c", "--metrics", self.folder / "m.jsonl",
                "--mode", "resample", "--epoch-batches", 1000000, "--timeout", 60, *more]

    def check_signals(self, begin, ends):
        """USR1 saves, and SIGTERM saves and ends; another start resumes."""
        process = begin()
        harness.wait_until(lambda: training.taken(self.folder / "m.jsonl") or process.poll() is not None)
        process.send_signal(signal.SIGUSR1)
        harness.wait_until(lambda: "training continues" in self.said() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), ends, self.said())
        self.assertEqual(self.said().count("stopped after"), 2, self.said())
        process = begin("--max-steps", training.taken(self.folder / "m.jsonl") + 5)
        self.assertEqual(process.wait(120), 0, self.said())
        self.assertEqual(self.said().count("resumed"), 2, self.said())

    def ssh(self, *more):
        # Starts the command here, as ssh does on another host: by a shell.
        stand_in = self.folder / "ssh"
        stand_in.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
        stand_in.chmod(0o755)
        return self.start(DEPLOY / "ssh.sh", "localhost", "127.0.0.1", "--", "--nproc", 1, *self.words("--resume", "auto", *more),
                          env={"SSH": str(stand_in), "MASTER_PORT": str(self.port), "DIR": str(self.folder)})

    def test_ssh(self):
        self.port = harness.free_port()
        self.check_signals(self.ssh, 143)

    def test_hosts_of_ssh_end_with_the_first_that_fails(self):
        self.port = harness.free_port()
        self.assertEqual(self.ssh("--lr", "no-number").wait(60), 2, self.said())

    def test_a_host_of_ssh_ends_when_its_connection_does(self):
        self.port = harness.free_port()
        process = self.ssh()
        harness.wait_until(lambda: training.taken(self.folder / "m.jsonl") or process.poll() is not None)
        process.kill()
        process.wait()
        harness.wait_until(lambda: self.said().count("stopped after") == 2)

    @unittest.skipUnless(shutil.which(OPEN_MPI), f"{OPEN_MPI} is not installed")
    def test_mpirun(self):
        mpi = {"MPIRUN": f"{OPEN_MPI} --allow-run-as-root --oversubscribe", "RANKS": "2"}
        self.check_signals(lambda *more: self.start(DEPLOY / "mpirun.sh", *self.words(*more), env=mpi), 140)

    @unittest.skipIf(slurm.WHY_NOT, slurm.WHY_NOT or "")
    def test_slurm(self):
        with slurm.Cluster(self.folder / "slurm") as cluster:
            done = cluster.run("sbatch", "--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", "-o",
                               self.folder / "log", DEPLOY / "slurm.sbatch", *self.words(),
                               env=training.ALONE | {"TRAIN": str(harness.BIN / "millrace-train")})
            self.assertEqual(done.returncode, 0, done.stderr)
            job = done.stdout.split()[-1]
            harness.wait_until(lambda: training.taken(self.folder / "m.jsonl"))
            cluster.run("scancel", "-s", "USR2", job)
            # Slurm begins it again two minutes later: that was tried by hand.
            harness.wait_until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job).stdout)
            self.assertIn("ended with exit code 140, start 0; queued again: yes", self.said())
            self.assertTrue(list(self.folder.glob("c/step-*")))
            cluster.run("scancel", job)

    def pods(self, name, environments):
        """The arguments of a manifest as its pods are started, with data and a model for this test."""
        given = manifest_arguments(name)
        self.assertIn("--resume=auto", given)
        self.assertIn("--nproc=8", given)
        given = [word for word in given if not word.startswith(("--shards", "--model"))]  # shards of several options add up
        return [self.start(harness.BIN / "millrace-train", *given, "--nproc", 1, *self.words("--max-steps", 5), env=env)
                for env in environments]

    def ended(self, pods):
        self.assertEqual([pod.wait(120) for pod in pods], [0, 0], self.said())
        self.assertEqual(self.said().count("done after 5 steps"), 2, self.said())

    def test_indexed_job(self):
        said = dict(re.findall(r'\{name: (\w+), value: "?([\w.-]+)"?\}', text("kubernetes-job.yaml")))
        self.assertEqual(said["WORLD_SIZE"], re.search(r"completions: (\d+)", text("kubernetes-job.yaml"))[1])
        self.assertEqual(said["MASTER_ADDR"], "millrace-0.millrace")  # the pod of index 0, in the service
        said |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(harness.free_port())}
        self.ended(self.pods("kubernetes-job.yaml", [said | training.ALONE | {"JOB_COMPLETION_INDEX": str(i)} for i in (0, 1)]))
        self.assertIn("host 1 of 2, by Kubernetes", self.said())

    def test_trainjob(self):
        said = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(harness.free_port())}
        self.assertIn("numProcPerNode: 8\n", text("kubernetes-trainjob.yaml"))
        self.ended(self.pods("kubernetes-trainjob.yaml", [said | {"PET_NODE_RANK": str(i)} for i in (0, 1)]))
        self.assertIn("host 1 of 2, by TrainJob", self.said())


if __name__ == "__main__":
    unittest.main()
