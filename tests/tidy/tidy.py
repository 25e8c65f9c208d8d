"""The rules of CONTRIBUTING.md that a program can check. Prints every breach; exits with 1 if any.

    tidy.py --text      rules about text: lengths, names, includes, their cycles, and what the interface brings in; the tests that docs/faults.md names, the headers that READMEs name, plain words
    tidy.py --headers   every header compiles by itself
    tidy.py --format    clang-format has nothing to change
    tidy.py --dependencies  the release build includes nothing that ./setup --tests --peers does not install
    tidy.py --clang-tidy    clang-tidy has nothing to say
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import compile_commands
import file_rules
import hidden_arrows
import named_in_pages
import plain_words
import unused_names

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["engine", "io", "pipeline", "tools", "train", "bench", "cli", "tests", "examples", "include", "python"]
LIBRARIES = ("engine", "io", "pipeline", "tools", "train", "cli")  # and the program: their sources are found, not listed
# What a folder may include besides itself.
MAY_INCLUDE = {
    "bench": ["engine", "io", "pipeline", "tools", "train"],
    "tools": ["engine", "io", "pipeline"],
    "engine": [],
    "io": ["engine"],
    "pipeline": ["engine", "io"],
    "train": ["engine", "io", "pipeline"],
    "cli": ["engine", "io", "pipeline", "tools", "train"],  # its checkpoints alone, which need no LibTorch
    "include": ["engine", "io", "pipeline", "tools", "train", "python"],
    "bench/micro": ["engine", "io", "pipeline", "bench", "tests"],  # on the simulated network
    "tests": FOLDERS + ["millrace"],
    "examples": ["millrace"],
    "python": ["millrace"],  # as a program that embeds the library
}
# Beside those that have main(): variables of others, and their own.
MAY_READ_ENVIRONMENT = (
    "engine/files/process.cc",  # passes it on
    "engine/host/job_place.cc", "io/names/shard_spec.cc", "pipeline/run/engine_options.cc", "train/device/host_memory.cc",
    "train/launch/error_file.cc", "train/launch/rank_process.cc", "train/ranks/distributed.cc")
# The rooms of a folder, from the ground up: a room includes those below it alone. A unit is in the first room whose pattern
# fits its path without the suffix.
ROOMS = {
    "engine": {
        "base": r"base/.*",
        "host": r"host/.*|precompiled",
        "coroutines": r"coroutines/.*",
        "memory": r"memory/.*",
        "files": r"files/.*",
        "threads": r"threads/.*",
    },
    "io": {
        "names": r"names/.*",
        "settings": r"options|.*/options|http/(message|secret_file|timeouts|tls_options)",
        "sources": r"(source|source_counters|registry|read_ahead|hashes)",
        "disks": r"disks/.*",
        "unpack": r"unpack/.*",
        "files": r"files/.*",
        "http": r"http/.*",
        "cache": r"cache/.*",
        "stores": r"stores/.*",
        "front": r"shard_urls|standard_sources",
    },
    "pipeline": {
        "samples": r"samples/.*",
        "state": r"state/.*",
        "plan": r"plan/.*",
        "shards": r"shards/.*",
        "pixels": r"pixels/.*",
        "codecs": r"codecs/.*",
        "images": r"images/.*",
        "formats": r"formats/.*",
        "stages": r"stages/.*",
        "run": r"run/.*",
        "wids": r"wids/.*",
    },
    "tools": {
        "jobs": r"jobs/.*",
        "index": r"index/.*",
        "write": r"write/.*",
        "inspect": r"inspect/.*",
        "bench": r"bench/.*",
    },
    "train": {
        "files": r"files|precompiled",
        "models": r"models/.*",
        "optim": r"optim/.*",
        "ranks": r"ranks/.*",
        "device": r"device/.*",
        "checkpoints": r"checkpoints/.*",
        "loop": r"loop/.*",
        "launch": r"launch/.*",
        "command_line": r"command_line/.*",
        "job": r"job/.*",
        "program": r"[^/]*",
    },
}
# Heavy or leaky headers, and the only files that may include them.
WALLS = {
    r"boost/beast": {"io/http/response_reader.cc"},
    r"liburing\.h": {"engine/threads/uring_io.cc"},
    r"jpeglib\.h|jerror\.h": {"pipeline/codecs/jpeg_errors.h", "tools/bench/bare_jpeg.cc"},
    r"jpegint\.h": {"pipeline/codecs/jpeg_huffman.cc", "pipeline/codecs/jpeg_runs.cc"},
    r"archive\.h|archive_entry\.h": {"io/unpack/archive_filter.cc", "io/unpack/decoders.cc", "tests/support/packed.h"},
    r"openssl/": {"io/hashes.cc", "io/http/tls.cc"},
    r"zlib\.h": {"io/unpack/gunzip.cc", "pipeline/codecs/png_chunks.cc"},
    r"png\.h": {"pipeline/codecs/png.cc"},
    r"webp/": {"pipeline/codecs/webp.cc", "tests/pipeline/damaged_images_test.cc"},
    r"nvjpeg\.h": {"train/device/gpu_decoder.cc"},
    r"hwy/": {"pipeline/pixels/kernels.cc"},
    r"torch/csrc/distributed/": {"train/ranks/distributed.cc", "train/ranks/rendezvous.cc", "tests/train/rendezvous_test.cc", "bench/ranks.cc"},
    r"torch/csrc/inductor/": {"train/models/compiled_program.cc"},
    r"caffe2/": {"train/models/exported_file.cc"},
    r"boost/asio\.hpp": set(),
}
# The only files that may name stderr: the one that writes lines to it, and the JSON object of `cat`.
MAY_NAME_STDERR = {"engine/host/standard_error.cc", "cli/cat.cc", "cli/main.cc"}
# The only files that may make a thread: it has a name, and one that the host refuses is an error.
MAY_MAKE_THREADS = {"engine/host/start_thread.h", "engine/host/start_thread.cc"}
MAKES_THREAD = r"\bstd::j?thread( \w+)?[({]|\bstd::async\("
STDERR = r"\b(stderr|cerr|clog|perror)\b"
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_LINE = 500, 70, 100
BANNED = {
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "finish it or leave it out",
    r"\bsleep_for\(std|\busleep\(|\bnanosleep\(|std::this_thread::sleep": "wait for the event itself",
    r"asio::detached|, detached\b": "spawn in a scope: detached work is nobody's",
    r"\bDISABLED_|\bSUCCEED\(\)": "a test that cannot fail is none",
    r"\busing namespace std;": "name what is used",
    r"\bspawn(?:_on|_stoppable)?\([^;]*\[[^\]]+\]\s*\(": "a capturing lambda must not be a coroutine",
}


def sources(*suffixes):
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                         capture_output=True)
    if out.returncode != 0:  # an unpacked archive
        files = [p.relative_to(ROOT) for f in FOLDERS for p in (ROOT / f).rglob("*")]
    else:
        files = [pathlib.Path(line) for line in out.stdout.splitlines()]
    return sorted(f for f in files if f.suffix in suffixes and (ROOT / f).is_file())


def functions(lines):
    """(line number, length) of every function body: a brace at the end of a line that closes where its
    body is indented from."""
    for start, line in enumerate(lines):
        opens = re.match(r"^( *)\S.*\{$", line)
        if not opens or re.match(r"^ *(namespace|class|struct|enum|union|extern|TEST|\}|const .*=)", line):
            continue
        if not re.search(r"\)( const| noexcept| override| final|->.*)*( :.*)? \{$|^ *: .*\{$|\) \{$", line):
            continue
        # A signature of several lines ends further in than its body's brace stands.
        body = lines[start + 1] if start + 1 < len(lines) else ""
        brace = " " * (len(body) - len(body.lstrip()) - 2) + "}"
        for end in range(start + 1, len(lines)):
            if lines[end].startswith(brace):
                yield start + 1, end - start + 1
                break


def words_for_programs(text):
    """What the library says to the programs that link it, which have neither our flags nor, perhaps, our variables:
    (line, what is wrong). Commands in backquotes are for a shell; a text that begins with a variable is about that."""
    literal = r'"((?:\\.|[^"\\\n])*)"'
    code = re.sub(r"//.*", "", text)
    for found in re.finditer(rf"{literal}(?:\s*{literal})*", code):
        said = re.sub(r"`[^`]*`", "", "".join(re.findall(literal, found[0])))
        line = code.count("\n", 0, found.start()) + 1
        if " " not in said:
            continue
        if re.search(r"(?<!\w)--[a-z]", said):
            yield line, "flags are named in cli/ and train/ (in_program_words): name the option"
        if re.search(r"(?<!^)MILLRACE_[A-Z]", said) and not re.search(r"options\.\w|io_backend::", said):
            yield line, "an embedder sets options: name the option first, then the variable"


def text_rules():
    breaches = []
    code = sources(".h", ".cc")
    listed = "\n".join((ROOT / p).read_text() for p in sources(".txt") if p.name == "CMakeLists.txt")
    included = {i for p in code for i in re.findall(r'^#include ["<]([^">]*)[">]', (ROOT / p).read_text(), re.M)}
    for path in code:
        text = (ROOT / path).read_text()
        lines = text.splitlines()
        folder = "bench/micro" if path.is_relative_to("bench/micro") else path.parts[0]

        def breach(line, what, path=path):
            breaches.append(f"{path}:{line}: {what}")

        # Whole files are searched first, and line by line where there is something: it is ten times as fast.
        banned = {pattern: why for pattern, why in BANNED.items() if re.search(pattern, text)}
        names_stderr = re.search(STDERR, text) and str(path) not in MAY_NAME_STDERR and \
            folder not in ("tests", "examples", "include")
        makes = MAKES_THREAD + (r"|\.emplace_back\(\[" if re.search(r"\bvector<std::j?thread>", text) else "")
        makes_thread = re.search(makes, text) and str(path) not in MAY_MAKE_THREADS and \
            folder not in ("tests", "examples", "python")  # embedders have their own threads
        if len(lines) > LONGEST_FILE:
            breach(len(lines), f"{len(lines)} lines, {LONGEST_FILE} at most: one concept a file")
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_LINE and "http" not in line:
                breach(number, f"{len(line)} characters, {LONGEST_LINE} at most")
            for pattern, why in banned.items():
                if re.search(pattern, line):
                    breach(number, f"'{re.search(pattern, line)[0]}': {why}")
            include = line.startswith("#include") and re.match(r'#include [<"]([^>"]+)[>"]', line)
            if include:
                target = include[1].split("/")[0]
                if target in MAY_INCLUDE and target != folder and target not in MAY_INCLUDE[folder]:
                    breach(number, f"{folder}/ may not include {target}/")
                for wall, inside in WALLS.items():
                    if re.match(f"({wall})", include[1]) and str(path) not in inside:
                        breach(number, f"<{include[1]}> is walled in {', '.join(inside) or 'nowhere'}")
                if include[1].startswith("torch/") and folder not in ("train", "tests", "examples", "bench"):
                    breach(number, "torch is for train/, and what tests and measures it")
            if folder != "train" and ".detach()" in line and str(path) != "io/http/name_lookup.cc":  # tensors have one
                breach(number, "a detached thread is nobody's: join it")
            code_only = re.sub(r'"(\\.|[^"\\])*"|//.*', "", line) if names_stderr or makes_thread else ""
            if names_stderr and re.search(STDERR, code_only):
                breach(number, "to_stderr() writes there, and never throws")
            if makes_thread and re.search(makes, code_only):
                breach(number, "start_thread() names it, and says when the host refuses one")
            if folder != "tests" and str(path) not in MAY_READ_ENVIRONMENT and re.search(r"\bgetenv\(|\benviron\b", line.split("//")[0]):
                breach(number, "the environment is read in main() alone")
        if folder in ("engine", "io", "pipeline", "tools") and path.name not in ("options.cc", "engine_options.cc") and \
                not path.match("tools/bench/*_bench.cc") and path.name != "host_check.cc":  # what their commands advise
            for number, what in words_for_programs(text):
                breach(number, what)
        if folder not in ("tests", "examples"):
            for number, what in file_rules.rules(str(path), text):
                breach(number, what)
        if path.suffix == ".h" and "#pragma once" not in text:
            breach(1, "no #pragma once")
        if path.suffix == ".cc" and not path.match("tests/toolchain/*"):
            for line, length in functions(lines):
                if length > LONGEST_FUNCTION:
                    breach(line, f"a function of {length} lines, {LONGEST_FUNCTION} at most")
        if folder in LIBRARIES:  # CMake finds their sources by itself: millrace_sources()
            if path.suffix == ".h" and str(path) not in included and path.name not in listed:
                breach(1, "a header that nothing includes")
        elif path.name not in listed and folder not in ("include",) and "consumer" not in str(path):
            breach(1, "in no CMakeLists.txt: a file that nothing builds")
    for script in sources(".py"):
        for number, line in enumerate((ROOT / script).read_text().splitlines(), 1):
            if re.search(r"time\.sleep\(", line) and script.name != "tidy.py":
                breaches.append(f"{script}:{number}: wait for the event itself")
    return breaches


def cycle_rules():
    """No unit (x.h and x.cc) includes, by way of others, itself: each can be understood from below."""
    includes = {}
    for path in sources(".h", ".cc"):
        if path.parts[0] not in ("tests", "examples"):
            quoted = re.findall(r'^#include "(.*)"', (ROOT / path).read_text(), re.M)
            includes.setdefault(str(path.with_suffix("")), set()).update(str(pathlib.Path(q).with_suffix("")) for q in quoted)
    depends = {unit: {t for t in to if t in includes and t != unit} for unit, to in includes.items()}
    while leaves := [unit for unit, to in depends.items() if not to & depends.keys()]:
        for unit in leaves:
            del depends[unit]
    # What is left is in a cycle, or includes one.
    while tops := [unit for unit in depends if not any(unit in to for to in depends.values())]:
        for unit in tops:
            del depends[unit]
    return [f"{unit}: in a cycle of includes, by {', '.join(sorted(to & depends.keys()))}"
            for unit, to in sorted(depends.items())]


def unity_rules():
    """Units of a library have constants of different names: which of them are compiled together is CMake's choice."""
    own = {"pipeline/codecs/jpeg_huffman.cc"}  # SKIP_UNITY_BUILD_INCLUSION
    seen, breaches = {}, []
    for path in sources(".cc"):
        library = "/".join(path.parts[:2 if path.parts[0] == "train" else 1])
        if path.parts[0] in ("tests", "examples", "bench", "python") or str(path) in own:
            continue
        for name in re.findall(r"^constexpr [^=({;]*?(\w+)(?:\[\])? ?[={]", (ROOT / path).read_text(), re.M):
            other = seen.setdefault((library, name), path)
            if other != path:
                breaches.append(f"{path}: '{name}' is a name of {other} too, with which it may be compiled: one place, or another name")
    return breaches


