"""What the tests of checkpoints share: runs that save into one folder."""

from tests.support import training
from tests.support.training import WithShards


class CheckpointTest(WithShards):
    train_counts = (8, 480)
    val_counts = (1, 40)

    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "c"

    def train(self, *arguments, code=0, **options):
        done = training.train("--shards", self.shards, "--checkpoint-dir", self.checkpoints, "--epochs", 2, *arguments,
                              **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.stderr = done.stderr
        return done

    def kept(self):
        return sorted(p.name for p in self.checkpoints.iterdir())


def named(*numbers):
    return [f"step-{n:010}" for n in numbers]
