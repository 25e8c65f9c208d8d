"""Functions that a header declares and a room above it defines: an arrow up that no include shows. Part of `tidy.py --text`.

By names alone: a name that the header's own room defines too is taken to be that one."""

import collections
import re

from unused_names import code_of

HEAD = r"^(?!extern\b)[A-Za-z_][\w:<>,&* \[\]]*?[\w>&*\]] [&*]*(\w+)\((?:[^;{}]|\{\})*\)(?: noexcept)?"
DECLARED = re.compile(HEAD + r";", re.M)
DEFINED = re.compile(HEAD + r"(?: ->[^{;]*)? \{", re.M)
MEANT = {
    "engine/host/seams.h",   # what the simulator replaces
    "pipeline/plan/plan.h",  # interleaved(): a stage after the lanes of a plan is a stage of all of them
}


def hidden(files, room_of):
    """`files`: {path: text}; `room_of`: the room's number, from the ground up. (path, name, path of the definition)."""
    declared, defined = {}, collections.defaultdict(dict)
    for path, text in files.items():
        code = code_of(text)
        if path.endswith(".h") and path not in MEANT:
            declared.update(((path, found[1]), room_of(path)) for found in DECLARED.finditer(code))
        for found in DEFINED.finditer(code):
            defined[found[1]].setdefault(room_of(path), path)
    for (path, name), room in declared.items():
        if defined[name] and min(defined[name]) > room:
            yield path, name, defined[name][min(defined[name])]
