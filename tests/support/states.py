"""Saved states as text, for tests that need one without a run."""

import json


def fingerprint(text, so_far=0xcbf29ce484222325):
    for byte in text.encode():
        so_far = (so_far ^ byte) * 0x100000001b3 % 2**64
    return so_far


def text_of(records, held=None, version=2):
    """As state::to_json() writes it."""
    parts = [json.dumps(part, sort_keys=True, separators=(",", ":")) for part in (records, held or {})]
    checksum = fingerprint(parts[1], fingerprint(parts[0]))
    return f'{{"checksum":"{checksum:016x}","held":{parts[1]},"millrace_state":{version},"records":{parts[0]}}}'


# Of one lane, at the beginning of its first epoch.
BEGIN = text_of({"lane0/cursor": [0, 0, 0, 0], "lane0/group": [0, 0, 0, 0, 0], "lanes": [0, 0, 0, 0, 0], "lanes_base": [0],
                 "lanes_epoch": [0], "plan": [1, 0, 1, 0, 1]})
