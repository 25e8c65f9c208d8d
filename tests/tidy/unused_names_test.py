"""What unused_names.py reports, and what it does not: the names that begin with `dead`, and no others."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import unused_names  # noqa: E402

FILES = {
    "engine/x.h": """
// A comment that names dead_function() and "dead_string".
int dead_function(int of);
std::vector<std::string> used_function(const std::string& text = "dead_function");
struct dead_type {
  int read = 0;
};
class used_type {
 public:
  bool dead_method() const { return dead_datum_ > read_; }
  void used_method();
  virtual std::size_t called_by_base() = 0;

 private:
  int read_ = 0;
};
inline constexpr int dead_constant = 7;

// For tests: how often it was used.
int uses_of_function();
""",
    "engine/x.cc": """
int dead_function(int of) { return of + read; }
std::vector<std::string> used_function(const std::string& text) { return {text}; }
void used_type::used_method() {
  used_function("");
}
int uses_of_function() { return 0; }
""",
    "cli/main.cc": """
int main() {
  used_type one;
  one.used_method();
  return one.called_by_base();
}
""",
    "pipeline/offered.h": "int for_programs();\n",
    "tests/engine/x_test.cc": "TEST(X, Y) { dead_function(uses_of_function()); dead_type(); }\n",
}


class UnusedNames(unittest.TestCase):
    def test_what_only_tests_use_is_reported(self):
        found = {name for _, _, name in unused_names.unused(FILES, {"pipeline/offered.h"})}
        self.assertEqual(found, {"dead_function", "dead_type", "dead_method", "dead_constant"})


if __name__ == "__main__":
    unittest.main()
