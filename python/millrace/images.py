"""ImageLoader: shards of images to batches of tensors."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn, Optional, Union

from . import _core, errors
from ._loader import Loader
from ._spec import Rank, Shards, _worker, byte_count, check_epoch, common
from .joins import Join, joins_of
from .options import Augment, skip


class Batch(tuple):  # type: ignore[type-arg]
    """(images, labels), and what else is known of a batch.

    Attributes:
        images: uint8, RGB. For torch of shape (N, 3, size, size), channels last in memory; for numpy (N, size, size, 3).
        labels: int64 of shape (N,); -1: a sample without a label.
        keys: the samples' keys, N texts.
        epoch: of the first image, from 0.

    The arrays share the engine's memory, without a copy, and keep it until they are released: a loop that collects
    batches copies them (`images.clone()`, `images.copy()`). They may be written to.
    """

    keys: list[str]
    epoch: int

    @property
    def images(self) -> Any:
        """The pixels."""
        return self[0]

    @property
    def labels(self) -> Any:
        """The classes."""
        return self[1]


def _uses_torch(output: str) -> bool:
    if output not in ("auto", "torch", "numpy"):
        raise errors.usage(f"output is {output!r}", "give 'torch', 'numpy' or 'auto'")
    uses_torch = output == "torch" or (output == "auto" and importlib.util.find_spec("torch") is not None)
    needed = "torch" if uses_torch else "numpy"
    if importlib.util.find_spec(needed) is None:
        raise errors.usage(f"output={output!r} needs {needed}, which is not installed", f"pip install {needed}")
    return uses_torch


def _refuse(device: Optional[str], dtype: str) -> None:
    if device not in (None, "cpu"):
        raise errors.not_offered(f"device={device!r}", f"images.to({device!r}, non_blocking=True) in the loop")
    if dtype != "uint8":
        raise errors.not_offered(f"dtype={dtype!r}", "images.float().div_(255) in the loop, on the device")


class ImageLoader(Loader[Batch]):
    """Batches of images from shards: read, shuffled, decoded, cropped and batched by threads in C++.

        train = mr.ImageLoader("s3://bucket/train-{000000..001281}.tar", batch_size=256, size=224, shuffle=10_000)
        for epoch in range(90):
            for images, labels in train:
                ...

    One loop is one epoch, the next loop the next one, in another order. A loop that was left continues where it was.
    Nothing is opened before the first item is asked for; then threads start, in the process that asks.

    Args:
        shards: paths, URLs (s3://, gs://, az://, hf://, ais://, http(s)://), brace ranges `{000000..000099}`, folders, or a list of
            these; or one index of `millrace index`, a path or URL that ends in .json, which knows the number of samples.
        batch_size: images in a batch, 1 to 2^20.
        size: width and height of the images, in pixels.
        train: random-resized-crop and flip, in a permuted order of shards. False: resize and centre crop, in the
            list's order.
        resize: without `train`, the shorter side before the centre crop, in pixels; 0: size x 256 / 224.
        label: the class: "auto" (the first of cls, cls2, index, inx, id), an extension, "json:A.B", or "none".
        classes: above 0: labels outside [0, classes) are errors.
        images: the fields that are images, the first that a sample has: "jpg;png". None: all formats.
        augment: `mr.Augment(...)`: further changes, crop areas and flips; with `train` only.
        shuffle: samples that the shuffle holds, over all ranks; 0: none beyond the order of shards.
        seed: of shards, shuffle, crops and changes: the same seed gives the same batches, whatever the threads.
        epoch: "exact" (each sample once; ranks may differ in length), "equal" (as many on each rank, the remainder is
            left out; needs an index), "equal_repeating" (some twice instead), "resample" (shards are drawn forever).
        epoch_samples: samples of an epoch over all ranks, whatever the data's own epochs are; None: those.
        drop_last: leaves out batches that the end of an epoch cuts short.
        rank: "auto" (torch.distributed, else torchrun's, Slurm's or MPI's variables), or (rank, number of ranks).
        lanes: parallel orders of shards, as the engine's `lanes`; 0: the smallest multiple of the ranks from 8 on;
            -1: one for each rank, which reads its shards one after the other.
        device, dtype: None and "uint8"; others are refused with the line to write instead.
        output: "torch", "numpy", or "auto": torch where it is installed.
        memory: the budget for everything under way, in bytes or as "4GiB"; None: a quarter of the host's, at most 4 GiB.
        threads: that decode, or "auto": as few as keep the loop from waiting.
        cache: a folder for copies of fetched shards; None: as MILLRACE_CACHE says.
        cache_decoded: memory for decoded images of earlier epochs, in bytes or as "8GiB", beyond `memory`; None: none.
        held: batches that the loop keeps at once: `memory` has room for them.
        prefetch: batches that are kept ready.
        on_error: `mr.skip(...)`; None: the first bad sample ends the loop.
        resync: after damage in a shard, continues with its next valid header rather than with the next shard.
        allow_pipe: lets `pipe:` URLs run commands.
        join: fields of other shards or of a table, such as the labels: "labels/{}.tar", a `mr.Join(...)`, or a list of these.

    Raises subclasses of `millrace.Error`: wrong arguments here or at the first item, bad samples and shards where they
    are reached. Variables MILLRACE_* are read as by the command line tools; arguments win.
    """

    def __init__(self, shards: Shards, batch_size: int, *, size: int = 224, train: bool = True, resize: int = 0,
                 label: str = "auto", classes: int = 0, images: Optional[str] = None, augment: Optional[Augment] = None,
                 shuffle: int = 0, seed: int = 0, epoch: str = "exact", epoch_samples: Optional[int] = None,
                 drop_last: bool = False, rank: Rank = "auto", lanes: int = 0, device: Optional[str] = None,
                 dtype: str = "uint8", output: str = "auto", memory: Union[int, str, None] = None,
                 threads: Union[int, str] = "auto", cache: Optional[str] = None,
                 cache_decoded: Union[int, str, None] = None, held: int = 2, prefetch: int = 2,
                 on_error: Optional[skip] = None, resync: bool = False, allow_pipe: bool = False,
                 join: Union[None, str, Join, Iterable[Union[str, Join]]] = None) -> None:
        _refuse(device, dtype)
        check_epoch(epoch)
        if augment is not None and not train:
            raise errors.usage("augment without train", "leave out one of them")
        super().__init__()
        self._torch = _uses_torch(output)
        self._options: dict[str, Any] = {
            "common": {"seed": seed, "epoch": epoch, "rank": rank, "lanes": lanes, "shuffle": shuffle,
                       "shuffle_shards": train, "fields": "", "memory": memory, "threads": threads, "cache": cache,
                       "allow_pipe": allow_pipe, "resync": resync, "on_error": on_error},
            "images": {"batch_size": batch_size, "size": size, "train": train, "resize": resize, "label": label,
                       "classes": classes, "drop_last": drop_last, "held": held, "prefetch": prefetch},
            "shards": shards, "names": images, "augment": augment, "epoch_samples": epoch_samples,
            "cache_decoded": cache_decoded, "torch": self._torch, "joins": joins_of(join)}
        self._warned = False
        self._spec(0)  # refuses what can be refused before anything is opened

    def _spec(self, first_epoch: int) -> _core.Spec:
        o = self._options
        spec = common(o["shards"], **o["common"])
        for name, value in o["images"].items():
            setattr(spec, name, value)
        spec.first_epoch = first_epoch
        if o["names"] is not None:
            spec.set_images(o["names"])
        if o["augment"] is not None:
            o["augment"].apply(spec)
        if o["epoch_samples"] is not None:
            batches = o["epoch_samples"] // spec.world_size // spec.batch_size
            if batches < 1:
                raise errors.usage(f"epoch_samples={o['epoch_samples']} is less than a batch of each rank")
            spec.epoch_length = batches * spec.batch_size
        return spec

    def _make_run(self, first_epoch: int) -> Any:
        spec = self._spec(first_epoch)
        if self._options["cache_decoded"] is not None:
            spec.cache_decoded(byte_count(self._options["cache_decoded"]))
        for one in self._options["joins"]:
            one.apply(spec)
        if _worker() is not None and not self._warned:
            self._warned = True
            warnings.warn("millrace decodes in threads: DataLoader(..., num_workers=0) is faster than worker processes, "
                          "which copy every batch", stacklevel=4)
        return _core.ImageRun(spec)

    def _take(self) -> Optional[Batch]:
        got = self._begun().next(self._torch)
        if got is None:
            return None
        images, labels, keys, epoch = got
        batch = Batch((images.permute(0, 3, 1, 2) if self._torch else images, labels))
        batch.keys, batch.epoch = keys, epoch
        return batch

    def __len__(self) -> int:
        """Batches of this rank in the epoch that the loader is in, if no sample is skipped. Raises TypeError if that is
        not known: give an index (`millrace index SHARDS -o train.json`) or `epoch_samples`."""
        samples: int = self._begun().samples_in(self._epoch)
        if samples < 0:
            raise TypeError("the number of samples is not known: give an index (`millrace index SHARDS -o train.json`) "
                            "or epoch_samples")
        size: int = self._options["images"]["batch_size"]
        drop: bool = self._options["images"]["drop_last"]
        return samples // size if drop else -(-samples // size)

    def _pickled(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        Loader.__init__(self)
        self._options, self._warned = pickled["options"], False
        self._torch = self._options["torch"]
        self.load_state_dict(pickled["state"])

    def __repr__(self) -> str:
        o = self._options["images"]
        return f"<millrace.ImageLoader of {self._options['shards']!r}, batches of {o['batch_size']}, epoch {self.epoch}>"

    def __getitem__(self, _: object) -> NoReturn:
        raise TypeError("an ImageLoader is read in order: iterate it; IndexedDataset gives single samples")
