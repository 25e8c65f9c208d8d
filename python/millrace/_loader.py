"""What ImageLoader and SampleLoader have in common: epochs, positions, figures, and their ends."""

from __future__ import annotations

import atexit
import json
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Optional, TypeVar, Union

from . import _core, errors
from ._numbers import encodable, whole

T = TypeVar("T")
State = Mapping[str, Any]

_alive: "weakref.WeakSet[Any]" = weakref.WeakSet()


def remember(closes: Any) -> None:
    """Has `closes.close()` called before the interpreter ends, or its `_at_exit()`: threads of the engine must not outlive it."""
    _alive.add(closes)


def _close_all() -> None:
    for one in list(_alive):
        try:
            getattr(one, "_at_exit", one.close)()
        except Exception:  # the others are to end all the same
            traceback.print_exc()


atexit.register(_close_all)


def merge_states(states: Sequence[State]) -> dict[str, Any]:
    """One state of those that all ranks saved at the same step: any number of ranks continues from it.

    Raises BadStateError for states of different runs, or two of one rank.
    """
    if isinstance(states, (str, bytes, Mapping)) or not isinstance(states, Iterable):
        raise errors.usage(f"the states to merge are a {type(states).__name__}", "give a list: the state of every rank")
    states = [_one_checked(s) for s in states]
    if not states:
        raise errors.usage("no states to merge", "give the state of every rank")
    if any(s["position"] is None for s in states):
        if any(s != states[0] for s in states):
            raise errors.error("bad_state", "some of the states are of a beginning, others are not",
                               hint="give the state of every rank once, all of one step")
        return states[0]
    if "of_all_ranks" in states[0] and all(s == states[0] for s in states):
        return states[0]  # ranks that continued from it saved it again, before their first items
    position = _core.merged([s["position"] for s in states])
    merged = {"millrace": 1, "epoch": min(int(s["epoch"]) for s in states), "position": position}
    if "divided" in states[0] and all(s.get("divided") == states[0]["divided"] for s in states):
        merged["divided"] = states[0]["divided"]
    return {**merged, "of_all_ranks": True} if len(states) > 1 else merged


def _has_all_lanes(state: State) -> bool:
    """Whether it is of all ranks: merged, or of a job of one rank."""
    records = _records_of(state)
    lanes, plan = records.get("lanes", []), records.get("plan", [])
    return len(plan) > 2 and len(set(lanes[::5])) == plan[2]  # of a lane five numbers, the first its own


def _records_of(state: State) -> dict[str, list[int]]:
    """What a position says, by names; empty for a beginning."""
    return json.loads(state["position"])["records"] if state["position"] is not None else {}  # type: ignore[no-any-return]


def _one_checked(state: State) -> dict[str, Any]:
    if not isinstance(state, Mapping) or state.get("millrace") != 1 or not isinstance(state.get("epoch"), int) \
            or not 0 <= state["epoch"] < 2**46 or not isinstance(state.get("position", 0), (str, type(None))):
        raise errors.error("bad_state", "not a state of a millrace loader", hint="give what state_dict() returned")
    if state["position"] is not None:
        _core.check_state(encodable(state["position"]))
    return dict(state)


def _checked(state: Union[State, Sequence[State]]) -> dict[str, Any]:
    return merge_states(state) if isinstance(state, (list, tuple)) else _one_checked(state)


def _known_from(resumed: Optional[State], division: Optional[list[int]]) -> int:
    """The first epoch whose length is known, after a state. In one that was begun with another division the batches that a rank had are
    not known, nor how its rest is divided."""
    if resumed is None or resumed["position"] is None or division is None:
        return 0
    records, epoch = _records_of(resumed), int(resumed["epoch"])
    if resumed.get("divided") == division and "lanes_skip" not in records:
        return 0
    own, lanes = [of for name, of in records.items() if name.startswith("epochs_of")], records.get("lanes", [])
    if own:  # epoch_samples: first of the record, the samples given of the epoch
        is_at_begin = not any(any(of[:1]) for of in own)
    else:  # of a lane five numbers, the second its epoch, the third the samples given of that
        has_same_lanes = records.get("plan", [])[2:3] == division[1:2] or division[:2] == [1, 0]
        is_at_begin = has_same_lanes and set(lanes[1::5]) == set(records.get("lanes_epoch", [])) and \
            not any(lanes[2::5] + records.get("lanes_base", []))
    if is_at_begin:
        return epoch
    epochs = records.get("lanes_consumers", [])[1::2]  # in which the ranks were
    return epoch + 1 + max(epochs, default=0) - min(epochs, default=0)


