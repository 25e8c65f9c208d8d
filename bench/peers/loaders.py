"""One process with one loader of training images, for bench/python.py, which runs it in the interpreter that has the loader.

    loaders.py NAME version|write|rate|first|next|states OPTIONS

OPTIONS is a JSON object: shards, files (a folder CLASS/NAME.jpg), lit, mds (folders in those formats), batch, size, shuffle,
workers, threads, warm, seconds. The last line of the output is a JSON object. Every peer gives batches of uint8, in memory,
of random-resized-crops with flips, in an order that is shuffled, again and again; workers stay from epoch to epoch."""

import json
import math
import pathlib
import random
import sys
import time
import types
import warnings


# Peers in Python decode by torchvision.io, libjpeg-turbo without the GIL, and crop and resize uint8 tensors that have their
# channels last, for which torch has vector code; Pillow takes 1.3 times as long (bench/README.md, "Decoding").
class Torchvision:
    """The bytes of a JPEG to a crop of it. Can be pickled."""

    def __init__(self, size):
        from torchvision.transforms import v2
        self.crop = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])

    def __call__(self, jpeg):
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
        return self.crop(decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB))


def batches_of(loader):
    """Without end: the images of (images, labels)."""
    while True:
        for images, _ in loader:
            yield images


def data_loader(o, dataset, kind=None, **more):
    """torch's DataLoader as its users set it up: one batch made by each worker while another one waits."""
    from torch.utils.data import DataLoader
    lasting = {"persistent_workers": True, "prefetch_factor": 2} if o.workers > 0 else {}
    return (kind or DataLoader)(dataset, num_workers=o.workers, **lasting, **more)


def millrace(o):
    """As many decoding threads as cores, or as the peers' workers."""
    import millrace as mr
    loader = mr.ImageLoader(o.shards, o.batch, size=o.size, shuffle=o.shuffle, seed=0, threads=o.threads, output=o.output,
                            on_error=mr.skip())
    o.loader = loader
    return batches_of(loader)


def webdataset(o):
    """Batches are made in the workers, which divide the shards among themselves."""
    import webdataset as wds
    decode = Torchvision(o.size)
    data = (wds.WebDataset(o.shards, shardshuffle=100, seed=1, empty_check=False).shuffle(o.shuffle).to_tuple("jpg", "cls")
            .map_tuple(decode, int).batched(o.batch))
    return batches_of(data_loader(o, data, wds.WebLoader, batch_size=None))


class Read:
    """A file's bytes to a crop. Can be pickled."""

    def __init__(self, size):
        self.decode = Torchvision(size)

    def __call__(self, path):
        return self.decode(pathlib.Path(path).read_bytes())


def torchvision(o):
    """ImageFolder on files; a permutation for each epoch."""
    import torch
    from torchvision.datasets import ImageFolder
    data = ImageFolder(o.files, loader=Read(o.size))
    order = torch.utils.data.RandomSampler(data, replacement=True, num_samples=10**7)  # one long epoch
    return batches_of(data_loader(o, data, batch_size=o.batch, sampler=order))


def spdl(o):
    """Threads in one process; `decoder` is torchvision, as of the others, or FFmpeg, SPDL's own, which crops and resizes in
    one filter graph."""
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder
    paths = [str(p) for p in pathlib.Path(o.files).glob("*/*.jpg")]

    def endless():
        while True:
            random.shuffle(paths)
            yield from paths

    def by_ffmpeg(path):
        packets = spdl.io.demux_image(path)
        flip = "hflip," if random.random() < 0.5 else ""
        # A part of the area and an aspect as RandomResizedCrop draws them, but the aspect is relative to the photo's.
        side, aspect = random.uniform(0.08, 1) ** 0.5, math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)) / 2)
        width, height = min(1, side * aspect), min(1, side / aspect)
        crop = (f"crop=w=iw*{width}:h=ih*{height}:x={random.random()}*(iw-ow):y={random.random()}*(ih-oh),"
                f"scale={o.size}:{o.size}:flags=bilinear,{flip}format=pix_fmts=rgb24")
        return spdl.io.decode_packets(packets, filter_desc=crop)

    def ffmpeg_batch(frames):
        return spdl.io.to_torch(spdl.io.convert_frames(frames)), None

    if o.decoder == "torchvision":
        torch.set_num_threads(1)  # the pipeline has the threads
        decode, collate = Read(o.size), lambda images: (torch.stack(images), None)
    else:
        decode, collate = by_ffmpeg, ffmpeg_batch
    built = (PipelineBuilder().add_source(endless()).pipe(decode, concurrency=o.threads).aggregate(o.batch).pipe(collate)
             .add_sink(3).build(num_threads=o.threads + 1))
    o.loader = built
    built.start()
    return (images for images, _ in built.get_iterator())


