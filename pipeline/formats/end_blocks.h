#pragma once

namespace millrace {

// Whether an archive must end with zero blocks, which tar, tarfile and libarchive write.
enum class end_blocks {
  required,  // without them it was cut
  optional,  // its length is known to be right, or its writer omits them
};

}  // namespace millrace
