"""Ends of loaders: forks, signals, exceptions, interpreters that end, and loaders that are dropped."""

import functools
import http.server
import pathlib
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import Case, loader, mr  # noqa: E402


class StoppingServer(http.server.ThreadingHTTPServer):
    """Serves the folder; requests for the shard `held` wait until they are let go."""

    daemon_threads = True

    def handle_error(self, *_):  # clients that go away
        pass

    def __init__(self, folder, held):
        self.asked, self.let_go = threading.Event(), threading.Event()
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if held in self.path:
                    server.asked.set()
                    server.let_go.wait(60)
                super().do_GET()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.urls = f"http://127.0.0.1:{self.server_address[1]}/train-{{000000..000003}}.tar"


class Forks(Case):
    def test_a_begun_loader_stays_in_the_parent(self):
        out, _ = self.run_program("""
            data = L(shuffle=100)
            epoch = iter(data)
            batch = next(epoch)
            samples = iter(mr.samples("train-000000.tar"))
            next(samples)  # more are taken already
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                for begun in (epoch, samples):
                    try:
                        next(begun)
                    except mr.UsageError as e:
                        print("child:", e)
                print("own:", sum(len(b.labels) for b in L()), int(batch.labels.sum()) >= 0)
                sys.exit(7)  # the whole end of an interpreter
            _, status = os.waitpid(child, 0)
            print("parent:", os.waitstatus_to_exitcode(status), 50 + sum(len(b.labels) for b in epoch))
            """)
        lines = out.splitlines()
        for line in lines[:2]:
            self.assertRegex(line, r"^child: usage: this was begun in process \d+, of which this one is a fork; make it again")
        self.assertEqual(lines[2:], ["own: 400 True", "parent: 7 400"])

    def test_one_that_is_not_begun_goes_along(self):
        out, _ = self.run_program("""
            data, single = L(), mr.IndexedDataset("train.json")
            first = single[3]["__key__"]
            child = os.fork()
            print(sum(len(b.labels) for b in data), single[3]["__key__"] == first, flush=True)
            if child:
                os.waitpid(child, 0)
            """)
        self.assertEqual(out, "400 True\n" * 2)


