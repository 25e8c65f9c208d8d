"""Writers that a program leaves: not closed, in forked children, at an exception."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import PACKAGES, Case, mr  # noqa: E402
from tests.support import harness  # noqa: E402


class LeftWriters(Case):
    def test_writers_that_are_not_closed_are_completed(self):
        writers = {"mr.ShardWriter": "mr.ShardWriter('left-%d.tar', max_count=10, overwrite=True)",
                   "ShardWriter": "wds.ShardWriter('left-%d.tar', maxcount=10, post=print)",
                   "TarWriter": "wds.TarWriter('left-1.tar')"}
        for name, made in writers.items():
            for end in ("", "del out", "out.itself = out; del out; gc.collect()", "raise RuntimeError('of the program')"):
                for left in self.folder.glob("left-*"):
                    left.unlink()
                out, err = self.run_program(f"""
                    import gc, warnings
                    import millrace.webdataset as wds
                    warnings.simplefilter("always")
                    out = {made}
                    for i in range(15):
                        out.write({{"__key__": f"k{{i:02}}", "txt": "x"}})
                    if {name != "TarWriter"}:
                        child = os.fork()
                        if not child:
                            sys.exit()  # leaves the writer to the parent
                        os.waitpid(child, 0)
                        assert not os.path.exists("left-1.tar")
                    {end}
                    """, code=int(end.startswith("raise")))
                if end.startswith("raise") and name != "TarWriter":  # as at the end of a `with`
                    self.assertRegex(err, r"\nmillrace: ShardWriter\('left-%d\.tar'\) was not closed before the exception: what is ")
                    self.assertFalse(pathlib.Path("left-1.tar").exists())
                    continue
                self.assertEqual(err.count("ResourceWarning: "), 1 + err.count("tracemalloc"), err)
                self.assertRegex(err, r"ResourceWarning: \w+Writer\('left-.*\.tar'\) was not closed, and is completed only now; write `w")
                keys = [s["__key__"] for s in mr.samples("left-1.tar", lanes=-1)]
                self.assertEqual(keys, [f"k{i:02}" for i in range(0 if name == "TarWriter" else 10, 15)], (name, end))
                self.assertEqual(out, "left-0.tar\nleft-1.tar\n" if name == "ShardWriter" else "")

    def test_a_program_that_fails_replaces_no_whole_shard(self):
        for made in "mr.ShardWriter('kept-%d.tar', overwrite=True)", "wds.ShardWriter('kept-%d.tar')":
            for failure, code in ("ValueError('bad row')", 1), ("KeyboardInterrupt", -signal.SIGINT):
                for rows in 100, 3:
                    self.run_program(f"""
                        import millrace.webdataset as wds
                        def convert():
                            out = {made}
                            for i in range({rows}):
                                out.write({{"__key__": f"k{{i:02}}", "txt": "x"}})
                            if {rows} < 100:
                                raise {failure}
                            out.close()
                        convert()
                        """, code=code if rows < 100 else 0)
                self.assertEqual(sum(1 for _ in mr.samples("kept-0.tar")), 100, (made, failure))

    def test_errors_that_a_program_handles_leave_nothing_out(self):
        for made in "mr.ShardWriter('on-%d.tar', overwrite=True)", "wds.ShardWriter('on-%d.tar')":
            self.run_program(f"""
                import millrace.webdataset as wds
                def convert():
                    out = {made}
                    out.write({{"__key__": "k", "txt": "x"}})
                try:
                    {{}}["cache"]
                except KeyError:
                    convert()
                """)
            self.assertEqual([s["__key__"] for s in mr.samples("on-0.tar")], ["k"])
            os.remove("on-0.tar")
            told = subprocess.run([sys.executable, "-i"], cwd=self.folder, text=True, capture_output=True,
                                  env=harness.CLEAN | {"PYTHONPATH": PACKAGES},
                                  input=f"import millrace as mr, millrace.webdataset as wds\nno_such_name\nout = {made}\n"
                                        "out.write({'__key__': 'k', 'txt': 'x'})\n")
            self.assertIn("NameError", told.stderr)
            self.assertEqual([s["__key__"] for s in mr.samples("on-0.tar")], ["k"], told.stderr)
            os.remove("on-0.tar")

    def test_exceptions_of_a_console_do_not_end_the_program(self):
        slips = {"a console": "code.InteractiveConsole().push('1/0')", "its syntax": "code.InteractiveConsole().push('1 1')",
                 "a runner": "try:\n    1/0\nexcept Exception as e:\n    "
                             "sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__",
                 "a runner in a function": "def test(): 1/0\ndef run():\n    try:\n        test()\n    except Exception as e:\n"
                 "        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__.tb_next\nrun()"}
        for made in "mr.ShardWriter('at-%d.tar', overwrite=True)", "wds.ShardWriter('at-%d.tar')":
            for name, slip in slips.items():
                for end, code in ("", 0), ("sys.excepthook = lambda *_: None\nraise ValueError", 1):
                    if name == "a runner" and not end:
                        continue  # as if it had ended here
                    for left in self.folder.glob("at-*"):
                        left.unlink()
                    program = f"import code\nimport millrace.webdataset as wds\nout = {made}\n{slip}\n" \
                        f"out.write({{'__key__': 'a', 'txt': 'x'}})\n{end}\n"
                    self.run_program(textwrap.indent(program, " " * 12), code=code)
                    self.assertEqual((self.folder / "at-0.tar").exists(), not end, (made, name, end))

    def test_an_archive_that_a_write_has_cut_is_not_completed(self):
        for options in "", ", compress='gz'":
            self.run_program(f"""
                import resource
                import millrace.webdataset as wds
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                out = wds.TarWriter("full.tar", encoder=False{options})
                most = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, most[1]))
                written = 0
                try:
                    while True:
                        out.write({{"__key__": f"{{written}}", "bin": os.urandom(9000)}})
                        written += 1
                except OSError as e:
                    assert not isinstance(e, mr.Error), e
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
                for call in lambda: out.write({{"__key__": "z", "bin": b""}}), out.close:
                    try:
                        call()
                        sys.exit("nothing is said")
                    except mr.IoFailedError as e:
                        assert "'full.tar' ends in the middle of a sample, at a write that failed: " in str(e), e
                        assert "File too large" in str(e) and "; write the archive anew" in str(e), e
                out.close()
                try:
                    out.write({{"__key__": "z", "bin": b""}})
                    sys.exit("written after close()")
                except mr.UsageError as e:
                    assert "is closed" in str(e), e
                try:
                    for s in mr.samples("full.tar", lanes=-1):
                        pass
                    sys.exit("taken to be whole")
                except mr.TruncatedError:
                    pass
                """)
        self.run_program("""
            import io
            import millrace.webdataset as wds
            class Disk(io.BytesIO):
                is_full = False
                def write(self, content):
                    if self.is_full:
                        raise OSError("no room")
                    return super().write(content)
            file = Disk()
            with wds.TarWriter(file, encoder=False) as out:
                out.write({"__key__": "a", "bin": b"x" * 30_000})
                for wrong in {"__key__": "b", "bin": object()}, {"bin": b""}:  # nothing of these is written
                    try:
                        out.write(wrong)
                    except mr.UsageError:
                        pass
                out.write({"__key__": "c", "bin": b"x"})
            open("disk.tar", "wb").write(file.getvalue())
            assert [s["__key__"] for s in mr.samples("disk.tar", lanes=-1)] == ["a", "c"]
            try:
                with wds.TarWriter(file, encoder=False) as out:
                    file.is_full = True
                    out.write({"__key__": "a", "bin": b"x" * 30_000})
            except OSError as e:  # of the write, not of the end
                assert str(e) == "no room", e
            """)

    def test_a_forked_child_writes_nothing_into_an_archive(self):
        refused = "\n".join(["try:", "    out.write({'__key__': 'big', 'txt': 'x' * 100_000})", "    os._exit(1)",
                             "except mr.UsageError as e:", "    assert 'was forked; make one in each' in str(e), e", "out.close()", "sys.exit()"])
        for end in "sys.exit()", "del out; gc.collect(); sys.exit()", f"exec({refused!r})":
            self.run_program(f"""
                import gc
                import millrace.webdataset as wds
                out = wds.TarWriter("forked.tar")
                for i in range(8):
                    if i == 5:
                        child = os.fork()
                        if not child:
                            {end}
                        assert os.waitpid(child, 0)[1] == 0
                    out.write({{"__key__": f"k{{i}}", "txt": "x"}})
                out.close()
                """)
            self.assertEqual([s["__key__"] for s in mr.samples("forked.tar", lanes=-1)], [f"k{i}" for i in range(8)])

    def test_writers_that_are_closed_are_silent(self):
        for left in self.folder.glob("left-*"):
            left.unlink()
        for made in ("mr.ShardWriter('left-%d.tar', overwrite=True)", "wds.ShardWriter('left-%d.tar')", "wds.TarWriter('left.tar')"):
            out, err = self.run_program(f"""
                import warnings
                import millrace.webdataset as wds
                warnings.simplefilter("always")
                kept = [{made}]
                kept[0].write({{"__key__": "a", "txt": "x"}})
                kept[0].close()
                os.remove("left.tar" if os.path.exists("left.tar") else "left-0.tar")
                try:
                    with {made} as out:
                        kept.append(out)
                        out.write({{"__key__": "a", "txt": "x"}})
                        raise RuntimeError
                except RuntimeError:
                    print([n for n in sorted(os.listdir()) if n.startswith("left")])
                try:
                    kept.append({made.replace("left", "no/left")})
                except OSError as e:
                    print(type(e).__name__)
                """)
            self.assertEqual((out.splitlines()[0], err), ("['left.tar']" if "Tar" in made else "[]", ""), made)

    def test_children_that_are_forked_while_threads_write_do_not_wait_for_them(self):
        for made in "mr.ShardWriter('busy-%d.tar')", "wds.ShardWriter('busy-%d.tar')", "wds.TarWriter('busy-0.tar')":
            self.run_program(f"""
                import millrace.webdataset as wds
                out, stop = {made}, threading.Event()
                def write(of):
                    for i in range(1_000_000):
                        if stop.is_set():
                            break
                        out.write({{"__key__": f"k{{of}}-{{i}}", "bin": bytes(200_000)}})
                threads = [threading.Thread(target=write, args=(of,)) for of in range(3)]
                for one in threads:
                    one.start()
                try:
                    for n in range(12):
                        child = os.fork()
                        if not child:
                            signal.alarm(20)
                            try:
                                out.write({{"__key__": "c", "bin": b""}}) if n % 2 else out.close()
                            except mr.UsageError:
                                os._exit(0)
                            os._exit(int(n % 2))  # an archive is closed by the parent alone
                        assert os.waitpid(child, 0)[1] == 0
                finally:
                    stop.set()
                    for one in threads:
                        one.join()
                out.close()
                """)
            left = pathlib.Path("busy-0.tar")
            self.assertEqual(len({s["bin"] for s in mr.samples(str(left))}), 1)
            left.unlink()

    def test_archives_that_a_child_closes_are_whole(self):
        self.run_program("""
            import millrace.webdataset as wds
            for before in range(1, 40):  # what is buffered ends at each block of a record
                for is_path in True, False:
                    file = "closed.tar" if is_path else open("closed.tar", "wb")
                    out = wds.TarWriter(file)
                    for i in range(before + 30):
                        if i == before:
                            if not is_path:
                                file.flush()
                            child = os.fork()
                            if not child:
                                out.close()
                                os._exit(0)
                            assert os.waitpid(child, 0)[1] == 0
                        out.write({"__key__": f"k{i:03}", "txt": "x" * 600})
                    out.close()
                    if not is_path:
                        file.close()
                    keys = [s["__key__"] for s in mr.samples("closed.tar", lanes=-1)]
                    assert keys == [f"k{i:03}" for i in range(before + 30)], (before, is_path, len(keys))
            """)


if __name__ == "__main__":
    unittest.main()
