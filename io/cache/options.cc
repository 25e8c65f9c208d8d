#include "io/cache/options.h"

#include "engine/base/option_list.h"
#include "engine/base/units.h"
#include "engine/base/words.h"

namespace millrace {

const option_list<cache_options>& cache_options::variables() {
  using o = cache_options;
  static const auto& list = *new auto(
      option_list<cache_options>("cache_options")
          .group("Cache")
          .add("folder", &o::folder,
               text_setting(
                   "MILLRACE_CACHE",
                   "folder in which fetched objects are kept for the next time (auto: none)"))
          .add("most_bytes", &o::most_bytes,
               size_setting(
                   "MILLRACE_CACHE_SIZE", 1_MiB, 1024 * 1024_GiB,
                   "bytes that the cache may hold (auto: as many as the disk has room for)"),
               1)
          .add("least_free", &o::least_free,
               size_setting("MILLRACE_CACHE_FREE", 0, 1024 * 1024_GiB,
                            "bytes that the cache leaves free on its disk"))
          .add_text(text_setting("MILLRACE_CACHE_PATHS",
                                 "prefixes of paths whose files are cached as well: '/nas/;/far/'"),
                    [](cache_options& to, const std::string& text) -> result<void> {
                      to.paths = split(text, ';');
                      return {};
                    }));
  return list;
}

}  // namespace millrace