def room_rules():
    """Within a folder, includes go down as they do between folders."""
    breaches = []
    for folder, rooms in ROOMS.items():
        def room_of(unit):
            return next((number for number, room in enumerate(rooms.values()) if re.fullmatch(room, unit)), None)
        names = list(rooms)
        inside = [path for path in sources(".h", ".cc") if path.parts[0] == folder]
        texts = {str(path): (ROOT / path).read_text() for path in inside}
        for header, name, place in hidden_arrows.hidden(
                texts, lambda path: room_of(str(pathlib.PurePath(path).relative_to(folder).with_suffix(""))) or 0):  # noqa: B023
            breaches.append(f"{header}: {name}() is defined in {place}, which is above it")
        for path in inside:
            own = room_of(str(path.relative_to(folder).with_suffix("")))
            if own is None:
                breaches.append(f"{path}: in no room of {folder}/")
                continue
            for number, line in enumerate(texts[str(path)].splitlines(), 1):
                include = re.match(rf'#include "{folder}/(.*)\.h"', line)
                above = include and room_of(include[1])
                if above is not None and above > own:
                    breaches.append(f"{path}:{number}: '{names[own]}' may not include '{names[above]}', which is above it")
    return breaches


MOST_LINES = 100_000  # of <millrace/millrace.h>, preprocessed
NOT_IN_WHOLE = ("asio", "python", "tools", "train", "version")  # headers beside those that <millrace/millrace.h> is the sum of


