"""cmake --install, find_package(millrace) in a project of its own, and the program that comes out."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402


class Installed(unittest.TestCase):
    def command(self, *arguments):
        done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True,
                              env=harness.CLEAN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def installed(self):
        folder = self.enterContext(harness.Folder())
        self.command("cmake", "--install", harness.BIN.parent, "--prefix", folder / "prefix")
        return folder, folder / "prefix"

    def configured(self, folder, prefix, lines, compiler="clang++-19"):
        """What CMake says to a project of these lines."""
        source = folder / "project"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n" + lines)
        done = subprocess.run(
            ["cmake", "--fresh", "-G", "Ninja", "-S", source, "-B", folder / "project-build",
             f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={compiler}"],
            capture_output=True, text=True, env=harness.CLEAN)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def check_consumer(self, compiler, folder, prefix, spec, flags):
        """tests/install/consumer, built by a compiler, reads the 40 samples of `spec`."""
        if not shutil.which(compiler):
            print(f"skipped: there is no {compiler}", file=sys.stderr)
            return
        with self.subTest(compiler):
            build = folder / f"build-{compiler}"
            self.command("cmake", "-G", "Ninja", "-S", harness.ROOT / "tests/install/consumer", "-B", build,
                         f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}")
            self.command("cmake", "--build", build)
            self.assertEqual(self.command(build / "consumer", spec), "40\n")
            if compiler != "g++":
                self.assertEqual(self.command(build / "asio_stage", spec), "40\n")
            self.check_tools(build / "tools", folder / compiler)
            # Of 40 samples each third, fourth and fifth of ten is left out, fails or throws.
            self.assertEqual(self.command(build / "own_items", spec), "28 28 28 28 10\n" * 2)

    def check_tools(self, program, folder):
        """tests/install/consumer/tools.cc writes, verifies and indexes shards."""
        folder.mkdir()
        self.assertEqual(self.command(program, folder / "w-%06d.tar", folder / "w.json"), "2 shards, 6 samples, all is well\n")
        self.assertEqual(sorted(p.name for p in folder.iterdir()), ["w-000000.tar", "w-000001.tar", "w.json", "w.offsets"])


class Install(Installed):
    def test_what_cannot_be_used_is_refused_with_the_reason(self):
        folder, prefix = self.installed()
        optional = ("find_package(millrace)\nif(millrace_FOUND)\n  message(STATUS \"it is there\")\n"
                    "else()\n  message(STATUS \"it is not there\")\nendif()\n")
        pretended = "set(CMAKE_CXX_COMPILER_ID GNU)\nset(CMAKE_CXX_COMPILER_VERSION 11.4)\n"
        code, said = self.configured(folder, prefix, pretended + "find_package(millrace REQUIRED)\n")
        self.assertNotEqual(code, 0)
        self.assertIn("the project's C++ compiler is 'GNU 11.4': programs that use millrace are compiled by GCC 12, Clang 15",
                      said)
        code, said = self.configured(folder, prefix, pretended + optional)
        self.assertEqual(code, 0, said)
        self.assertIn("it is not there", said)
        code, said = self.configured(folder, prefix, optional)
        self.assertEqual(code, 0, said)
        self.assertIn("it is there", said)
        code, said = self.configured(folder, prefix, "find_package(millrace REQUIRED COMPONENTS pipeline)\n")
        self.assertEqual(code, 0, said)
        code, said = self.configured(folder, prefix, "find_package(millrace REQUIRED COMPONENTS nothing)\n")
        self.assertNotEqual(code, 0)
        self.assertIn("there is no component 'nothing'", said)
        code, said = self.configured(folder, prefix, "find_package(millrace REQUIRED COMPONENTS train)\n")
        if not (harness.BIN / "millrace-train").exists():
            self.assertNotEqual(code, 0)
            self.assertIn("built without LibTorch", said)

    def test_the_installed_trainer_starts(self):
        if not (harness.BIN / "millrace-train").exists():
            self.skipTest("built without LibTorch")
        _, prefix = self.installed()
        self.assertIn("millrace-train", self.command(prefix / "bin/millrace-train", "--version"))
        # As where LibTorch has gone.
        script = prefix / "bin/millrace-train"
        script.write_text(re.sub("^built_with=.*", "built_with=/gone", script.read_text(), flags=re.M))
        done = subprocess.run([script, "--version"], capture_output=True, text=True, env=harness.CLEAN)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("is not in /gone: set LD_LIBRARY_PATH to the folder of libtorch_cpu.so", done.stderr)
        libraries = harness.VENV_PYTHON.parents[1].resolve().glob("lib/python3*/site-packages/torch/lib")
        for folder in libraries:
            done = subprocess.run([script, "--version"], capture_output=True, text=True,
                                  env=harness.CLEAN | {"LD_LIBRARY_PATH": f"/nowhere:{folder}"})
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_headers_of_the_same_names_are_not_ours(self):
        folder, prefix = self.installed()
        for name in ("engine/threads/runtime.h", "io/source.h", "pipeline/plan/plan.h", "tools/write/pack.h", "train/models/model.h"):
            (folder / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "own" / name).write_text("struct of_the_program {};\n")
        self.assertFalse(
            [h for h in (prefix / "include").rglob("*.h")
             if re.search('#include "(engine|io|pipeline|tools|train)/', h.read_text())])
        (folder / "main.cc").write_text(
            '#include <millrace/millrace.h>\n#include "engine/threads/runtime.h"\nof_the_program p;\n')
        self.command("clang++-19", "-std=c++20", "-fsyntax-only", f"-I{folder / 'own'}", "-isystem", prefix / "include",
                     folder / "main.cc")

    def test_the_interface_alone_is_installed(self):
        _, prefix = self.installed()
        include = prefix / "include/millrace"
        named = {include / name for h in include.rglob("*.*") for name in re.findall('#include "millrace/(.*)"', h.read_text())}
        front = {h.name for h in (harness.ROOT / "include/millrace").glob("*.h")}
        if not (harness.BIN / "millrace-train").exists():
            front.remove("train.h")
        self.assertEqual(set(include.rglob("*.h")), named | {include / name for name in front})
        for hidden in ("engine/threads/io_thread.h", "engine/host/seams.h", "io/http/client.h", "pipeline/formats/tar_parser.h", "tools/jobs/job_record.h"):
            self.assertFalse((include / hidden).exists(), hidden)

    def test_each_header_of_a_topic_compiles_alone(self):
        _, prefix = self.installed()
        # The others are compiled by the consumers, or need LibTorch or Python's headers.
        headers = sorted({h.stem for h in (prefix / "include/millrace").glob("*.h")} - {"asio", "millrace", "python", "train"})
        # What one lacks, it lacks with each compiler: all are compiled by the consumers, together.
        compiler = next((c for c in ("clang++-15", "clang++-19") if shutil.which(c)), "g++")

        def compile(header):
            return subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-isystem", prefix / "include", "-x", "c++", "-"],
                                  input=f"#include <millrace/{header}.h>\n", capture_output=True, text=True).stderr

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            self.assertEqual({h: said for h, said in zip(headers, pool.map(compile, headers)) if said}, {})

    def test_the_interface_stays_small(self):
        _, prefix = self.installed()
        for compiler in (c for c in ("g++-12", "clang++-15", "clang++-19") if shutil.which(c)):
            done = subprocess.run([compiler, "-std=c++20", "-E", "-isystem", prefix / "include", "-x", "c++", "-"],
                                  input="#include <millrace/millrace.h>\n", capture_output=True, text=True, check=True)
            with self.subTest(compiler):
                self.assertLess(done.stdout.count("\n"), 100_000, "lines, preprocessed")

    def test_a_consumer_builds_and_runs(self):
        folder, prefix = self.installed()
        self.assertTrue((prefix / "bin/millrace").exists())
        spec = harness.fake(folder, "a", 3, 40)
        sanitize = os.environ.get("MILLRACE_TEST_SANITIZE")
        for compiler, flags in (("clang++-19", "-fsanitize=address,undefined -fno-sanitize=vptr"), ("clang++-15", ""), ("g++", "")):
            self.check_consumer(compiler, folder, prefix, spec, flags if sanitize is None else sanitize)

    def test_a_consumer_builds_by_pkg_config(self):
        folder, prefix = self.installed()
        moved = folder / "moved"  # the file finds the rest from where it lies
        prefix.rename(moved)
        found = next(moved.rglob("millrace.pc"))
        environment = harness.CLEAN | {"PKG_CONFIG_PATH": str(found.parent)}
        cflags, libraries = (subprocess.run(["pkg-config", what, "millrace"], capture_output=True, text=True, check=True,
                                            env=environment).stdout.split() for what in ("--cflags", "--libs"))
        sanitize = os.environ.get("MILLRACE_TEST_SANITIZE", "").split()
        # Found by -I they are no system's: they have no warnings either. GCC's -Wshadow also compares variables with types.
        warnings = ("-Wall", "-Wextra", "-Wshadow", "-Werror")
        as_own = ["-I" if flag == "-isystem" else flag for flag in cflags]
        self.command("clang++-19", *warnings, *as_own, *sanitize,
                     harness.ROOT / "tests/install/consumer/own_items.cc", "-o", folder / "own_items", *libraries)
        if shutil.which("g++"):
            self.command("g++", "-fsyntax-only", "-Wshadow", "-Werror=shadow", *as_own, harness.ROOT / "tests/install/consumer/own_items.cc")
        self.command("clang++-19", *cflags, *sanitize, harness.ROOT / "tests/install/consumer/main.cc",
                     "-o", folder / "by-pkg-config", *libraries)
        self.command("clang++-19", *cflags, *sanitize, harness.ROOT / "tests/install/consumer/tools.cc",
                     "-o", folder / "tools", *libraries)
        self.check_tools(folder / "tools", folder / "written")
        spec = harness.fake(folder, "a", 2, 30)
        self.assertEqual(self.command(folder / "by-pkg-config", spec), "30\n")

    def test_versions_agree(self):
        _, prefix = self.installed()
        header = (prefix / "include/millrace/version.h").read_text()
        parts = [re.search(rf"MILLRACE_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
        version = ".".join(parts)
        self.assertIn(f'#define MILLRACE_VERSION "{version}"', header)
        self.assertEqual(self.command(prefix / "bin/millrace", "--version").split(), ["millrace", version])
        self.assertIn(f"Version: {version}\n", next(prefix.rglob("millrace.pc")).read_text())
        changes = re.findall(r"^## (\S+)", (harness.ROOT / "CHANGELOG.md").read_text(), re.M)
        self.assertEqual(changes[0].rstrip(","), version)


class SharedLibrary(Installed):
    """Of a build with BUILD_SHARED_LIBS, which that with ThreadSanitizer is: it is compiled once for both."""

    sanitize = os.environ.get("MILLRACE_TEST_SANITIZE", "")

    def test_it_exports_what_the_headers_declare(self):
        _, prefix = self.installed()
        library = next(prefix.rglob("libmillrace.so")).resolve()
        exported = self.command("nm", "--dynamic", "--defined-only", "--demangle", library)
        for name in ("millrace::engine::engine(", "millrace::shuffle(", "millrace::shard_writer::close(", "typeinfo for millrace::failure"):
            self.assertIn(name, exported)
        for name in ("millrace::tar_reader::", "millrace::uring_io::", "millrace::http_transfer", "millrace::key_table::", "archive_read"):
            self.assertNotIn(name, exported)
        text = "".join(h.read_text() for h in (prefix / "include").rglob("*.h"))
        owners = set(re.findall(r"^\w+ \w millrace::(?:detail::)?(\w+)::", exported, re.M))
        self.assertIn("engine", owners)
        # cmake/exported.inc hides those that the headers only name.
        self.assertEqual([c for c in sorted(owners) if not re.search(rf"\b(class|struct|namespace)( \[\[\w+\]\])? {c}\b[^;]*\{{", text)], [])
        self.assertEqual([], list(prefix.rglob("*.a")))
        self.assertFalse((prefix / "include/millrace/train.h").exists())

    def test_a_consumer_builds_and_runs(self):
        folder, prefix = self.installed()
        code, said = self.configured(folder, prefix, "find_package(millrace REQUIRED COMPONENTS train)\n")
        self.assertNotEqual(code, 0)
        self.assertIn("the component 'train' is a static library", said)
        spec = harness.fake(folder, "a", 3, 40)
        self.check_consumer("clang++-19", folder, prefix, spec, self.sanitize)

    @unittest.skipUnless(shutil.which("g++"), "there is no g++")
    def test_programs_of_gcc_find_in_it_what_they_use(self):
        folder, prefix = self.installed()
        library = next(prefix.rglob("libmillrace.so"))
        for program in ("main", "own_items", "tools"):
            with self.subTest(program):  # sanitizers' functions are in none of the two
                self.command("g++", "-std=c++20", f"-I{prefix / 'include'}", harness.ROOT / f"tests/install/consumer/{program}.cc",
                             "-Wl,--unresolved-symbols=ignore-in-shared-libs", library, "-lfmt", "-o", folder / program)


class WrongPlans(unittest.TestCase):
    """A stage that does not fit is one error of one line, which says what is wrong."""

    def errors_of(self, plans):
        """The errors of each plan, all of them compiled at once: a line of the source for each."""
        source = "#include <millrace/millrace.h>\nusing namespace millrace;\n"
        source += "".join(f"auto p{i} = {plan};\n" for i, plan in enumerate(plans))
        said = subprocess.run(
            ["clang++-19", "-std=c++20", "-fsyntax-only", f"-I{harness.ROOT}", f"-I{harness.ROOT}/include", "-x", "c++", "-"],
            input=source, capture_output=True, text=True).stderr
        # An error in a header is followed by notes on what was instantiated, the last of them in the plan's own line.
        found, error = [[] for _ in plans], None
        for line in said.splitlines():
            error = line if " error: " in line else error
            of_plan = re.match(r"<stdin>:(\d+):\d+: (error|note: in instantiation)", line)
            if of_plan and error:
                found[int(of_plan[1]) - 3].append(error)
                error = None
        self.assertEqual(sum(map(len, found)), said.count(" error: "), said)
        return found

    def test_messages(self):
        head = 'shards({"a"}) | untar() | group_by_key()'
        mismatch = "this stage does not take what the plan in front of it yields"
        each_lane = "this stage works on each lane, as shuffle() does"
        expected = {head + " | decode_jpeg() | batch({.size = 2})": None,
                    head + " | batch({.size = 2})": mismatch,
                    'shards({"a"}) | group_by_key()': mismatch,
                    head + " | decode_jpeg() | shuffle()": mismatch,
                    head + " | decode_jpeg() | on_error(skip_up_to(1)) | decode_jpeg()": mismatch,
                    head + " | prefetch(2) | shuffle()": each_lane,
                    'engine().run(shards({"a"}))': "append untar() | group_by_key()"}
        for (plan, message), errors in zip(expected.items(), self.errors_of(expected)):
            with self.subTest(plan):
                self.assertEqual(len(errors), 1 if message else 0, errors)
                for error in errors:
                    self.assertIn(message, error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
