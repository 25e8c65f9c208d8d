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
    # A package's __init__.py imports what it offers.
    breaches = [line for line in (done.stdout + done.stderr).splitlines()
                if "/__init__.py:" not in line or "undefined name '" in line]
    print("\n".join(breaches) or "nothing to say")
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main()
