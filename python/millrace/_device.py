"""Batches of tensors of torch on a GPU, and images as floating-point numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from . import errors

# Of RGB in 0..1, as torchvision's models are trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = ("uint8", "float32", "float16", "bfloat16")


def dtype_name(dtype: Any) -> str:
    """The name of a type of torch or numpy, or of a name."""
    name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise errors.usage(f"dtype={errors.shown(dtype)}", f"give one of {', '.join(DTYPES)}")
    return name


def device_name(device: Any, uses_torch: bool) -> Optional[str]:
    """As torch reads it; None: images stay in memory."""
    name = None if device is None else str(device)
    if name in (None, "cpu"):
        return None
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number == "" or number.isdecimal()):
        raise errors.usage(f"device={errors.shown(device)}", "give 'cuda', 'cuda:N' or None")
    if not uses_torch:
        raise errors.usage(f"device={errors.shown(device)} with numpy", "leave out output='numpy'")
    return name


def check_statistics(dtype: str, mean: Any, std: Any) -> Optional[tuple[tuple[float, ...], tuple[float, ...]]]:
    """(mean, std) of the three channels; None: images stay uint8."""
    if dtype == "uint8":
        if mean is not None or std is not None:
            raise errors.usage("mean and std with dtype='uint8'", "add dtype='float32'")
        return None
    return _three("mean", mean, MEAN), _three("std", std, STD)


def _three(name: str, given: Optional[Sequence[float]], otherwise: tuple[float, ...]) -> tuple[float, ...]:
    try:
        values = otherwise if given is None else tuple(float(v) for v in given)
    except (TypeError, ValueError):
        values = ()
    # NaN is in no range. Those of 0 to 255 would pass unseen, and train nothing.
    if len(values) != 3 or not all(0 <= v <= 1 for v in values) or (name == "std" and 0 in values):
        least = "from 0" if name == "mean" else "above 0"
        raise errors.usage(f"{name}={given!r}", f"give three numbers {least} to 1, for red, green and blue: what counts from 0 to 255 is "
                           "divided by 255")
    return values


def normalized_by_numpy(images: Any, dtype: str, mean: Sequence[float], std: Sequence[float]) -> Any:
    """(images / 255 - mean) / std of an array (N, H, W, 3), in an array of its own."""
    import numpy
    scale = numpy.asarray([1 / (255 * s) for s in std], numpy.float32)
    shift = numpy.asarray([-m / s for m, s in zip(mean, std)], numpy.float32)
    out = numpy.multiply(images, scale, dtype=numpy.float32)
    out += shift
    return out if dtype == "float32" else out.astype(dtype)


class Normalizer:
    """(images / 255 - mean) / std of a tensor (N, 3, H, W), where it is, in a tensor of its own in the same layout."""

    def __init__(self, dtype: str, mean: Sequence[float], std: Sequence[float]) -> None:
        import torch
        self._dtype = getattr(torch, dtype)
        self._scale = torch.tensor([1 / (255 * s) for s in std]).view(1, 3, 1, 1)
        self._shift = torch.tensor([-m / s for m, s in zip(mean, std)]).view(1, 3, 1, 1)

    def __call__(self, images: Any) -> Any:
        import torch
        if self._scale.device != images.device:
            self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        return torch.addcmul(self._shift, images.to(torch.float32), self._scale).to(self._dtype)


class Gpu:
    """The calls by which ToDevice moves batches, of torch.cuda."""

    def __init__(self, name: str) -> None:
        import torch
        if not torch.cuda.is_available():
            raise errors.error("unsupported", f"device={name!r}, but torch finds no GPU",
                               hint="check nvidia-smi and torch.version.cuda, or leave out device")
        number = torch.device(name).index
        number = torch.cuda.current_device() if number is None else number
        if number >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise errors.usage(f"device={name!r} does not exist", f"this host has GPUs cuda:0 to cuda:{last}" if last > 0 else
                               "this host has one GPU, cuda:0")
        self.device = torch.device("cuda", number)
        self._copies = torch.cuda.Stream(self.device)

    def pinned(self, like: Any) -> Any:
        """Memory of the host for a tensor like it."""
        import torch
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def copy(self, pinned: Any) -> tuple[Any, Any]:
        """The tensor on the device, for what is queued there from now on, and an event after which `pinned` is free."""
        import torch
        compute = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._copies):
            tensor = pinned.to(self.device, non_blocking=True)
            done = self._copies.record_event()
        compute.wait_event(done)
        tensor.record_stream(compute)  # its memory is given again once the loop's work on it is done
        return tensor, done

    def wait(self, event: Any) -> None:
        """Until the event has passed."""
        event.synchronize()


class ToDevice:
    """Moves batches to a GPU: each is put into one of three slots of pinned memory and copied from there, on a stream of copies,
    while the device works on the batch before. The host waits only if it is three batches ahead."""

    SLOTS = 3

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._slots: list[Optional[dict[str, Any]]] = [None] * self.SLOTS  # pinned memory, and the events of its copies
        self._next = 0

    def __call__(self, **tensors: Any) -> list[Any]:
        """The tensors on the device, in their order. They are copied: the memory given is free when this returns."""
        number, self._next = self._next, (self._next + 1) % self.SLOTS
        slot = self._slots[number] or {"memory": {}, "events": []}
        for event in slot["events"]:
            self._gpu.wait(event)
        slot["events"] = []
        self._slots[number] = slot
        out = []
        for name, tensor in tensors.items():
            memory = slot["memory"].get(name)
            if memory is None or memory.shape[1:] != tensor.shape[1:] or memory.shape[0] < tensor.shape[0]:
                memory = slot["memory"][name] = self._gpu.pinned(tensor)
            memory = memory[:tensor.shape[0]]
            memory.copy_(tensor)
            on_device, done = self._gpu.copy(memory)
            out.append(on_device)
            slot["events"].append(done)
        return out
