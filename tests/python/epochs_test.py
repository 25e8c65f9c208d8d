"""Epochs of millrace.ImageLoader: positions, ranks, lengths."""

import json
import os
import pathlib
import pickle
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import URLS, Case, content, loader, mr  # noqa: E402


class Epochs(Case):
    def test_a_loop_is_an_epoch(self):
        data = loader(shuffle=100)
        first, second = ([content(b) for b in data] for _ in range(2))
        self.assertEqual(sorted(k for b in first for k in b[2]), sorted(k for b in second for k in b[2]))
        self.assertNotEqual(first, second)
        self.assertEqual(data.epoch, 2)
        data.set_epoch(2)  # is there: nothing happens
        third = [content(b) for b in data]
        data.set_epoch(1)
        self.assertEqual([content(b) for b in data], second)
        self.assertEqual([content(b) for b in data], third)

    def test_the_order_of_the_list_and_that_of_several_lanes(self):
        listed = [f"{i:08}" for i in range(400)]
        def by_images(**options):
            return [k for b in loader(train=False, **options) for k in b.keys]
        def by_samples(**options):
            return [s["__key__"] for s in mr.samples(URLS, fields="cls", shuffle_shards=False, **options)]
        for keys in by_images, by_samples:
            for _ in range(2):  # the same in each epoch
                self.assertEqual(keys(lanes=-1), listed)
            in_turn = [f"{100 * shard + i:08}" for i in range(100) for shard in range(4)]
            self.assertEqual(keys(), in_turn)
            self.assertEqual(keys(lanes=-1, rank=(1, 2)), listed[100:200] + listed[300:])
        for said in mr.ImageLoader.__doc__, mr.samples.__doc__:
            self.assertIn("The order of the list, shard by shard, comes with `lanes=-1`", " ".join(said.split()))

    def test_an_iterator_ends_once(self):
        data = loader()
        epoch = iter(data)
        self.assertEqual(len(list(epoch)), 8)
        self.assertEqual(list(epoch), [])
        self.assertEqual(data.epoch, 1)
        left = iter(data)
        next(left)
        self.assertEqual(len(list(data)), 7)
        self.assertEqual(list(left), [])  # its epoch has ended
        self.assertEqual((data.epoch, len(list(data))), (2, 8))

    def test_continues_at_every_batch(self):
        data = loader(shuffle=100)
        wanted = [content(b) for _ in range(2) for b in data]
        data = loader(shuffle=100)
        states = [data.state_dict()]
        for _ in range(2):
            for _ in data:
                states.append(json.loads(json.dumps(data.state_dict())))
        for taken, state in enumerate(states):
            other = loader(shuffle=100, threads=1)
            other.load_state_dict(state)
            got = [content(b) for _ in range(3 if taken in (8,) else 2) for b in other][:16 - taken]
            self.assertEqual(got, wanted[taken:][:len(got)])
            self.assertGreaterEqual(len(got), min(8, 16 - taken))

    def test_a_loader_goes_back(self):
        data = loader(shuffle=100)
        epoch = iter(data)
        next(epoch)
        state = data.state_dict()
        rest = [content(b) for b in epoch]
        data.load_state_dict(state)
        self.assertEqual(data.epoch, 0)
        self.assertEqual([content(b) for b in data], rest)

    def test_pickles_with_its_position(self):
        data = loader(shuffle=100)
        next(iter(data))
        other = pickle.loads(pickle.dumps(data))
        self.assertEqual([content(b) for b in other], [content(b) for b in data])

    def test_other_ranks_continue(self):
        ranks = [loader(shuffle=100, rank=(r, 2), batch_size=20) for r in range(2)]
        seen = [k for d in ranks for _, b in zip(range(3), d) for k in b.keys]
        states = [d.state_dict() for d in ranks]
        for world in (1, 4):
            later = []
            for rank in range(world):
                data = loader(shuffle=100, rank=(rank, world), batch_size=20)
                data.load_state_dict(states)
                later += [k for b in data for k in b.keys]
            self.assertEqual(len(seen) + len(later), 400)
            self.assertEqual(len(set(seen) | set(later)), 400)

    def test_a_rank_that_is_past_the_epoch_goes_back_to_it(self):
        """The states of all ranks continue in the earliest epoch, and say so."""
        def made(rank, world):
            return loader([f"train-{i:06}.tar" for i in range(3)], rank=(rank, world), batch_size=10, lanes=2)
        keys: dict[int, list[str]] = {0: [], 1: []}
        ranks = [made(r, 2) for r in range(2)]  # of two shards and of one: 20 and 10 batches
        for data in ranks:
            for step in range(12):
                batch = next(iter(data), None) or next(iter(data))
                keys[batch.epoch] += batch.keys
        states = [d.state_dict() for d in ranks]
        self.assertEqual([s["epoch"] for s in states], [0, 1])
        for world in 1, 2:
            rest = []
            for rank in range(world):
                data = made(rank, world)
                data.load_state_dict(states)
                self.assertEqual(data.epoch, 0)
                rest += [k for b in data for k in b.keys]
                self.assertEqual(data.epoch, 1)
            self.assertEqual(sorted(keys[0] + rest), sorted({*keys[0], *rest}))
            self.assertEqual(len(keys[0] + rest), 300)

    def test_states_are_small_and_quick(self):
        data = loader(shuffle=10_000)
        next(iter(data))
        begun = time.perf_counter()
        for _ in range(10):
            state = data.state_dict()
        self.assertLess((time.perf_counter() - begun) / 10, 0.02)
        self.assertLess(len(json.dumps(state)), 10_000)

    def test_a_state_does_not_depend_on_who_asks_for_length_or_figures(self):
        def made(rank, world):
            return mr.samples("train.json", fields="cls", shuffle=50, seed=1, rank=(rank, world))
        def continued(states):
            keys = []
            for rank in range(4):
                data = made(rank, 4)
                data.load_state_dict(states)
                keys += [s["__key__"] for s in data]
            return sorted(keys)
        for ask in len, lambda data: data.stats(), lambda data: data.skipped():
            ranks = [made(r, 2) for r in range(2)]
            ask(ranks[0])  # as a progress bar on one rank does
            states = [r.state_dict() for r in ranks]
            self.assertEqual(states[0], states[1])
            self.assertEqual(len(continued(states)), 400)
            seen = [next(iter(r))["__key__"] for r in ranks]
            states = [r.state_dict() for r in ranks]
            others = [made(r, 3) for r in range(3)]
            for data in others:
                data.load_state_dict(states)
            ask_resumed = ask if ask is not len else lambda data: data.stats()
            ask_resumed(others[0])
            again = [data.state_dict() for data in others]
            self.assertEqual(again[0], again[1])
            self.assertEqual(sorted(seen + continued(again)), sorted(f"{i:08}" for i in range(400)))
            self.assertEqual(sum(1 for data in others for _ in data), 398)  # and they are as they were

    def test_what_only_told_its_length_goes_along_with_a_fork(self):
        out, _ = self.run_program("""
            data = L("train.json")
            print(len(data), flush=True)
            child = os.fork()
            if child == 0:
                print(sum(len(b.labels) for b in data), len(data), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(sum(len(b.labels) for b in data))
        """)
        self.assertEqual(out, "8\n400 8\n400\n")

    def test_refuses_other_states(self):
        data = loader()
        for wrong in ({}, {"millrace": 1, "epoch": 0, "position": "{}"}, {"epoch": 3}):
            with self.assertRaises(mr.BadStateError):
                data.load_state_dict(wrong)
        for wrong in (None, 5, "x", [5], [{}], [None], {"millrace": 1, "epoch": -5, "position": None},
                      {"millrace": 1, "epoch": "x", "position": None}, {"millrace": 1, "epoch": 0, "position": 5},
                      {"millrace": 1, "epoch": 2**70, "position": None}):
            with self.assertRaises(mr.BadStateError, msg=wrong):
                data.load_state_dict(wrong)
        for wrong in (-1, 1.5, "x", None, 2**62, 2**70):
            with self.assertRaisesRegex(mr.UsageError, "epoch is "):
                data.set_epoch(wrong)
        next(iter(data))
        with self.assertRaisesRegex(mr.BadStateError, "some of the states are of a beginning"):
            mr.merge_states([data.state_dict(), loader().state_dict()])
        other = loader(seed=5)
        other.load_state_dict(data.state_dict())
        with self.assertRaises(mr.BadStateError):
            next(iter(other))

    def test_a_closed_loader_has_no_position(self):
        with loader() as data:
            next(iter(data))
        for late in (data.state_dict, lambda: pickle.dumps(data)):
            with self.assertRaisesRegex(mr.UsageError, "closed; call state_dict\\(\\) before close"):
                late()

    def test_length(self):
        for rank in range(2):
            for options in ({"epoch": "equal"}, {"drop_last": True}, {"epoch_samples": 300}):
                data = loader("train.json", rank=(rank, 2), **options)
                self.assertEqual(len(data), len([b.epoch for b in data]), options)
        with self.assertRaises(TypeError):
            len(loader())
        self.assertEqual(len(mr.samples("train.json", rank=(1, 4))), 100)

    def test_a_length_of_a_continued_epoch_is_right_or_not_known(self):
        def made(rank, world, **options):
            return loader("train.json", rank=(rank, world), **{"batch_size": 10, "seed": 2} | options)
        def told(data, taken=0):
            """Asserts that a length that is told is what comes; returns whether it was."""
            try:
                wanted = len(data)
            except TypeError as why:
                self.assertRegex(str(why), "not known: it was begun with another number of ranks")
                wanted = None
            came = taken + sum(1 for _ in data)
            self.assertIn(wanted, (None, came))
            self.assertEqual(len(data), sum(1 for _ in data))  # of the next epoch
            return wanted is not None

        for common in {}, {"epoch_samples": 240}, {"epoch": "equal"}:
            for old, new, taken, after, known in (
                    (2, 2, 3, {}, True), (2, 4, 3, {}, False), (4, 2, 3, {}, False), (2, 1, 3, {}, False), (2, 3, 3, {}, False),
                    (4, 2, None, {}, True), (3, 2, None, {}, "epoch_samples" in common), (2, 2, 3, {"lanes": 12}, False),
                    (1, 1, 3, {"batch_size": 30}, False), (1, 1, 3, {"drop_last": True}, False)):
                ranks = [made(r, old, **common) for r in range(old)]
                for rank in ranks:
                    for _ in zip(range(taken), rank) if taken is not None else rank:
                        pass
                states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
                for r in range(new):
                    data = made(r, new, **common, **after)
                    data.load_state_dict(states)
                    same = data.state_dict()  # before it has begun
                    self.assertEqual(told(data, taken or 0), known, (common, old, new, taken, after))
                    data.load_state_dict(same)
                    self.assertEqual(told(data, taken or 0), known)
                # Continued twice: an epoch that is not known stays so.
                ranks = [made(r, new, **common, **after) for r in range(new)]
                for rank in ranks:
                    rank.load_state_dict(states)
                    next(iter(rank))
                once_more = [rank.state_dict() for rank in ranks]
                for r in range(new):
                    data = made(r, new, **common, **after)
                    data.load_state_dict(once_more)
                    self.assertEqual(told(data, (taken or 0) + 1), known, (common, old, new, taken, after))
        states = []
        for r in range(5):
            data = mr.samples("train.json", fields="cls", rank=(r, 5))
            next(iter(data))
            states.append(data.state_dict())
        data = mr.samples("train.json", fields="cls", rank=(0, 4))
        data.load_state_dict(states)
        self.assertFalse(told(data))
        alone = mr.samples("train.json", fields="cls", lanes=3, rank=(0, 1))
        next(iter(alone))
        data = mr.samples("train.json", fields="cls", lanes=5, rank=(0, 1))
        data.load_state_dict(alone.state_dict())
        self.assertTrue(told(data, 1))

    def test_epochs_of_any_length(self):
        data = loader(epoch="resample", epoch_samples=500)
        self.assertEqual([sum(len(b.labels) for b in data) for _ in range(3)], [500] * 3)

    def test_the_launchers_rank(self):
        keys = []
        for rank in "01":
            os.environ.update(RANK=rank, WORLD_SIZE="2")
            self.addCleanup(os.environ.pop, "RANK", None)
            self.addCleanup(os.environ.pop, "WORLD_SIZE", None)
            keys.append([k for b in loader() for k in b.keys])
        self.assertEqual(len(set(keys[0]) | set(keys[1])), 400)
        self.assertEqual(len(keys[0]) + len(keys[1]), 400)


if __name__ == "__main__":
    unittest.main(verbosity=2)
