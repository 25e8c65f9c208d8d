#pragma once

#include <string>
#include <string_view>

namespace millrace::testing {

// Builds tar archives byte by byte, valid and invalid ones.
class tar_builder {
 public:
  // A ustar header block with a valid checksum; `size_field` overrides the octal size.
  static std::string header(std::string_view name, std::size_t size, char type = '0',
                            std::string_view prefix = "", std::string_view size_field = "");
  static std::string pax_record(std::string_view key, std::string_view value);

  tar_builder& file(std::string_view name, std::string_view content);
  // Adds an extension header of `type` ('x', 'g', 'L', 'K') before the next member.
  tar_builder& extension(char type, std::string_view content);
  tar_builder& raw(std::string_view bytes);
  tar_builder& padded(std::string_view content);
  tar_builder& end() { return raw(std::string(1024, '\0')); }

  std::size_t size() const { return out_.size(); }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

// Shards with samples KEY.txt + KEY.cls: the keys are "s000000" and so on, counted from `first`;
// the text is `payload` bytes long and differs from sample to sample.
std::string text_shard(int first, int samples, std::size_t payload = 100);

}  // namespace millrace::testing
