"""Rules on single files: calls of the file system (what a failed one becomes, where one may be made), what is written once, and numbers of
enumerators. Part of `tidy.py --text`."""

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


# Calls that tests cannot see to be made on an I/O thread.
TOUCHES_FILES = (r"\bstd::i?o?fstream\b|\bfopen\(|(?<![\w.>])(?:::)?open\([^\n]*\bO_[A-Z]|\bopendir\(|\bdirectory_iterator\b|\b(?:fs|filesystem)::(?:exists|is_\w+|canonical|"
                 r"file_size|last_write_time|read_symlink|status|remove\w*|rename|create_\w+)\(|\baccess\(|(?<![\w.>:])l?stat\(\w+\.c_str")
# Of io/, in the pool or before the run begins.
MAY_TOUCH_FILES = {
    "io/disks/topology.cc",   # /sys and /proc
    "io/disks/mounts.cc",
    "io/disks/disk.cc",
    "io/files/file_source.cc",   # /proc/meminfo
    "io/standard_sources.cc",
    "io/http/tls.cc",   # OpenSSL reads its files itself
}


def access_rules(path, text):
    """(line, what is wrong): io/ reads and writes files by host_files(), so that a test sees those calls of an I/O thread that may
    block (SecretFiles, simulator.cc)."""
    if not path.startswith("io/") or path in MAY_TOUCH_FILES:
        return
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'"(\\.|[^"\\])*"|//.*', "", line)
        if re.search(TOUCHES_FILES, code):
            yield number, "files are for host_files(), away from I/O threads: offload() or blocking()"


# Where a letter's case is changed, and what a scheme is: once each.
ONCE = {
    r"'A'[^\n]*'Z'|\b(?:std::)?to(?:lower|upper)\(": ("engine/base/words", "lowered() ignores the case of letters"),
    r"([\w.>*()-]+)\s*(==|!=)\s*\"https?\"\s*(?:\|\||&&)\s*\1\s*\2\s*\"https?\"|starts_with\(\"http(?:://)?\"\)": (
        "io/names/url", "is_web() knows the schemes of HTTP"),
    r"\"(s3|gs|az|ais|hf)(?:://)?\"(?:\s*,\s*\"(?!\1)(?:s3|gs|az|ais|hf|https?)(?:://)?\"|"
    r"\s*(?:\|\||&&)[^;{}\"]*\"(?!\1)(?:s3|gs|az|ais|hf|https?)(?:://)?\")": (
        "io/stores/known_stores", "known_stores lists the schemes of stores: is_of_store()"),
}


def once_rules(path, text):
    """(line, what is wrong): letters made small by hand, and second lists of schemes."""
    code = re.sub(r"//[^\n\"]*(?=\n)", lambda comment: " " * len(comment[0]), text)
    for pattern, (home, what) in ONCE.items():
        if path.rsplit(".", 1)[0] == home:
            continue
        for found in re.finditer(pattern, code):
            yield code.count("\n", 0, found.start()) + 1, what


def record_rules(path, text):
    """(line, what is wrong): the numbers of a saved state's record have names: a struct whose in() reads them by designated
    initializers, and whose of() writes them. records.cc has the structs of lists."""
    if path == "pipeline/state/records.cc" or not path.startswith(("pipeline/", "cli/", "train/")):
        return
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"//.*", "", line)
        named = re.sub(r"\.\w+ = \{?(static_cast<[\w:]+>\()?(\(\*r\)|r)\[\d\](, r\[\d\])?", "", code)
        if re.search(r"\(\*(r|plan|record|was|is)\)\[\w|\br\[[2-9]\]", named):
            yield number, "a record is read by names: a struct with in() and of(), as shuffle_record"


def enum_rules(text):
    """(line, what is wrong): enumerators that are given numbers, as the purposes of random numbers are, have different ones."""
    for enum in re.finditer(r"\benum\s+(?:class\s+)?\w+[^;{]*\{([^}]*)\}", text):
        code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), enum[1])
        seen = {}
        for found in re.finditer(r"\b(\w+)\s*=\s*(\d+|0x[0-9a-fA-F]+)\s*(?:,|$)", code):
            name = seen.setdefault(int(found[2], 0), found[1])
            if name != found[1]:
                yield text.count("\n", 0, enum.start(1) + found.start()) + 1, f"{found[1]} has the number of {name}"


def rules(path, text):
    """All of them: (line, what is wrong)."""
    return [*errno_rules(text), *access_rules(path, text), *once_rules(path, text), *record_rules(path, text), *enum_rules(text)]
