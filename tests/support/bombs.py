"""Small files that demand much memory, time or stack. Each is created in little memory."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zipfile
import zlib

MB = 1_000_000


class Bits:
    """Least significant bit first, as WebP packs them."""

    def __init__(self):
        self.value, self.count, self.out = 0, 0, bytearray()

    def put(self, value, count):
        self.value |= value << self.count
        self.count += count
        while self.count >= 8:
            self.out.append(self.value & 255)
            self.value >>= 8
            self.count -= 8

    def bytes(self):
        self.put(0, (8 - self.count) % 8)
        return bytes(self.out)


def one_symbol(bits):
    """A prefix code with only the symbol 0, which then takes no bits."""
    bits.put(0b0001, 4)


def byte_code(bits, others):
    """A prefix code of 8 bits for each of 256 symbols, and none for `others` more."""
    bits.put(0, 1)
    bits.put(12 - 4, 4)
    for symbol in (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8):
        bits.put(1 if symbol in (0, 8) else 0, 3)
    bits.put(0, 1)
    for _ in range(256):
        bits.put(1, 1)
    bits.put(0, others)


def reversed_byte(value):
    return int(f"{value:08b}"[::-1], 2)


def webp(width, height, groups=False, transforms=False, more=0):
    """A lossless WebP of one colour: a few bytes. With `groups`, 65,536 groups of prefix codes; with `transforms`, after
    all transforms that keep its width. `more` bytes follow in its chunk, as if they were pixels."""
    bits = Bits()
    bits.put(0x2F, 8)
    bits.put(width - 1, 14)
    bits.put(height - 1, 14)
    bits.put(0, 1 + 3)
    for kind in (0, 2, 1) if transforms else ():
        bits.put(1 | kind << 1, 3)
        if kind != 2:
            bits.put(0, 3 + 1)
            for _ in range(5):
                one_symbol(bits)
    bits.put(0, 1 + 1)
    bits.put(1 if groups else 0, 1)
    count = 1
    if groups:
        bits.put(0, 3 + 1)
        byte_code(bits, 24)
        byte_code(bits, 0)
        for _ in range(3):
            one_symbol(bits)
        for y in range((height + 3) // 4):
            for x in range((width + 3) // 4):
                bits.put(reversed_byte(x & 255), 8)
                bits.put(reversed_byte(y & 255), 8)
        count = 1 << 16
    for _ in range(5 * count):
        one_symbol(bits)
    data = bits.bytes() + random.Random(1).randbytes(more)
    data += b"\0" * (len(data) % 2)
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def png(width, height, interlaced=False, before=b""):
    """Black, of 8 bits a sample."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = height + (height if interlaced else 0)  # of passes: fewer than that are filled
    data = bytearray()
    if interlaced:
        for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
                               (0, 1, 1, 2)):
            w, h = max(0, -(-(width - x0) // dx)), max(0, -(-(height - y0) // dy))
            for _ in range(h if w else 0):
                data += packer.compress(bytes(1 + 3 * w))
    else:
        for _ in range(rows):
            data += packer.compress(bytes(1 + 3 * width))
    data += packer.flush()
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, int(interlaced))) +
            before + chunk(b"IDAT", bytes(data)) + chunk(b"IEND", b""))


