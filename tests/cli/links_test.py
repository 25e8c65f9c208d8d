"""Every place of a command that takes a path, with links in it: a symbolic link and a hard link are as good as the file, one
that leads nowhere or in a circle is an error of the table in docs/tools.md, in one line; and whatever a command writes, no link is
replaced by a file, and nothing but a file of the same kind is replaced through one."""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.command_table import RIGHT_END, CommandTest, places, takes, with_options  # noqa: E402

PRECIOUS = b"precious"
# In the name of a list that pack goes on with, by the job.
JOURNAL = ".pack.json."
# Reads servers alone.
SERVERS = {"bench http"}


def contents(folder):
    """By name, links as they are."""
    return {str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes()
            for p in sorted(folder.rglob("*")) if p.is_symlink() or p.is_file()}


class LinkTest(CommandTest):
    def done(self, words):
        """Runs it in the output folder, and leaves what it writes there."""
        process = self.started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, wrong = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        self.assertNotIn(b"internal:", wrong, process.args)
        return subprocess.CompletedProcess(process.args, process.returncode, out, wrong)

    def emptied(self):
        shutil.rmtree(self.output)
        self.output.mkdir()


class LinksRead(LinkTest):
    """What is read stays as it is, and so do the links to it."""

    def setUp(self):
        super().setUp()
        self.links = self.inputs / "links"
        self.links.mkdir()
        self.numbers = itertools.count()
        (self.inputs / "note.txt").write_text("a note")

    def target(self, command, place):
        """What the place is given where there is no link."""
        if place == "--info":
            return self.inputs / "note.txt"
        if place == "--base":
            return self.inputs
        if command.startswith("state "):
            return self.inputs / "position.json"
        if place in ("FILE", "--index"):
            return self.inputs / "a.json"
        return self.inputs / "tree" if place == "DIR" else self.shard

    def words(self, command, place, path):
        """The command with `path` in its place, and the right input in all others."""
        words = with_options(command, self.output)
        if command == "index update":
            words += ["--name", f"n{next(self.numbers)}"]
        if place == "--from-shards":
            return [*words, "--restart", "1", place, path]
        if place == "--base":
            return [*words, self.shard.name, place, path]
        if place.startswith("--"):
            return words + self.right_input(command) + [place, path]
        return [*words, path] + (["0"] if takes(command, "INDEX") else [])

    def read_places(self):
        return [(c, p) for c, p, is_written in places() if not is_written and c not in SERVERS]

    def linked(self, command, place, kind):
        """A link of that kind to what the place takes; None where there is none."""
        target = self.target(command, place)
        shutil.rmtree(self.links)
        self.links.mkdir()
        # The shards of an index are named from its folder, whatever the link in it leads to.
        link = self.inputs / "l.json" if target.suffix == ".json" else self.links / f"l{target.suffix}"
        link.unlink(missing_ok=True)
        if kind == "hard":
            if target.is_dir():
                return None
            os.link(target, link)
        elif kind == "symbolic":
            link.symlink_to(os.path.relpath(target, link.parent))
        elif kind == "chain":
            (self.links / "other").symlink_to(target)
            link.symlink_to(self.links / "other")
        elif kind == "dangling":
            link.symlink_to("none")
        else:
            link.symlink_to(self.links / "circle")
            (self.links / "circle").symlink_to(link)
        return link

    def test_links_to_what_is_there_are_as_good_as_it(self):
        for command, place in self.read_places():
            for kind in ("symbolic", "chain", "hard"):
                link = self.linked(command, place, kind)
                if link is None:
                    continue
                with self.subTest(command=command, place=place, kind=kind):
                    self.emptied()
                    is_updated = command == "index update" and place == "FILE"
                    before = contents(self.inputs)
                    done = self.done(self.words(command, place, link))
                    self.assertEqual(done.returncode, RIGHT_END.get(command, 0), f"{done.args} {done.stderr}")
                    after = contents(self.inputs)
                    self.assertEqual(link.is_symlink(), kind != "hard", "the link was replaced")
                    if not is_updated:
                        self.assertEqual(after, before)
                    elif kind != "hard":
                        self.assertNotEqual(after["a.json"], before["a.json"], "its target is the index")
                    else:
                        self.assertEqual(after["a.json"], before["a.json"], "its other name keeps what it had")

    def test_links_to_nothing_and_in_a_circle_are_told(self):
        for command, place in self.read_places():
            for kind in ("dangling", "circle"):
                with self.subTest(command=command, place=place, kind=kind):
                    self.emptied()
                    link = self.linked(command, place, kind)
                    before = contents(self.inputs)
                    words = self.words(command, place, link)
                    done = self.done(words)
                    self.assertEqual(contents(self.inputs), before)
                    self.check_failure(command, done, {4}, [p.name for p in self.output.iterdir()])
                    self.assertIn(str(link).encode(), done.stderr + done.stdout)

    def test_links_within_lists_and_folders(self):
        """@FILE, a folder of shards, and '*': the links in them are as good as shards, and lead nowhere by name."""
        shards = [c for c, p in self.read_places() if p == "SHARD" and c != "summary"]
        self.assertGreater(len(shards), 7)
        for command in shards:
            for kind, codes in (("symbolic", {RIGHT_END.get(command, 0)}), ("dangling", {4}), ("circle", {4})):
                for form in ("@{}/list", "{}", "{}/l*.tar"):
                    with self.subTest(command=command, kind=kind, form=form):
                        self.emptied()
                        link = self.linked(command, "SHARD", kind)
                        if form.startswith("@"):
                            (self.inputs / "listed").write_text(f"{link}\n")
                            (self.links / "list").symlink_to("../listed")
                        done = self.done(self.words(command, "SHARD", form.format(self.links)))
                        self.assertIn(done.returncode, codes, f"{done.args} {done.stderr}")
                        if codes == {4}:
                            self.check_failure(command, done, {4}, [p.name for p in self.output.iterdir()])