def interface(*headers):
    """What a program includes by these headers: each file of ours, with what it includes, (quoted, system)."""
    includes, waiting = {}, list(headers)
    while waiting:
        path = waiting.pop()
        if path not in includes:
            text = re.sub(r'^#include [<"](millrace/.*)[>"]', r'#include "include/\1"', (ROOT / path).read_text(), flags=re.M)
            includes[path] = re.findall(r'^#include (?:"(.*)"|<(.*)>)', text, re.M)
            waiting += [quoted for quoted, _ in includes[path] if quoted]
    return includes


def interface_rules():
    """What <millrace/millrace.h> and <millrace/tools.h> bring in is the standard library and ours, and what programs' compilers compile rightly."""
    breaches = []
    whole = interface("include/millrace/millrace.h")
    topics = {str(p) for p in sources(".h") if p.is_relative_to("include")} - {f"include/millrace/{name}.h" for name in NOT_IN_WHOLE}
    breaches += [f"{path}: <millrace/millrace.h> is to include it, or NOT_IN_WHOLE to name it" for path in sorted(topics - whole.keys())]
    for path, includes in interface("include/millrace/millrace.h", "include/millrace/tools.h").items():
        breaches += [f"{path}: <{system}> would be in the interface" for _, system in includes if re.search(r"/|\.h$", system)]
        code = re.sub(r"//[^\n]*", "", (ROOT / path).read_text())
        # GCC 12 destroys aggregates twice that are made there, and what a lambda has captured may be one.
        breaches += [f"{path}: '{wait.strip()}': make what it is given a variable in the line before, for GCC 12"
                     for wait in re.findall(r"(?<!operator )co_await\b[^;{\[]*[{\[]", code)]
    return breaches


