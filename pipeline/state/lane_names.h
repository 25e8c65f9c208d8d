#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

// The name of a lane's record: "lane3/shuffle". In a lane of a mix's source `record` begins with
// the source's name. Pure.
std::string lane_record_name(std::int64_t lane, std::string_view record);

// The name of a lane's record in two parts, as lane_record_name() joined them: "lane3/" and
// "mix0/shuffle". Both are empty for the name of any other record. Refer to `name`. Pure.
std::pair<std::string_view, std::string_view> split_lane_name(std::string_view name);

// Whether it is the name of a lane's record, or of one of all lanes ("lanes_base"). Pure.
bool is_name_of_lanes(std::string_view name);

}  // namespace millrace