def png_of_texts(count, kind=b"zTXt"):
    """Each unpacks to 8 MB."""
    packed = zlib.compress(b"A" * (8 * MB), 9)
    data = kind + {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[kind] + packed
    text = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return png(64, 64, before=text * count)


def progressive_jpeg(width, height, scans=1):
    """Gray: one scan of DC differences that are all 0; the following scans refine nothing."""
    def segment(marker, data):
        return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data

    blocks = -(-width // 8) * -(-height // 8)
    zeros = bytes(blocks // 8) + (bytes((0xFF >> blocks % 8,)) if blocks % 8 else b"")
    out = b"\xFF\xD8" + segment(0xDB, b"\0" + b"\1" * 64)
    out += segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + bytes((1, 0x11, 0)))
    out += segment(0xC4, b"\0" + b"\1" + bytes(15) + b"\0")
    for scan in range(scans):
        high, low = (0, scans - 1) if scan == 0 else (scans - scan, scans - 1 - scan)
        out += segment(0xDA, bytes((1, 1, 0, 0, 0, high << 4 | low))) + zeros
    return out + b"\xFF\xD9"


def gz(size, what=b"\0"):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        for _ in range(size // MB):
            file.write(what * MB)
    return out.getvalue()


def npz(size, files=1):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(files):
            with archive.open(f"{i}.npy", "w") as file:
                for _ in range(size // MB):
                    file.write(bytes(MB))
    return out.getvalue()


def deep(opening, size):
    return opening * (size // len(opening))


class Padded:
    """A file of `data` and zeros."""

    def __init__(self, data, zeros):
        self.data, self.left, self.size = io.BytesIO(data), zeros, len(data) + zeros

    def read(self, size):
        found = self.data.read(size)
        zeros = min(size - len(found), self.left)
        self.left -= zeros
        return found + bytes(zeros)


def tar(path, members):
    """`members`: (name, content), as bytes or Padded."""
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            is_padded = isinstance(content, Padded)
            entry.size = content.size if is_padded else len(content)
            archive.addfile(entry, content if is_padded else io.BytesIO(content))
    return path


def empty_members(path, count, before="", digits=9):
    """`count` samples of one empty file each, in a .tar or .tar.gz: a header takes 512 bytes, or next to nothing packed."""
    head = bytearray(tarfile.TarInfo(f"{before}{'0' * digits}.txt").tobuf(tarfile.USTAR_FORMAT))
    at = head.index(b"0" * digits + b".txt")
    checksum = int(head[148:154], 8)
    with (gzip.open(path, "wb", compresslevel=1) if str(path).endswith(".gz") else open(path, "wb")) as out:
        for i in range(count):
            number = b"%0*d" % (digits, i)
            head[at:at + digits] = number
            head[148:154] = b"%06o" % (checksum + sum(number) - digits * ord("0"))
            out.write(head)
        out.write(bytes(1024))
    return path


def _zstd(data, window_log):
    """One frame: runs of one byte as a block with a count, anything else unchanged."""
    yield b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3])
    for block in data:
        alike = block == block[:1] * len(block)
        yield (len(block) << 3 | (2 if alike else 0)).to_bytes(3, "little") + (block[:1] if alike else block)
    yield b"\1\0\0"


def _lz4(data, block_code):
    """One frame, without checksums. Its blocks depend on each other."""
    head = bytes([0x40, block_code << 4])
    yield b"\x04\x22\x4d\x18" + head + bytes([xxhash32(head) >> 8 & 255])
    for block in data:
        if block == block[:1] * len(block):
            rest = len(block) - 6 - 19  # of one that is repeated, before five that are written out
            block = b"\x1f" + block[:1] + b"\1\0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + b"\x50" + block[:5]
            yield len(block).to_bytes(4, "little") + block
        else:
            yield (len(block) | 1 << 31).to_bytes(4, "little") + block
    yield bytes(4)


def xxhash32(data):
    """Of less than 16 bytes, seed 0."""
    prime = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    h, full = (prime[4] + len(data)) & 0xFFFFFFFF, len(data) // 4 * 4
    for i in range(0, full, 4):
        h = (h + int.from_bytes(data[i:i + 4], "little") * prime[2]) & 0xFFFFFFFF
        h = ((h << 17 | h >> 15) * prime[3]) & 0xFFFFFFFF
    for byte in data[full:]:
        h = (h + byte * prime[4]) & 0xFFFFFFFF
        h = ((h << 11 | h >> 21) * prime[0]) & 0xFFFFFFFF
    h = ((h ^ h >> 15) * prime[1]) & 0xFFFFFFFF
    h = ((h ^ h >> 13) * prime[2]) & 0xFFFFFFFF
    return h ^ h >> 16


def _xz(data, dictionary_code):
    """One stream of one block, which claims a different dictionary than it was written with."""
    packer = lzma.LZMACompressor(check=lzma.CHECK_CRC32, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": MB}])
    out = bytearray(b"".join(packer.compress(block) for block in data) + packer.flush())
    begin, end = 12, 12 + out[12] * 4
    assert out[begin + 1:begin + 4] == b"\0\x21\1", "a block with LZMA2 alone"
    out[begin + 4] = dictionary_code
    out[end:end + 4] = zlib.crc32(bytes(out[begin:end])).to_bytes(4, "little")
    yield bytes(out)


def _bz2(data, level):
    packer = bz2.BZ2Compressor(level)
    yield from (packer.compress(block) for block in data)
    yield packer.flush()


WINDOWS = {"xz": _xz, "zst": _zstd, "lz4": _lz4, "bz2": _bz2}


def window_tar(path, samples, window):
    """Samples of a megabyte in a stream that claims `window`: the log of it (zst), a code of it (xz, lz4), or a level (bz2)."""
    noise = random.Random(1)

    def data():
        for i in range(samples):
            entry = tarfile.TarInfo(f"{path.name.split('.')[0]}-{i}.bin")
            entry.size = 15 * 66048
            yield entry.tobuf()
            for _ in range(15):
                yield noise.randbytes(512)
                yield bytes(65536)
        yield bytes(1024)
    path.write_bytes(b"".join(WINDOWS[path.suffix[1:]](data(), window)))
    return path


def packed_tar(path, size, opens):
    """One member of zeros, compressed: `opens` is gzip.open or lzma.open."""
    entry = tarfile.TarInfo("0.bin")
    entry.size = size
    with opens(path, "wb") as file:
        file.write(entry.tobuf())
        for _ in range(size // MB):
            file.write(bytes(MB))
        file.write(bytes(-size % 512 + 1024))
    return path
