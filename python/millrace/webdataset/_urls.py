"""Lists of shards as texts: "a-{00..99}.tar::b.tar", with ${VAR} from WDS_VAR, as webdataset expands them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Union

from .. import errors
from .._spec import Shards

_RANGE = re.compile(r"^(-?\d+|[a-zA-Z])\.\.(-?\d+|[a-zA-Z])(?:\.\.(-?\d+))?$")
_MOST = 10_000_000  # names: more are a mistake


def _numbers(first: str, last: str, step: int) -> Iterator[str]:
    a, b = int(first), int(last)
    is_padded = any(len(x.lstrip("-")) > 1 and x.lstrip("-")[0] == "0" for x in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    if abs(b - a) // step > _MOST:
        raise errors.usage(f"more than {_MOST} shards in {{{first}..{last}}}", "give a smaller range")
    return (f"{n:0{width}}" for n in range(a, b + (1 if b >= a else -1), step if b >= a else -step))


def _range(content: str) -> Union[Iterable[str], None]:
    found = _RANGE.match(content)
    if found is None:
        return None
    first, last, step = found[1], found[2], abs(int(found[3] or 1)) or 1
    if first.isalpha() != last.isalpha():
        return None
    if not first.isalpha():
        return _numbers(first, last, step)
    a, b = ord(first), ord(last)
    return [chr(c) for c in range(a, b + (1 if b >= a else -1), step if b >= a else -step)]


def _closing(text: str, at: int) -> tuple[int, list[int]]:
    """The place of the brace that closes the one at `at` (-1: none), and of the commas between them."""
    depth, i = 0, at
    commas: list[int] = []
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i, commas
        elif text[i] == "," and depth == 1:
            commas.append(i)
        i += 1
    return -1, commas


def braces(text: str, of: str = "") -> list[str]:
    """The names of a text with "{000..123}" and "{a,b}".

    Args:
        of: the name of which it is a part; empty: it is the whole one.
    """
    at, of = 0, of or text
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "{":
            end, commas = _closing(text, at)
            if end < 0:
                raise errors.usage(f"a brace that is not closed in {errors.shown(of)}", "close it, or write \\{ for one in a name")
            ends = [at, *commas, end]
            parts = _range(text[at + 1:end]) if not commas else [
                one for a, b in zip(ends, ends[1:]) for one in braces(text[a + 1:b], of)]
            if parts is not None:
                tails = braces(text[end + 1:], of)
                head = re.sub(r"\\(.)", r"\1", text[:at])
                return [head + part + tail for part in parts for tail in tails]
            inner = braces(text[at + 1:end], of)
            tails = braces(text[end + 1:], of)
            head = re.sub(r"\\(.)", r"\1", text[:at])
            return [f"{head}{{{part}}}{tail}" for part in inner for tail in tails]
        at += 1
    return [re.sub(r"\\(.)", r"\1", text)]


def _variables(text: str) -> str:
    def of(found: "re.Match[str]") -> str:
        name = "WDS_" + found[1]
        if name not in os.environ:
            raise errors.usage(f"${{{found[1]}}} in {errors.shown(text)}", f"set {name}")
        return os.environ[name]
    for _ in range(10):
        text, before = re.sub(r"\$\{(\w+)\}", of, text), text
        if text == before:
            break
    return text


def expand_urls(urls: Shards) -> list[str]:
    """The names that a text stands for; a list as it is."""
    if isinstance(urls, (str, os.PathLike)):
        return [one for part in os.fspath(urls).split("::") for one in braces(_variables(part))]
    return [os.fspath(u) for u in urls]
