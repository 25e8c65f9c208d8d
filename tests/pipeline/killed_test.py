"""An epoch whose ranks are killed with -9 at random points, and which other numbers of ranks resume."""

import json
import pathlib
import random
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

WORLDS = [1, 2, 3, 4, 6]


class Epoch:
    """One epoch, in generations: each begins with the newest complete set of states."""

    def __init__(self, folder, shards, chance, decode):
        self.folder, self.shards, self.chance, self.decode = folder, shards, chance, decode
        self.seed = chance.randrange(1000)
        self.lanes = 8
        self.states = []
        self.keys = []
        self.delivered = self.skipped = 0
        self.kills = 0

    def generation(self, number, world, kill_before):
        """Runs all ranks to their ends, or until they are killed. True if the epoch is complete."""
        outs = [self.folder / f"{number}.{rank}" for rank in range(world)]
        running = []
        for rank, out in enumerate(outs):
            kill_at = self.chance.randrange(1, kill_before) if kill_before else -1
            how = {"shards": self.shards, "rank": rank, "world": world, "lanes": self.lanes, "seed": self.seed,
                   "from": [str(s) for s in self.states], "out": str(out), "save_every": self.chance.randrange(1, 20),
                   "kill_at": kill_at, "in_save": self.chance.random() < 0.3, "decode": self.decode}
            running.append(subprocess.Popen([harness.BIN / "epoch_visitor", json.dumps(how)], env=harness.CLEAN,
                                            stderr=subprocess.PIPE, text=True))
        try:
            complaints = [process.communicate(timeout=120)[1] for process in running]
        finally:
            for process in running:
                process.kill()
        for process, complaint in zip(running, complaints):
            assert process.returncode in (0, -9), complaint
            self.kills += process.returncode == -9
        states = [pathlib.Path(f"{out}.state") for out in outs]
        if not all(s.exists() for s in states):
            return False  # not a state of the whole job: the previous one counts
        for out, state in zip(outs, states):
            saved = json.loads(state.read_text())
            self.keys += pathlib.Path(f"{out}.keys").read_text().splitlines()[:saved["given"]]
            self.delivered += saved["delivered"]
            self.skipped += saved["skipped"]
        self.states = states
        return all(json.loads(s.read_text())["done"] for s in states)

    def run(self, killed_generations):
        for number in range(killed_generations):
            world = self.chance.choice(WORLDS)
            if self.chance.random() < 0.3:
                self.lanes = self.chance.choice([8, 12, 24])
            if self.generation(number, world, kill_before=200 // world):
                return
        while not self.generation(killed_generations, self.chance.choice(WORLDS), kill_before=None):
            killed_generations += 1


class Killed(unittest.TestCase):
    def check(self, shards, expected, epochs, decode=False, seed=1):
        chance = random.Random(seed)
        kills = 0
        for i in range(epochs):
            with harness.Folder() as folder:
                epoch = Epoch(folder, shards, chance, decode)
                epoch.run(killed_generations=3)
                self.assertEqual(sorted(epoch.keys), expected, f"epoch {i}, seed {seed}")
                self.assertEqual(epoch.delivered + epoch.skipped, len(expected))
                kills += epoch.kills
        self.assertGreater(kills, epochs)
        return kills

    def test_each_sample_comes_once_whatever_is_killed(self):
        with harness.Folder() as data:
            harness.fake(data, "s", 7, 300)
            shards = sorted(map(str, data.glob("s-*.tar")))
            self.check(shards, [f"{i:08}" for i in range(300)], epochs=15)
            self.check(shards, [f"{i:08}" for i in range(300)], epochs=5, decode=True)

    @harness.needs_shared("imagenet-sample")
    def test_real_photos_killed_a_hundred_times(self):
        shards = sorted(map(str, (harness.SHARED / "imagenet-sample").glob("*.tar")))
        index = json.loads((harness.SHARED / "imagenet-sample/imagenet-sample-index.json").read_text())
        self.assertEqual(sum(s["nsamples"] for s in index["shardlist"]), 700)
        keys = []
        for shard in shards:
            keys += [n[:-4] for n in subprocess.run(["tar", "-tf", shard], capture_output=True, text=True,
                                                    check=True).stdout.splitlines() if n.endswith(".jpg")]
        self.assertGreater(self.check(shards, sorted(keys), epochs=15, seed=2), 100)


if __name__ == "__main__":
    unittest.main()
