#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/setting.h"
#include "io/names/url.h"

namespace millrace {

class http_stack;
class object_store;

// An object store that millrace reads, and may write.
struct known_store {
  std::string_view scheme;  // of its URLs
  std::shared_ptr<object_store> (*make)(std::shared_ptr<http_stack> stack);
  // The variables of the store's own tools (AWS CLI, ...) that it reads. Valid as long as the
  // process.
  std::span<const foreign_variable> variables;
  // Why millrace writes no objects there, and what to use instead; empty: it writes them, by
  // object_store::uploads().
  std::string_view why_not_written = {};
};

// Each in a file of its own.
extern const known_store s3_store;
extern const known_store google_store;
extern const known_store azure_store;
extern const known_store ais_store;
extern const known_store hugging_face_store;

inline constexpr std::array known_stores = {&s3_store, &google_store, &azure_store, &ais_store,
                                            &hugging_face_store};

// known_store::make of a class with that constructor.
template <class Store>
std::shared_ptr<object_store> make_store(std::shared_ptr<http_stack> stack) {
  return std::make_shared<Store>(std::move(stack));
}

bool is_of_store(std::string_view scheme);

// What is before the "://" of a URL, in lower case; empty: there is no "://". Pure.
std::string scheme_of(std::string_view url);

// The store of a URL; null if it is not one of these stores', such as a path or an http: URL.
const known_store* store_of(std::string_view url);

// True if a server on the network answers for the URL, by HTTP or as an object store. False for a
// command, a file of this host, and the socket of a program on it.
bool is_on_network(const url& u);

// The variables that http_options::environment may have: those of HTTP, then those of each store.
// Lives as long as the process.
std::span<const foreign_variable> foreign_variables();

}  // namespace millrace
