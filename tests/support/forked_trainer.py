"""millrace-train in a fork of this process, which has loaded LibTorch: to load it takes half a second of a core, and the tests
of training start more than a thousand runs. The program itself is run by those that use harness.run() and harness.start()."""

import ctypes
import functools
import os
import signal
import subprocess
import traceback

from tests.support import harness

LIBRARY = harness.BIN / "train_library.so"


@functools.cache
def train_main():
    """millrace_train() of tests/support/train_library.cc; None where the build has none."""
    if not LIBRARY.exists():
        return None
    return ctypes.CDLL(str(LIBRARY)).millrace_train


def words(texts):
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


class Popen(subprocess.Popen):
    """A subprocess.Popen of millrace-train and its arguments."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                       p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others):
        program = train_main()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for stream, number in (p2cread, 0), (c2pwrite, 1), (errwrite, 2):
                    if stream != -1:
                        os.dup2(stream, number)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                for number in signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ:  # Python's own
                    signal.signal(number, signal.SIG_DFL)
                if cwd is not None:
                    os.chdir(cwd)
                if preexec_fn is not None:
                    preexec_fn()
                os.environ.clear()
                os.environ.update(env)
                code = program(len(args), words(args), words([f"{name}={value}" for name, value in env.items()]))
                ctypes.CDLL(None).fflush(None)
                os._exit(code)
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        self._child_created = True
        for of_child, of_parent in (p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread):
            if of_child != -1 and of_parent != -1:  # a pipe, and not a file of the caller's
                os.close(of_child)


def popen(arguments, **how):
    """As subprocess.Popen(): a fork, or the program itself where it starts others of its kind."""
    arguments = list(map(str, arguments))
    starts_ranks = any(word.startswith(("--nproc", "--recipe")) for word in arguments)  # a recipe may have that option
    if starts_ranks or train_main() is None:
        return subprocess.Popen(arguments, **how)
    return Popen(arguments, **how)
