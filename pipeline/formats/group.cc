#include "pipeline/formats/group.h"

#include <memory>

#include "pipeline/formats/group_stream.h"
#include "pipeline/records.h"

namespace millrace {

lane_stage<tar_member, sample> group_by_key() {
  return {
      .name = "group_by_key",
      .wrap = [](lane_context& lane,
                 std::unique_ptr<stream<tar_member>> members) -> std::unique_ptr<stream<sample>> {
        return std::make_unique<group_stream>(lane, std::move(members));
      },
      .unchanged = true,
      .records = {{group_record::name, group_record::deal}}};
}

}  // namespace millrace
