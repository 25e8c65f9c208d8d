#include "pipeline/tools/error_object.h"

#include "engine/json_tree.h"

namespace millrace {

std::string error_object(const error& why) {
  json_tree::object said;
  said.emplace("kind", std::string(kind_name(why.kind())));
  said.emplace("message", why.message());
  said.emplace("exit_code", std::int64_t{exit_code(why.kind())});
  json_tree::object whole;
  whole.emplace("error", std::move(said));
  return json_tree(std::move(whole)).dump();
}

error with_flags(error why, std::span<const option_flag> flags) {
  std::string hint = why.what_to_do();
  for (const auto& [option, flag] : flags) {
    for (std::size_t at = hint.find(option); at != hint.npos; at = hint.find(option, at)) {
      hint.replace(at, option.size(), flag);
      at += flag.size();
    }
  }
  why.hint(hint);
  return why;
}

}  // namespace millrace
