// Exceptions and error codes of the system as errors.
#include <cxxabi.h>
#include <fmt/format.h>

#include <boost/core/demangle.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>
#include <system_error>
#include <typeinfo>

#include "engine/base/error.h"

namespace millrace {
namespace {

// "cannot open: No such file" with the message of its code: "cannot open".
std::string without_cause(std::string what, const std::string& cause) {
  const std::string tail = ": " + cause;
  if (what.ends_with(tail)) what.resize(what.size() - tail.size());
  return what;
}

error from_system(std::string what, int code) {
  error out(kind_of(code), std::move(what));
  out.cause(code);
  if (code == EAGAIN) out.hint("the system allows no more threads: raise `ulimit -u`");
  if (code == EMFILE) out.hint("raise `ulimit -n`");
  if (code == ENFILE) out.hint("the host has too many open files: raise `sysctl fs.file-max`");
  return out;
}

error described(const std::exception_ptr& thrown, std::string_view thrower) {
  const auto uncaught = [&](const char* type, std::string_view text) {
    return error(errc::uncaught,
                 fmt::format("{} threw {}{}{}", thrower, boost::core::demangle(type),
                             text.empty() ? "" : ": ", text))
        .hint("throw millrace::failure, or return an error, to say what kind it is");
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const failure& f) {
    return f.why();
  } catch (const std::bad_alloc& e) {
    return error(errc::no_memory,
                 fmt::format("{} got no memory from the host: {}", thrower, e.what()))
        .hint(
            "lower the budget (engine_options.memory_bytes, MILLRACE_MEMORY), or run fewer "
            "programs on this host");
  } catch (const std::exception& e) {
    return uncaught(typeid(e).name(), e.what());
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return uncaught(type != nullptr ? type->name() : "?", "");
  }
}

}  // namespace

errc kind_of(int os_errno) {
  switch (os_errno) {
    case ENOENT:
    case ENOTDIR:
      return errc::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
      return errc::not_allowed;
    case EMFILE:
    case ENFILE:
      return errc::no_descriptors;
    case ENOMEM:
      return errc::no_memory;
    default:
      return errc::io_failed;
  }
}

error error_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const failure& f) {
    return f.why();
  } catch (const std::filesystem::filesystem_error& e) {
    std::string what = "a file or folder cannot be used";
    return from_system(std::move(what), e.code().value()).at(e.path1().string());
  } catch (const std::system_error& e) {
    if (e.code().category() != std::generic_category() &&
        e.code().category() != std::system_category()) {
      return {errc::internal, e.what()};
    }
    std::string what = without_cause(e.what(), e.code().message());
    // As fmt::print puts it, whatever it wrote to.
    if (what == "cannot write to file" && std::ferror(stdout) != 0) what = "cannot write to stdout";
    return from_system(std::move(what), e.code().value());
  } catch (const boost::system::system_error& e) {
    if (e.code().category() != boost::system::system_category()) {
      return {errc::internal, e.what()};
    }
    return from_system(without_cause(e.what(), e.code().message()), e.code().value());
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& e) {
    return {errc::internal, e.what()};
  } catch (...) {
    return {errc::internal, "an exception of unknown type"};
  }
}

error error_of(const std::exception_ptr& thrown, std::string_view thrower) noexcept {
  try {
    return described(thrown, thrower);
  } catch (...) {
    return out_of_memory();
  }
}

}  // namespace millrace
