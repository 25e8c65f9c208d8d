"""PlanLoader: a plan in C++ of an extension that is compiled as a user would, against an installed millrace."""

import io
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import types
import unittest
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import PACKAGES, Case, harness, mr  # noqa: E402

URLS = "sound-{000000..000003}.tar"


def wav(channels, rate, values):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(v.to_bytes(2, "little", signed=True) for v in values))
    return out.getvalue()


def write_shard(name, files):
    with tarfile.open(name, "w") as tar:
        for member, content in files:
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


class Plans(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for shard in range(4):
            write_shard(f"sound-{shard:06}.tar",
                        [(f"s{shard}{i:02}.wav", wav(2, 8000, range(-i, i + 2 * shard + 2))) for i in range(25)])
        output_of("cmake", "--install", harness.BIN.parent, "--prefix", "prefix")
        output_of("cmake", "-G", "Ninja", "-S", harness.ROOT / "examples/python_plan", "-B", "plan-build",
            f"-DCMAKE_PREFIX_PATH={os.getcwd()}/prefix", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_COMPILER=clang++-19")
        output_of("cmake", "--build", "plan-build")
        sys.path.insert(0, os.path.abspath("plan-build"))
        import waveforms
        cls.plan = waveforms.Waveforms

    def loader(self, *arguments, of=URLS, rank=(0, 1), **options):
        return mr.PlanLoader(self.plan(of, *arguments, **options), rank=rank)

    def test_items(self):
        items = {key: (rate, values) for key, rate, values in self.loader()}
        self.assertEqual(len(items), 100)
        rate, values = items["s203"]
        self.assertEqual(rate, 8000)
        self.assertEqual((values.shape, str(values.dtype)), ((6, 2), "float32"))
        self.assertEqual(list(values.ravel() * 32768), [*range(-3, 9)])

    def test_epochs_and_ranks(self):
        data = self.loader(7)
        epochs = [[key for key, _, _ in data] for _ in range(3)]
        self.assertNotEqual(epochs[0], epochs[1])
        self.assertEqual({frozenset(e) for e in epochs}, {frozenset(epochs[0])})
        third = self.loader(7)
        third.set_epoch(2)
        self.assertEqual([key for key, _, _ in third], epochs[2])
        parts = [[key for key, _, _ in self.loader(7, rank=(r, 3))] for r in range(3)]
        self.assertEqual(sorted(itertools.chain(*parts)), sorted(epochs[0]))

    def test_positions(self):
        whole = [key for key, _, _ in self.loader(3, 20)]
        for taken in (0, 1, 37, 99):
            data = self.loader(3, 20)
            first = [key for key, _, _ in itertools.islice(data, taken)]
            state = json.loads(json.dumps(data.state_dict()))
            data.close()
            rest = self.loader(3, 20)
            rest.load_state_dict(state)
            self.assertEqual(first + [key for key, _, _ in rest], whole)

    def test_another_number_of_ranks(self):
        ranks = [self.loader(3, 20, rank=(r, 2)) for r in range(2)]
        first = [key for data in ranks for key, _, _ in itertools.islice(data, 15)]
        states = [data.state_dict() for data in ranks]
        rest = []
        for r in range(3):
            data = self.loader(3, 20, rank=(r, 3))
            data.load_state_dict(states)
            rest += [key for key, _, _ in data]
        self.assertEqual(sorted(first + rest), sorted(key for key, _, _ in self.loader()))

    def test_pickled(self):
        data = self.loader(5, shuffle=10)
        whole = [key for key, _, _ in self.loader(5, shuffle=10)]
        first = [key for key, _, _ in itertools.islice(data, 12)]
        again = pickle.loads(pickle.dumps(data))
        self.assertEqual(first + [key for key, _, _ in again], whole)

    def test_figures(self):
        data = self.loader()
        list(data)
        self.assertEqual(data.skipped()["delivered"], 100)
        self.assertIn("limit", data.stats())
        self.assertIn("map", [s["name"] for s in data.stats()["stages"]])

    def test_errors(self):
        write_shard("broken.tar", [("a.wav", wav(1, 8000, [1])), ("b.wav", b"no sound")])
        data = iter(self.loader(of="broken.tar", shuffle=1))
        with self.assertRaises(mr.BadFieldError) as told:
            list(data)
        self.assertEqual((told.exception.key, told.exception.url), ("b", "broken.tar"))
        with self.assertRaises(mr.NotFoundError):
            next(iter(self.loader(of="nowhere-{0..3}.tar")))
        # The option's name in C++, which its author knows, rather than an argument of another class.
        with self.assertRaisesRegex(mr.UsageError, "shuffle_options.samples"):
            next(iter(self.loader(shuffle=0)))
        with self.assertRaises(TypeError):
            self.plan()
        # The package's own words are as they were.
        with self.assertRaisesRegex(mr.UsageError, "^((?!_options).)*$"):
            next(iter(mr.samples(URLS, epoch="equal", rank=(0, 100))))

    def test_what_is_no_plan(self):
        for wrong in (None, "x.tar", self.plan):
            with self.assertRaisesRegex(mr.UsageError, "is not a plan; give an object of a class that bind_plan"):
                mr.PlanLoader(wrong)
        other = types.SimpleNamespace(_millrace_version="0.0.1")
        with self.assertRaisesRegex(mr.UsageError, r"was compiled with millrace 0\.0\.1, and this is millrace \d"):
            mr.PlanLoader(other)

    def test_ends(self):
        out, _ = self.run_program(f"""
            sys.path.insert(0, "plan-build")
            import waveforms
            data = mr.PlanLoader(waveforms.Waveforms({URLS!r}), rank=(0, 1))
            epoch = iter(data)
            print(len(next(epoch)))
            child = os.fork()
            if child == 0:
                try:
                    next(epoch)
                except mr.UsageError as e:
                    print("child:", e)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
            print(sum(1 for _ in epoch))
            kept = next(iter(data))[2]  # alive at the end, as the loader is
        """)
        self.assertRegex(out, r"(?s)^3\nchild: usage: .*a fork.*\n99\n$")

    def test_the_example(self):
        out = output_of(sys.executable, harness.ROOT / "examples/python_plan/read.py", URLS,
                        env=os.environ | {"PYTHONPATH": f"{PACKAGES}:{os.getcwd()}/plan-build"})
        frames = sum(i + shard + 1 for shard in range(4) for i in range(25))
        self.assertEqual(out, f"100 files, {frames / 8000:.1f} seconds\n")


def output_of(*arguments, env=None):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    unittest.main()
