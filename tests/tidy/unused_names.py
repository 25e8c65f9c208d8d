"""What headers declare and nothing but tests uses: functions, types, constants and members. Part of `tidy.py --text`.

By names alone, so it takes a second and misses what shares its name with something that is used. What programs are offered (the
headers that <millrace/...> includes) is not looked at."""

import collections
import re

NOT_A_TYPE = r"(?:return|co_return|co_await|co_yield|throw|else|case|new|delete|goto|not|and|or|using|typename|friend|namespace|typedef)\b"
# A function's declaration, or its definition outside of its class: a type, and a name before a parenthesis.
FUNCTION = re.compile(rf"^(?! *{NOT_A_TYPE}) *(?:template <[^\n]*> *)?[\w:<>,&*\[\] ]*[\w>&*\]] [&*]*(?:[\w<>]+::)*(\w+)\((?![^\n]*(?:std::move|\[))", re.M)
TYPE = re.compile(r"\b(?:class|struct|enum class|enum|concept|union)(?: \[\[nodiscard\]\])? (\w+)(?=[ ;:{])|\busing (\w+) =")
DATUM = re.compile(rf"^(?! *{NOT_A_TYPE}) *[\w:<>,&*\[\] ]*[\w>&*\]] [&*]*([A-Za-z_]\w*)(?:\[\w*\])?(?: = [^\n]*|\{{[^\n]*\}})?;", re.M)
DECLARATIONS = (FUNCTION, TYPE, DATUM)
FOR_TESTS = {"engine/host/seams.h"}
# Read by the language, the standard library and those who include them.
BY_CONVENTION = {"begin", "end", "main", "value_type", "promise_type", "is_transparent", "type", "reference", "pointer", "difference_type",
                 "iterator_category", "rep", "period", "duration", "time_point"}


def code_of(text):
    """Without comments, includes and what strings say."""
    return re.sub(r'^ *#include[^\n]*|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.M | re.S)


def declared_in(code):
    """The names that are declared, with where each stands."""
    for pattern in DECLARATIONS:
        for found in pattern.finditer(code):
            for group in range(1, pattern.groups + 1):
                if found[group]:
                    yield found[group], found.start(group)


def is_for_tests(lines, number):
    """Whether the comment on or before the line says so."""
    first = number - 1
    while first > 0 and lines[first - 1].strip():
        first -= 1
    return any(re.search(r"//.*\btests\b", line) for line in lines[first:number])


def unused(files, offered):
    """`files`: {path: text}, `offered`: paths of headers whose names programs use. (path, line, name) of what nothing uses."""
    uses, declared = collections.Counter(), {}
    for path, text in files.items():
        code = code_of(text)
        if path.startswith("tests/"):
            continue
        names = dict.fromkeys(declared_in(code))
        standing = {at for _, at in names}
        uses.update(found[0] for found in re.finditer(r"\b[A-Za-z_]\w*", code) if found.start() not in standing)
        if path.endswith(".h") and path not in offered:
            for name, at in names:
                declared.setdefault(name, (path, at))
    for name, (path, at) in sorted(declared.items(), key=lambda item: item[1]):
        if uses[name] == 0 and name not in BY_CONVENTION:
            lines = files[path].splitlines()
            number = next(n for n, line in enumerate(lines, 1) if re.search(rf"\b{name}\b", re.sub("//.*", "", line)))
            if path not in FOR_TESTS and not is_for_tests(lines, number):
                yield path, number, name
