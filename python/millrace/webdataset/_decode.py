"""Values of fields: images by the engine's threads, the rest as webdataset's decoders have it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

from .. import _core, errors


FieldDecoder = Callable[[str, bytes], Any]

# Array type, type of its numbers, and mode, for each name of a way to decode images.
IMAGES: dict[str, tuple[str, str, str]] = {
    "l8": ("numpy", "uint8", "L"), "rgb8": ("numpy", "uint8", "RGB"), "rgba8": ("numpy", "uint8", "RGBA"),
    "l": ("numpy", "float", "L"), "rgb": ("numpy", "float", "RGB"), "rgba": ("numpy", "float", "RGBA"),
    "torchl8": ("torch", "uint8", "L"), "torchrgb8": ("torch", "uint8", "RGB"), "torchrgba8": ("torch", "uint8", "RGBA"),
    "torchl": ("torch", "float", "L"), "torchrgb": ("torch", "float", "RGB"), "torch": ("torch", "float", "RGB"),
    "torchrgba": ("torch", "float", "RGBA"),
    "pill": ("pil", "", "L"), "pil": ("pil", "", "RGB"), "pilrgb": ("pil", "", "RGB"), "pilrgba": ("pil", "", "RGBA"),
}
# Extensions that Pillow decodes here, because the engine does not.
_OTHER_IMAGES = frozenset("bmp gif tif tiff jp2 ico tga pbm jpe jfif".split())
_NATIVE_IMAGES = frozenset(_core.decoded_extensions().split(";"))


def _last(extension: str) -> str:
    return extension.rsplit(".", 1)[-1].lower()


class Decoder:
    """Decodes the fields of a sample: first by `handlers`, then images by `images`, then by extension.

    Pickles stay bytes: no code in the data is run; `.map_dict(pyd=pickle.loads)` runs it.
    """

    def __init__(self, images: str, handlers: Iterable[FieldDecoder], only: Optional[Iterable[str]]) -> None:
        if images and images not in IMAGES:
            raise errors.usage(f"decode('{images}')", f"give one of {', '.join(IMAGES)}")
        self.images, self.handlers = images, list(handlers)
        self.only = None if only is None else set([only] if isinstance(only, str) else only)
        self.is_after_engine = False  # so that arrays are images that the engine has decoded

    def after_engine(self) -> "Decoder":
        """The same, for samples of which the engine has decoded the images."""
        made = copy.copy(self)
        made.is_after_engine = True
        return made

    def is_native(self) -> bool:
        """Whether the engine decodes the images: RGB, without functions that want their bytes."""
        return bool(self.images) and IMAGES[self.images][2] == "RGB" and not self.handlers and self.only is None

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {k: self._field(k, v) if not k.startswith("__") else v for k, v in sample.items()}

    def _field(self, extension: str, content: Any) -> Any:
        if self.only is not None and extension not in self.only and _last(extension) not in self.only:
            return content
        if not isinstance(content, bytes):
            return _converted(content, *IMAGES[self.images][:2]) if self.is_after_engine else content
        for handler in self.handlers:
            value = handler(extension, content)
            if value is not None:
                return value
        last = _last(extension)
        if self.images and (last in _OTHER_IMAGES or last in _NATIVE_IMAGES):
            return _by_pillow(content, *IMAGES[self.images])
        return _core.decode_field(extension, content)


def _converted(pixels: Any, kind: str, numbers: str) -> Any:
    if kind == "pil":
        import PIL.Image
        return PIL.Image.fromarray(pixels)
    if numbers == "float":
        import numpy
        pixels = pixels.astype(numpy.float32) / 255.0
    if kind == "numpy":
        return pixels
    import torch
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy() if pixels.ndim == 3 else pixels)


def _by_pillow(content: bytes, kind: str, numbers: str, mode: str) -> Any:
    import PIL.Image
    with PIL.Image.open(io.BytesIO(content)) as opened:
        image = opened.convert(mode)
    if kind == "pil":
        return image
    import numpy
    return _converted(numpy.array(image), kind, numbers)


class handle_extension:
    """A decoder for `decode`: calls the function with the bytes of fields that have one of these extensions, "jpg seg.png"."""

    def __init__(self, extensions: str, f: Callable[[bytes], Any]) -> None:
        self.wanted, self.f = [e.split(".") for e in extensions.lower().split()], f

    def __call__(self, extension: str, content: bytes) -> Any:
        parts = extension.lower().split(".")
        return self.f(content) if any(parts[-len(w):] == w for w in self.wanted) else None


def imagehandler(images: str) -> "Decoder":
    """The decoder of images of this name, for `decode`."""
    return Decoder(images, [], None)


def decoder_of(args: Iterable[Union[str, Decoder, FieldDecoder]], only: Optional[Iterable[str]]) -> Decoder:
    """One decoder of the arguments of decode()."""
    images, handlers = "", []
    for one in args:
        if isinstance(one, str):
            images = one
        elif isinstance(one, Decoder):
            images = one.images
        else:
            handlers.append(one)
    return Decoder(images, handlers, only)