class Epoch(Iterator[T]):
    """The rest of an epoch, from iter() of a loader. Ends once, however often it is asked afterwards; also when another loop
    over the loader has ended the epoch."""

    def __init__(self, loader: "Loader[T]") -> None:
        self._loader: Optional[Loader[T]] = loader
        self._epoch: Optional[int] = None  # whose items it gives, once it has given one

    def __iter__(self) -> "Epoch[T]":
        return self

    def __next__(self) -> T:
        loader = self._loader
        if loader is not None and self._epoch in (None, loader.epoch):
            self._epoch = loader.epoch
            item = loader._next()
            if item is not None:
                return item
        self._loader = None
        raise StopIteration


class Loader(Generic[T]):
    """An iterable of epochs. One thread at a time uses it."""

    def __init__(self) -> None:
        self._run: Any = None
        self._asked = False  # an item of it, not lengths or figures alone
        self._epoch = 0    # that the next item is of
        self._resumed: Optional[dict[str, Any]] = None
        # By what the items of an epoch are divided among the ranks: a run that is made says it, if its epochs have a length.
        self._division: Optional[list[int]] = None
        self._known_from = 0  # the first epoch whose length is known
        self._last: Optional[tuple[dict[str, Any], dict[str, Any]]] = None  # counts and figures, once closed
        self._closed = False
        remember(self)

    # Of the two kinds of loaders.
    def _make_run(self, first_epoch: int) -> Any:
        raise NotImplementedError

    def _take(self) -> Optional[T]:
        raise NotImplementedError

    def _begun(self) -> Any:
        """The run, to take an item from: from here on the state is its position."""
        run = self._opened()
        self._asked = True
        return run

    def _opened(self) -> Any:
        """The run, which is made here if there is none. For lengths and figures: the state does not depend on who asks for these."""
        if self._closed:
            raise errors.usage("this loader is closed", "make a new one")
        if self._run is not None and not self._asked and self._run.is_of_parent():
            self._run = None  # nothing was taken from it before the fork
        if self._run is None:
            resumed, position = self._resumed, None
            if resumed is not None:
                position = resumed["position"]
            # A position has its own epoch, counted from that of the run that saved it.
            run = self._make_run(self._epoch if position is None else 0)
            if position is not None:
                run.restore(position)
            self._run, self._known_from = run, _known_from(resumed, self._division)
        return self._run

    def _samples_in_epoch(self, or_what: str = "") -> int:
        """Of this rank, as __len__() says. Raises TypeError.

        Args:
            or_what: what else than an index tells it, for the error.
        """
        samples: int = self._opened().samples_in(self._epoch)
        if samples < 0:
            raise TypeError(f"the number of samples is not known: give an index (`millrace index SHARDS -o train.json`){or_what}")
        if self._epoch < self._known_from:
            raise TypeError("the length of this epoch is not known: it was begun with another number of ranks, other lanes or another "
                            "batch_size; that of the next epoch is")
        return samples

    def _next(self) -> Optional[T]:
        item = self._take()
        if item is None:
            self._epoch += 1
        return item

    def __iter__(self) -> Epoch[T]:
        """The rest of the epoch: all of it, unless a loop was left before its end or a position was loaded. The next
        loop gives the next epoch, in another order."""
        return Epoch(self)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next item is of, from 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Continues with the beginning of this epoch. Does nothing if the loader is in it already, so that a loop may
        call it before each epoch, also after load_state_dict()."""
        epoch = whole("epoch", epoch)
        if epoch != self._epoch:
            self._restart({"millrace": 1, "epoch": epoch, "position": None})

    def state_dict(self) -> dict[str, Any]:
        """The position after the last item that was given: numbers and texts, which JSON, torch.save() and pickle
        take. It holds no samples, but the places of those that the shuffle holds (about 4 bytes each).

        Of this rank: a job with several saves those of all ranks, and loads their list."""
        if self._closed:
            raise errors.usage("this loader is closed", "call state_dict() before close(), and before the end of a `with`")
        if self._run is None or not self._asked:
            return {"millrace": 1, "position": None, **(self._resumed or {}), "epoch": self._epoch}
        divided = {"divided": self._division} if self._division is not None and self._epoch >= self._known_from else {}
        return {"millrace": 1, "epoch": self._epoch, "position": self._position(), **divided}

    def _position(self) -> str:
        """Of the run, after what was given."""
        return self._run.save()  # type: ignore[no-any-return]

    def load_state_dict(self, state: Union[State, Sequence[State]]) -> None:
        """Continues from a position: with the same data and arguments, the next item is the one that would have come.

        Args:
            state: what state_dict() returned, or a list of what it returned on all ranks at the same step. With a
                list, the number of ranks may be another one.

        Raises BadStateError for what is not a state; and, at the next item, for one that was saved with other shards (their list as it is
        written, the companions of a join, or an index with other lengths), another `seed` or `epoch`, another `train` (of samples():
        `shuffle_shards`), with a shuffle where there is none or the reverse, with `epoch_samples` where there are none or the reverse, or
        with other `lanes` on several ranks, unless it is the list of all.

        Nothing else is compared: not what the shards hold, but for the beginning of one that was under way; nor the sizes of `shuffle`,
        `batch_size` and `epoch_samples`, `size`, `label`, `fields`, `augment`, tables that are joined, or `on_error`. With another of
        these the loader goes on at that place in the order, with items as the new argument makes them."""
        checked = _checked(state)
        # Any number of ranks may load it, and save it again before their first items: then they do not have the same lanes twice.
        self._restart({**checked, "of_all_ranks": True} if _has_all_lanes(checked) else checked)

    def _restart(self, state: dict[str, Any]) -> None:
        if self._closed:
            raise errors.usage("this loader is closed", "make a new one")
        if self._run is not None:
            self._run.close()
        self._run, self._asked, self._resumed, self._epoch = None, False, state, int(state["epoch"])

    def _for_worker(self) -> "Loader[T]":
        """A loader of the same data, not begun, at the beginning of the epoch that this one is in."""
        fresh = type(self).__new__(type(self))
        fresh.__setstate__({**self._pickled(), "state": {"millrace": 1, "epoch": self._epoch, "position": None}})
        return fresh

    def _named_shards(self) -> list[str]:
        """The specs of its shards; empty: of a plan in C++, which is not asked."""
        return []

    def _pickled(self) -> dict[str, Any]:
        """What a loader of the same data is made of, without its position."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**self._pickled(), "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        raise NotImplementedError

    def skipped(self) -> dict[str, Any]:
        """Counts of samples since the run began: "delivered", "skipped" (by kind of error), "dropped" (of batches cut
        short), "lost" (of shards that could not be read; without an index an estimate), "incomplete_shards" (not read whole, of which
        nobody knows what they lack: there is no index), "damaged" (decoded with warnings), "left_out" and
        "without_companion" (that a joined shard or table does not have: with missing="skip", and with "none"),
        "companions_alone" (of joined shards, without a main sample), and "messages", the first hundred errors as texts. Of archives:
        "lost_bytes" (of damaged shards, skipped before the next valid header), and the members that belong to no sample: "not_files"
        (links and devices), "without_key" (names without an extension) and "meta_files" (named __x__).
        They are of what the loop was given; of samples, which are taken several at a time, up to 64 further."""
        return self._last[0] if self._last is not None else self._opened().counts()

    def stats(self) -> dict[str, Any]:
        """Figures since the run began; times in seconds. "limit" says what limits the loop: "consumer" (the loop
        itself: a faster loader would change nothing), "decoding", "io thread", "reading", "host" (other programs use
        the CPUs); "stages" has each stage's items, bytes, and times."""
        figures = dict(self._last[1] if self._last is not None else self._opened().stats())
        figures["limit"] = limit_of(figures)
        return figures

    def close(self) -> None:
        """Ends the run and its threads. Items that were given stay valid. Called at the end of a `with`, when the
        loader is collected, and when the interpreter ends. While another thread waits for an item, that wait ends with
        StoppedError."""
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            if not run.is_of_parent() and not run.is_busy():
                self._last = run.counts(), run.stats()
            run.close()

    def __enter__(self) -> "Loader[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def limit_of(f: Mapping[str, Any]) -> str:
    """What limits a run with these figures, by the rules of `millrace bench load` but for one: a process that keeps nearly all
    CPUs busy is not "decoding" for that, because here the loop is a part of it."""
    seconds, busy = f["seconds"], f["threads_busy"]
    if seconds <= 0 or f["waited"] < 0.02 * seconds:
        return "consumer"
    on_cpu = min(1.0, f["threads_cpu"] / busy) if busy > 0 else 1.0
    pool = busy / (seconds * max(1, f["threads"]))
    if pool > 0.85:
        return "host" if on_cpu < 0.7 else "decoding"
    if f["io_thread_cpu"] > 0.85 * seconds:
        return "io thread"
    waited = next((s["waiting_input"] for s in f["stages"] if s["name"] in ("decode_jpeg", "map")), 0)
    if waited > seconds / 2 or f["threads"] == 0:
        return "reading"
    return "host" if on_cpu < 0.7 or pool < 0.4 else "decoding"
