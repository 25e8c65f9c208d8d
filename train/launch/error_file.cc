#include "train/launch/error_file.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

void write_error_file(const error& why) noexcept try {
  using std::chrono::seconds;
  const char* const file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (file == nullptr || *file == '\0') return;
  // torchrun takes the earliest, in whole seconds, and notices a killed process within one.
  constexpr seconds consequence{5};
  const auto now = std::chrono::system_clock::now().time_since_epoch() +
                   (why.kind() == errc::peer_lost ? consequence : seconds{0});
  const auto stamp = std::chrono::duration_cast<seconds>(now).count();
  const nlohmann::json said{{"message", why.message()},
                            {"extraInfo",
                             {{"py_callstack", std::string(kind_name(why.kind()))},
                              {"timestamp", std::to_string(stamp)}}}};
  std::ofstream(file) << nlohmann::json{{"message", said}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
} catch (const std::exception&) {
  return;  // the line on stderr says it
}

}  // namespace millrace