def unused_rules():
    """No header declares what nothing but tests uses."""
    offered = interface(*(str(p) for p in sources(".h") if p.is_relative_to("include")))
    files = {str(p): (ROOT / p).read_text() for p in sources(".h", ".cc")}
    return [f"{path}:{line}: '{name}' is used by no program: delete it, or say beside it that it is for tests"
            for path, line, name in unused_names.unused(files, offered)]


def in_parallel(jobs):
    """Runs (name, command) pairs; what the failing ones said."""
    def one(job):
        name, command = job
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        return None if done.returncode == 0 else f"{name}:\n{done.stdout}{done.stderr}"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [said for said in pool.map(one, jobs) if said]


def header_rules():
    """Each header includes what it uses, but for what every file of ours begins with (programs include <millrace/...> alone)."""
    options = [shutil.which("clang++-19") or "clang++", "-std=c++20", "-Wall", "-Wno-pragma-once-outside-header",
               "-DBOOST_ASIO_SEPARATE_COMPILATION", "-DBOOST_BEAST_SEPARATE_COMPILATION", f"-I{ROOT}", f"-I{ROOT}/include"]
    whole = subprocess.run([*options, "-E", ROOT / "include/millrace/millrace.h"], check=True, capture_output=True)
    lines = whole.stdout.count(b"\n")
    too_long = [] if lines <= MOST_LINES else [f"include/millrace/millrace.h: {lines} preprocessed lines, {MOST_LINES} at most"]
    with tempfile.TemporaryDirectory() as folder:
        precompiled = {of: pathlib.Path(folder) / f"{of}.pch" for of in ("engine", "tests")}
        for of, out in precompiled.items():
            subprocess.run([*options, "-fpch-instantiate-templates", "-x", "c++-header", ROOT / of / "precompiled.h", "-o", out], check=True)
        jobs = []
        for path in sources(".h"):
            if path.name == "precompiled.h" or path.parts[0] in ("train", "include", "python"):
                continue  # torch takes 20 s a header; include/ is compiled by the install test; nanobind may be missing
            begun = precompiled["tests" if path.parts[0] == "tests" else "engine"]
            jobs.append((path, [*options, "-fsyntax-only", "-include-pch", begun, "-x", "c++", ROOT / path]))
        return too_long + in_parallel(jobs)


