// What most tests include, compiled once (tests/CMakeLists.txt).
#pragma once

#include <gtest/gtest.h>

#include "engine/precompiled.h"
