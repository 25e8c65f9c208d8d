"""Writers that a program leaves: not closed, in forked children, at an exception."""

import os
import pathlib
import signal
import subprocess
import sys
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
