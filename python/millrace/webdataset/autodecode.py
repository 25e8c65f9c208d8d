"""Values of fields: images by the engine's threads, the rest as webdataset's decoders have it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

from .. import _core, errors
from .._fields import of_sample, value_of
from ._errors import DecodingError, as_theirs

# Called with ".EXTENSION" and the bytes: a value, None for the next decoder, or Continue.
FieldDecoder = Callable[[str, bytes], Any]

# Array type, type of its numbers, and mode, for each name of a way to decode images.
imagespecs: dict[str, tuple[str, str, str]] = {
    "l8": ("numpy", "uint8", "L"), "rgb8": ("numpy", "uint8", "RGB"), "rgba8": ("numpy", "uint8", "RGBA"),
    "l": ("numpy", "float", "L"), "rgb": ("numpy", "float", "RGB"), "rgba": ("numpy", "float", "RGBA"),
    "torchl8": ("torch", "uint8", "L"), "torchrgb8": ("torch", "uint8", "RGB"), "torchrgba8": ("torch", "uint8", "RGBA"),
    "torchl": ("torch", "float", "L"), "torchrgb": ("torch", "float", "RGB"), "torch": ("torch", "float", "RGB"),
    "torchrgba": ("torch", "float", "RGBA"),
    "pill": ("pil", "", "L"), "pil": ("pil", "", "RGB"), "pilrgb": ("pil", "", "RGB"), "pilrgba": ("pil", "", "RGBA"),
}
# Extensions that Pillow decodes here, because the engine does not.
_OTHER_IMAGES = frozenset("bmp gif tif tiff jp2 ico tga pbm jpe jfif".split())
# Of the engine's values of fields: texts, integers, JSON, arrays.
_VALUES = frozenset("txt text transcript cls cls2 class count index inx id json jsn npy npz ten tb tenbin mp msg msgpack "
                    "cbor".split())
_NATIVE_IMAGES = frozenset(_core.decoded_extensions().split(";"))
IMAGE_EXTENSIONS = _OTHER_IMAGES | _NATIVE_IMAGES


def _last(extension: str) -> str:
    return extension.rsplit(".", 1)[-1].lower()


class Continue:
    """What a decoder returns to have the next ones decode other bytes, under another extension."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data = key, data


def gzfilter(key: str, data: bytes) -> Optional[Continue]:
    """A decoder that unpacks ".gz" and leaves the rest to the next ones."""
    return Continue(key[:-3], _core.decode_field("bytes.gz", data)) if key.endswith(".gz") else None


def basichandlers(key: str, data: bytes) -> Any:
    """A decoder of texts, numbers, JSON and arrays by their extension; pickles stay bytes."""
    last = _last(key)
    return value_of(last, data) if last in _VALUES else None


class ImageHandler:
    """A decoder of images, for `decode`.

    Args:
        imagespec: "rgb8", "rgb", "torchrgb", "pil", ...
        extensions: of the fields that are images.
    """

    def __init__(self, imagespec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> None:
        if imagespec not in imagespecs:
            raise errors.usage(f"decode({errors.shown(imagespec)})", f"give one of {', '.join(imagespecs)}")
        self.imagespec, self.extensions = imagespec, frozenset(extensions)

    def is_native(self) -> bool:
        """Whether the engine decodes these."""
        return imagespecs[self.imagespec][2] == "RGB" and self.extensions == IMAGE_EXTENSIONS

    def converted(self, pixels: Any) -> Any:
        """What is asked for, of pixels that the engine decoded."""
        return _converted(pixels, *imagespecs[self.imagespec][:2])

    def __call__(self, key: str, data: bytes) -> Any:
        return _by_pillow(data, *imagespecs[self.imagespec]) if _last(key) in self.extensions else None


imagehandler = ImageHandler


class Decoder:
    """Decodes the fields of a sample, each by the first decoder that returns a value.

    Pickles stay bytes: no code in the data is run; `.map_dict(pyd=pickle.loads)` runs it.

    Args:
        handlers: decoders, asked in order.
        pre: asked before them; by default gzfilter.
        post: asked after them; by default basichandlers.
        only: fields to decode, a list or "jpg cls"; None: all.
        partial: webdataset refuses fields that are not bytes without it; here they stay as they are in any case.
    """

    def __init__(self, handlers: Sequence[FieldDecoder], pre: Optional[Sequence[FieldDecoder]] = None,
                 post: Optional[Sequence[FieldDecoder]] = None, only: Union[str, Iterable[str], None] = None,
                 partial: bool = False) -> None:
        del partial
        self.handlers = list(handlers)
        self.all = [*([gzfilter] if pre is None else pre), *self.handlers, *([basichandlers] if post is None else post)]
        self.is_plain = pre is None and post is None and only is None
        self.only = None if only is None else set(only.split() if isinstance(only, str) else only)
        self.is_after_engine = False  # so that arrays are images that the engine has decoded

    def after_engine(self) -> "Decoder":
        """The same, for samples of which the engine has decoded the images."""
        made = copy.copy(self)
        made.is_after_engine = True
        return made

    def is_native(self) -> bool:
        """Whether the engine decodes the images: RGB, without functions that want their bytes."""
        images = self._images()
        return self.is_plain and len(self.handlers) == 1 and images is not None and images.is_native()

    def _images(self) -> Optional[ImageHandler]:
        return next((h for h in self.handlers if isinstance(h, ImageHandler)), None)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {k: self._field(k, v, sample) for k, v in sample.items()}

    decode = __call__

    def _field(self, name: str, content: Any, sample: dict[str, Any]) -> Any:
        if name.startswith("__"):
            return content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        if self.only is not None and name not in self.only:
            return content
        if not isinstance(content, bytes):
            images = self._images()
            return images.converted(content) if self.is_after_engine and images is not None else content
        try:
            return self.decode1(name, content)
        except Exception as error:
            url, key = sample.get("__url__"), sample.get("__key__")
            if isinstance(error, errors.Error):
                named = of_sample(error, name, url or "", key or "")
                made = as_theirs(named)
                if made is not named:
                    made.__dict__.update(k=name, sample=sample)
                    raise made from error
            raise DecodingError(url, key, name, sample) from error

    def decode1(self, key: str, data: bytes) -> Any:
        """The value of one field."""
        key = "." + key
        for handler in self.all:
            value = handler(key, data)
            if isinstance(value, Continue):
                key, data = value.key, value.data
            elif value is not None:
                return value
        return data


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

    def __call__(self, key: str, data: bytes) -> Any:
        parts = key.lower().split(".")
        return self.f(data) if any(parts[-len(w):] == w for w in self.wanted) else None


def decoder_of(args: Iterable[Union[str, FieldDecoder]], **options: Any) -> Decoder:
    """One decoder of the arguments of decode()."""
    return Decoder([ImageHandler(one) if isinstance(one, str) else one for one in args], **options)
