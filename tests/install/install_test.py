"""cmake --install, find_package(millrace) in a project of its own, and the program that comes out."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402


class Install(unittest.TestCase):
    def command(self, *arguments):
        done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True,
                              env=harness.CLEAN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_consumer_builds_and_runs(self):
        folder = self.enterContext(harness.Folder())
        prefix, build = folder / "prefix", folder / "build"
        self.command("cmake", "--install", harness.BIN.parent, "--prefix", prefix)
        self.assertTrue((prefix / "bin/millrace").exists())
        self.assertFalse((prefix / "include/millrace/engine/precompiled.h").exists())
        flags = os.environ.get("MILLRACE_TEST_SANITIZE", "")
        self.command("cmake", "-G", "Ninja", "-S", harness.ROOT / "tests/install/consumer", "-B", build,
                     f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_COMPILER=clang++-19",
                     f"-DCMAKE_CXX_FLAGS={flags}")
        self.command("cmake", "--build", build)
        spec = harness.fake(folder, "a", 2, 30)
        self.assertEqual(self.command(build / "consumer", spec), "30\n")


class WrongPlans(unittest.TestCase):
    """A stage that does not fit is one error of one line, which says what is wrong."""

    def compile(self, plan):
        source = f"#include <millrace/millrace.h>\nusing namespace millrace;\nauto p = {plan};\n"
        return subprocess.run(
            ["clang++-19", "-std=c++20", "-fsyntax-only", "-DBOOST_ASIO_SEPARATE_COMPILATION",
             "-DBOOST_BEAST_SEPARATE_COMPILATION", f"-I{harness.ROOT}", f"-I{harness.ROOT}/include",
             "-x", "c++", "-"], input=source, capture_output=True, text=True).stderr

    def test_messages(self):
        head = 'shards({"a"}) | untar() | group_by_key()'
        self.assertEqual(self.compile(head + " | decode_jpeg() | batch({.size = 2})"), "")
        for wrong in (head + " | batch({.size = 2})", 'shards({"a"}) | group_by_key()',
                      head + " | decode_jpeg() | shuffle()",
                      head + " | decode_jpeg() | on_error(skip_up_to(1)) | decode_jpeg()"):
            errors = [l for l in self.compile(wrong).splitlines() if " error: " in l]
            self.assertEqual(len(errors), 1, errors)
            self.assertIn("this stage does not take what the plan in front of it yields", errors[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