class Ends(Case):
    def test_while_other_threads_save(self):
        out, _ = self.run_program("""
            def save(data, said):
                try:
                    while True:
                        data.state_dict()
                except mr.UsageError as e:
                    said.append(str(e))
            for _ in range(20):
                data, said = L(shuffle=400), []
                next(iter(data))
                thread = threading.Thread(target=save, args=(data, said))
                thread.start()
                data.close()
                thread.join()
                assert said and "closed" in said[0], said
            data = L(shuffle=400)
            next(iter(data))
            threading.Thread(target=save, args=(data, []), daemon=True).start()
            print("end")
        """)
        self.assertEqual(out, "end\n")

    def test_an_interpreter_may_end_with_everything_alive(self):
        for end in ("pass", "sys.exit()", "del data", "threading.Thread(target=lambda: next(epoch), daemon=True).start()"):
            out, err = self.run_program(f"""
                data = L(shuffle=100, prefetch=4)
                epoch = iter(data)
                batch = next(epoch)
                samples = iter(mr.samples("train-000000.tar"))
                sample = next(samples)
                single = mr.IndexedDataset("train.json")
                single[3]
                print("there", flush=True)
                {end}
                """)
            self.assertEqual((out, err), ("there\n", ""), end)

    @unittest.skipIf(sys.version_info >= (3, 13), "its module of interpreters has another name")
    def test_a_second_interpreter_is_refused_and_the_first_continues(self):
        out, _ = self.run_program("""
            import _xxsubinterpreters as interpreters
            print(sum(1 for _ in mr.samples("train-000000.tar")))
            other = interpreters.create()
            try:
                interpreters.run_string(other, "import millrace")
            except interpreters.RunFailedError as e:
                print(e)
            interpreters.destroy(other)
            print(sum(1 for _ in mr.samples("train-000000.tar")))
            """)
        first, refused, again = out.splitlines()
        self.assertEqual(first, again)
        self.assertIn("ImportError", refused)
        self.assertIn("millrace cannot be imported by a second interpreter", refused)

    def test_an_exception_ends_the_program(self):
        begun = time.monotonic()
        _, err = self.run_program("""
            for images, labels in L():
                raise RuntimeError("of the loop")
            """, code=1)
        self.assertIn("RuntimeError: of the loop", err)
        self.assertLess(time.monotonic() - begun, 20)

    def test_dropped_loaders_leave_nothing(self):
        out, _ = self.run_program("""
            def now():
                rss = int(open("/proc/self/statm").read().split()[1]) * 4096
                return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), rss
            def drop(times):
                for i in range(times):
                    data = L(shuffle=100)
                    next(iter(data))
                    if i % 2:
                        data.close()
            drop(20)
            before = now()
            drop(100)
            after = now()
            print(after[0] - before[0], after[1] - before[1], (after[2] - before[2]) >> 20)
            """, timeout=200)
        descriptors, threads, mib = map(int, out.split())
        self.assertEqual((descriptors, threads), (0, 0))
        self.assertLess(mib, 64)

    def test_dropped_loaders_of_chains_leave_nothing_to_the_garbage_collector(self):
        out, err = self.run_program("""
            import gc
            import millrace.webdataset as wds
            gc.disable()
            def now():
                return len(os.listdir("/proc/self/fd")), threading.active_count()
            def odd(sample):
                return 1 // 0 if sample["__key__"].endswith("50") else sample["__key__"]
            chain = wds.WebDataset("train-{000000..000003}.tar", shardshuffle=False)
            def whole():
                assert len(list(wds.WebLoader(chain, batch_size=None, num_workers=2).with_epoch(100))) == 100
            def left():
                next(iter(wds.WebLoader(chain, batch_size=None, num_workers=2).with_epoch(100)))
            def left_alone():
                next(iter(wds.WebLoader(chain, batch_size=None, num_workers=2)))
            def not_asked():
                iter(wds.WebLoader(chain, batch_size=None, num_workers=2).with_epoch(100))
            def failed():
                try:
                    list(wds.WebLoader(chain.map(odd), batch_size=None, num_workers=2).with_epoch(1000))
                except ZeroDivisionError:
                    pass
            def without_a_loader():
                next(iter(wds.WebDataset("train-000000.tar", shardshuffle=False).with_epoch(10)))
            def closed():
                with wds.WebLoader(chain, batch_size=None, num_workers=2) as loader:
                    next(iter(loader))
                kept.append(loader)
            kept = []
            whole()
            for use in (whole, left, left_alone, not_asked, failed, without_a_loader, closed):
                before = now()
                use()
                print(use.__name__, now() == before)
            """)
        self.assertEqual((out.split()[1::2], err), (["True"] * 7, ""), out)

    def test_a_loader_may_be_collected_by_its_own_thread(self):
        _, err = self.run_program("""
            import gc
            import millrace.webdataset as wds
            gc.disable()
            dropped, collected = threading.Event(), threading.Event()
            def collect(item):
                dropped.wait()
                gc.collect()
                collected.set()
                return item
            loader = wds.WebLoader([1, 2], batch_size=None, collate_fn=lambda x: x if x == 1 else collect(x)).with_epoch(2)
            items = loader.items = iter(loader)  # a cycle
            loader.itself = loader
            next(items)
            thread, = (t for t in threading.enumerate() if t.name == "millrace-stages")
            del loader, items
            dropped.set()
            collected.wait()
            thread.join(30)
            assert not thread.is_alive()
            """)
        self.assertEqual(err, "")

    def test_batches_outlive_their_loader(self):
        batches = list(zip(range(4), loader()))
        sums = [int(b.images.sum()) for _, b in batches]
        again = [int(b.images.sum()) for _, b in zip(range(4), loader())]
        self.assertEqual(sums, again)


