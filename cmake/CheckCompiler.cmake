# Refuses a compiler that miscompiles `co_await`: gcc 12.1 and 12.2 destroy the sub-objects of an aggregate temporary
# twice (gcc PR 95599, PR 100611). The probe counts constructions and destructions of exactly that form.
try_run(MILLRACE_COROUTINE_RUN MILLRACE_COROUTINE_COMPILE
  ${CMAKE_BINARY_DIR}/toolchain_probe
  ${CMAKE_CURRENT_SOURCE_DIR}/tests/toolchain/coroutine_temporaries.cc
  CMAKE_FLAGS -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_STANDARD_REQUIRED=ON
  COMPILE_OUTPUT_VARIABLE MILLRACE_COROUTINE_LOG)
if(NOT MILLRACE_COROUTINE_COMPILE)
  message(FATAL_ERROR
    "${CMAKE_CXX_COMPILER} cannot compile C++20 coroutines. Use clang 19: CXX=clang++-19.\n${MILLRACE_COROUTINE_LOG}")
endif()
if(NOT MILLRACE_COROUTINE_RUN EQUAL 0)
  message(FATAL_ERROR
    "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) destroys temporaries in co_await "
    "expressions twice (gcc PR 95599). Programs built with it corrupt memory. Use clang 19: CXX=clang++-19.")
endif()
