"""Images beside Pillow and torchvision: the resampler, other codecs, rewritten photos, augmentations.

Run it in the environment of ./setup --peers. What is not a whole program's work is done by
image_visitor, which takes a line of JSON for each image."""

import collections
import io
import json
import math
import pathlib
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import harness  # noqa: E402

try:
    import numpy as np
    import PIL.Image
    import PIL.ImageOps
    import safetensors.torch
    import torch
    import torchvision
    from torchvision.transforms import functional
except ImportError:
    torch = None


def visit(lines):
    """What image_visitor answers to each."""
    done = subprocess.run([harness.BIN / "image_visitor"], input="".join(json.dumps(l) + "\n" for l in lines),
                          capture_output=True, text=True, env=harness.CLEAN, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(l) for l in done.stdout.splitlines()]


def photos(count):
    with tarfile.open(harness.SHARED / "imagenet-sample/imagenet-sample-000000.tar") as archive:
        files = (archive.extractfile(m).read() for m in archive if m.name.endswith(".jpg"))
        return [PIL.Image.open(io.BytesIO(f)).convert("RGB") for _, f in zip(range(count), files)]


@unittest.skipUnless(torch, "torch and Pillow are not installed: ./setup --peers")
class ImageParity(unittest.TestCase):
    @harness.needs_shared("imagenet-sample")
    def test_validation_images_are_torchvisions_within_one(self):
        """Resize 256, centre crop 224, on real photos, beside Pillow through torchvision."""
        shard = harness.SHARED / "imagenet-sample/imagenet-sample-000000.tar"
        with tarfile.open(shard) as archive:
            files = [archive.extractfile(m).read() for m in archive if m.name.endswith(".jpg")][:64]
        folder = self.enterContext(harness.Folder())
        done = harness.run("millrace-train", "--shards", shard, "--model", "trivial", "--size", "224",
                           "--batch-size", "64", "--max-steps", "1", "--shuffle", "0", "--lanes", "1",
                           "--device", "cpu", "--lr", "0", "--record-batches", folder, "--no-augment")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = safetensors.torch.load_file(next(folder.iterdir()))["images"].numpy()
        resize = torchvision.transforms.Resize(256)
        crop = torchvision.transforms.CenterCrop(224)
        worst, different = 0, 0
        for image, file in zip(ours, files):
            photo = PIL.Image.open(io.BytesIO(file)).convert("RGB")
            theirs = np.asarray(crop(resize(photo)))
            difference = np.abs(image.astype(int) - theirs.astype(int))
            worst = max(worst, difference.max())
            different += (difference > 0).mean() / len(files)
        print(f"\n64 photos: largest difference to torchvision {worst} of 255, "
              f"{100 * different:.3f} % of the values differ")
        self.assertLessEqual(worst, 1)

    @harness.needs_shared("imagenet-sample")
    def test_rewritten_photos_are_the_same_to_every_reader(self):
        shard = harness.SHARED / "imagenet-sample/imagenet-sample-000001.tar"
        folder = self.enterContext(harness.Folder())
        done = harness.run("millrace", "pack", "--from-shards", shard, "-o", folder / "r-%06d.tar", "--restart", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        before, after = tarfile.open(shard), tarfile.open(folder / "r-000000.tar")
        for a, b in zip(before, after, strict=True):
            self.assertEqual(a.name, b.name)
            if a.name.endswith(".jpg"):
                one, other = (PIL.Image.open(io.BytesIO(t.extractfile(m).read())) for t, m in ((before, a), (after, b)))
                self.assertTrue(np.array_equal(np.asarray(one), np.asarray(other)), a.name)
                self.assertEqual(one.getexif(), other.getexif())
                self.assertEqual(one.info.get("icc_profile"), other.info.get("icc_profile"))


@unittest.skipUnless(torch, "torch and Pillow are not installed: ./setup --peers")
class CodecParity(unittest.TestCase):
    """Files of other formats, written by Pillow, are decoded to what Pillow decodes them to."""

    def setUp(self):
        self.folder = self.enterContext(harness.Folder())
        random = np.random.default_rng(5)
        smooth = np.cumsum(random.integers(-6, 7, (61, 83, 4)), axis=1) + 128
        self.rgba = PIL.Image.fromarray(smooth.clip(0, 255).astype(np.uint8), "RGBA")
        self.rgb = self.rgba.convert("RGB")

    def check(self, files, most=0):
        """files: [(name, the expected image)]. All filters of a view are tested elsewhere: whole images."""
        lines = [{"do": "decode", "file": str(self.folder / name), "out": str(self.folder / (name + ".rgb"))}
                 for name, _ in files]
        for (name, expected), found in zip(files, visit(lines)):
            self.assertNotIn("error", found, name)
            theirs = np.asarray(expected)
            self.assertEqual((found["height"], found["width"]), theirs.shape[:2], name)
            ours = np.fromfile(self.folder / (name + ".rgb"), np.uint8).reshape(theirs.shape)
            self.assertLessEqual(np.abs(ours.astype(int) - theirs).max(), most, name)

    def written(self, name, image, **options):
        image.save(self.folder / name, **options)
        return name, PIL.ImageOps.exif_transpose(PIL.Image.open(self.folder / name)).convert("RGB")

    def test_png_of_every_kind(self):
        images = {"rgb": self.rgb, "rgba": self.rgba, "l": self.rgb.convert("L"), "la": self.rgba.convert("LA"),
                  "p": self.rgb.convert("P", palette=PIL.Image.Palette.ADAPTIVE), "one": self.rgb.convert("1"),
                  "p16": self.rgb.quantize(16)}
        files = [self.written(f"{n}.png", i) for n, i in images.items()]
        files.append(self.written("bits4.png", self.rgb.quantize(8), bits=4))
        clear = self.rgb.quantize(16)
        files.append(self.written("clear.png", clear, transparency=3))
        for number in range(1, 9):
            exif = PIL.Image.Exif()
            exif[0x0112] = number
            files.append(self.written(f"turned{number}.png", self.rgb, exif=exif))
        self.check(files)

    def test_png_interlaced_and_of_16_bits(self):
        # Pillow writes neither; chunks by hand.
        import struct
        import zlib

        def chunk(name, body):
            return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

        pixels = np.asarray(self.rgb)
        height, width = pixels.shape[:2]

        def png(depth, interlace, rows):
            header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, interlace)
            return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
                    chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r.tobytes() for r in rows))) + chunk(b"IEND", b""))

        deep = np.stack([pixels, pixels[::-1]], axis=-1)  # the second bytes are other ones
        (self.folder / "deep.png").write_bytes(png(16, 0, list(deep)))
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        rows = [row for y, x, down, across in passes for row in pixels[y::down, x::across]]
        (self.folder / "laced.png").write_bytes(png(8, 1, rows))
        theirs = PIL.Image.open(self.folder / "laced.png").convert("RGB")
        self.assertTrue(np.array_equal(np.asarray(theirs), pixels))
        self.check([("deep.png", self.rgb), ("laced.png", self.rgb)])

    def test_webp(self):
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        self.check([self.written("lossless.webp", self.rgb, lossless=True),
                    self.written("alpha.webp", self.rgba, lossless=True, exact=True),
                    self.written("turned.webp", self.rgb, lossless=True, exif=exif)])
        # Lossy ones by another libwebp than Pillow's own: the same format, decoded exactly.
        self.check([self.written(f"lossy{q}.webp", self.rgb, quality=q) for q in (10, 75, 100)])

    def test_regions_are_those_of_the_whole_image(self):
        exif = PIL.Image.Exif()
        exif[0x0112] = 8
        names = [self.written(*a, **o)[0] for a, o in (
            (("a.png", self.rgb), {}), (("t.png", self.rgb), {"exif": exif}), (("a.webp", self.rgb), {"quality": 80}),
            (("l.webp", self.rgba), {"lossless": True, "exif": exif}), (("a.ppm", self.rgb), {}), (("a.jpg", self.rgb), {}))]
        np.save(self.folder / "a.npy", np.asarray(self.rgb))
        random = np.random.default_rng(2)
        for name in [*names, "a.npy"]:
            line = {"do": "decode", "file": str(self.folder / name)}
            out = str(self.folder / "whole")
            whole, = visit([line | {"out": out}])
            width, height = whole["width"], whole["height"]
            pixels = np.fromfile(out, np.uint8).reshape(height, width, 3)
            boxes = []
            for _ in range(60):
                w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
                boxes.append((int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h))
            lines = [line | {"crop": box, "out": f"{out}{i}"} for i, box in enumerate(boxes)]
            for i, ((x, y, w, h), found) in enumerate(zip(boxes, visit(lines), strict=True)):
                self.assertNotIn("error", found, name)
                part = np.fromfile(f"{out}{i}", np.uint8).reshape(h, w, 3)
                self.assertTrue(np.array_equal(part, pixels[y:y + h, x:x + w]), f"{name} {(x, y, w, h)}")

    def test_huffman_decoding_of_its_own_is_that_of_the_library(self):
        """Baseline JPEGs of every sampling, tables and restart interval: whole, and regions of any place and scale."""
        random = np.random.default_rng(3)
        noise = PIL.Image.fromarray(random.integers(0, 256, (67, 150, 3), np.uint8), "RGB")
        names = []
        for name, image in (("smooth", self.rgb), ("noise", noise), ("gray", noise.convert("L")), ("cmyk", noise.convert("CMYK"))):
            for quality in (1, 30, 75, 95, 100):
                for subsampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1") if image.mode == "RGB" else ("4:4:4",):
                    for optimize, blocks in ((False, 0), (True, 0), (True, 7), (False, 1)):
                        names.append(f"{name}{quality}{subsampling.replace(':', '')}{optimize}{blocks}.jpg")
                        image.save(self.folder / names[-1], quality=quality, subsampling=subsampling, optimize=optimize,
                                   restart_marker_blocks=blocks)
        # A gray image's blocks stand row by row, whatever its sampling factors are.
        for factors in (0x21, 0x22, 0x41):
            file = bytearray((self.folder / "gray75444False0.jpg").read_bytes())
            file[file.index(b"\xff\xc0") + 11] = factors
            names.append(f"gray{factors:x}.jpg")
            (self.folder / names[-1]).write_bytes(file)
        lines = []
        for name in names:
            line = {"do": "decode", "file": str(self.folder / name)}
            width, height = PIL.Image.open(self.folder / name).size
            for i in range(8):
                w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
                x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
                crop = {"crop": [x, y, w, h]} if i > 0 else {}
                out = str(self.folder / f"{name}.{i}")
                lines.append(line | crop | {"out": out + ".own"})
                lines.append(line | crop | {"out": out + ".library", "own_huffman": False})
        found = visit(lines)
        for line, answer in zip(lines, found, strict=True):
            self.assertNotIn("error", answer, line)
        for line in lines[::2]:
            own = pathlib.Path(line["out"])
            self.assertEqual(own.read_bytes(), own.with_suffix(".library").read_bytes(), line)

    def test_wrong_checksums_are_errors_or_counted(self):
        self.written("a.png", self.rgb)
        file = bytearray((self.folder / "a.png").read_bytes())
        at = file.index(b"IDAT")
        size = int.from_bytes(file[at - 4:at], "big")
        file[at + 4 + size] ^= 1  # of the chunk's checksum
        (self.folder / "a.png").write_bytes(file)
        line = {"do": "decode", "file": str(self.folder / "a.png")}
        strict, lenient = visit([line, line | {"lenient": True}])
        self.assertEqual(strict["kind"], "bad_image")
        self.assertIn("CRC", strict["error"])
        self.assertEqual(lenient["warnings"], 1)

    def test_pixels_that_are_not_compressed(self):
        pixels = np.asarray(self.rgb)
        np.save(self.folder / "hwc.npy", pixels)
        np.save(self.folder / "chw.npy", np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        np.save(self.folder / "gray.npy", np.asarray(self.rgb.convert("L")))
        gray = self.rgb.convert("L").convert("RGB")
        files = [("hwc.npy", self.rgb), ("chw.npy", self.rgb), ("gray.npy", gray),
                 self.written("a.ppm", self.rgb), self.written("a.pgm", self.rgb.convert("L"))]
        self.check(files)
        (self.folder / "bare").write_bytes(pixels.tobytes())
        line = {"do": "decode", "file": str(self.folder / "bare"), "out": str(self.folder / "bare.rgb")}
        whole, wrong = visit([line | {"raw": [83, 61]}, line | {"raw": [82, 61]}])
        self.assertEqual((whole["width"], whole["height"]), (83, 61))
        self.assertEqual((self.folder / "bare.rgb").read_bytes(), pixels.tobytes())
        self.assertIn("82 x 61 pixels of 3 bytes are 15006 bytes, where the file has 15189", wrong["error"])

    def test_cut_files_are_errors_or_filled(self):
        for name, options in (("a.png", {}), ("a.webp", {"lossless": True}), ("b.webp", {}), ("a.jpg", {"quality": 95})):
            self.rgb.save(self.folder / name, **options)
            file = (self.folder / name).read_bytes()
            (self.folder / name).write_bytes(file[:len(file) * 2 // 3])
            line = {"do": "decode", "file": str(self.folder / name)}
            strict, lenient, filled = visit([line, line | {"lenient": True}, line | {"fill": True}])
            self.assertEqual((strict["kind"], lenient["kind"]), ("bad_image", "bad_image"), name)
            self.assertGreater(filled["warnings"], 0, name)

    def test_jpegs_that_lack_a_scan_are_damaged(self):
        """Where the header of a scan is damaged, what follows it belongs to nothing; Pillow and libjpeg only warn, at most."""
        self.rgb.save(self.folder / "scans.jpg", quality=90, progressive=True)
        whole = (self.folder / "scans.jpg").read_bytes()
        scans = [i for i in range(len(whole)) if whole[i:i + 2] == b"\xff\xda"]
        self.assertGreater(len(scans), 5)
        lines = []
        for scan in scans:
            for by in (b"\0\0", b"\xff\xeb", b"\xfe\xda", b"\xff\xdb"):
                damaged = self.folder / f"{scan}.{by.hex()}.jpg"
                damaged.write_bytes(whole[:scan] + by + whole[scan + 2:])
                lines.append({"do": "decode", "file": str(damaged)})
        for line, strict, top in zip(lines, visit(lines), visit([l | {"crop": [0, 0, 83, 5], "size": [83, 5]} for l in lines]), strict=True):
            self.assertEqual((strict.get("kind"), top.get("kind")), ("bad_image", "bad_image"), line)

    def test_other_formats_are_refused_by_name(self):
        kinds = {"gif": "a GIF", "bmp": "a BMP", "tiff": "a TIFF", "jp2": "a JPEG 2000"}
        lines = []
        for suffix in kinds:
            self.rgb.save(self.folder / f"a.{suffix}")
            lines.append({"do": "decode", "file": str(self.folder / f"a.{suffix}")})
        frames = [self.rgb, self.rgb.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)]
        frames[0].save(self.folder / "moving.webp", save_all=True, append_images=frames[1:])
        lines.append({"do": "decode", "file": str(self.folder / "moving.webp")})
        for found, said in zip(visit(lines), [*kinds.values(), "an animated WebP"], strict=True):
            self.assertEqual(found["kind"], "bad_image")
            self.assertIn(said, found["error"])


@unittest.skipUnless(torch, "torch and Pillow are not installed: ./setup --peers")
class AugmentParity(unittest.TestCase):
    """Each operation beside torchvision's, on tensors of bytes, with the same parameters."""

    def pairs(self, requests, theirs):
        """(request, ours, theirs) for each of the photos."""
        folder = self.enterContext(harness.Folder())
        images = [p.resize((120, 90)) for p in photos(6)]
        lines = []
        for i, image in enumerate(images):
            (folder / f"{i}.in").write_bytes(image.tobytes())
            for j, request in enumerate(requests):
                lines.append(request | {"width": 120, "height": 90, "in": str(folder / f"{i}.in"),
                                        "out": str(folder / f"{i}.{j}")})
        visit(lines)
        for i, image in enumerate(images):
            tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            for j, request in enumerate(requests):
                ours = np.fromfile(folder / f"{i}.{j}", np.uint8).reshape(90, 120, 3)
                yield request, ours.astype(int), theirs(tensor, request).permute(1, 2, 0).numpy().astype(int)

    @harness.needs_shared("imagenet-sample")
    def test_colours(self):
        by = {
            "brightness": functional.adjust_brightness, "contrast": functional.adjust_contrast,
            "color": functional.adjust_saturation, "sharpness": functional.adjust_sharpness,
            "hue": functional.adjust_hue, "posterize": lambda i, a: functional.posterize(i, int(a)),
            "solarize": functional.solarize, "autocontrast": lambda i, a: functional.autocontrast(i),
            "equalize": lambda i, a: functional.equalize(i), "invert": lambda i, a: functional.invert(i),
            "grayscale": lambda i, a: functional.rgb_to_grayscale(i, 3), "identity": lambda i, a: i}
        amounts = {**dict.fromkeys(("brightness", "contrast", "color", "sharpness"), (0, 0.1, 0.73, 1, 1.9)),
                   "hue": (-0.5, -0.1, 0, 0.03, 0.5), "posterize": (1, 4, 7, 8), "solarize": (0, 12.5, 128, 255)}
        requests = [{"do": "op", "op": op, "amount": a} for op in by for a in amounts.get(op, (0,))]
        differing = collections.Counter()
        for request, ours, theirs in self.pairs(requests, lambda i, r: by[r["op"]](i, r["amount"])):
            # Sums of floats in another order: a value at the edge of a step goes either way.
            self.assertLessEqual(np.abs(ours - theirs).max(), 1, request)
            differing[request["op"]] = max(differing[request["op"]], (ours != theirs).mean())
        print("\nlargest part of values that are 1 away:", {k: round(float(v), 5) for k, v in differing.items() if v})
        # torchvision blends the border's pixels, which sharpening leaves alone, with themselves, and loses 1 of some.
        self.assertLess(max(differing.values()), 0.02)

    @harness.needs_shared("imagenet-sample")
    def test_moves(self):
        def theirs(image, request):
            a = request["amount"]
            turn = math.degrees(math.atan(a))
            plain = {"angle": 0.0, "scale": 1.0}
            match request["op"]:
                case "shear_x":
                    return functional.affine(image, translate=[0, 0], shear=[turn, 0.0], center=[0, 0], **plain)
                case "shear_y":
                    return functional.affine(image, translate=[0, 0], shear=[0.0, turn], center=[0, 0], **plain)
                case "translate_x":
                    return functional.affine(image, translate=[int(a), 0], shear=[0.0, 0.0], **plain)
                case "translate_y":
                    return functional.affine(image, translate=[0, int(a)], shear=[0.0, 0.0], **plain)
            return functional.rotate(image, a)

        amounts = {"shear_x": (-0.99, -0.3, 0.17), "shear_y": (-0.3, 0.5), "translate_x": (-31.7, 5.2),
                   "translate_y": (12, -200), "rotate": (-135, -7.3, 21, 90)}
        requests = [{"do": "op", "op": op, "amount": a} for op, each in amounts.items() for a in each]
        for request, ours, expected in self.pairs(requests, theirs):
            # A point that lies between two pixels goes to either.
            self.assertLess((ours != expected).any(axis=2).mean(), 0.01, request)

    @harness.needs_shared("imagenet-sample")
    def test_blur(self):
        requests = [{"do": "blur", "size": size, "amount": sigma} for size in (3, 9, 23) for sigma in (0.1, 1, 2)]
        for request, ours, theirs in self.pairs(
                requests, lambda i, r: functional.gaussian_blur(i, [r["size"]] * 2, [r["amount"]] * 2)):
            self.assertLessEqual(np.abs(ours - theirs).max(), 1, request)
            self.assertLess((ours != theirs).mean(), 0.001, request)

    def test_policies_draw_what_torchvisions_draw(self):
        """The operations, how often, and their amounts: those of torchvision's classes over many images."""
        from torchvision.transforms import autoaugment
        names = {"Identity": "identity", "ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x",
                 "TranslateY": "translate_y", "Rotate": "rotate", "Brightness": "brightness", "Color": "color",
                 "Contrast": "contrast", "Sharpness": "sharpness", "Posterize": "posterize", "Solarize": "solarize",
                 "AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}
        factors = {"Brightness", "Color", "Contrast", "Sharpness"}
        without = {"Identity", "AutoContrast", "Equalize", "Invert"}
        drawn = []

        def note(image, name, magnitude, interpolation, fill):
            amount = 0.0 if name in without else 1 + magnitude if name in factors else magnitude
            drawn.append((names[name], round(amount, 3)))
            return image

        kept, autoaugment._apply_op = autoaugment._apply_op, note
        self.addCleanup(setattr, autoaugment, "_apply_op", kept)
        count = 40_000
        image = torch.zeros(3, 90, 120, dtype=torch.uint8)
        torch.manual_seed(1)
        for policy, theirs in (("autoaugment", autoaugment.AutoAugment()), ("randaugment", autoaugment.RandAugment()),
                               ("trivialaugment", autoaugment.TrivialAugmentWide())):
            drawn.clear()
            for _ in range(count):
                theirs(image)
            answer, = visit([{"do": "draw", "policy": policy, "count": count, "width": 120, "height": 90}])
            ours = [(n, 0.0 if n in ("identity", "autocontrast", "equalize", "invert") else round(a, 3))
                    for n, a in answer["steps"]]
            a, b = collections.Counter(ours), collections.Counter(drawn)
            for step in a.keys() | b.keys():
                # Five standard deviations of a count, twice over.
                near = 5 * math.sqrt(2 * max(a[step], b[step]))
                self.assertLess(abs(a[step] - b[step]), near + 10, f"{policy}: {step}: {a[step]} and {b[step]}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
