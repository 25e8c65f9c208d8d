"""Lockstep: loaders of several ranks in step, with DistributedDataParallel, continued by other numbers of ranks."""

import json
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
        text = textwrap.dedent(PROGRAM) + textwrap.dedent(program) + '\njson.dump(said, open(f"{out}.{rank}", "w"))\n'
        started = [subprocess.Popen([sys.executable, "-c", text, str(rank), str(world), str(self.folder), str(out), *map(str, arguments)],
                                    cwd=self.folder, env=harness.CLEAN | {"PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"}, text=True,
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
