"""Finds coroutines that hold a reference, a pointer or an iterator into a container over a co_await: while they
wait, another coroutine may insert or erase, and what they hold is gone. Prints every one; exits with 1 if any.

    held_references.py BUILD_FOLDER [FILE...]    files of the build's compile_commands.json; all that have a co_await

What is reported: a local whose type is one of these, made from an element of a container (c[i], *it, it->, find(),
front(), ...) that is no local of the coroutine itself, and used after a later co_await (also by way of a loop); and a
loop over such a container with a co_await in it. Copy the element (or its shared_ptr) instead, or look it up again.
Where the container is known not to change, say so in the line before, or in the same:

    // held over co_await: REASON
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append("/usr/lib/python3/dist-packages")  # where Debian and Ubuntu put python3-clang-19, whoever's python this is
sys.path.append(str(pathlib.Path(__file__).resolve().parent))
import clang.cindex as ci  # noqa: E402
import compile_commands  # noqa: E402
from clang.cindex import CursorKind as K  # noqa: E402

ALLOWED = re.compile(r"// held over co_await: \S+")
CONTAINER = re.compile(r"^(const )?(class |struct )?(std::(__cxx11::|__debug::)?(vector|deque|list|forward_list|array|map|"
                       r"multimap|set|multiset|unordered_\w+|basic_string|span)<|boost::container::)")
ITERATOR = re.compile(r"iterator\b|iterator<")
ELEMENT = {"operator[]", "at", "find", "front", "back", "begin", "end", "cbegin", "rbegin", "data", "top", "lower_bound",
           "upper_bound", "equal_range", "insert", "emplace", "emplace_back", "try_emplace", "insert_or_assign",
           "operator*", "operator->"}
FUNCTIONS = {K.CXX_METHOD, K.FUNCTION_DECL, K.FUNCTION_TEMPLATE, K.CONSTRUCTOR, K.CONVERSION_FUNCTION, K.LAMBDA_EXPR}
FILES_TOGETHER = 12
LOOPS = {K.FOR_STMT, K.WHILE_STMT, K.DO_STMT, K.CXX_FOR_RANGE_STMT}


def library():
    for path in ("/usr/lib/llvm-19/lib/libclang-19.so.1", "/usr/lib/llvm-19/lib/libclang.so.1"):
        if pathlib.Path(path).exists():
            return path
    sys.exit("libclang of LLVM 19 is missing: ./setup --tests installs python3-clang-19")


def canonical(cursor):
    """The type that an expression or declaration has, without const and references."""
    kind = cursor.type.get_canonical()
    if kind.kind in (ci.TypeKind.LVALUEREFERENCE, ci.TypeKind.RVALUEREFERENCE):
        kind = kind.get_pointee()
    return kind.spelling.removeprefix("const ")


def is_handle(declared):
    """Whether a local refers to what it does not own."""
    kind = declared.type.get_canonical()
    if kind.kind in (ci.TypeKind.LVALUEREFERENCE, ci.TypeKind.RVALUEREFERENCE, ci.TypeKind.POINTER):
        return True
    return bool(ITERATOR.search(kind.spelling.removeprefix("const ").split("<")[0]))


def walk(cursor, into_lambdas=False):
    """All below a function's body, without the bodies of lambdas, which wait (or not) for themselves."""
    for child in cursor.get_children():
        yield child
        if child.kind != K.LAMBDA_EXPR or into_lambdas:
            yield from walk(child, into_lambdas)


def root_of(expression):
    """What an expression's object is: the first name of "a.b[i].c()"."""
    names = [c for c in [expression, *walk(expression)] if c.kind == K.DECL_REF_EXPR and not
             (c.spelling.startswith("operator") or c.referenced is not None and
              c.referenced.kind in (K.CXX_METHOD, K.FUNCTION_DECL, K.FUNCTION_TEMPLATE))]
    this = [c for c in [expression, *walk(expression)] if c.kind == K.CXX_THIS_EXPR]
    return None if this or not names else names[0].referenced


