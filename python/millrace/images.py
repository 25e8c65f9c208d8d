"""ImageLoader: shards of images to batches of tensors."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Optional, Union

from . import _core, _device, errors
from ._loader import Loader
from ._numbers import flag, one_of, text, whole
from ._spec import Rank, Shards, _worker, byte_count, check_epoch, common, described, division_of, known_rank, names
from .joins import Join, joins_of
from .options import Augment, skip


class Batch(tuple):  # type: ignore[type-arg]
    """(images, labels), and what else is known of a batch.

    Attributes:
        images: RGB, uint8 or of `dtype`. For torch of shape (N, 3, size, size), channels last in memory; for numpy
            (N, size, size, 3).
        labels: int64 of shape (N,); -1: a sample without a label.
        keys: the samples' keys, N texts.
        epoch: of the first image, from 0.

    Arrays of uint8 in memory share the engine's memory, without a copy, and keep it until they are released: a loop that
    collects batches copies them (`images.clone()`, `images.copy()`). They may be written to. On a GPU, and of another
    `dtype`, they are the loop's own. A DataLoader hands on (images, labels) alone; with `collate_fn=mr.Batch.same` the whole
    batch.
    """

    keys: list[str]
    epoch: int
    _fields = ("images", "labels")  # as in a named tuple: torch's DataLoader, pin_memory and others keep the class of these

    def __new__(cls, *content: Any) -> "Batch":
        return tuple.__new__(cls, content[0] if len(content) == 1 else content)

    @staticmethod
    def same(batch: "Batch") -> "Batch":
        """The batch itself: for a DataLoader."""
        return batch

    @property
    def images(self) -> Any:
        """The pixels."""
        return self[0]

    @property
    def labels(self) -> Any:
        """The classes."""
        return self[1]


def _uses_torch(output: str) -> bool:
    one_of("output", output, ("torch", "numpy", "auto"))
    uses_torch = output == "torch" or (output == "auto" and importlib.util.find_spec("torch") is not None)
    needed = "torch" if uses_torch else "numpy"
    if importlib.util.find_spec(needed) is None:
        raise errors.usage(f"output={output!r} needs {needed}, which is not installed", f"pip install {needed}")
    return uses_torch


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
        train: random-resized-crop and flip, in a permuted order of shards. False: resize and centre crop, and shards are not
            permuted; but 8 `lanes` of them are read at once, so a batch has a sample of each in turn. The order of the list, shard by
            shard, comes with `lanes=-1` on one rank; with any lanes, `batch.keys` says which images a batch has.
        resize: without `train`, the shorter side before the centre crop, in pixels; 0: size x 256 / 224.
        label: the class: "auto" (the first of cls, cls2, index, inx, id), an extension, "json:A.B", or "none".
        classes: above 0: labels outside [0, classes) are errors.
        images: the fields that are images, the first that a sample has: "jpg;png". None: all formats.
        augment: `mr.Augment(...)`: further changes, crop areas and flips; with `train` only.
        shuffle: samples that the shuffle holds, over all ranks; 0: none beyond the order of shards.
        seed: of shards, shuffle, crops and changes: the same seed gives the same batches, whatever the threads.
        epoch: "exact" (each sample once; ranks may differ in length), "equal" (as many on each rank, the remainder is
            left out; needs an index), "equal_repeating" (some twice instead), "resample" (shards are drawn forever).
        epoch_samples: samples of an epoch over all ranks, as many on each, whatever the data's own epochs are; with `drop_last`
            whole batches of them, and the rest begins the next epoch. None: the data's own.
        drop_last: leaves out batches that the end of an epoch cuts short.
        rank: "auto" (torch.distributed, else torchrun's, Slurm's or MPI's variables), or (rank, number of ranks).
        lanes: parallel orders of shards, as the engine's `lanes`; 0: the smallest multiple of the ranks from 8 on;
            -1: one for each rank, which reads its shards one after the other. Samples come from the lanes in turn, so more than one
            lane is never the list's order, with `train=False` either.
        device: "cuda" or "cuda:N": images and labels come on that GPU, by pinned memory and a stream of copies, while it
            works on the batch before; work on torch's current stream waits for them. The loop's thread copies each batch to the
            pinned memory: 38 MB for 256 images of 224 pixels, at the rate of one thread. None: in memory. Needs torch.
        dtype: "uint8", or "float32", "float16", "bfloat16": (images / 255 - mean) / std, computed where the images are.
            The bytes go over the bus; in memory this takes the loop's time.
        mean, std: of red, green and blue, from 0 to 1, for such a dtype; std is above 0. None: ImageNet's,
            (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225).
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
                 drop_last: bool = False, rank: Rank = "auto", lanes: int = 0, device: Any = None,
                 dtype: Any = "uint8", mean: Optional[Sequence[float]] = None, std: Optional[Sequence[float]] = None,
                 output: str = "auto", memory: Union[int, str, None] = None,
                 threads: Union[int, str] = "auto", cache: Optional[str] = None,
                 cache_decoded: Union[int, str, None] = None, held: int = 2, prefetch: int = 2,
                 on_error: Optional[skip] = None, resync: bool = False, allow_pipe: bool = False,
                 join: Union[None, str, Join, Iterable[Union[str, Join]]] = None) -> None:
        check_epoch(epoch)
        flag("train", train)
        if augment is not None and not train:
            raise errors.usage("augment without train", "leave out one of them")
        super().__init__()
        self._torch = _uses_torch(output)
        name = _device.dtype_name(dtype)
        if name == "bfloat16" and not self._torch:
            raise errors.usage("dtype='bfloat16' with numpy, which has no such type", "give 'float16' or 'float32'")
        self._options: dict[str, Any] = {
            "common": {"seed": seed, "epoch": epoch, "rank": rank, "lanes": lanes, "shuffle": shuffle,
                       "shuffle_shards": train, "fields": "", "memory": memory, "threads": threads, "cache": cache,
                       "allow_pipe": allow_pipe, "resync": resync, "on_error": on_error},
            "images": {"batch_size": batch_size, "size": size, "train": train, "resize": resize, "label": label,
                       "classes": classes, "drop_last": drop_last, "held": held, "prefetch": prefetch},
            "shards": names(shards), "names": images, "augment": augment, "epoch_samples": epoch_samples,
            "cache_decoded": cache_decoded, "torch": self._torch, "device": _device.device_name(device, self._torch), "dtype": name,
            "statistics": _device.check_statistics(name, mean, std), "joins": joins_of(join)}
        self._warned = False
        self._kept: Any = None
        self._to_device: Optional[_device.ToDevice] = None
        self._normalizer: Optional[_device.Normalizer] = None
        self._spec(0)  # refuses what can be refused before anything is opened

    def _spec(self, first_epoch: int) -> _core.Spec:
        o = self._options
        spec = common(o["shards"], **o["common"])
        for name, value in o["images"].items():
            if name in ("train", "drop_last"):
                value = flag(name, value)
            else:
                value = text(name, value) if name == "label" else whole(name, value)
            setattr(spec, name, value)
        spec.first_epoch = first_epoch
        byte_count("cache_decoded", o["cache_decoded"])
        if o["names"] is not None:
            spec.set_images(text("images", o["names"]))
        if o["augment"] is not None:
            if not isinstance(o["augment"], Augment):
                raise errors.usage(f"augment is {o['augment']!r}", "give mr.Augment(...)")
            o["augment"].apply(spec)
        if o["epoch_samples"] is not None:
            samples = whole("epoch_samples", o["epoch_samples"])
            of_rank = samples // max(1, spec.world_size)
            if spec.drop_last:
                of_rank -= of_rank % max(1, spec.batch_size)
            if of_rank < 1:
                least = max(1, spec.world_size) * (max(1, spec.batch_size) if spec.drop_last else 1)
                raise errors.usage(f"epoch_samples={o['epoch_samples']} is less than a batch of each rank",
                                   f"give {least} or more")
            spec.epoch_length = of_rank
        return spec

    def _make_run(self, first_epoch: int) -> Any:
        spec = self._spec(first_epoch)
        if self._options["cache_decoded"] is not None:
            spec.cache_decoded(byte_count("cache_decoded", self._options["cache_decoded"]))
        for one in self._options["joins"]:
            one.apply(spec)
        if _worker() is not None and not self._warned:
            self._warned = True
            warnings.warn("millrace decodes in threads: DataLoader(..., num_workers=0) is faster than worker processes, "
                          "which copy every batch", stacklevel=4)
        self._division = [*division_of(spec), spec.batch_size, int(spec.drop_last)]
        return _core.ImageRun(spec)

    def _take(self) -> Optional[Batch]:
        self._prepare()
        # Before a batch is taken: Ctrl-C in the middle of this loses none.
        importlib.import_module("torch" if self._torch else "numpy")
        got = self._kept if self._kept is not None else self._begun().next(self._torch)
        if got is None:
            return None
        self._kept = got  # where the GPU fails, as for want of memory, the next call gives it
        images, labels, keys, epoch = got
        batch = Batch(self._finished(images, labels))
        self._kept = None
        batch.keys, batch.epoch = keys, epoch
        return batch

    def _position(self) -> str:
        return self._run.save(before_last=self._kept is not None)  # type: ignore[no-any-return]

    def _restart(self, state: dict[str, Any]) -> None:
        self._kept = None
        super()._restart(state)

    def _prepare(self) -> None:
        """In the process that iterates, and before a batch is taken: what fails here loses none."""
        o = self._options
        if o["device"] is not None and self._to_device is None:
            if _worker() is not None:
                raise errors.usage(f"device={o['device']!r} in a worker process of a DataLoader", "give it num_workers=0")
            self._to_device = _device.ToDevice(_device.Gpu(o["device"]))
        if self._torch and o["statistics"] is not None and self._normalizer is None:
            self._normalizer = _device.Normalizer(o["dtype"], *o["statistics"])

    def _finished(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """As `device` and `dtype` ask for them."""
        o = self._options
        if not self._torch:
            return images if o["statistics"] is None else _device.normalized_by_numpy(images, o["dtype"], *o["statistics"]), labels
        if self._to_device is not None:
            images, labels = self._to_device(images=images, labels=labels)
        images = images.permute(0, 3, 1, 2)
        return images if self._normalizer is None else self._normalizer(images), labels

    def __len__(self) -> int:
        """Batches of this rank in the epoch that the loader is in, those that were given with them, if no sample is skipped. Raises
        TypeError if that is not known: give an index (`millrace index SHARDS -o train.json`) or `epoch_samples`. It is not known
        either of an epoch that is continued with another number of ranks, other lanes or another batch_size; of the next one it is."""
        samples = self._samples_in_epoch(" or epoch_samples")
        size: int = self._options["images"]["batch_size"]
        drop: bool = self._options["images"]["drop_last"]
        return samples // size if drop else -(-samples // size)

    def _named_shards(self) -> list[str]:
        return self._options["shards"]  # type: ignore[no-any-return]

    def _pickled(self) -> dict[str, Any]:
        common = self._options["common"]
        return {"options": {**self._options, "common": {**common, "rank": known_rank(common["rank"])}}}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        Loader.__init__(self)
        self._options, self._warned = pickled["options"], False
        self._to_device, self._normalizer, self._kept = None, None, None
        self._torch = self._options["torch"]
        self.load_state_dict(pickled["state"])

    def __repr__(self) -> str:
        o = self._options["images"]
        return f"<millrace.ImageLoader of {described(self._options['shards'])}, batches of {o['batch_size']}, epoch {self.epoch}>"

    def __getitem__(self, _: object) -> NoReturn:
        raise TypeError("an ImageLoader is read in order: iterate it. For torch's DataLoader write DataLoader(mr.IterableDataset(loader), "
                        "batch_size=None); IndexedDataset gives single samples")
