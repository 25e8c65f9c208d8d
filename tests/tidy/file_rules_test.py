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


def marked(text):
    return [number for number, line in enumerate(text.splitlines(), 1) if "// bad" in line]


class FileRules(unittest.TestCase):
    def test_an_errno_has_one_kind(self):
        self.assertEqual(sorted({line for line, _ in file_rules.errno_rules(ERRORS)}), marked(ERRORS))


if __name__ == "__main__":
    unittest.main()
