"""Secrets in names: passwords and queries of URLs, and the arguments of commands. No message, warning or repr() has them."""

import contextlib
import importlib
import inspect
import io
import os
import pathlib
import sys
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import Case, mr  # noqa: E402

SECRET = "S3CRET"
# In the places where secrets stand: some of them are valid, others damaged so that they are quoted.
NAMES = (f"https://u:{SECRET}@h.invalid/x-%d.tar",
         f"https://u:{SECRET}@h.invalid/{{}}.csv?sig={SECRET}", f"nosuch://h/x.tar?sig={SECRET}#{SECRET}",
         f"https://u:{SECRET}@h.invalid/\udc80{{}}.tar", f"https://u:{SECRET}@h.invalid/\ud800.tar",
         f"https://u:{SECRET}@h.invalid/{{0..3",
         f"https://{{a,b}}u:{SECRET}@h/{{", f"https://u:{SECRET}@h.invalid/${{no_such}}.tar",
         f"pipe:curl -u u:{SECRET} h", f"PIPE:KEY={SECRET} cat",
         f"s3://u:{SECRET}@b/x.tar.gz", f"a-%d.tar::https://u:{SECRET}@h.invalid/x")
# As what a name may be given, rightly or not.
WAYS = {"a text": lambda n: n, "a path": lambda n: Path(n), "a list": lambda n: [n], "two": lambda n: ["a.tar", n],
        "a tuple of tuples": lambda n: ((n,),),
        "a dict": lambda n: {n: 1}, "a list of dicts": lambda n: [{"url": n}],
        "bytes": lambda n: n.encode(errors="surrogatepass"), "a set": lambda n: {n}}
# Parameters that take one of a few words, data, or the file of lmdb, which has messages of its own.
NO_NAMES = frozenset("epoch policy sample samples data options fname".split())


class Path:
    """os.PathLike, which keeps both slashes of a URL."""

    def __init__(self, name):
        self.name = name

    def __fspath__(self):
        return self.name

    def __repr__(self):
        return f"Path({self.name!r})"


class Secrets(Case):
    def said(self, call):
        """All that is said of a call: its exception and those before, warnings, repr() of what it gives, what is written."""
        out, told = io.StringIO(), []
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
            warnings.simplefilter("always")
            try:
                made = call()
                if type(made).__module__.startswith("millrace") and not isinstance(made, mr.skip):  # whose report is a path
                    told.append(repr(made))
                del made  # a writer warns
            except Exception as error:
                while error is not None:
                    if isinstance(error, mr.Error) or not told:
                        told.append(f"{error} {getattr(error, 'hint', '')} {getattr(error, 'url', '')}")
                    error = error.__cause__
            told += [str(w.message) for w in caught]
        return " | ".join([*told, out.getvalue()])

    def check(self, where, call):
        said = self.said(call)
        self.assertNotIn(SECRET, said, where)
        return said

    def test_everything_that_is_public_and_takes_a_name(self):
        count = 0
        modules = [importlib.import_module(name) for name in ("millrace", "millrace.webdataset", "millrace.wids")]
        for module in modules:
            for name in module.__all__:
                thing = getattr(module, name)
                if not callable(thing) or not getattr(thing, "__module__", "").startswith("millrace") \
                        or inspect.isclass(thing) and issubclass(thing, Exception):
                    continue
                parameters = inspect.signature(thing).parameters
                needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
                for parameter in parameters.values():
                    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or parameter.name in NO_NAMES:
                        continue
                    if not self.takes_text(parameter):
                        continue
                    for secret in NAMES:
                        for way, made in WAYS.items():
                            count += 1
                            given = {n: "train-000000.tar" for n in needed} | {parameter.name: made(secret)}
                            self.check((f"{module.__name__}.{name}({parameter.name}={way})", secret), lambda: thing(**given))
        self.assertGreater(count, 5000)

    @staticmethod
    def takes_text(parameter):
        """Whether its annotation has a text, a path, or what may hold them; without one it may be anything."""
        return any(word in str(parameter.annotation) for word in ("str", "Shards", "Path", "Companion", "Any", "IO", "_empty", "Iterable"))

    def test_writers_say_none(self):
        import millrace.webdataset as wds
        commands = f"pipe:cat > /dev/null # {SECRET}", f"pipe:false --password {SECRET}; exit 3"

        def left():
            wds.TarWriter(commands[0])

        def fails():
            with wds.TarWriter(commands[1]):
                pass

        def closed():
            out = wds.TarWriter(commands[0])
            out.close()
            out.write({"__key__": "a", "txt": "x"})

        def forked():
            out = wds.TarWriter(commands[0])
            with unittest.mock.patch("os.getpid", lambda: 1), contextlib.suppress(ZeroDivisionError):
                out.write({"__key__": "a", "txt": "x"})

        def cut():
            with wds.TarWriter(commands[1]) as out:
                for n in range(1000):
                    out.write({"__key__": str(n), "bin": bytes(100_000)})

        with unittest.mock.patch.dict(os.environ, {"MILLRACE_ALLOW_PIPE": "1"}):
            for call, word in {left: "not closed", fails: "ended with code 3", closed: "is closed", forked: "was forked",
                               cut: "ended with code 3"}.items():
                self.assertIn(word, self.check(call.__name__, call))
        self.assertIn("'pipe:curl ...' runs a command", self.check("not allowed", lambda: wds.TarWriter(f"pipe:curl -u u:{SECRET} h")))

    def test_what_is_read_says_none(self):
        """Loops over what cannot be read, without a network."""
        import millrace.webdataset as wds
        for name in f"nosuch://u:{SECRET}@h/x.tar?sig={SECRET}", f"pipe:curl -H {SECRET} h":
            for call in (lambda: list(mr.samples(name)), lambda: list(mr.ImageLoader(name)), lambda: len(mr.IndexedDataset(name)),
                         lambda: list(wds.WebDataset(name, shardshuffle=False)),
                         lambda: list(mr.samples("train-000000.tar").join(name + ".csv")),
                         lambda: list(wds.WebDataset(name, shardshuffle=False, handler=wds.warn_and_continue)),
                         lambda: mr.samples(name), lambda: mr.ImageLoader([name, name])):
                self.check(name, call)


if __name__ == "__main__":
    unittest.main()
