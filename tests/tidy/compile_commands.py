"""What a build's compiler is told, by source; also of sources that are compiled together."""

import json
import pathlib
import re


def units(build):
    """(sources, command) of each thing that is compiled: one source, or all that a unit includes."""
    listed = pathlib.Path(build) / "compile_commands.json"
    for entry in json.loads(listed.read_text()):
        file = pathlib.Path(entry["file"])
        together = file.parent.name == "Unity"
        sources = re.findall(r'^#include "(.*)"$', file.read_text(), re.M) if together else [file]
        yield [pathlib.Path(source).resolve() for source in sources], entry["command"]
