// Headers that most translation units include, compiled once (engine/CMakeLists.txt). Not an
// interface.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
