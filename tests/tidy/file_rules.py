"""Rules on what a failed call of the operating system becomes. Part of `tidy.py --text`."""

import re

# A kind that stands for an errno.
OF_ERRNO = r"(?<!= )errc::(not_found|not_allowed|no_descriptors|no_memory|io_failed)\b"


def errno_rules(text):
    """(line, what is wrong): an error with a cause() has the kind that kind_of() gives to its errno, so that one errno
    is one kind, exit code and policy wherever it comes from."""
    code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    for found in re.finditer(OF_ERRNO + r"[^;{}]*?\.cause\(", code):
        yield code.count("\n", 0, found.start()) + 1, "an error with a cause has the kind of its errno: kind_of(errno)"
    # pipe_source.cc: the URL of a command that does not exist is no missing object.
    for found in re.finditer(rf"== -?E[A-Z]+\b[^;{{}}]*?\?\s*{OF_ERRNO}[^;{{}}]*;", code):
        if "kind_of(" not in found[0]:
            yield code.count("\n", 0, found.start()) + 1, "kind_of(errno) gives an errno its kind"