class Coroutine:
    def __init__(self, function, text, waits):
        self.function = function
        self.text = text
        self.nodes = list(walk(function))
        self.loops = [n for n in self.nodes if n.kind in LOOPS]
        self.suspensions = self.find_suspensions(waits)

    def find_suspensions(self, waits):
        """(begin, end) of every co_await: what is written within it is evaluated before the wait."""
        found = []
        for at in waits:
            keyword = at + len("co_await")
            ends = [n.extent.end.offset for n in self.nodes if n.extent.start.offset == at and
                    n.extent.end.offset > keyword and n.kind.is_expression()]
            if ends:
                found.append((at, min(ends)))
        return found

    def is_own(self, declared):
        """A value in the coroutine's own frame, which no other coroutine changes."""
        if declared is None or declared.kind not in (K.VAR_DECL, K.PARM_DECL):
            return False
        return declared.type.kind not in (ci.TypeKind.LVALUEREFERENCE, ci.TypeKind.RVALUEREFERENCE,
                                          ci.TypeKind.POINTER) and not is_handle(declared) and \
            any(n.hash == declared.hash for n in self.nodes)

    def element_in(self, expression):
        """The access to a container's element in what a local is made from, if any."""
        for node in [expression, *walk(expression)]:
            if node.kind == K.ARRAY_SUBSCRIPT_EXPR:
                objects = list(node.get_children())[:1]
            elif node.kind == K.CALL_EXPR and node.spelling in ELEMENT:
                objects = list(node.get_children())[:1]
            elif node.kind == K.UNARY_OPERATOR and self.text[node.extent.start.offset:][:1] == b"*":
                objects = list(node.get_children())[:1]
                if objects and not ITERATOR.search(canonical(objects[0])):
                    continue
            else:
                continue
            for thing in objects:
                inner = [thing, *walk(thing)]
                if not any(CONTAINER.match(canonical(i)) or ITERATOR.search(canonical(i).split("<")[0])
                           for i in inner if i.type is not None):
                    continue
                if not self.is_own(root_of(thing)):
                    return node
        return None

    def scope_end(self, declared):
        around = [n for n in [self.function, *self.nodes]
                  if n.kind in (K.COMPOUND_STMT, K.IF_STMT, *LOOPS) and
                  n.extent.start.offset <= declared.extent.start.offset and
                  declared.extent.end.offset <= n.extent.end.offset]
        return min((n.extent.end.offset for n in around), default=self.function.extent.end.offset)

    def is_used_after_wait(self, declared):
        end = declared.extent.end.offset
        last = self.scope_end(declared)
        uses = [n.extent.start.offset for n in self.nodes
                if n.kind == K.DECL_REF_EXPR and n.referenced is not None and n.referenced.hash == declared.hash]
        for begin, suspended in self.suspensions:
            if not end <= begin <= last:
                continue
            if any(use >= suspended for use in uses):
                return True
            for loop in self.loops:  # outside of which it was made
                inside = loop.extent.start.offset
                if end <= inside <= begin <= loop.extent.end.offset and \
                        any(inside <= use <= loop.extent.end.offset for use in uses):
                    return True
        return False

    def faults(self):
        for node in self.nodes:
            if node.kind == K.VAR_DECL and is_handle(node):
                if any(loop.kind == K.CXX_FOR_RANGE_STMT and next(loop.get_children(), None) == node for loop in self.loops):
                    continue  # by the loop itself
                made_from = [c for c in node.get_children() if c.kind.is_expression()]
                for expression in made_from:
                    if self.element_in(expression) is not None and self.is_used_after_wait(node):
                        yield node, f"'{node.spelling}' refers into a container, and is used after a co_await"
                        break
            if node.kind == K.CXX_FOR_RANGE_STMT:
                parts = list(node.get_children())
                over = next((p for p in parts if p.kind.is_expression()), None)
                body = parts[-1].extent
                waits = any(body.start.offset <= begin <= body.end.offset for begin, _ in self.suspensions)
                if over is not None and waits and not self.is_own(root_of(over)) and \
                        any(CONTAINER.match(canonical(i)) for i in [over, *walk(over)]):
                    yield node, "a loop over a container, with a co_await in it"


def declared_in(unit, paths):
    """What a parsed unit declares outermost in each of the files."""
    found = {path: [] for path in paths}
    names = {}  # which file a name is
    for node in unit.cursor.get_children():
        if node.location.file is None:
            continue
        name = node.location.file.name
        if name not in names:
            names[name] = pathlib.Path(name).resolve()
        if names[name] in found:
            found[names[name]].append(node)
    return found


def functions_in(node, text):
    """The functions within a declaration, and itself, that have a wait in their text."""
    if b"co_await" not in text[node.extent.start.offset:node.extent.end.offset]:
        return
    if node.kind in FUNCTIONS:
        yield node
    for child in node.get_children():
        yield from functions_in(child, text)


