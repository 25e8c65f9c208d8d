"""Values for arguments of loaders: `skip` and `Augment`."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core, errors
from ._numbers import encodable, path, share, utf8, whole

_ALL = 2**64 - 1
_JITTER = {"brightness": 255.0, "contrast": 255.0, "saturation": 255.0, "hue": 0.5, "jitter": 1.0}  # and the most of each
_PART = "a part as a float from 0.0 to 1.0, or "


@dataclass(frozen=True)
class skip:
    """Which errors of samples and shards a loader skips, for `on_error`.

    Args:
        most: a float from 0 to 1: at most this part of all samples, checked from the thousandth sample on and at each
            end of an epoch. An int: at most so many samples of this rank in the whole run. None: any number.
        in_a_row: more than so many skipped without a good one between them end the run.
        report: a file to which each skipped sample is appended, as a line of JSON (kind, url, offset, key, message).

    One more raises `TooManySkippedError`. `loader.skipped()` has the counts and the first hundred messages.
    """

    most: float | int | None = None
    in_a_row: int = 1000
    report: str = ""

    def __post_init__(self) -> None:
        self._limits()
        whole("in_a_row", self.in_a_row)
        utf8("report", path("report", self.report))

    def _limits(self) -> tuple[int, float]:
        """The number of samples, and the part of all, that may be skipped."""
        if self.most is None:
            return _ALL, 1.0
        if isinstance(self.most, float):
            if not 0 <= self.most <= 1:
                raise errors.usage(f"most of skip is {self.most}", f"give {_PART}a number of samples as an int")
            return _ALL, self.most
        return whole("most", self.most, instead=_PART), 1.0

    def apply(self, spec: _core.Spec) -> None:
        """Sets it in a spec."""
        spec.set_errors(*self._limits(), whole("in_a_row", self.in_a_row), utf8("report", path("report", self.report)))


@dataclass(frozen=True)
class Augment:
    """Changes to training images after crop and flip, made in C++ threads as torchvision makes them. All are off by
    default; a probability is the part of the images that are changed, 0 to 1.

    Args:
        policy: "none", "autoaugment" (ImageNet's), "randaugment" or "trivialaugment" (wide).
        ops, magnitude: of "randaugment": operations on an image, 0 to 16, and their strength, 0 to 30.
        brightness, contrast, saturation: colour jitter: each factor is drawn from [1 - x, 1 + x], x from 0 to 255.
        hue: the same in turns of the colour wheel, at most 0.5.
        jitter: the part of the images with colour jitter.
        gray, solarize, blur, erase: parts of the images that are made gray, solarised from 128 on, blurred (Gaussian,
            23 pixels, sigma 0.1 to 2), or have a random box erased.
        least_area: of the random crop, as a part of the image.
        flip: part of the images that are mirrored.

    Raises UsageError for what is out of its range.
    """

    policy: str = "none"
    ops: int = 2
    magnitude: int = 9
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    jitter: float = 1.0
    gray: float = 0.0
    solarize: float = 0.0
    blur: float = 0.0
    erase: float = 0.0
    least_area: float = 0.08
    flip: float = 0.5

    def apply(self, spec: _core.Spec) -> None:
        """Sets it in a spec."""
        spec.set_changes(self._changes())
        spec.set_crop(*(share(name, getattr(self, name), 1) for name in ("least_area", "flip")))

    def __post_init__(self) -> None:
        self.apply(_core.Spec())  # refuses what is out of its range

    def _changes(self) -> _core.Changes:
        changes = _core.Changes()
        changes.set_policy(encodable(self.policy))
        changes.randaugment_ops, changes.randaugment_magnitude = whole("ops", self.ops), whole("magnitude", self.magnitude)
        for name in changes.shares():
            changes.set_share(name, share(name, getattr(self, name), 1))
        changes.set_jitter(*(share(name, getattr(self, name), most) for name, most in _JITTER.items()))
        return changes
