#!/usr/bin/env python3
"""Builds the API reference, HTML of the installed headers, by Doxygen. Warnings are errors: a public name without a comment is one.

    docs/reference/build.py [FOLDER]     into FOLDER (build/reference); its first page is FOLDER/html/index.html

Doxygen reads copies of the headers (headers.py) in FOLDER/headers, laid out as they are installed. They are not made by an
INPUT_FILTER, which would start a process for each header."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from headers import Header, for_doxygen  # noqa: E402

ROOT = HERE.parents[1]


def installed_headers():
    """{path in the repository: path below the prefix's include folder}, as cmake/InstallHeaders.cmake finds them."""
    waiting = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "include/millrace").glob("*.h"))
    found = {}
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found[path] = "millrace/" + path.removeprefix("include/millrace/")
            included = re.findall(r'^#include "(.*)"', (ROOT / path).read_text(), re.M)
            waiting += [re.sub("^millrace/", "include/millrace/", header) for header in included]
    return found


def write_headers(folder, edited):
    for path, installed in installed_headers().items():
        text = edited.get(path, (ROOT / path).read_text())
        text = re.sub(r'^#include "(engine|io|pipeline|python|tools|train)/', r'#include "millrace/\1/', text, flags=re.M)
        copy = folder / installed
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(Header(text).for_doxygen())


def example_pages():
    """A page for each example, with links to what it uses."""
    pages = ""
    for path in sorted((ROOT / "examples").glob("*.cc")):
        comment = re.match(r"(//.*\n)*", path.read_text())[0]
        words = "\n".join(for_doxygen([line.removeprefix("//") for line in comment.splitlines()]))
        pages += f"/**\n@example {path.name}\n{words}\n*/\n\n"
    return pages


def settings_for(folder):
    """The Doxyfile, and what depends on where the repository and the pages are."""
    version = re.search(r'MILLRACE_VERSION "(.*)"', (ROOT / "include/millrace/version.h").read_text())[1]
    headers = folder / "headers"
    more = {"PROJECT_NUMBER": version,
            "INPUT": f'"{HERE / "pages.dox"}" "{folder / "examples.dox"}" "{headers}"',
            "EXAMPLE_PATH": f'"{ROOT / "examples"}"',
            "STRIP_FROM_PATH": f'"{headers}"',
            "STRIP_FROM_INC_PATH": f'"{headers}"',
            "OUTPUT_DIRECTORY": f'"{folder}"'}
    return (HERE / "Doxyfile").read_text() + "".join(f"{name} = {value}\n" for name, value in more.items())


def build(folder, edited=None):
    """Writes the pages, and returns Doxygen's warnings, with paths and lines of the repository. `edited`: texts of headers, by
    their paths, other than those in the repository."""
    headers = folder / "headers"
    shutil.rmtree(headers, ignore_errors=True)
    write_headers(headers, edited or {})
    (folder / "examples.dox").write_text(example_pages())
    done = subprocess.run(["doxygen", "-"], input=settings_for(folder), capture_output=True, text=True, cwd=folder)
    warnings = done.stderr
    for path, installed in installed_headers().items():
        warnings = warnings.replace(f"{headers / installed}:", f"{path}:")
    return warnings or ("" if done.returncode == 0 else f"doxygen ended with {done.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=ROOT / "build/reference", help="where the pages are written [build/reference]")
    folder = pathlib.Path(parser.parse_args().folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("doxygen") is None:
        sys.exit("doxygen is missing: ./setup --tests installs it")
    if warnings := build(folder):
        sys.exit(warnings)
    print(folder / "html/index.html")


if __name__ == "__main__":
    main()
