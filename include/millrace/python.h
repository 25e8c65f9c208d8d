// For a module of Python with plans of your own: bind_plan(). A module that includes this is made
// by nanobind 3 (nanobind_add_module) and links millrace::python; the package `millrace` iterates
// its plans. Example: examples/python_plan.
#pragma once

#include "python/binding/bind_plan.h"
