"""Lockstep: loaders of several ranks in step, with DistributedDataParallel, continued by other numbers of ranks."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import PACKAGES, Case, mr, needs_torch  # noqa: E402
from tests.support import harness  # noqa: E402

PROGRAM = """
    import datetime, json, sys, torch
    import millrace as mr
    rank, world, name, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}.meeting", rank=rank, world_size=world,
                                         timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3 * 16 * 16, 4))
    said = {"keys": [], "after": []}
    def step(batch):
        model(batch.images.flatten(1).float()).mean().backward()
"""


@needs_torch
class Steps(Case):
    def ranks(self, world, program, *arguments):
        """What each rank has put into `said`, and exit codes with texts."""
        out = self.folder / f"out{len(list(self.folder.glob('out*')))}-{world}"
        text = textwrap.dedent(PROGRAM) + textwrap.dedent(program) + '\njson.dump(said, open(f"{out}.{rank}", "w"))\n' \
            "torch.distributed.destroy_process_group()\n"  # threads of Gloo end the process by a signal, rarely
        started = [subprocess.Popen([sys.executable, "-c", text, str(rank), str(world), str(self.folder), str(out), *map(str, arguments)],
                                    cwd=self.folder, text=True,
                                    env=harness.CLEAN | {"PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default::UserWarning"},
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(world)]
        ended = [(p.communicate(timeout=120)[1], p.returncode) for p in started]
        files = [pathlib.Path(f"{out}.{rank}") for rank in range(world)]
        return [json.loads(f.read_text()) if f.exists() else None for f in files], ended

    def test_an_epoch_continued_by_other_numbers_of_ranks(self):
        begun, ended = self.ranks(2, """
            steps = mr.Lockstep(mr.ImageLoader("train.json", 10, size=16, shuffle=100, seed=3, label="none", threads=1))
            for batch in steps:
                step(batch)
                said["keys"] += batch.keys
                if len(said["keys"]) == 50:
                    break
            said["state"] = steps.state_dict()
            """)
        self.assertEqual([code for _, code in ended], [0, 0], ended)
        self.assertEqual(begun[0]["state"], begun[1]["state"], "of all ranks")
        (self.folder / "state.json").write_text(json.dumps(begun[0]["state"]))
        before = begun[0]["keys"] + begun[1]["keys"]
        for world in 1, 3, 5:
            with self.subTest(world):
                rest, ended = self.ranks(world, """
                    steps = mr.Lockstep(mr.ImageLoader("train.json", 10, size=16, shuffle=100, seed=3, label="none", threads=1))
                    steps.load_state_dict(json.load(open("state.json")))
                    for batch in steps:
                        step(batch)
                        said["keys"] += batch.keys
                        said["after"].append(len(batch.keys))
                    said["dropped"], said["epoch"] = steps.dropped, steps.epoch
                    said["next"] = sum(1 for _ in map(step, steps))
                    """)
                self.assertEqual([code for _, code in ended], [0] * world, ended)
                self.assertEqual({len(r["after"]) for r in rest}, {len(rest[0]["after"])}, "as many steps")
                self.assertEqual({(r["epoch"], r["next"]) for r in rest}, {(1, rest[0]["next"])})
                keys = before + [k for r in rest for k in r["keys"]]
                self.assertEqual(len(keys), len(set(keys)), "none twice")
                self.assertGreaterEqual(len(keys) + 10 * sum(r["dropped"] for r in rest), 400, "none lost but those that are told")

    def test_a_rank_whose_data_fail_ends_the_others(self):
        for name in "a", "b":
            content = (self.folder / "train-000000.tar").read_bytes()
            if name == "b":
                content = content[:40_000] + bytes(range(256)) * 8 + content[42_048:]
            (self.folder / f"{name}.tar").write_bytes(content)
        _, ended = self.ranks(2, """
            steps = mr.Lockstep(mr.ImageLoader(["a.tar", "b.tar"][rank], 5, size=16, rank=(0, 1), label="none", threads=1))
            for batch in steps:
                step(batch)
            """)
        self.assertIn("PeerLostError: peer_lost: the data of another rank failed; see that rank's message", ended[0][0])
        self.assertIn("Error: ", ended[1][0])
        self.assertIn("b.tar", ended[1][0])
        self.assertNotIn("not as one job", ended[0][0] + ended[1][0])  # each has a list of its own

    def test_ranks_that_read_the_same_shards_but_not_as_one_job_are_told(self):
        for options in "seed=rank", "rank=(0, 1)":
            with self.subTest(options):
                _, ended = self.ranks(2, f"""
                    steps = mr.Lockstep(mr.ImageLoader("train.json", 50, size=16, label="none", threads=1, {options}))
                    for batch in steps:
                        step(batch)
                    """)
                self.assertEqual([code for _, code in ended], [0, 0], ended)
                for said, _ in ended:
                    self.assertIn("UserWarning: the ranks read the same shards, but not as one job (bad_state: ", said)

    def test_lists_in_different_orders_are_told(self):
        _, ended = self.ranks(2, """
            shards = [f"train-{i:06}.tar" for i in (0, 1, 2, 3)][::1 - 2 * rank]
            for batch in mr.Lockstep(mr.ImageLoader(shards, 50, size=16, label="none", threads=1)):
                step(batch)
            """)
        for said, _ in ended:
            self.assertIn("UserWarning: the ranks list the same shards in different orders: ", said)

    def test_a_rank_that_is_killed_ends_the_others(self):
        _, ended = self.ranks(2, """
            import os
            steps = mr.Lockstep(mr.ImageLoader("train.json", 10, size=16, label="none", threads=1))
            for n, batch in enumerate(steps):
                if n == 3 and rank == 1:
                    os.kill(os.getpid(), 9)
            """)
        self.assertIn("PeerLostError: peer_lost: another rank is gone", ended[0][0])
        self.assertNotIn("not as one job", ended[0][0])

    def test_data_that_fail_after_the_last_step_of_an_epoch(self):
        content = (self.folder / "train-000000.tar").read_bytes()
        (self.folder / "part.tar").write_bytes(content[:content.index(b"00000020.")] + bytes(1024))
        (self.folder / "late.tar").write_bytes(content[:content.index(b"00000060.")] + b"damage, " * 128)
        said, ended = self.ranks(2, """
            steps = mr.Lockstep(mr.ImageLoader(["part.tar", "late.tar"][rank], 5, size=16, rank=(0, 1), label="none", threads=1))
            said["taken"] = sum(1 for _ in map(step, steps))
            said["epoch"], said["dropped"] = steps.epoch, steps.dropped
            json.dump(said, open(f"{out}.{rank}", "w"))
            for batch in steps:
                step(batch)
            """)
        self.assertIn("PeerLostError: peer_lost: the data of another rank failed; see that rank's message", ended[0][0])
        self.assertIn("late.tar", ended[1][0])
        self.assertNotIn("PeerLostError", ended[1][0])
        self.assertEqual([(s["taken"], s["epoch"]) for s in said], [(4, 1)] * 2, "the epoch ended on both")
        self.assertGreater(said[1]["dropped"], 4)

    def test_a_position_after_data_that_failed_past_the_last_step(self):
        def made(rank, join=None):
            return mr.ImageLoader("train.json", 10, size=16, shuffle=40, seed=3, label="none", threads=1, rank=(rank, 2), output="numpy",
                                  join=join)
        left_out = {k for _, b in zip(range(12), made(0)) for k in b.keys}  # 8 batches are left to rank 0
        table = {s["__key__"]: {"x": "1"} for s in mr.samples("train.json", fields="cls") if s["__key__"] not in left_out}
        (self.folder / "table.json").write_text(json.dumps(table))
        said, ended = self.ranks(2, """
            loader = mr.ImageLoader("train.json", 10, size=16, shuffle=40, seed=3, label="none", threads=1,
                                    join=mr.Join(json.load(open("table.json")), missing="skip"))
            taken, take = 0, loader._take
            def failing():
                global taken
                taken += 1
                if rank == 1 and taken == 10:
                    raise mr.errors.error("io_failed", "the disk is gone")
                return take()
            loader._take = failing
            steps = mr.Lockstep(loader)
            said["keys"] = [k for batch in steps for k in batch.keys]
            said["epoch"], said["dropped"] = steps.epoch, steps.dropped
            said["state"] = steps.state_dict()
            try:
                next(iter(steps))
            except mr.Error as e:
                said["error"] = str(e)
            steps.load_state_dict(said["state"])
            said["next"] = [k for batch in steps for k in batch.keys]
            """)
        self.assertEqual([code for _, code in ended], [0, 0], ended)
        self.assertEqual([(s["epoch"], len(s["keys"]), s["dropped"]) for s in said], [(1, 80, 0), (1, 80, 1)])
        self.assertEqual(said[0]["state"], said[1]["state"])
        self.assertEqual([s["error"][:9] for s in said], ["peer_lost", "io_failed"])
        for rank in range(2):
            data = made(rank, mr.Join(table, missing="skip"))
            data.set_epoch(1)
            wanted = [k for b in data for k in b.keys]
            self.assertGreater(len(said[rank]["next"]), 50)
            self.assertEqual(said[rank]["next"], wanted[:len(said[rank]["next"])], "the next epoch from its beginning")

    def test_a_position_before_the_first_step_whoever_asks_for_the_length(self):
        said, ended = self.ranks(2, """
            def made():
                return mr.Lockstep(mr.ImageLoader("train.json", 10, size=16, shuffle=40, seed=3, label="none", threads=1))
            def asked(state=None, begins=False):
                steps = made()
                if state is not None:
                    steps.load_state_dict(json.loads(json.dumps(state)))
                if rank == 0:
                    steps.loader.stats()
                    if begins:
                        steps.loader._begun()  # as a wait for its first item does that ends by a signal
                    elif state is None:
                        len(steps)  # a progress bar
                return steps
            def rest(state):
                steps = made()
                steps.load_state_dict(state)
                return [k for batch in steps for k in batch.keys]
            said["plain"] = [k for batch in made() for k in batch.keys]
            steps = made()
            for _ in zip(range(3), steps):
                pass
            middle = steps.state_dict()
            said["rest"] = rest(middle)
            said["again"] = [rest(asked(state, begins).state_dict()) for begins in (False, True) for state in (None, middle)]
            """)
        self.assertEqual([code for _, code in ended], [0, 0], ended)
        for s in said:
            self.assertEqual(s["rest"], s["plain"][30:])
            self.assertEqual(s["again"], [s["plain"], s["rest"]] * 2)

    def test_a_rank_that_cannot_save_ends_the_others(self):
        _, ended = self.ranks(2, """
            steps = mr.Lockstep(mr.ImageLoader("train.json", 10, size=16, label="none", threads=1))
            next(iter(steps))
            if rank == 1:
                steps.loader.close()
            steps.state_dict()
            """)
        self.assertIn("PeerLostError: peer_lost: the position of another rank cannot be saved; see that rank's message", ended[0][0])
        self.assertIn("UsageError: usage: this loader is closed", ended[1][0])

    def test_made_before_the_group_it_is_refused(self):
        self.addCleanup(os.environ.pop, "RANK", None)
        self.addCleanup(os.environ.pop, "WORLD_SIZE", None)
        os.environ.update(RANK="1", WORLD_SIZE="2")
        data = mr.ImageLoader("train.json", 50, size=16, label="none", threads=1)
        with self.assertRaisesRegex(mr.UsageError, "2 ranks.*; make Lockstep after init_process_group"):
            mr.Lockstep(data)
        os.environ.update(RANK="0", WORLD_SIZE="1")
        mr.Lockstep(data)

    def test_alone_it_is_the_loader(self):
        data = mr.ImageLoader("train.json", 50, size=16, shuffle=100, seed=3, label="none", threads=1)
        steps = mr.Lockstep(mr.ImageLoader("train.json", 50, size=16, shuffle=100, seed=3, label="none", threads=1))
        for _ in range(2):
            self.assertEqual([b.keys for b in steps], [b.keys for b in data])
        self.assertEqual((steps.epoch, steps.dropped, len(steps)), (2, 0, 8))
        steps.set_epoch(0)
        data.set_epoch(0)
        self.assertEqual(next(iter(steps)).keys, next(iter(data)).keys)
        again = mr.ImageLoader("train.json", 50, size=16, shuffle=100, seed=3, label="none", threads=1)
        again.load_state_dict(json.loads(json.dumps(steps.state_dict())))
        self.assertEqual([b.keys for b in again], [b.keys for b in data])


if __name__ == "__main__":
    unittest.main(verbosity=2)
