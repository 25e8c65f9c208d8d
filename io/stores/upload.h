#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/http/change.h"

namespace millrace {

// The requests by which a store takes objects in one piece or in parts, for upload(). Without
// state. One I/O thread.
class upload_protocol {
 public:
  virtual ~upload_protocol() = default;
  // The target to write to, read back and delete. Fails as object_store::locate() does, and with
  // usage if the URL names no object.
  virtual result<http_object> target(const url& where) = 0;
  // Sent with the bytes of a whole object.
  virtual http_fields fields_of_whole() const { return {}; }
  // Sent with what makes an object, so that the store refuses with 412 if there is one; empty: the
  // store has no such condition.
  virtual http_fields fields_of_absent() const = 0;

  // Begins an upload in parts; nullopt: the store needs no beginning, and the `id` below is a name
  // of 16 letters that no other upload has.
  virtual std::optional<http_change> begin(const http_object& object) const = 0;
  // The name that the store gave the upload in its answer to that. Fails with protocol.
  virtual result<std::string> id_in(const std::string& answer) const = 0;
  // The request for part `number`, from 1, without its body.
  virtual http_change part(const http_object& object, const std::string& id, int number) const = 0;
  // The body that makes the object of parts with these ETags, and the request for it.
  virtual std::string list_of(const std::string& id,
                              const std::vector<std::string>& etags) const = 0;
  virtual http_change complete(const http_object& object, const std::string& id) const = 0;
  // The ETag of the object in the answer to that; empty: not stated.
  virtual std::string etag_in(const http_answer& answer) const {
    return answer.head.field("etag").value_or("");
  }
  // Makes the store drop the parts; nullopt: it does so after a time.
  virtual std::optional<http_change> abort(const http_object& object,
                                           const std::string& id) const = 0;
};

// The protocol of S3 and of Google's XML API, which authenticates as reads do. `absent`: see
// fields_of_absent(). `target`: the function of that name.
std::unique_ptr<upload_protocol> s3_upload_protocol(
    http_fields absent, std::function<result<http_object>(const url&)> target);

// The way in which upload() sends an object.
struct upload_terms {
  bool only_if_absent = false;  // fails with `changed` if the store has another object of that name
  std::size_t part_bytes = 16UL << 20;  // least size of a part; smaller objects are sent whole
  std::size_t parts_at_once = 4;        // each holds a copy of its bytes meanwhile
};

// Writes `content` to the object `where`, replacing it, and returns when the store has it. Every
// request is signed as reads are, carries the MD5 of its body, which the store compares, and is
// repeated by itself (request_change). Afterwards the object is asked for: fails with integrity if
// its size or a digest that the store names is not that of `content`, or if its ETag is neither by
// S3's rule that of `content` nor the one that the store answered to the upload. If the answer to
// the end of an upload in parts was lost, that may take reading the object back, and as much memory
// again. A failed upload in parts is aborted. Takes parts_at_once times part_bytes of memory beyond
// `content`, or times a 10,000th of that, whichever is more. `content` and the referents outlive
// it.
awaitable<result<void>> upload(http_stack& stack, scope& tasks, upload_protocol& by, url where,
                               std::string_view content, upload_terms terms);

// Deletes the object; a missing object is not an error.
awaitable<result<void>> delete_object(http_stack& stack, scope& tasks, upload_protocol& by,
                                      url where);

// The size of the parts of an object of `size` bytes: `least`, or more where that would take more
// parts than stores accept. Pure.
std::size_t upload_part_bytes(std::size_t size, std::size_t least);

}  // namespace millrace
