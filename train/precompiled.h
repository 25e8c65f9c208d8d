// What most translation units of train/ include, compiled once. Not an interface.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>