def faults_of(path, declared):
    """"file:line: what" for a source file or header, of what it declares."""
    text = path.read_bytes()
    lines = text.decode().splitlines()
    said = {}
    for function in (function for node in declared for function in functions_in(node, text)):
        begin, end = function.extent.start.offset, function.extent.end.offset
        lambdas = [n.extent for n in walk(function, True) if n.kind == K.LAMBDA_EXPR]
        waits = [begin + m.start() for m in re.finditer(rb"\bco_await\b", text[begin:end])]
        waits = [w for w in waits if not any(e.start.offset <= w < e.end.offset for e in lambdas) and
                 not re.search(rb"//[^\n]*$", text[:w])]
        if not waits:
            continue
        for node, what in Coroutine(function, text, waits).faults():
            line = node.extent.start.line
            near = lines[max(0, line - 2):line]
            if not any(ALLOWED.search(text_of_line) for text_of_line in near):
                said[line] = f"{path}:{line}: {what}"
    return [said[line] for line in sorted(said)]


def faults_in(paths, arguments):
    """What is found in files that are parsed together with `arguments`: what all of them include takes the time."""
    paths = [pathlib.Path(path).resolve() for path in paths]
    together = "".join(f'#include "{path}"\n' for path in paths)
    unit = ci.Index.create().parse("together.cc", args=["-x", "c++", *arguments], options=0,
                                   unsaved_files=[("together.cc", together)])
    errors = [str(d) for d in unit.diagnostics if d.severity >= ci.Diagnostic.Error]
    if errors and len(paths) > 1:  # two of them use one name
        half = len(paths) // 2
        return faults_in(paths[:half], arguments) + faults_in(paths[half:], arguments)
    if errors:
        return [f"{paths[0]}: cannot be parsed: {errors[0]}"]
    return [line for path, declared in declared_in(unit, paths).items() for line in faults_of(path, declared)]


def arguments_of(command):
    """A compiler's command without the compiler, its output and what is compiled; whether it has a precompiled header."""
    words = command.split()
    words = words[next(i for i, w in enumerate(words) if "clang" in w) + 1:]
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in ("-o", "-MT", "-MF", "-c", "-Xclang"):
            skip = 1  # with -Xclang the precompiled header goes: it may be older than the sources
        elif word not in ("-MD", "-Werror") and not word.startswith(("-W", "@")):
            kept.append(word)
    return kept + ["-Wno-everything"], "-include-pch" in words


def precompiled(folder, arguments):
    """A precompiled header of these arguments, made once: what a build has lying about may be older than the sources."""
    out = pathlib.Path(folder) / f"{hashlib.sha256(repr(arguments).encode()).hexdigest()}.pch"
    if not out.exists():
        compiler = shutil.which("clang++-19") or "clang++"
        subprocess.run([compiler, *arguments, "-x", "c++-header", "-o", out, ROOT / "engine/precompiled.h"], check=True)
    return ["-include-pch", str(out)]


def check(job):
    ci.Config.set_library_file(library()) if not ci.Config.loaded else None
    return faults_in(*job)


def jobs_of(build, wanted, folder):
    """(files, arguments) of what can be parsed together: sources of one folder with the same flags, and headers."""
    def is_wanted(path):
        return (not wanted or path in wanted) and b"co_await" in path.read_bytes()

    together = {}
    headers = None
    for sources, command in compile_commands.units(build):
        own, has_header = arguments_of(command)
        if has_header:
            own += precompiled(folder, own)
        for path in sources:
            if ROOT not in path.parents or "build" in path.relative_to(ROOT).parts or path.suffix != ".cc":
                continue
            headers = headers or own
            if is_wanted(path):
                alone = path if b"int main(" in path.read_bytes() else None
                together.setdefault((path.parent, tuple(own), alone), []).append(path)
    for path in sorted(ROOT.rglob("*.h")):
        if path.relative_to(ROOT).parts[0] not in ("build", "include", "train") and is_wanted(path.resolve()):
            together.setdefault(("headers", tuple(headers), None), []).append(path.resolve())
    for (_, own, _), paths in together.items():
        yield from ((paths[i:i + FILES_TOGETHER], list(own)) for i in range(0, len(paths), FILES_TOGETHER))


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = list(jobs_of(arguments[0], {pathlib.Path(f).resolve() for f in arguments[1:]}, folder))
        said = [line for lines in pool.map(check, jobs) for line in lines]
    files = sum(len(paths) for paths, _ in jobs)
    print("\n".join(said) or f"nothing to say about {files} files with coroutines")
    sys.exit(1 if said else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
