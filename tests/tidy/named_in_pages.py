"""What is named elsewhere is there: tests, headers and files in pages, sentences of the library in Python's words for them."""

import re


def fault_rules(root, files):
    """docs/faults.md: every test that a row names exists."""
    known = set()
    for path in files:
        if path.parts[0] != "tests" or path.suffix == ".h":
            continue
        text = (root / path).read_text()
        known |= {".".join(t) for t in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", text, re.M)}
        suite = ""
        for line in text.splitlines():
            if found := re.match(r"class (\w+)\(", line):
                suite = found[1]
            if found := re.match(r"    def (test_\w+)\(", line):
                known.add(f"{suite}.{found[1]}")
    breaches = []
    for number, line in enumerate((root / "docs/faults.md").read_text().splitlines(), 1):
        if not re.match(r"\| \d+ \|", line):
            continue
        named = re.findall(r"`(\w+\.\w+)`", line)
        if not named:
            breaches.append(f"docs/faults.md:{number}: no test is named")
        breaches += [f"docs/faults.md:{number}: no test is called {t}" for t in named if t not in known]
    return breaches


def readme_rules(root, files, folders):
    """The README.md of each library's folder tells of every header in it."""
    breaches = []
    for path in files:
        folder = path.parts[0]
        if path.suffix == ".h" and folder in folders and path.name != "precompiled.h":
            if not re.search(rf"\b{path.stem}\b", (root / folder / "README.md").read_text()):
                breaches.append(f"{path}: {folder}/README.md does not say what it is")
    return breaches


def contributing_rules(root):
    """The files that CONTRIBUTING.md names, but for those that are to be written, exist."""
    breaches, base = [], ""
    for number, line in enumerate((root / "CONTRIBUTING.md").read_text().splitlines(), 1):
        for named in re.findall(r"`([\w/]*\.(?:h|cc|py))`", line):
            if named.startswith("."):
                named = base + named  # `x.h`, `.cc`
            base = named.rsplit(".", 1)[0]
            if "/" in named and "NAME" not in named and not (root / named).exists():
                breaches.append(f"CONTRIBUTING.md:{number}: no file is called {named}")
    return breaches


def sentence_rules(root, files):
    """The sentences that python/src/errors.cc replaces are those of the library: as a whole, or in the parts of which it makes them."""
    joined = {p: re.sub(r'"\s*"', "", (root / p).read_text()) for p in files if p.parts[0] in ("io", "pipeline") and p.suffix == ".cc"}
    said = "\n".join(joined.values())
    table = re.search(r"constexpr auto states = .*?\n\}\);", (root / "python/src/errors.cc").read_text(), re.S)[0]
    breaches = []
    for sentence in re.findall(r'\{\s*"([^"]*)",', re.sub(r'"\s*\n\s*"', "", table)):
        # "belongs to another plan: " + what differs; "the saved state's record {}", + the name.
        if not all(part in said or part.rpartition(" ")[0] in said for part in sentence.split(": ")):
            breaches.append(f"python/src/errors.cc: the library does not say '{sentence}'")
    return breaches


def breaches(root, files, libraries):
    return sentence_rules(root, files) + fault_rules(root, files) + readme_rules(root, files, [f for f in libraries if f != "cli"]) + contributing_rules(root)