class LinksWritten(LinkTest):
    """A link in the place of each file that a command writes; what it writes is what it is seen to make."""

    KINDS = ("symbolic", "hard", "dangling", "circle", "own symbolic", "own hard", "input symbolic", "input hard")

    def writers(self):
        """Command lines by what they are, and the places of the listing that they have."""
        shard, out = str(self.shard), self.output
        quick = ["--rounds", "1", "--size", "32"]
        return {("index", "--output"): ["index", shard, "--offsets", "-o", out / "i.json"],
                ("index create", "--output"): ["index", "create", shard, "--offsets", "-o", out / "i.json"],
                ("ls", "--contact-sheet"): ["ls", shard, "--contact-sheet", out / "s.png"],
                ("fake", "PATTERN"): ["fake", out / "f-%d.tar", "--shards", "1", "--samples", "2", "--size", "16"],
                ("fake", "PATTERN", "again"): ["fake", out / "f-%d.tar", "--shards", "1", "--samples", "2", "--size", "16",
                                               "--overwrite"],
                ("pack", "--output"): ["pack", self.inputs / "tree", "-o", out / "p-%d.tar"],
                ("pack", "--output", "again"): ["pack", "--restart", "1", "--from-shards", shard, "-o", out / "p-%d.tar"],
                ("pack", "--output", "over"): ["pack", "--restart", "1", "--from-shards", shard, "-o", out / "p-%d.tar",
                                               "--overwrite"],
                ("state move", "--output"): ["state", "move", self.inputs / "position.json", "--epoch", "1", "-o", out / "s.json",
                                             "--overwrite"],
                ("state skip", "--output"): ["state", "skip", self.inputs / "position.json", "--samples", "1", "-o",
                                             out / "s.json", "--overwrite"],
                ("bench decode", "--write-crops"): ["bench", "decode", shard, *quick, "--write-crops", out / "c.txt"]}

    def test_every_place_is_here(self):
        self.assertEqual({(c, p) for c, p, is_written in places() if is_written}, {key[:2] for key in self.writers()})

    def test_no_link_is_replaced_and_no_target_destroyed(self):
        tried = 0
        for key, words in self.writers().items():
            self.emptied()
            self.assertEqual(self.done(words).returncode, 0, words)
            made = contents(self.output)
            self.assertTrue(made)
            for name in made:
                for kind in self.KINDS:
                    with self.subTest(place=key, name=name, kind=kind):
                        self.write_over(words, name, kind, made)
                        tried += 1
        self.assertGreater(tried, 80)

    def write_over(self, words, name, kind, made):
        self.emptied()
        kept = self.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        target, place = kept / "target", self.output / name
        how, _, link = kind.rpartition(" ")
        if how == "input" and words[0] == "fake":
            return  # which has none, and is told to overwrite what it wrote
        if how == "input":
            target = self.shard
        elif how == "own":
            target.write_bytes(made[name])
        elif kind in ("symbolic", "hard"):
            target.write_bytes(PRECIOUS)
        if kind == "circle":
            place.symlink_to("circle")
            (self.output / "circle").symlink_to(name)
        elif link == "hard":
            os.link(target, place)
        else:
            place.symlink_to(target)
        before = target.read_bytes() if target.exists() else None
        shard = self.shard.read_bytes()
        done = self.done(words)
        self.assertEqual(self.shard.read_bytes(), shard, "an input is gone")
        after = target.read_bytes() if target.exists() else None
        if JOURNAL in name and kind not in ("dangling", "circle"):  # what is there goes on, or makes room for a new one
            self.assertTrue(after == before or how == "own" and after.startswith(before), after)
            return
        self.assertEqual(place.is_symlink(), link != "hard", f"{done.args}: the link was replaced")
        if done.returncode != 0:
            self.check_failure(words[0], done, {4} if kind == "circle" else {2})
            self.assertEqual(after, before, "it failed, and changed the target")
            return
        self.assertIn(kind, ("dangling", "own symbolic", "own hard"), f"{done.args}: it wrote over another's file")
        self.assertLessEqual({p.name for p in kept.iterdir()}, {"target", "target.offsets"})
        if link == "hard":
            self.assertEqual(after, before, "its other name keeps what it had")
        else:
            self.assertEqual(after[:64], made[name][:64])


if __name__ == "__main__":
    unittest.main()
