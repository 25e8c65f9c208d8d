"""Jobs as real launchers start them: Open MPI, MPICH, Slurm. Each test says that it skips where its launcher is not installed."""

import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness, slurm, training  # noqa: E402

OPEN_MPI = "mpirun.openmpi"
MPICH = "mpirun.mpich"


class Launchers(training.WithShards):
    def words(self, name, *more):
        """A run of five steps that writes `name`.jsonl."""
        return [str(w) for w in (harness.BIN / "millrace-train", *training.TINY, "--shards", self.shards, "--max-steps", 5,
                                 "--timeout", 60, "--metrics", self.folder / f"{name}.jsonl", *more)]

    def start(self, *command, env=None):
        process = subprocess.Popen([str(c) for c in command], env=harness.CLEAN | training.ALONE | (env or {}),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        return process

    def check(self, process, name, launcher, world=2):
        """The job has ended well, with these ranks and with samples of all of them."""
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, said)
        for rank in range(world):
            self.assertIn(f"rank {rank} of {world}, by {launcher}", said)
        files = [self.folder / (f"{name}.jsonl" + (f".rank{r}" if r else "")) for r in range(world)]
        found = [training.lines(f) for f in files]
        self.assertEqual([(lines[0]["rank"], lines[0]["world_size"], lines[0]["launcher"]) for lines in found],
                         [(r, world, launcher) for r in range(world)])
        self.assertEqual([lines[-1]["samples"] for lines in found], [5 * 8] * world)
        return said

    @unittest.skipUnless(shutil.which(OPEN_MPI), f"{OPEN_MPI} is not installed")
    def test_jobs_of_open_mpi_on_one_host_do_not_meet(self):
        mpi = [OPEN_MPI, "--allow-run-as-root", "--oversubscribe", "-n", 2]
        jobs = {name: self.start(*mpi, *self.words(name)) for name in ("a", "b", "c")}
        for name, process in jobs.items():
            self.check(process, name, "Open MPI")

    @unittest.skipUnless(shutil.which(MPICH), f"{MPICH} is not installed")
    def test_mpich_does_not_name_its_jobs(self):
        process = self.start(MPICH, "-n", 2, *self.words("none"))
        said = process.communicate(timeout=120)[0]
        self.assertNotEqual(process.returncode, 0, said)
        self.assertIn("nothing says at which port rank 0 is; set MASTER_PORT", said)
        port = harness.free_port()
        self.check(self.start(MPICH, "-n", 2, *self.words("a"), env={"MASTER_PORT": str(port)}), "a", "MPI")

    @unittest.skipIf(slurm.WHY_NOT, slurm.WHY_NOT or "")
    def test_slurm(self):
        with slurm.Cluster(self.folder / "slurm") as cluster:
            with self.subTest("two steps at once"):
                jobs = {name: self.start("srun", "-n", 2, *self.words(name), env=cluster.env) for name in ("a", "b")}
                for name, process in jobs.items():
                    self.check(process, name, "Slurm")
            with self.subTest("PMI of Slurm's own"):
                self.check(self.start("srun", "--mpi=pmi2", "-n", 2, *self.words("pmi2"), env=cluster.env), "pmi2", "Slurm")
            with self.subTest("a batch script"):
                script = self.folder / "job.sh"
                script.write_text("#!/bin/bash\n" + " ".join(f"'{w}'" for w in self.words("alone")) + "\n")
                done = cluster.run("sbatch", "-W", "-n", 2, "-o", self.folder / "job.out", script)
                said = (self.folder / "job.out").read_text()
                self.assertEqual(done.returncode, 0, done.stderr + said)
                self.assertEqual(training.lines(self.folder / "alone.jsonl")[0]["world_size"], 1)
                self.assertIn("SLURM_NTASKS=2, but there are no variables of a step, which srun sets: it trains alone", said)
            # Variables of a step are passed on to what its tasks start.
            with self.subTest("a step of one within a step of two"):
                inner = ["srun", "--overlap", "--mpi=none", "-n", "1", *self.words("inner")]
                process = self.start("srun", "--mpi=pmi2", "-n", 2, "sh", "-c", 'test $SLURM_PROCID = 1 || exec "$@"', "sh",
                                     *inner, env=cluster.env)
                said = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, said)
                self.assertIn("rank 0 of 1, by Slurm; SLURM_STEP_NUM_TASKS=1, but PMI_SIZE=2, of PMI: it trains alone", said)
            with self.subTest("a batch script that a task of a step submits"):
                out = self.folder / "again.out"
                script.write_text(script.read_text().replace("alone", "again") + "echo ended $?\n")
                done = cluster.run("srun", "-n", 2, "sh", "-c", 'test $SLURM_PROCID = 1 || exec "$@"', "sh", "sbatch",
                                   "-n", 1, "-o", out, script)
                self.assertEqual(done.returncode, 0, done.stderr)
                harness.wait_until(lambda: out.exists() and "ended" in out.read_text())
                self.assertIn("ended 0", out.read_text())
                self.assertNotIn("of 2", out.read_text())
            if shutil.which(MPICH):
                with self.subTest("a step within an mpiexec of one"):
                    process = self.start(MPICH, "-n", 1, "srun", "--mpi=none", "-n", 2, *self.words("nested"), env=cluster.env)
                    said = process.communicate(timeout=120)[0]
                    self.assertNotEqual(process.returncode, 0, said)
                    self.assertIn("PMI_SIZE=1, but SLURM_STEP_NUM_TASKS=2, of Slurm; set RANK=0 and WORLD_SIZE=1 to train alone", said)


if __name__ == "__main__":
    unittest.main()
