"""PlanLoader: plans of C++ that an extension of a program's own has."""

from __future__ import annotations

from typing import Any, Union

from . import _core, errors
from ._loader import Loader
from ._spec import Rank, byte_count, known_rank, place, thread_count


class PlanLoader(Loader[Any]):
    """An iterable of epochs of what a plan in C++ gives, with the methods of every loader.

        import own_plans  # compiled with <millrace/python.h>
        loader = mr.PlanLoader(own_plans.Packed("text-{000000..000009}.tar", 2048), rank="auto")

    Args:
        plan: an object of a class that `bind_plan` of C++ has made. It can be pickled.
        rank, memory, threads: as in ImageLoader. The plan is told the rank; its own arguments say the rest.

    Errors, epochs and positions as in ImageLoader. Raises UsageError for what is not such a plan, or is one of another version of millrace.
    """

    def __init__(self, plan: Any, *, rank: Rank = "auto", memory: Union[int, str, None] = None,
                 threads: Union[int, str] = "auto") -> None:
        super().__init__()
        version = getattr(plan, "_millrace_version", None)
        if not isinstance(version, str) or isinstance(plan, type):
            raise errors.usage(f"{errors.shown(plan)} is not a plan",
                               "give an object of a class that bind_plan() of <millrace/python.h> has made")
        if version.split(".")[:2] != _core.version.split(".")[:2]:
            raise errors.usage(f"{type(plan).__module__}.{type(plan).__qualname__} was compiled with millrace {version}, and this is "
                               f"millrace {_core.version}", "compile it with the headers of this version")
        self._plan = plan
        self._options: dict[str, Any] = {"rank": rank, "memory": memory, "threads": threads}
        self._arguments()

    def _arguments(self) -> tuple[int, int, int, int]:
        rank, world_size = place(self._options["rank"])
        return rank, world_size, thread_count(self._options["threads"]), byte_count("memory", self._options["memory"])

    def _make_run(self, first_epoch: int) -> Any:
        rank, world_size, threads, memory = self._arguments()
        return self._plan._run(rank, world_size, first_epoch, threads, memory)

    def _take(self) -> Any:
        return self._begun().next()

    def _pickled(self) -> dict[str, Any]:
        return {"plan": self._plan, "options": {**self._options, "rank": known_rank(self._options["rank"])}}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__init__(pickled["plan"], **pickled["options"])  # type: ignore[misc]
        self.load_state_dict(pickled["state"])

    def __repr__(self) -> str:
        return f"<millrace.PlanLoader of {self._plan!r}, epoch {self.epoch}>"
