"""Words that native readers stumble over, in comments, messages and pages."""

import re

# Add a folder once it is clean.
PLAIN_FOLDERS = ("bench", "cli", "engine", "io", "pipeline", "python", "tools", "train")
PLAIN_PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md")
PLAIN_WORDS = {
    r"\b(gone|goes|go|going) on with\b": "continue, resume, retry",
    r"\bbesides\b": "in addition to, other than",
    r"\b(is|are) no part of\b": "is not a part of",
    r"\bheed(ed|s)?\b": "use, obey",
    r"\bthat there (is|are) no\b": "name what lacks it",
    r"\banew\b": "again, from the start",
    r"\bdealt\b": "assign, distribute",
    r"\bfor ever\b": "forever",
    r"\bwhoever\b|(^|[.:;] )Who [a-z]+\b": "the reader that, a process that",
    r"\b(told|tells?) of\b": "report",
    r"\bone's own\b": "your own",
    r"\bmend(ed|s|ing)?\b": "repair, fix",
    r"\b(stands?|stood|lies?|lay) (behind|in front of)\b|\bbehind (it|them|lanes|the lanes)\b": "after, downstream of, before",
    r"\bseen to be\b": "verified",
    r"\bby its word\b|\bto the byte\b": "unchecked, byte-for-byte",
    r"\bat the (least|most)\b": "at least, at most",
    r"(?<!there\s)\b(is|are) no (?!longer|more|less|fewer|further|earlier|later|larger|longer)(?=\w)": "is not a",
}


def prose_of_code(text):
    """(line, words) of each comment and each string; the lines of a comment are joined, and so are adjacent literals."""
    begin, kind, words, end = 0, "", "", 0
    for found in re.finditer(r'"(?:\\.|[^"\\\n])*"|//[^\n]*', text):
        joins = kind == found[0][0] and not text[end:found.start()].strip()
        if not joins:
            if words:
                yield text.count("\n", 0, begin) + 1, words
            begin, kind, words = found.start(), found[0][0], ""
        words += found[0][1:-1] if kind == '"' else found[0][2:]
        end = found.end()
    if words:
        yield text.count("\n", 0, begin) + 1, words


def breaches(root, sources):
    """The places of `sources`, and of pages below `root`, that have one of PLAIN_WORDS."""
    pages = {p for pattern in PLAIN_PAGES for p in root.glob(pattern)} | {root / f / "README.md" for f in PLAIN_FOLDERS}
    prose = [(p, [(1, p.read_text())]) for p in sorted(pages) if not p.name.startswith("hostile")]  # output of programs
    prose += [(root / p, prose_of_code((root / p).read_text())) for p in sources if p.parts[0] in PLAIN_FOLDERS]
    found_words = []
    for path, pieces in prose:
        for line, words in pieces:
            if " " not in words.strip():
                continue  # a key, not prose
            for pattern, instead in PLAIN_WORDS.items():
                for found in re.finditer(pattern.replace(" ", r"\s+"), words, 0 if "Who" in pattern else re.I):
                    at = line + words.count("\n", 0, found.start())
                    found_words.append(f"{path.relative_to(root)}:{at}: '{' '.join(found[0].split())}': plainer: {instead}")
    return found_words