def litdata(o):
    """Chunks of 64 MB, uncompressed, with the JPEGs' bytes; read where they are."""
    from litdata import StreamingDataLoader, StreamingDataset

    decode = Torchvision(o.size)

    def one(sample):
        return decode(sample["jpg"]), sample["cls"]

    data = StreamingDataset(o.lit, shuffle=True, seed=1, transform=one)
    return batches_of(data_loader(o, data, StreamingDataLoader, batch_size=o.batch))


def write_lit(o):
    from litdata import optimize
    files = sorted(map(str, pathlib.Path(o.files).glob("*/*.jpg"))) * o.times
    optimize(fn=lit_sample, inputs=files, output_dir=o.lit, chunk_bytes="64MB", num_workers=1, verbose=False)


def lit_sample(path):
    path = pathlib.Path(path)
    return {"jpg": path.read_bytes(), "cls": int(path.parent.name)}


def streaming(o):
    """Uncompressed MDS with the JPEGs' bytes; local, with the library's shuffle (py1e)."""
    from streaming import StreamingDataset
    decode = Torchvision(o.size)

    class Decoded(StreamingDataset):
        def __getitem__(self, at):
            sample = super().__getitem__(at)
            return decode(sample["jpg"]), sample["cls"]

    data = Decoded(local=o.mds, batch_size=o.batch, shuffle=True, num_canonical_nodes=1)
    return batches_of(data_loader(o, data, batch_size=o.batch))


def write_mds(o):
    from streaming import MDSWriter
    with MDSWriter(out=o.mds, columns={"jpg": "bytes", "cls": "int"}) as out:
        for path in sorted(pathlib.Path(o.files).glob("*/*.jpg")) * o.times:
            out.write({"jpg": path.read_bytes(), "cls": int(path.parent.name)})


def datasets(o):
    """Streaming of the webdataset format, images left as bytes and decoded as by the others, batches by the DataLoader."""
    from datasets import Image, disable_progress_bars, load_dataset
    disable_progress_bars()
    decode = Torchvision(o.size)
    data = load_dataset("webdataset", data_files={"train": o.shards}, split="train", streaming=True)
    data = data.cast_column("jpg", Image(decode=False)).shuffle(seed=1, buffer_size=o.shuffle)

    def one(sample):
        return {"image": decode(sample["jpg"]["bytes"]), "cls": sample["cls"]}

    data = data.map(one, remove_columns=["jpg", "__key__", "__url__"])
    return batches_of(data_loader(o, data, batch_size=o.batch, collate_fn=pair))


def pair(samples):
    import torch
    return torch.stack([s["image"] for s in samples]), torch.tensor([int(s["cls"]) for s in samples])


def dali_pipeline(o):
    """A pipeline on the CPU with as many threads as cores; the decoder decodes the crop's part of the JPEG."""
    import numpy
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=o.batch, num_threads=o.threads, device_id=None, prefetch_queue_depth=2, seed=1)
    def reading():
        jpg, cls = fn.readers.webdataset(paths=o.shards, index_paths=[s + ".idx" for s in o.shards], ext=["jpg", "cls"],
                                         random_shuffle=True, initial_fill=o.shuffle)
        images = fn.decoders.image_random_crop(jpg, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0],
                                               random_aspect_ratio=[0.75, 4 / 3])
        images = fn.resize(images, size=[o.size, o.size], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), cls

    built = reading()
    built.build()
    while True:
        images, _ = built.run()
        yield numpy.asarray(images.as_tensor())


def dali_dynamic(o):
    """Dynamic mode on the CPU, with operators of several batches captured (`capture`), so that it works ahead."""
    import numpy
    import nvidia.dali.experimental.dynamic as ndd
    ndd.set_num_threads(o.threads)
    reader = ndd.readers.Webdataset(paths=o.shards, index_paths=[s + ".idx" for s in o.shards], ext=["jpg", "cls"],
                                    random_shuffle=True, initial_fill=o.shuffle)
    while True:
        for jpg, _ in reader.next_epoch(batch_size=o.batch, capture=o.capture):
            images = ndd.decoders.image_random_crop(jpg, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[0.75, 4 / 3])
            images = ndd.resize(images, size=[o.size, o.size], antialias=True)
            images = ndd.flip(images, horizontal=ndd.random.coin_flip(batch_size=images.batch_size))
            yield numpy.asarray(ndd.as_tensor(images))