class Interrupts(Case):
    PROGRAM = """
        data = mr.samples(%r, shuffle_shards=False, lanes=1)
        keys = []
        try:
            for s in data:
                keys.append(s["__key__"])
                if len(keys) == 1:
                    print("begun", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        state = data.state_dict()
        print("saved", flush=True)
        rest = [s["__key__"] for s in data]
        other = mr.samples(%r, shuffle_shards=False, lanes=1)
        other.load_state_dict(state)
        print(keys + rest == [s["__key__"] for s in mr.samples(%r, shuffle_shards=False, lanes=1)],
              rest == [s["__key__"] for s in other])
        print(data.skipped()["delivered"], data.stats()["waited"] < data.stats()["seconds"])
        """

    def test_ctrl_c_ends_a_wait_within_a_second_and_loses_nothing(self):
        server = StoppingServer(self.folder, "train-000002")
        process = self.start(self.PROGRAM % ((server.urls,) * 3))
        self.assertEqual(process.stdout.readline(), "begun\n")
        self.assertTrue(server.asked.wait(60))
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "interrupted\n")
        self.assertLess(time.monotonic() - sent, 1.5)
        self.assertEqual(process.stdout.readline(), "saved\n")
        self.assertLess(time.monotonic() - sent, 3)
        server.let_go.set()
        out, err = process.communicate(timeout=60)
        self.assertEqual((out, process.returncode), ("True True\n400 True\n", 0), err)

    def test_ctrl_c_ends_a_program_that_waits_for_an_index(self):
        server = StoppingServer(self.folder, "train.json")
        url = server.urls.replace("train-{000000..000003}.tar", "train.json")
        for waits in (f"next(iter(mr.samples({url!r})))", f"mr.IndexedDataset({url!r})[0]"):
            server.asked.clear()
            process = self.start(waits)
            self.assertTrue(server.asked.wait(60))
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            self.assertLess(time.monotonic() - sent, 5)
            self.assertEqual(process.returncode, -signal.SIGINT, err)
            self.assertIn("KeyboardInterrupt", err)
        server.let_go.set()

    def test_a_loader_is_closed_while_another_thread_waits(self):
        server = StoppingServer(self.folder, "train-000002")
        data = mr.samples(server.urls, shuffle_shards=False, lanes=-1)
        ended = []

        def read():
            try:
                ended.append(len(list(data)))
            except mr.Error as e:
                ended.append(e.kind)

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(server.asked.wait(60))
        data.close()
        thread.join(60)
        self.assertIn(ended[0], ("stopped", "usage"))  # waiting, or about to
        server.let_go.set()

    def test_handlers_that_return_do_not_end_a_wait(self):
        server = StoppingServer(self.folder, "train-000001")
        process = self.start(f"""
            signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
            print("there", flush=True)
            print(sum(1 for _ in mr.samples({server.urls!r}, shuffle_shards=False)))
            """)
        self.assertEqual(process.stdout.readline(), "there\n")
        self.assertTrue(server.asked.wait(60))
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.stdout.readline(), "handled\n")
        server.let_go.set()
        out, err = process.communicate(timeout=60)
        self.assertEqual((out, process.returncode), ("400\n", 0), err)

    def test_handlers_are_told_what_to_do_instead(self):
        server = StoppingServer(self.folder, "train-00000")
        process = self.start(f"""
            data = mr.samples({server.urls!r})
            def handler(*_):
                print(data.stats()["waited"] > 0, data.skipped()["delivered"], flush=True)
                try:
                    data.state_dict()
                except mr.UsageError as e:
                    print(e, flush=True)
            signal.signal(signal.SIGTERM, handler)
            print("there", sum(1 for _ in data))
            """)
        self.addCleanup(server.let_go.set)
        self.assertTrue(server.asked.wait(60))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.stdout.readline(), "True 0\n")
        self.assertIn("a handler of a signal uses a loader that waits; have it set a flag", process.stdout.readline())
        server.let_go.set()
        self.assertEqual(process.communicate(timeout=60)[0], "there 400\n")

    def test_exceptions_of_handlers_at_any_time(self):
        out, err = self.run_program("""
            import random
            class Alarm(Exception): pass
            allowed, draw, hits = False, random.Random(1), 0
            def handler(*_):
                if allowed:
                    raise Alarm
            signal.signal(signal.SIGALRM, handler)
            def value(batch):
                return batch.images.tobytes(), tuple(batch.keys)
            def data():
                return L(batch_size=10, size=160, shuffle=100, seed=3, threads=1)
            wanted = [value(b) for b in data()]
            rounds = 0
            while rounds < 4 or (hits <= 10 and rounds < 200):  # a faster loop is hit less often
                rounds += 1
                train, got = data(), []
                for times in range(1, 30):
                    signal.setitimer(signal.ITIMER_REAL, draw.random() * 0.02 + 1e-4)
                    try:
                        allowed = True
                        for batch in train:
                            got.append(value(batch))
                        allowed = False
                        break
                    except Alarm:
                        allowed = False
                        hits += 1
                        if train.epoch:
                            break
                        if times % 5 == 1:
                            other = data()
                            other.load_state_dict(train.state_dict())
                            rest = [value(b) for b in other]
                            other.close()
                            assert rest == wanted[len(wanted) - len(rest):], "a position within the epoch"
                            # What the loop itself was interrupted with, it has not counted.
                            assert 0 <= len(wanted) - len(rest) - len(got) <= times
                train.close()
                left = iter(wanted)
                assert all(g in left for g in got), "each batch once, in order"
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(hits > 10)
            """, timeout=120)
        self.assertEqual(out, "True\n", err)

    def test_other_threads_read_figures_and_are_refused_items(self):
        server = StoppingServer(self.folder, "train-00000")
        data = mr.samples(server.urls)
        got = []
        thread = threading.Thread(target=lambda: got.extend(data))
        thread.start()
        self.assertTrue(server.asked.wait(60))
        self.addCleanup(server.let_go.set)
        with self.assertRaisesRegex(mr.UsageError, "two threads use this loader at once"):
            data.state_dict()
        asked = time.monotonic()
        self.assertEqual((data.stats()["waited"] > 0, data.skipped()["delivered"]), (True, 0))
        self.assertLess(time.monotonic() - asked, 5)  # while the thread waits
        server.let_go.set()
        thread.join(60)
        self.assertEqual(len(got), 400)
        self.assertEqual(data.skipped()["delivered"], 400)


if __name__ == "__main__":
    unittest.main()
