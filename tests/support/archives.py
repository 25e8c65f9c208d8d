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


def tree_of_classes(folder):
    """Seven classes of one sample, from which the known MD5s of ShardWriter were made."""
    for i in range(7):
        (folder / f"tree/c{i}").mkdir(parents=True)
        (folder / f"tree/c{i}/s{i}.jpg").write_bytes(b"\xff\xd8x")
        (folder / f"tree/c{i}/s{i}.json").write_text('{"i": %d}' % i)
    return folder / "tree"
