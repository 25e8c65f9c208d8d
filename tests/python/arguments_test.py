"""Arguments that are wrong, and states of other ones, are named as Python names them, with what is allowed."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import URLS, Case, loader, mr  # noqa: E402

ALL = 2**64 - 1


def images(**options):
    next(iter(loader(**options)))


def samples(**options):
    next(iter(mr.samples(URLS, **options)))


def augmented(**options):
    mr.Augment(**{"policy": "randaugment"} | options)


def written(**options):
    mr.ShardWriter("written-%d.tar", **options)


# What takes them, and of each argument what is just outside its range, and the range as the error says it.
WHOLE = (
    (images, {"batch_size": (0, 2**20 + 1, "1 to 1048576"), "size": (0, 16385, "1 to 16384"), "resize": (-1, 32769, "0 to 32768"),
              "classes": (-1, 2**63, f"0 to {2**63 - 1}"), "held": (0, 2**20 + 1, "1 to 1048576"), "prefetch": (0, 2**20 + 1, "1 to 1048576"),
              "epoch_samples": (0, 2**62 + 1, f"1 to {2**62}"), "cache_decoded": (-1, 2**63, f"0 to {2**63 - 1}")}),
    (images, of_both := {"seed": (-1, ALL + 1, f"0 to {ALL}"), "lanes": (-2, 65537, "-1 to 65536"), "shuffle": (-1, 2**62 + 1, f"0 to {2**62}"),
                         "threads": (0, 1025, "'auto' or a whole number from 1 to 1024"),
                         "memory": (-1, 2**40 + 1, "'4GiB', or a whole number from 0 to 1099511627776")}),
    (samples, of_both),
    (lambda **o: mr.IndexedDataset("train.json", **o), {"memory": of_both["memory"]}),
    (written, {"max_count": (0, 2**63, f"1 to {2**63 - 1}"), "max_size": (0, 2**63, f"1 to {2**63 - 1}"),
               "start_shard": (-1, 2**63, f"0 to {2**63 - 1}")}),
    (lambda **o: images(on_error=mr.skip(**o)), {"most": (-1, ALL + 1, f"0.0 to 1.0, or a whole number from 0 to {ALL}"),
                                                 "in_a_row": (-1, ALL + 1, f"0 to {ALL}")}),
    (augmented, {"ops": (-1, 17, "0 to 16"), "magnitude": (-1, 31, "0 to 30")}))
FRACTIONS = (
    (lambda **o: images(on_error=mr.skip(**o)), {"most": (-0.5, 1.5, "0.0 to 1.0")}),
    (lambda **o: images(dtype="float32", **{k: [v] * 3 for k, v in o.items()}), {"mean": (-0.5, 1.5, "from 0 to 1"), "std": (-0.5, 1.5, "above 0 to 1")}),
    (augmented, {**{name: (-0.5, 1.5, "0 to 1") for name in ("jitter", "gray", "solarize", "blur", "erase", "least_area", "flip")},
                 **{name: (-0.5, 1e9, "0 to ") for name in ("brightness", "contrast", "saturation")}, "hue": (-0.5, 0.75, "0 to 0.5")}))


class Arguments(Case):
    def assert_named(self, call, name, value, allowed):
        with self.assertRaises(mr.UsageError, msg=(name, value)) as caught:
            call(**{name: value})
        said = str(caught.exception)
        self.assertRegex(said, rf"\b{name}\b")
        self.assertIn(f"{value:g}" if isinstance(value, float) else str(value), said)
        self.assertIn(allowed, said)
        self.assertNotRegex(said, "_options|::")

    def test_each_number_out_of_its_range_is_named_with_the_range(self):
        for call, arguments in WHOLE + FRACTIONS:
            for name, (below, above, allowed) in arguments.items():
                self.assert_named(call, name, below, allowed)
                self.assert_named(call, name, above, allowed)

    def test_what_is_no_number_is_named_with_the_range(self):
        for call, arguments in WHOLE:
            for name, (_, _, allowed) in arguments.items():
                if name != "most":  # a float is a part
                    self.assert_named(call, name, 7.5, allowed)
                self.assert_named(call, name, "much", "number")
                self.assert_named(call, name, True, allowed)
        with self.assertRaisesRegex(mr.UsageError, "batch_size is a number of .* bits"):
            loader(batch_size=10**5000)

    def test_sizes_in_words_are_named(self):
        for name in "memory", "cache_decoded":
            for wrong in "much", "4.5", "-1G":
                self.assert_named(images, name, wrong, "; ")

    def test_extensions_match_in_upper_case(self):
        self.assertEqual(set(next(iter(mr.samples(URLS, fields="JPG;Cls")))), {"__key__", "__url__", "jpg", "cls"})
        key = next(iter(mr.samples(URLS)))["__key__"]
        table = {key: {"Text": "a dog", "other": "x"}}
        joined = mr.samples(URLS).join(table, missing="skip", fields="TEXT")
        self.assertEqual([(s["text"], "other" in s) for s in joined], [(b"a dog", False)])

    def test_halves_of_characters_are_refused(self):
        half = "a\ud800"
        key = next(iter(mr.samples(URLS)))["__key__"]
        data = mr.IndexedDataset("train.json")
        for name, call in (("shards", lambda: mr.samples(half)), ("shards", lambda: mr.samples([URLS, half])),
                           ("fields", lambda: samples(fields=half)), ("label", lambda: images(label=half)),
                           ("images", lambda: images(images=half)), ("cache", lambda: images(cache=half)),
                           ("memory", lambda: images(memory=half)), ("epoch", lambda: images(epoch=half)),
                           ("index", lambda: mr.IndexedDataset(half)), ("report", lambda: mr.skip(report=half)),
                           ("policy", lambda: mr.Augment(policy=half)), ("first", lambda: data.find(key, half)),
                           ("companion", lambda: mr.Join(half + "{}.tar")), ("companion", lambda: mr.Join(half + ".csv")),
                           ("on", lambda: mr.Join("a.csv", on=half)), ("fields", lambda: mr.Join("{}.tar", fields=half)),
                           ("log level", lambda: mr.set_log_level(half))):
            with self.assertRaisesRegex(mr.UsageError, rf"\b{name}\b.*a\\+ud800", msg=name):
                call()
        for look_up in data.find, data.__getitem__:
            with self.assertRaises(KeyError):
                look_up(half)
        with self.assertRaises(mr.BadStateError):
            loader().load_state_dict({"millrace": 1, "epoch": 0, "position": half})

    def test_arrays_and_lists_where_one_text_or_truth_is_wanted_are_refused(self):
        class Pair:
            """As an array of two numbers: its comparisons have no truth."""
            def __eq__(self, other):
                return self
            def __bool__(self):
                raise ValueError("the truth of a pair")
            __hash__ = None
        for wrong in Pair(), ["torch"]:
            for name in "train", "drop_last", "resync", "output", "threads", "rank", "lanes", "epoch", "dtype", "device":
                with self.assertRaisesRegex(mr.UsageError, rf"\b{name}\b", msg=name):
                    loader(**{name: wrong})
            with self.assertRaisesRegex(mr.UsageError, "shuffle_shards is .*; give True or False"):
                mr.samples(URLS, shuffle_shards=wrong)
            with self.assertRaisesRegex(mr.UsageError, "missing is .*; give 'error', 'skip' or 'none'"):
                mr.Join("{}.tar", missing=wrong)
            with self.assertRaisesRegex(mr.UsageError, "the log level is .*; give 'quiet', 'notice' or 'debug'"):
                mr.set_log_level(wrong)

    def test_what_is_no_list_of_states_is_refused(self):
        state = loader().state_dict()
        for wrong in 3, None, "states", state:
            with self.assertRaisesRegex(mr.UsageError, "the states to merge are a .*; give a list: the state of every rank"):
                mr.merge_states(wrong)
        self.assertEqual(mr.merge_states(s for s in (state, state)), state)

    def test_a_cache_that_is_no_folder_is_refused(self):
        pathlib.Path("a-file").write_text("x")
        os.symlink("a-file", "a-link")
        for name in "a-file", "a-link", "a-file/", "a-file/within":
            for make in loader, mr.samples:
                with self.assertRaisesRegex(mr.UsageError, f"cache, or MILLRACE_CACHE.*not a folder, at {name}; name a folder"):
                    next(iter(make(URLS, cache=name)))
            with self.assertRaisesRegex(mr.UsageError, "not a folder"):
                len(mr.IndexedDataset("train.json", cache=name))
        with self.assertRaisesRegex(mr.Error, r"cache \(or MILLRACE_CACHE\) is a URL"):
            next(iter(mr.samples(URLS, cache="s3://bucket/cache")))
        self.assertEqual(len(list(mr.samples(URLS, cache="made/of/folders"))), 400)


class Words(Case):
    def test_names_of_files_and_keys_are_not_reworded(self):
        for name in "record lane3/x.tar", "pass its index.tar", "8_MiB.tar", "resume from another checkpoint.tar":
            with self.assertRaises(mr.NotFoundError) as caught:
                next(iter(mr.samples(f"./{name}")))
            self.assertIn(name, str(caught.exception))


class States(Case):
    def said(self, before, after):
        """What a loader `after` says of a state of `before`, after its first item."""
        next(iter(before))
        with self.assertRaises(mr.BadStateError) as caught:
            after.load_state_dict(before.state_dict())
            next(iter(after))
        said = str(caught.exception)
        self.assertNotRegex(said, r"_options|::|epochs_of|group_by_key|\bplan\b|\brecord\b|restore\(\)|lane\d+/")
        return said

    def test_of_other_arguments_names_them(self):
        for names, before, after in (
                (("seed",), {"seed": 1}, {"seed": 2}), (("shards",), {}, {"shards": "train-000000.tar"}),
                (("epoch",), {}, {"epoch": "resample"}), (("train", "shuffle_shards"), {}, {"train": False}),
                (("shuffle",), {"shuffle": 50}, {}), (("shuffle",), {}, {"shuffle": 50}),
                (("epoch_samples",), {"epoch_samples": 100}, {}), (("epoch_samples",), {}, {"epoch_samples": 100}),
                (("lanes",), {"lanes": 4, "rank": (0, 2)}, {"lanes": 6, "rank": (0, 2)})):
            said = self.said(loader(**before), loader(**after))
            for name in names:
                self.assertRegex(said, rf"\b{name}\b", (before, after))

    def test_with_a_shuffle_and_other_lanes_says_that_there_is_none(self):
        for options in {}, {"epoch_samples": 100}, {"epoch": "resample"}:
            said = self.said(loader(shuffle=50, lanes=8, **options), loader(lanes=12, **options))
            self.assertRegex(said, "^bad_state: the state was saved with a shuffle and with other lanes, and this loader has no shuffle; "
                             "give it the shuffle")
            before = loader(shuffle=50, lanes=8, **options)
            next(iter(before))
            after = loader(shuffle=60, lanes=12, **options)
            after.load_state_dict(before.state_dict())
            next(iter(after))  # as the words say

    def test_what_is_not_compared_is_said_to_be_so(self):
        help_says = mr.ImageLoader.load_state_dict.__doc__
        for name, before, after in (("batch_size", {}, {"batch_size": 20}), ("size", {}, {"size": 16}), ("label", {}, {"label": "none"}),
                                    ("augment", {}, {"augment": mr.Augment(gray=0.5)}), ("shuffle", {"shuffle": 50}, {"shuffle": 70}),
                                    ("on_error", {}, {"on_error": mr.skip()}),
                                    ("epoch_samples", {"epoch_samples": 200}, {"epoch_samples": 300})):
            self.assertIn(f"`{name}`", help_says[help_says.index("Nothing else is compared"):])
            data = loader(**before)
            state = (next(iter(data)), data.state_dict())[1]
            other = loader(**before | after)
            other.load_state_dict(state)
            next(iter(other))
        compared = help_says[:help_says.index("Nothing else is compared")]
        for name in "shards", "seed", "epoch", "train", "shuffle_shards", "shuffle", "epoch_samples", "lanes", "join":
            self.assertRegex(compared, rf"\b{name}\b")  # test_of_other_arguments_names_them has them refused

    def test_of_another_mode_of_an_index_names_it(self):
        said = self.said(loader("train.json", epoch="equal"), loader("train.json", epoch="resample"))
        self.assertIn("another mode of epochs (epoch)", said)

    def test_a_list_that_is_saved_again_before_the_first_item(self):
        ranks = [loader(rank=(r, 2)) for r in range(2)]
        for rank in ranks:
            next(iter(rank))
        states = [rank.state_dict() for rank in ranks]
        again = []
        for r in range(3):
            rank = loader(rank=(r, 3))
            rank.load_state_dict(states)
            again.append(rank.state_dict())
        keys = []
        for r in range(2):
            rank = loader(rank=(r, 2))
            rank.load_state_dict(again)
            keys += [key for batch in rank for key in batch.keys]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertEqual(len(keys), 400 - sum(len(next(iter(loader(rank=(r, 2)))).keys) for r in range(2)))
        # The state of one rank, given twice, is still refused.
        with self.assertRaisesRegex(mr.BadStateError, "two of the states have lane 0"):
            mr.merge_states([states[0], states[0]])

    def test_that_of_one_rank_is_saved_again_by_several_before_the_first_item(self):
        alone = loader(shuffle=50, rank=(0, 1))
        before = next(iter(alone)).keys
        state = alone.state_dict()
        def loaded(state, rank, world):
            data = loader(shuffle=50, rank=(rank, world))
            data.load_state_dict(state)
            return data
        for whole in state, [state]:
            again = [loaded(whole, r, 5).state_dict() for r in range(5)]
            once_more = [loaded(again, r, 2).state_dict() for r in range(2)]
            for states in again, once_more, mr.merge_states(again):
                keys = [k for r in range(3) for b in loaded(states, r, 3) for k in b.keys]
                self.assertEqual(sorted(before + keys), sorted(f"{i:08}" for i in range(400)))
        with self.assertRaisesRegex(mr.BadStateError, "two of the states have lane 0"):  # of two ranks that gave the same samples
            mr.merge_states([state, state])

    def test_of_other_states_of_the_same_rank_are_refused_in_words_of_python(self):
        alone = loader(rank=(0, 1))
        states = [(next(iter(alone)), alone.state_dict())[1] for _ in range(2)]
        ranks = [loader(rank=(0, 2)) for _ in range(2)]
        for taken, rank in enumerate(ranks, 1):
            for _ in zip(range(taken), rank):
                pass
        for twice in states, [r.state_dict() for r in ranks]:
            with self.assertRaisesRegex(mr.BadStateError, "^bad_state: two different states are of rank 0 of [12]; give the state "):
                mr.merge_states(twice)

    def test_of_another_rank_asks_for_those_of_all(self):
        said = self.said(loader(rank=(0, 2)), loader(rank=(1, 2)))
        self.assertIn("the list of the states of all ranks", said)


if __name__ == "__main__":
    unittest.main()
