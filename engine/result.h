#pragma once

#include <boost/system/result.hpp>

#include "engine/error.h"

namespace millrace {

// A T or an error: for expected failures. value() throws `failure`.
template <class T>
using result = boost::system::result<T, error>;

}  // namespace millrace
