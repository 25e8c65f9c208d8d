"""The API reference (docs/reference): Doxygen builds it from the installed headers without a warning, with a page for each of the
central names. A public name without a comment is a warning, with its place in the header."""

import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/reference"))
import build  # noqa: E402

# Page -> words that it must have.
PAGES = {
    "index.html": ["classmillrace_1_1engine.html", "decode_jpeg()"],
    "namespacemillrace.html": ["expand", "shards", "untar", "group_by_key", "read_samples", "shuffle", "decode_jpeg", "batch", "mix"],
    "classmillrace_1_1engine.html": ["no_memory if the budget is too small", "epoch_8cc-example.html"],
    "classmillrace_1_1loader.html": ["restore", "resume_8cc-example.html"],
    "classmillrace_1_1stream.html": ["own_stage_8cc-example.html"],
    "classmillrace_1_1byte__source.html": ["own_source_8cc-example.html"],
    "classmillrace_1_1sample__source.html": ["own_format_8cc-example.html"],
    "classmillrace_1_1indexed__dataset.html": ["random_access_8cc-example.html"],
    "structmillrace_1_1sample.html": ["payload_bytes"],
    "structmillrace_1_1map.html": ["thread"],
    "structmillrace_1_1on__error.html": ["too_many_skipped"],
    "structmillrace_1_1prefetch.html": ["32 MiB"],
    "structmillrace_1_1shard__list__options.html": ["65,536"],
    "classmillrace_1_1shard__writer.html": ["write_shards_8cc-example.html", "two fields of one extension"],
    "structmillrace_1_1schedule__options.html": ["after the warm-up"],
    "version_8h.html": ["MILLRACE_VERSION_NUMBER"],
}


@unittest.skipIf(shutil.which("doxygen") is None, "doxygen is missing: ./setup --tests installs it")
class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def test_every_public_name_has_its_comment(self):
        self.assertEqual(build.build(self.folder), "")
        for page, words in PAGES.items():
            with self.subTest(page):
                text = (self.folder / "html" / page).read_text()
                self.assertEqual([word for word in words if word not in text], [])
        internal = [page.name for page in (self.folder / "html").glob("*detail*.html")]
        self.assertEqual(internal, [])

    def test_names_without_a_comment_are_warnings(self):
        path = "pipeline/samples/sample.h"
        text = (ROOT / path).read_text()
        edited = text.replace("struct field {\n", "struct field {\n  int bare = 0;\n")
        edited = edited.replace("struct sample {\n", "struct sample {\n  void bare_member();\n")
        edited = edited.replace("\n}  // namespace millrace", "\nvoid bare_function();\nstruct bare_struct {\n  int x = 0;  // x\n};\n\n}  // namespace millrace")
        self.assertEqual(edited.count("bare"), 4)
        warnings = build.build(self.folder, {path: edited})
        for name in ["bare (variable)", "bare_member() (function)", "bare_function() (function)", "millrace::bare_struct"]:
            self.assertIn(name, warnings)
        line = edited[:edited.index("int bare")].count("\n") + 1
        self.assertIn(f"{path}:{line}: ", warnings)


if __name__ == "__main__":
    unittest.main()
