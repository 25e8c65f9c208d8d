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

ONCE = r"""
for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;  // bad
out += static_cast<char>(std::tolower(c));  // bad
if (u.scheme == "http" || u.scheme == "https") return true;  // bad
if (!to || (to->scheme != "http" &&  // bad
            to->scheme != "https")) return false;
if (where->scheme.starts_with("http")) return true;  // bad
for (const char* scheme : {"s3", "gs"}) add(scheme);  // bad
if (scheme == "az" || scheme == "hf") return true;  // bad
if (target.scheme == "https" && next.scheme == "http") return refused();
if (scheme == "https") port = "443";
if (program == "aws") return first_url(of_store("s3"));
if (program == "ais") return first_url(of_store("ais"));
// 'A' to 'Z', in a comment
"""

RECORDS = r"""
begin_epoch((*r)[1]);  // bad
if ((*plan)[plan_record_lanes] < 1) throw failure(senseless("plan"));  // bad
out.ends_held = std::max<std::int64_t>(ends[here] - r[2], 0) + r[4];  // bad
return {.position = (*r)[0],
        .crc = static_cast<std::uint32_t>((*r)[2]),
        .epoch = (*r)[1]};
const char endian = (*type)[1];
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

    def test_cases_and_schemes_are_written_once(self):
        self.assertEqual(sorted({line for line, _ in file_rules.once_rules("io/x.cc", ONCE)}), marked(ONCE))
        words = next(iter(ONCE.splitlines()[1:]))
        self.assertEqual(list(file_rules.once_rules("engine/base/words.h", words)), [])

    def test_records_are_read_by_names(self):
        self.assertEqual([line for line, _ in file_rules.record_rules("pipeline/x.cc", RECORDS)], marked(RECORDS))
        self.assertEqual(list(file_rules.record_rules("pipeline/state/records.cc", RECORDS)), [])

    def test_enumerators_differ(self):
        self.assertEqual([line for line, _ in file_rules.enum_rules(ENUMS)], marked(ENUMS))


if __name__ == "__main__":
    unittest.main()