def spin(sample):
    """A function of a user that takes 20 us."""
    end = time.perf_counter() + 20e-6
    while time.perf_counter() < end:
        pass
    return sample


def chain(o):
    """The same chain by webdataset and by millrace.webdataset (o.library): lists of samples, not collated. webdataset's
    workers are a WebLoader's; millrace's chain is iterated as it is."""
    if o.library == "millrace":
        import millrace.webdataset as wds
    else:
        import webdataset as wds
    data = wds.WebDataset(o.shards, shardshuffle=100, seed=1).shuffle(o.shuffle)
    if o.decode:
        data = data.decode("rgb8")
    data = data.to_tuple("jpg", "cls")
    if o.spin:
        data = data.map(spin)
    data = data.batched(o.batch, collation_fn=None)
    loader = data if o.library == "millrace" else data_loader(o, data, wds.WebLoader, batch_size=None)
    while True:
        yield from loader


LOADERS = {"millrace": millrace, "webdataset": webdataset, "torchvision": torchvision, "SPDL": spdl, "LitData": litdata,
           "Streaming": streaming, "datasets": datasets, "DALI pipeline": dali_pipeline, "DALI dynamic": dali_dynamic, "chain": chain}
DISTRIBUTIONS = {"webdataset": "webdataset", "torchvision": "torchvision", "SPDL": "spdl", "LitData": "litdata",
                 "Streaming": "mosaicml-streaming", "datasets": "datasets", "DALI pipeline": "nvidia-dali-cuda120",
                 "DALI dynamic": "nvidia-dali-cuda120"}


def version(name):
    import importlib.metadata
    if name == "millrace":
        import millrace as mr
        return {"version": mr.__version__}
    if name == "SPDL":
        importlib.import_module("spdl.io").demux_config()  # fails without FFmpeg's libraries
    return {"version": importlib.metadata.version(DISTRIBUTIONS[name])}


def rate(batches, o):
    """Images a second, beginning with the end of the first batch and of `warm` seconds after it."""
    first = next(batches)
    begun = time.perf_counter()
    while time.perf_counter() - begun < o.warm:
        next(batches)
    start, images = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < o.seconds:
        images += len(next(batches))
    return {"images_per_s": images / taken, "first": list(getattr(first, "shape", [len(first)]))}


def next_us(batches, o):
    """The time of next() where a batch is ready: all of the call, so at least what it takes beyond the C++ loader."""
    times = []
    for _ in range(o.steps):
        end = time.perf_counter() + 0.02  # the loop's work, in which the loader prepares the next one
        while time.perf_counter() < end:
            pass
        asked = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - asked)
    times.sort()
    return {"us": 1e6 * times[len(times) // 2], "us_10": 1e6 * times[len(times) // 10], "us_90": 1e6 * times[9 * len(times) // 10]}


def states(batches, o):
    """The part of a loop's time that state_dict() takes at each step; without `saves`, the same steps alone."""
    next(batches)
    start, saving = time.perf_counter(), 0.0
    for _ in range(o.steps):
        next(batches)
        if o.saves:
            asked = time.perf_counter()
            o.loader.state_dict()
            saving += time.perf_counter() - asked
    taken = time.perf_counter() - start
    return {"part": saving / taken, "us": 1e6 * saving / o.steps, "images_per_s": o.steps * o.batch / taken}


def main():
    warnings.filterwarnings("ignore")
    name, mode, options = sys.argv[1:]
    o = types.SimpleNamespace(**json.loads(options))
    o.loader = None
    if mode == "version":
        found = version(name)
    elif mode == "write":
        {"LitData": write_lit, "Streaming": write_mds}[name](o)
        found = {}
    else:
        batches = LOADERS[name](o)
        if mode == "first":
            shape = list(next(batches).shape)
            found = {"at": time.time(), "first": shape}
        else:
            found = {"rate": rate, "next": next_us, "states": states}[mode](batches, o)
    print(json.dumps(found), flush=True)
    # Generators of peers that have threads of their own are not waited for.
    if o.loader is not None and hasattr(o.loader, "stop"):
        o.loader.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