def dependency_rules():
    """What the release build includes is of the repository, of build/, or of the system's packages: what only this machine has, another one
    lacks."""
    build = ROOT / "build/release"
    if not (build / ".ninja_deps").exists():
        return []
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    # Of files that are no longer built, ninja remembers what they included.
    built = [output for output in said.split("\n\n") if "(VALID)" in output]
    paths = {pathlib.Path(os.path.normpath(line.strip())) for output in built for line in output.splitlines()
             if line.startswith("    /")}
    known = (ROOT, (ROOT / "build/venv").resolve(), pathlib.Path("/usr/include"), pathlib.Path("/usr/lib"))
    foreign = sorted(p for p in paths if not any(folder in p.parents for folder in known))
    return [f"{p}: is of no package that ./setup --tests --peers installs" for p in foreign[:20]]


def format_rules():
    tool = shutil.which("clang-format-19") or "clang-format"
    files = sources(".h", ".cc")
    some = [files[i:i + 30] for i in range(0, len(files), 30)]  # to start the program takes longer than to read a file
    return in_parallel([("clang-format", [tool, "--dry-run", "-Werror", *(str(ROOT / p) for p in paths)]) for paths in some])


def units_for_clang_tidy():
    """(flags, sources) of sources with the same flags, some at a time: what takes the time is what all of them include."""
    build = ROOT / "build/release"
    if not (build / "compile_commands.json").exists():
        sys.exit(f"{build} is not configured: configure the release preset first")
    together = {}
    for of_unit, command in compile_commands.units(build):
        flags = re.sub(r" -o \S+ -c \S+$", "", re.sub(r"^.*? (?=\S*clang\+\+)", "", command))
        flags = re.sub(r" -DNB_BACKEND_PYPI=\S+", "", flags)  # nanobind's, without parentheses
        for path in of_unit:
            inside = ROOT in path.parents and path.suffix == ".cc" and path.name != "asio.cc"
            if inside and "tests" not in path.parts and "train" not in path.parts:
                together.setdefault(flags, []).append(path)
    for flags, paths in together.items():
        yield from ((shlex.split(flags), paths[i:i + 40]) for i in range(0, len(paths), 40))


