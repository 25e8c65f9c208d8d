#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace millrace {

// The kind of an error: coarse enough to choose a policy and an exit code by, and stable enough to
// be a metric label. kind_name() gives the label.
enum class errc : std::uint8_t {
  usage,             // the command line or an option is wrong
  bad_setting,       // a MILLRACE_ variable is unknown or out of range
  not_found,         // no such file or object (ENOENT, 404, 410)
  not_allowed,       // EACCES, 401, 403
  connect_failed,    // refused, unreachable, no such host
  untrusted,         // a certificate that cannot be verified
  timed_out,         // a deadline of ours passed
  cut,               // the peer ended the transfer before its announced end
  http_status,       // any other status than those above
  protocol,          // the peer broke its protocol
  io_failed,         // EIO and its kin
  changed,           // the object is not the one that the transfer began with
  truncated,         // an archive ends too early
  bad_archive,       // a wrong tar header
  duplicate_field,   // two members with one extension in one sample
  too_large,         // above a stated limit
  bad_image,         // not decodable
  bad_label,         // a label that is not a number
  bad_field,         // a field that is not what its extension says
  missing_field,     // a sample lacks a required field
  no_samples,        // an epoch without a single sample
  no_memory,         // the budget is too small for the plan
  no_descriptors,    // the process may not open more files
  bad_state,         // a saved state that does not fit the plan
  bad_index,         // an index of shards that cannot be used
  integrity,         // counts or digests that do not add up
  peer_lost,         // another rank of the job is gone
  too_many_skipped,  // more failed samples than the policy allows
  unsupported,       // known, but not in this build or on this host
  stopped,           // by the user
  uncaught,          // an exception from a function, stage or source of the program
  device_failed,     // a GPU, or its driver
  internal,          // a bug in millrace
};

// The name of the enumerator: "not_found".
std::string_view kind_name(errc kind);

// The kind of a failed call of the operating system, by its errno.
errc kind_of(int os_errno);

// True if `kind` means that the bytes of a file or an object cannot be read: not_found to
// io_failed.
bool is_read_failure(errc kind);

// The exit code of a program that ends because of `kind` (the list is in docs/tools.md).
int exit_code(errc kind);

// Removes from the URLs in `text` what must not be logged: userinfo, queries and fragments, and of
// a `pipe:` command everything after its first plain word. Text without URLs is unchanged.
std::string redacted(std::string_view text);

// An expected failure: what, where, and what to do about it. A cheap-to-move value; made once,
// refined on its way up with the setters, then only read. Not thread-safe while being refined.
class error {
 public:
  // An error that is neither retryable nor skippable. `what`: a short clause, without a full stop.
  error(errc kind, std::string what);
  // The error of a success: result::error() returns it.
  error() : error(errc::internal, "no error") {}

  // A URL or a path. It is redacted here, so an error never holds a secret.
  error& at(std::string_view url);
  // The byte of the object at which it happened.
  error& offset(std::uint64_t byte);
  // The key of the sample that it concerns.
  error& key(std::string_view sample_key);
  // The errno of the failed call, whose text message() adds; 0: none.
  error& cause(int os_errno);
  // Replaces what().
  error& reworded(std::string what);
  // The remedy, as an imperative: "raise the budget".
  error& hint(std::string_view what_to_do);
  // Marks the error as one that may not occur again if the operation is retried. The library's own
  // sources do that; those of a program are not retried.
  error& retryable(bool yes = true);
  // A skippable error concerns one sample or one shard: the stream continues after it. stopped,
  // no_memory and no_descriptors never are.
  error& skippable(bool yes = true);
  // A shard yielded nothing: it cannot be opened, or breaks before its first sample.
  error& whole_shard();

  // The kind. Decide by it, never by the texts.
  errc kind() const { return fields_->kind; }
  // See retryable().
  bool is_retryable() const { return fields_->retryable; }
  // See skippable().
  bool is_skippable() const { return fields_->skippable; }
  // See whole_shard().
  bool is_of_whole_shard() const { return fields_->whole_shard; }
  // The text that it was made with. Valid, like the other references, until the error is changed or
  // destroyed.
  const std::string& what() const { return fields_->what; }
  // The URL or path, without secrets; empty: none.
  const std::string& where() const { return fields_->where; }
  // The fingerprint of at()'s argument: distinguishes URLs that are equal once redacted.
  std::uint64_t where_fingerprint() const { return fields_->where_fingerprint; }
  // The hint; empty: none.
  const std::string& what_to_do() const { return fields_->hint; }
  // The key of the sample; empty: none.
  const std::string& sample_key() const { return fields_->key; }
  // The byte of the object; nullopt: none.
  std::optional<std::uint64_t> byte_offset() const { return fields_->offset; }
  // The errno of the failed call; 0: none.
  int os_errno() const { return fields_->os_errno; }

  // One line: "kind: what, at URL byte N, key K (cause); hint".
  std::string message() const;

 private:
  struct fields {
    errc kind;
    bool retryable = false;
    bool skippable = false;
    bool whole_shard = false;
    int os_errno = 0;
    std::string what;
    std::string where;
    std::string key;
    std::string hint;
    std::optional<std::uint64_t> offset;
    std::uint64_t where_fingerprint = 0;
  };
  explicit error(std::shared_ptr<fields> of) : fields_(std::move(of)) {}
  friend error out_of_memory();
  fields& own();

  std::shared_ptr<fields> fields_;
};

// no_memory: the host has no more. Created without allocating; never skippable.
error out_of_memory();

// The exception that carries an error out of the library, thrown to the caller's own thread. what()
// is the error's message(). Catch it in main(): examples/epoch.cc.
class failure : public std::runtime_error {
 public:
  explicit failure(error why) : std::runtime_error(why.message()), why_(std::move(why)) {}
  // The error; lives as long as this.
  const error& why() const { return why_; }
  // The error's kind.
  errc kind() const { return why_.kind(); }

 private:
  error why_;
};

// An exception as an error. A `failure` yields its own error; std::bad_alloc is no_memory. Any
// thread.
//
// For exceptions of the user's functions, stages and sources: anything else, even if it is not
// a std::exception, is `uncaught`, with its type and text. `thrower` is the subject of the
// sentence: "the stage 'map'". Without memory for that, out_of_memory().
error error_of(const std::exception_ptr& thrown, std::string_view thrower) noexcept;
// For exceptions of millrace's own code: failures of the file system and of the operating system
// have their kind, path and cause; anything else is `internal`.
error error_of(const std::exception_ptr& thrown);

}  // namespace millrace
