"""The read gate between processes: killed and stopped holders, turns for all."""

import os
import pathlib
import random
import selectors
import signal
import subprocess
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ["MILLRACE_TEST_BIN"])


class Visitors:
    """Processes that enter one gate in turn, and their output."""

    def __init__(self, count, patience_ms):
        self.folder = tempfile.TemporaryDirectory()
        self.patience_ms = patience_ms
        self.selector = selectors.DefaultSelector()
        self.running = {}
        self.killed = set()
        self.said = []  # on stderr
        for _ in range(count):
            self.start()

    def start(self):
        errors = open(os.path.join(self.folder.name, f"errors-{len(self.said)}-{time.monotonic_ns()}"), "w+")
        p = subprocess.Popen([BIN / "gate_visitor", self.folder.name, str(self.patience_ms)],
                             stdout=subprocess.PIPE, stderr=errors)
        os.set_blocking(p.stdout.fileno(), False)
        self.selector.register(p.stdout, selectors.EVENT_READ, p)
        self.running[p.pid] = p
        self.said.append(errors)
        return p

    def lines(self, timeout):
        """(process, line) of the next output; times out with an error."""
        ready = self.selector.select(timeout)
        if not ready:
            raise AssertionError(f"nobody entered the gate for {timeout} s")
        for key, _ in ready:
            for line in key.fileobj.read().decode().splitlines():
                yield key.data, line

    def next_in(self, timeout=20, but=None):
        while True:
            newest = None
            for process, line in self.lines(timeout):
                if line == "in" and process is not but:
                    newest = process
            if newest:
                return newest

    def assert_one_at_a_time(self):
        inside = set()
        for line in pathlib.Path(self.folder.name, "log").read_text().splitlines():
            who, what = line.split()
            if what == "out":
                inside.discard(who)
                continue
            # A killed holder never reports that it is out.
            inside -= self.killed
            if inside:
                raise AssertionError(f"{who} came in while {inside} was")
            inside.add(who)

    def kill(self, process):
        self.killed.add(str(process.pid))
        self.selector.unregister(process.stdout)
        process.kill()
        process.wait()
        process.stdout.close()
        del self.running[process.pid]

    def errors(self):
        out = ""
        for f in self.said:
            f.seek(0)
            out += f.read()
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in list(self.running.values()):
            self.kill(process)
        for f in self.said:
            f.close()
        self.folder.cleanup()


class Gate(unittest.TestCase):
    def test_200_killed_holders(self):
        dice = random.Random(1)
        # The patience is longer than the test may take: only the kernel's release helps.
        with Visitors(5, patience_ms=600_000) as visitors:
            for round_number in range(200):
                for _ in range(dice.randrange(3)):
                    visitors.next_in()
                holder = visitors.next_in()
                visitors.kill(holder)
                visitors.start()
                visitors.next_in()
            self.assertNotIn("has not moved", visitors.errors())
            visitors.assert_one_at_a_time()

    def test_killed_while_waiting(self):
        dice = random.Random(2)
        with Visitors(5, patience_ms=600_000) as visitors:
            for _ in range(50):
                holder = visitors.next_in()
                victim = dice.choice([p for p in visitors.running.values() if p is not holder])
                visitors.kill(victim)
                visitors.start()
                visitors.next_in()
            visitors.assert_one_at_a_time()

    def test_a_stopped_holder_holds_up_nobody_for_ever(self):
        with Visitors(3, patience_ms=300) as visitors:
            for _ in range(3):
                stopped = visitors.next_in()
                stopped.send_signal(signal.SIGSTOP)
                for _ in range(10):
                    self.assertIsNot(visitors.next_in(but=stopped), stopped)
                stopped.send_signal(signal.SIGCONT)
                seen = set()
                while stopped.pid not in seen:
                    seen.add(self.any_in(visitors).pid)
            self.assertIn("has not moved", visitors.errors())

    def test_a_second_name_of_the_file_turns_nothing_off(self):
        """Any user can give it one. Processes at the gate and later ones still take turns, whatever else changes."""
        with Visitors(3, patience_ms=600_000) as visitors:
            folder = pathlib.Path(visitors.folder.name)
            gate = folder / "millrace-gate-disk"
            for round_number in range(10):
                visitors.next_in()
                os.link(gate, folder / f"second-{round_number}")
                self.assertEqual(gate.stat().st_nlink, round_number + 2)
                newcomer = visitors.start()
                while self.any_in(visitors) is not newcomer:
                    pass
                visitors.kill(visitors.next_in())
            self.assertEqual(visitors.errors(), "")  # no process reads without it
            visitors.assert_one_at_a_time()

    def any_in(self, visitors):
        while True:
            for process, line in visitors.lines(20):
                if line == "in":
                    return process

    def test_all_get_their_turns(self):
        """How long each waits for it is tested in simulated time (tests/simulation/gate_test.cc)."""
        with Visitors(8, patience_ms=600_000) as visitors:
            turns = {}
            while len(turns) < 8 or min(turns.values()) < 50:
                for process, line in visitors.lines(20):
                    if line == "in":
                        turns[process.pid] = turns.get(process.pid, 0) + 1
            visitors.assert_one_at_a_time()


if __name__ == "__main__":
    unittest.main()
