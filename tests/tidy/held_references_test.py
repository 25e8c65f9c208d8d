"""What held_references.py reports, and what it does not: the lines marked `// bad`, and no others."""

import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import held_references  # noqa: E402

COROUTINES = r"""
#include <coroutine>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct wait {
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<>) {}
  int await_resume() { return 0; }
};
struct task {
  struct promise_type {
    task get_return_object() { return {}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
};
wait changed();
wait changed(int);
void use(const std::string&);
void use(int);

struct part { std::string name; std::shared_ptr<int> fetch; };

struct thing {
  std::map<std::string, std::string> names_;
  std::vector<part> parts_;
  std::deque<int> queue_;
  std::optional<part> one_;

  task by_key() {
    std::string& name = names_["a"];  // bad
    co_await changed();
    use(name);
  }
  task by_front() {
    const part& head = parts_.front();  // bad
    int n = co_await changed();
    use(head.name + std::to_string(n));
  }
  task by_pointer() {
    part* head = &parts_[0];  // bad
    co_await changed();
    use(head->name);
  }
  task by_iterator() {
    auto found = names_.find("a");  // bad
    co_await changed();
    use(found->second);
  }
  task of_an_iterator() {
    auto& name = names_.begin()->second;  // bad
    co_await changed();
    use(name);
  }
  task by_loop() {
    for (const part& p : parts_) {  // bad
      use(p.name);
      co_await changed();
    }
  }
  task the_next_time_around() {
    int& first = queue_.front();  // bad
    for (int i = 0; i < 3; ++i) {
      use(first);
      co_await changed();
    }
  }
  task in_a_condition() {
    if (auto it = names_.find("a"); it != names_.end()) {  // bad
      while (co_await changed() == 0) use(1);
      use(it->second);
    }
  }
  task of_a_parameter(std::vector<part>& all) {
    part& last = all.back();  // bad
    co_await changed();
    use(last.name);
  }

  task copied() {
    const std::string name = names_["a"];
    const std::shared_ptr<int> fetch = parts_.front().fetch;
    co_await changed();
    use(name);
    use(*fetch);
  }
  task used_before() {
    std::string& name = names_["a"];
    use(name);
    co_await changed(static_cast<int>(name.size()));
  }
  task looked_up_again() {
    for (;;) {
      int& first = queue_.front();
      use(first);
      co_await changed();
    }
  }
  task of_its_own() {
    std::vector<part> mine = parts_;
    part& head = mine.front();
    co_await changed();
    use(head.name);
    for (const part& p : mine) {
      use(p.name);
      co_await changed();
    }
  }
  task of_no_container() {
    part& one = *one_;
    co_await changed();
    use(one.name);
  }
  task waits_elsewhere() {
    std::string& name = names_["a"];
    auto later = [](thing* self) -> task {
      co_await changed();
      use(self->queue_.front());
    };
    later(this);
    use(name);
    co_return;
  }
  task allowed() {
    // held over co_await: names are never erased
    std::string& name = names_["a"];
    co_await changed();
    use(name);
  }
};
"""


class HeldReferences(unittest.TestCase):
    def test_the_bad_lines_and_no_others(self):
        held_references.ci.Config.set_library_file(held_references.library())
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "coroutines.cc"
            file.write_text(COROUTINES)
            said = held_references.faults_in([file], ["-std=c++20", "-Wno-everything"])
        found = {int(re.search(r":(\d+): ", line)[1]) for line in said}
        bad = {n for n, line in enumerate(COROUTINES.splitlines(), 1) if "// bad" in line}
        self.assertEqual(found, bad, said)


if __name__ == "__main__":
    unittest.main()
