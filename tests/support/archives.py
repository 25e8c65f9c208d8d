"""Archives made by hand, and their digests."""

import hashlib
import io
import tarfile


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_tar(path, members):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def samples(n, first=0, payload=100):
    return [(f"s{i:05}.{ext}", bytes([i % 251]) * payload) for i in range(first, first + n) for ext in ("bin", "cls")]