def write_unit(unit, paths):
    """A source that includes others; each may have a main()."""
    unit.write_text("".join(f'#define main main_{i}\n#include "{path}"  // NOLINT\n#undef main\n'
                            for i, path in enumerate(paths)))


def clang_tidy_rules():
    tool = shutil.which("clang-tidy-19") or "clang-tidy"

    def check(flags, paths):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "unit.cc"
            write_unit(unit, paths)
            done = subprocess.run([tool, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", unit,
                                   f"--header-filter={ROOT}/({'|'.join(FOLDERS)})/.*\\.(h|cc)$",
                                   "--", *flags[1:], "-Wno-everything", "-ferror-limit=0"],
                                  capture_output=True, text=True, cwd=ROOT)
        names = ", ".join(str(path.relative_to(ROOT)) for path in paths)
        found = f"{names}:\n{done.stdout}{done.stderr}"
        # Where two files use one name, the later one is wrong here: what is said of the others holds.
        not_compiled = [line for line in done.stdout.splitlines() if "[clang-diagnostic-error" in line]
        if not not_compiled or len(paths) == 1:
            return [] if done.returncode == 0 else [found]
        again = [path for path in paths if any(line.startswith(f"{path}:") for line in not_compiled)]
        in_sources = all(any(line.startswith(f"{path}:") for path in again) for line in not_compiled)
        if not in_sources or again == paths:  # a header's error may be anyone's
            half = len(paths) // 2
            return check(flags, paths[:half]) + check(flags, paths[half:])
        is_wrong = len(not_compiled) < len(re.findall(r"^\S+:\d+:\d+: (?:error|warning): ", done.stdout, re.M))
        return [found] * is_wrong + check(flags, again)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(lambda unit: check(*unit), units_for_clang_tidy()), [])


def main(arguments):
    if arguments == ["--text"]:
        breaches = text_rules() + plain_words.breaches(ROOT, sources(".h", ".cc")) + cycle_rules() + unity_rules() + room_rules() + \
            interface_rules() + unused_rules() + named_in_pages.breaches(ROOT, sources(".h", ".cc", ".py"), LIBRARIES)
    elif arguments == ["--headers"]:
        breaches = header_rules()
    elif arguments == ["--format"]:
        breaches = format_rules()
    elif arguments == ["--dependencies"]:
        breaches = dependency_rules()
    elif arguments == ["--clang-tidy"]:
        breaches = clang_tidy_rules()
    else:
        sys.exit(__doc__)
    print("\n".join(map(str, breaches)) or "nothing to say")
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
