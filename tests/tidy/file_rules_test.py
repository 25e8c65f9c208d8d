"""What file_rules.py reports, and what it does not: the lines marked `// bad`, and no others."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import file_rules  # noqa: E402

ERRORS = r"""
return error(errc::not_found, "no such folder").at(path).cause(-code);  // bad
throw failure(error(errc::io_failed, "cannot write")  // bad
                  .at(path)
                  .cause(errno));
return error(none == -ENOENT ? errc::not_found : errc::io_failed, "cannot find it");  // bad
const errc kind = why == ENOENT ? errc::io_failed : kind_of(why);
return error(kind_of(-code), "no such folder").at(path).cause(-code);
return error(errc::not_found, "no object has this prefix").at(url);
return error(errc::usage, "it cannot be read").at(path).cause(errno);
// error(errc::io_failed, "in a comment").cause(errno)
if (why.kind() == errc::not_found) { log(why); } other.cause(errno);
"""


ACCESS = r"""
std::ifstream in(path);  // bad
if (fs::exists(path, failed)) return;  // bad
if (stat(path.c_str(), &info) != 0) return;  // bad
const int fd = open(path.c_str(), O_RDONLY);  // bad
if (host_files().stat(path, info) != 0) return;
const held_file file(host_files().open(path, O_RDONLY));
awaitable<result<void>> open(source_context context);
co_await cache->open(context);
// std::ifstream in a comment
"""

ENUMS = r"""
enum class purpose : std::uint32_t {
  order = 1,  // as in order = 2
  draw = 2,
  shuffle = 2,  // bad
  mix = 0x2,    // bad
};
enum code { ok = 0, failed = 1 };
enum class other { order = 1 };
"""


def marked(text):
    return [number for number, line in enumerate(text.splitlines(), 1) if "// bad" in line]


class FileRules(unittest.TestCase):
    def test_an_errno_has_one_kind(self):
        self.assertEqual(sorted({line for line, _ in file_rules.errno_rules(ERRORS)}), marked(ERRORS))

    def test_files_are_for_the_seam(self):
        self.assertEqual([line for line, _ in file_rules.access_rules("io/x.cc", ACCESS)], marked(ACCESS))
        self.assertEqual(list(file_rules.access_rules("cli/x.cc", ACCESS)), [])

    def test_enumerators_differ(self):
        self.assertEqual([line for line, _ in file_rules.enum_rules(ENUMS)], marked(ENUMS))


if __name__ == "__main__":
    unittest.main()
