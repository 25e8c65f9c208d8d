"""A plugin of pytest: `import webdataset` and `import wids` in the tests of webdataset give millrace's modules.

    PYTHONPATH=tests/support python -m pytest -p webdataset_shim TESTS

A name that is not offered is an object that fails the test which uses it, so each test fails by itself. Writes what came of
each test, as JSON, to the file $SHIM_OUTCOMES. SHIM_ORIGINAL=1: tests run with webdataset itself.
"""

import importlib
import json
import os
import sys
import types

import pytest

MODULES = ("autodecode", "cache", "compat", "extradatasets", "filters", "gopen", "handlers", "mix", "pipeline", "shardlists",
           "tariterators", "tenbin", "utils", "writer")
# Their tests set it; it has no effect here, where nothing that torch saved is loaded.
SETTABLE = ("pytorch_weights_only",)
outcomes = {}


def refuse(name):
    pytest.fail(f"not offered: {name}", pytrace=False)  # no Exception: a test that expects some error does not take it for one


class Absent:
    """In the place of a name that is not offered."""

    def __init__(self, name):
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name):
        if name.startswith("__"):  # asked by Python and by pytest
            raise AttributeError(name)
        refuse(self._name)

    def __setattr__(self, name, value):
        refuse(self._name)

    def __call__(self, *args, **kw):
        refuse(self._name)

    def __iter__(self):
        refuse(self._name)

    def __getitem__(self, at):
        refuse(self._name)


def offered(ours, path):
    """What has the name `path` of webdataset here, or an Absent."""
    module, _, name = path.rpartition(".")
    for holder in (getattr(ours, module, None) if module else None, ours):
        try:
            if holder is not None:
                return getattr(holder, name)
        except AttributeError:
            pass
    if module == "filters" and name.startswith("_"):  # a stage that has not got its arguments yet
        stage = offered(ours, f"filters.{name[1:]}")
        return stage if isinstance(stage, Absent) else lambda items, *args, **kw: stage(*args, **kw)(items)
    return Absent(path)


class Shim(types.ModuleType):
    """webdataset, or a module of it."""

    def __init__(self, name, ours, prefix=""):
        super().__init__(name)
        self.__dict__.update(_ours=ours, _prefix=prefix, __path__=[])

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return offered(self._ours, self._prefix + name)

    def __setattr__(self, name, value):
        if not isinstance(value, types.ModuleType) and name not in SETTABLE and not name.startswith("__"):  # imports set modules
            refuse(self._prefix + name)
        super().__setattr__(name, value)


def install():
    ours = importlib.import_module("millrace.webdataset")
    package = sys.modules["webdataset"] = Shim("webdataset", ours)
    for name in MODULES:
        module = sys.modules[f"webdataset.{name}"] = Shim(f"webdataset.{name}", ours, f"{name}.")
        if name != "gopen":  # the function has the name of its module
            package.__dict__[name] = module
    try:
        wids = importlib.import_module("millrace.wids")
    except ImportError:
        return
    for name in ("wids", "wids.wids"):
        sys.modules[name] = Shim(name, wids)
    sys.modules["wids"].__dict__["wids"] = sys.modules["wids.wids"]


if not os.environ.get("SHIM_ORIGINAL"):
    install()


def pytest_configure(config):
    for marker in ("quick", "notorch"):
        config.addinivalue_line("markers", f"{marker}: of webdataset")


def told(report):
    """The error of a report in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:300]


def pytest_runtest_logreport(report):
    name = report.nodeid.removeprefix("tests/")
    if report.failed:
        outcomes.setdefault(name, told(report))
    elif report.skipped:
        outcomes.setdefault(name, f"skipped: {report.longrepr[2]}")
    elif report.when == "call":
        outcomes.setdefault(name, "")


def pytest_collectreport(report):
    if report.failed:
        outcomes[report.nodeid.removeprefix("tests/")] = f"not collected: {told(report)}"


def pytest_sessionfinish(session):
    del session
    with open(os.environ["SHIM_OUTCOMES"], "w", encoding="utf-8") as out:
        json.dump(outcomes, out, indent=1)
