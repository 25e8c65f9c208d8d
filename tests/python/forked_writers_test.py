"""Writers in processes that fork, in handlers of signals and at the ends of processes, and locks of the package there."""

import pathlib
import re
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import Case, mr  # noqa: E402
from tests.support import harness  # noqa: E402

PIPES = "import signal; signal.alarm(50); os.environ['MILLRACE_ALLOW_PIPE'] = '1'; import millrace.webdataset as wds"


class ForkedWriters(Case):
    def keys(self, shard):
        return [s["__key__"] for s in mr.samples(shard, lanes=-1)]

    def test_a_command_does_not_wait_for_children_that_live(self):
        out, _ = self.run_program(f"""
            {PIPES}
            import multiprocessing
            out = wds.TarWriter("pipe:cat > piped.tar")
            out.write({{"__key__": "a", "txt": "x"}})
            lives, ends = os.pipe()
            child = os.fork()
            if not child:
                os.close(ends)
                os.read(lives, 1)  # until the parent has closed the writer
                os._exit(0)
            out.close()
            os.close(ends)
            assert os.waitpid(child, 0)[1] == 0
            with wds.TarWriter("pipe:cat > pooled.tar") as out:
                pool = multiprocessing.get_context("fork").Pool(2)
                for i, n in enumerate(pool.imap(len, ["a", "bb", "ccc"])):
                    out.write({{"__key__": f"{{i}}", "txt": str(n)}})
            pool.terminate()
            """)
        self.assertEqual((self.keys("piped.tar"), self.keys("pooled.tar")), (["a"], ["0", "1", "2"]))

    def test_fork_does_not_wait_for_a_command_that_reads_nothing(self):
        self.run_program(f"""
            {PIPES}
            os.mkfifo("gate")
            out = wds.TarWriter("pipe:read line < gate; cat > stalled.tar", encoder=False)
            begun = threading.Event()
            def fill():
                for i in range(30):
                    out.write({{"__key__": f"{{i:02}}", "bin": bytes(30_000)}})
                    begun.set()
            thread = threading.Thread(target=fill)
            thread.start()
            begun.wait()
            for _ in range(20):  # the thread fills the pipe, and waits
                child = os.fork()
                if not child:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            with open("gate", "w") as gate:
                print(file=gate)
            thread.join()
            out.close()
            """)
        self.assertEqual(self.keys("stalled.tar"), [f"{i:02}" for i in range(30)])

    def test_children_write_nothing_of_what_is_buffered(self):
        for how in "path", "buffered", "gathered":
            for failing in False, True:
                self.run_program(f"""
                    import io
                    import millrace.webdataset as wds
                    signal.alarm(50)
                    def opened(name):
                        if {how!r} == "path":
                            return name
                        return io.BufferedWriter(io.FileIO(name, "w"), 1 << 20)
                    files = [opened(f"of-{{n}}.tar") for n in range(4)] + [opened("/dev/full") for _ in range(4 * {failing})]
                    outs = [wds.TarWriter(f, encoder=False) for f in files if f != "/dev/full"]
                    for i in range(7):
                        if i == 4:
                            if {how!r} == "gathered":  # so that a writer that fails comes before others
                                import gc; gc.collect()
                            sys.stdout.flush()
                            child = os.fork()
                            if not child:
                                for f in files[4:]:
                                    f.detach() if hasattr(f, "detach") else None
                                sys.exit()
                            os.waitpid(child, 0)
                        for out in outs:
                            out.write({{"__key__": f"{{i}}", "bin": b"z" * 9000}})
                    for out in outs[:4]:
                        out.close()
                    for f in files[:4]:
                        if not isinstance(f, str):
                            f.close()
                    os._exit(0)
                    """)
                for n in range(4):
                    self.assertEqual(self.keys(f"of-{n}.tar"), [str(i) for i in range(7)], (how, failing))

    def test_children_that_are_forked_while_threads_write_into_a_file_of_the_program(self):
        self.run_program("""
            import millrace.webdataset as wds
            signal.alarm(50)
            with open("threads.tar", "wb", buffering=1 << 20) as file, wds.TarWriter(file, encoder=False) as out:
                stop, written = threading.Event(), [0, 0]
                def write(of):
                    while not stop.is_set():
                        out.write({"__key__": f"k{of}-{written[of]}", "bin": b"z" * 9000})
                        written[of] += 1
                threads = [threading.Thread(target=write, args=(of,)) for of in range(2)]
                for one in threads:
                    one.start()
                for _ in range(12):
                    child = os.fork()
                    if not child:
                        try:
                            out.write({"__key__": "c", "bin": b""})
                        except mr.UsageError:
                            sys.exit()  # writes out what files have in memory
                        os._exit(1)
                    assert os.waitpid(child, 0)[1] == 0
                stop.set()
                for one in threads:
                    one.join()
            assert len({s["__key__"] for s in mr.samples("threads.tar")}) == sum(written)
            """)

    def test_handlers_of_signals_do_not_wait_for_their_own_thread(self):
        for made, inside in (("wds.TarWriter(File(), encoder=False)", ""),
                             ("wds.ShardWriter('handled-%d.tar')", "out._out.write = File().write")):
            for call in "out.close()", "out.write({'__key__': 'b', 'txt': b''})":
                out, _ = self.run_program(f"""
                    import io
                    import millrace.webdataset as wds
                    signal.alarm(50)
                    class File(io.BytesIO):  # that a signal comes in the middle of
                        def write(self, content):
                            signal.raise_signal(signal.SIGUSR1)
                            return len(content)
                    def handle(*_):
                        try:
                            {call}
                        except mr.UsageError as e:
                            print(e)
                    signal.signal(signal.SIGUSR1, handle)
                    out = {made}
                    {inside}
                    out.write({{"__key__": "a", "txt": b"x" * 30_000}})
                    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                    out.close()
                    """)
                self.assertRegex(out.splitlines()[0],
                                 r"usage: a handler of a signal uses \w+Writer\(.*\) in the middle of a call of it; have it set ")

    def test_writers_of_processes_of_multiprocessing_are_completed(self):
        for made in "mr.ShardWriter('mp-%d.tar', overwrite=True)", "wds.ShardWriter('mp-%d.tar')", "wds.TarWriter('mp-0.tar')":
            for end in "", "sys.exit(3)", "raise ValueError('bad row')", "os._exit(0)":
                for left in self.folder.glob("mp-*"):
                    left.unlink()
                _, err = self.run_program(f"""
                    import multiprocessing
                    import millrace.webdataset as wds
                    def work():
                        global out
                        out = {made}
                        for i in range(5):
                            out.write({{"__key__": f"{{i}}", "txt": "x"}})
                        {end}
                    process = multiprocessing.get_context("fork").Process(target=work)
                    process.start()
                    process.join()
                    """)
                completes = "Tar" in made or not end.startswith("raise")
                if end.startswith("os."):
                    continue  # as the program wants it
                self.assertEqual((self.folder / "mp-0.tar").exists(), completes, (made, end, err))
                if completes:
                    self.assertEqual(self.keys("mp-0.tar"), [str(i) for i in range(5)], (made, end))
                else:
                    self.assertIn("was not closed before the exception: what is not complete is left out", err)

    def test_threads_of_processes_of_multiprocessing_write_to_their_end(self):
        (self.folder / "threaded.py").write_text(textwrap.dedent("""
            import concurrent.futures
            import multiprocessing.util
            import threading
            import millrace as mr
            import millrace.webdataset as wds
            def work(made, by_executor):
                global out
                out = eval(made)
                returned = threading.Event()
                multiprocessing.util.Finalize(None, returned.set, exitpriority=10)
                def write(n):
                    returned.wait()
                    out.write({"__key__": f"{n:02}", "txt": "x"})
                if by_executor:
                    pool = concurrent.futures.ThreadPoolExecutor(2)
                    for n in range(20):
                        pool.submit(write, n)
                else:
                    threading.Thread(target=lambda: [write(n) for n in range(20)]).start()
            """))
        for method in "fork", "spawn", "forkserver":
            for made in "mr.ShardWriter('mt-%d.tar', overwrite=True)", "wds.TarWriter('mt-0.tar')":
                for by_executor in False, True:
                    for left in self.folder.glob("mt-*"):
                        left.unlink()
                    out, err = self.run_program(f"""
                        import multiprocessing
                        sys.path.insert(0, ".")
                        import threaded
                        if __name__ == "__main__":
                            process = multiprocessing.get_context({method!r}).Process(target=threaded.work, args=({made!r}, {by_executor}))
                            process.start()
                            process.join()
                            print(process.exitcode)
                        """)
                    self.assertEqual(out.splitlines()[-1:], ["0"], (method, made, by_executor, err))
                    self.assertEqual(sorted(self.keys("mt-0.tar")), [f"{n:02}" for n in range(20)], (method, made, by_executor, err))

    def test_processes_of_multiprocessing_end_alike_however_they_begin(self):
        (self.folder / "ends.py").write_text(textwrap.dedent("""
            import multiprocessing
            def work(fails):
                global out
                import millrace as mr
                out = mr.ShardWriter("me-%d.tar", overwrite=True)
                out.write({"__key__": "a", "txt": "x"})
                try:
                    if fails:
                        raise ValueError("bad row")
                except ValueError:
                    if fails == "exits":
                        raise SystemExit(1)
                    raise
            def started(method, target, *args):
                process = multiprocessing.get_context(method).Process(target=target, args=args)
                process.start()
                process.join()
                return process.exitcode
            def nested():
                assert started("fork", work, False) == 0
            def in_handler():
                try:
                    raise KeyError("of the parent")
                except KeyError:
                    nested()
            """))
        for method, target, fails in [*((m, "work", f) for m in ("fork", "spawn", "forkserver") for f in (False, True, "exits")),
                                      ("spawn", "nested", False), ("forkserver", "nested", False), ("spawn", "in_handler", False)]:
            for left in self.folder.glob("me-*"):
                left.unlink()
            out, err = self.run_program(f"""
                sys.path.insert(0, ".")
                import ends
                print(ends.started({method!r}, ends.{target}, *{[fails] if target == "work" else []}))
                """)
            self.assertEqual(out.split()[-1:], ["1" if fails else "0"], (method, target, err))
            self.assertEqual([p.name for p in self.folder.glob("me-*")], [] if fails else ["me-0.tar"], (method, target, err))
            self.assertEqual("what is not complete is left out" in err, bool(fails), (method, target, err))

    def test_daemon_threads_are_waited_for_at_the_end(self):
        calls = {"mr.ShardWriter('daemon-%d.tar', max_count=50, overwrite=True)": "it.write({'__key__': str(n), 'txt': 'y' * 10_000})",
                 "wds.ShardWriter('daemon-%d.tar', maxcount=50)": "it.write({'__key__': str(n), 'txt': 'y' * 10_000})",
                 "wds.TarWriter('daemon-0.tar')": "it.write({'__key__': str(n), 'txt': 'y' * 10_000})",
                 "iter(mr.samples(L.__defaults__[0], epoch='resample'))": "next(it)", "mr.IndexedDataset('train.json')": "it[n % 400]"}
        for made, call in calls.items():
            for _ in range(4):
                for left in self.folder.glob("daemon-*"):
                    left.unlink()
                self.run_program(f"""
                    import millrace.webdataset as wds
                    it, n, many = {made}, 0, threading.Event()
                    def use(of):
                        global n
                        while True:
                            try:
                                {call}
                            except (mr.Error, StopIteration, ValueError):
                                pass  # of what is closed, or used by the other
                            n += 1
                            if n > 300:
                                many.set()
                    for of in range(2):
                        threading.Thread(target=use, args=(of,), daemon=True).start()
                    many.wait()
                    """)

    def test_children_do_not_wait_for_the_locks_of_threads(self):
        (self.folder / "t.csv").write_text("key,txt\n" + "".join(f"{i:08},x\n" for i in range(400)))
        self.run_program("""
            import millrace.webdataset as wds
            from millrace import _tables
            loader = wds.WebLoader([1, 2, 3], batch_size=None)
            items = iter(loader)
            next(items)
            queue = next(x for x in loader.pipeline if hasattr(x, "_now"))._now._made
            taken, ends = threading.Event(), threading.Event()
            def hold():
                with queue.mutex, _tables._limit:
                    taken.set()
                    ends.wait()
            thread = threading.Thread(target=hold)
            thread.start()
            taken.wait()
            child = os.fork()
            if not child:
                signal.alarm(20)
                try:
                    next(items)
                    os._exit(1)
                except mr.UsageError as e:
                    assert "is in the process that was forked; begin a loop in each" in str(e), e
                assert list(loader) == [1, 2, 3]
                next(iter(mr.samples("train-000000.tar").join("t.csv", missing="none")))
                os._exit(0)
            ended = os.waitpid(child, 0)[1]
            ends.set()
            thread.join()
            assert ended == 0, ended
            """)

    def test_locks_of_the_package_are_those_that_are_tried_here(self):
        """A plain lock waits for its own thread, in a handler of a signal; and any lock for one that a forked child does not have.
        Whoever adds one tries it above."""
        tried = {"_tables.py": 2, "webdataset/writer.py": 2, "webdataset/_webloader.py": 1}
        package, found = harness.ROOT / "python/millrace", {}
        for source in package.rglob("*.py"):
            made = re.findall(r"\b(?:\w*Lock|Condition|Semaphore|Barrier|queue\.\w*Queue)\(", source.read_text())
            self.assertNotIn("Lock(", made, f"{source}: use threading.RLock()")
            if made:
                found[str(source.relative_to(package))] = len(made)
        self.assertEqual(found, tried)


if __name__ == "__main__":
    unittest.main()
