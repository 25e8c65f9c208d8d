"""Names in the repository's Python that are used and not defined, or imported and not used, by pyflakes.

A test whose name is missing an import fails only when it runs, which may be an hour after it was written."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tidy  # noqa: E402

PYTHON = "/usr/bin/python3"  # that of the distribution, which has its package


def main():
    done = subprocess.run([PYTHON, "-m", "pyflakes", *map(str, tidy.sources(".py"))], cwd=tidy.ROOT, text=True, capture_output=True)
    if "No module named pyflakes" in done.stderr:
        sys.exit("pyflakes is missing: ./setup --tests installs python3-pyflakes")
    print(done.stdout + done.stderr or "nothing to say")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
