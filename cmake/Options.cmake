# Interface targets, of which every target of ours links one privately.
add_library(millrace_warnings INTERFACE)
target_compile_options(millrace_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wimplicit-fallthrough -Wno-missing-designated-field-initializers -Werror)
if(CMAKE_UNITY_BUILD)  # files that are compiled together shadow each other's names
  target_compile_options(millrace_warnings INTERFACE -Wno-shadow)
endif()

add_library(millrace_build_options INTERFACE)  # libraries and programs
target_link_libraries(millrace_build_options INTERFACE millrace_warnings)
target_compile_options(millrace_build_options INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:-Wunused-member-function;-Wunused-template>)  # what -Wall lets pass
# Most of the time that tests take is their compiler's: it optimises what is tested, and not them.
add_library(millrace_test_options INTERFACE)
target_link_libraries(millrace_test_options INTERFACE millrace_warnings)
target_compile_options(millrace_test_options INTERFACE -O0)
if(MILLRACE_SANITIZE STREQUAL "address")  # a tenth of the time; tests take no bytes for numbers
  target_compile_options(millrace_test_options INTERFACE -fno-sanitize=alignment)
endif()
# Programs and benchmarks: with sanitizers, what is optimised are the libraries alone.
add_library(millrace_program_options INTERFACE)
if(MILLRACE_SANITIZE STREQUAL "")
  target_link_libraries(millrace_program_options INTERFACE millrace_build_options)
else()
  target_link_libraries(millrace_program_options INTERFACE millrace_test_options)
endif()

if(MILLRACE_SANITIZE STREQUAL "address")
  # Without object-size, which doubles the time to compile, and null: what they find, AddressSanitizer finds as well.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=object-size,null -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_compile_options(millrace_build_options INTERFACE -fsanitize=fuzzer-no-link)  # fuzzers see them
  add_link_options(-fsanitize=address,undefined)
elseif(MILLRACE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT MILLRACE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "MILLRACE_SANITIZE is '${MILLRACE_SANITIZE}'; it may be empty, 'address' or 'thread'")
endif()

find_program(MILLRACE_LLD NAMES ld.lld-19 ld.lld)
if(MILLRACE_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_link_options(--ld-path=${MILLRACE_LLD})
endif()

find_program(MILLRACE_CCACHE ccache)
if(MILLRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
    ${MILLRACE_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
endif()

# Sets `out` to the files of this folder and those within it, looked for again at each build: a new file needs no line.
function(millrace_sources out)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cc)
  list(FILTER found EXCLUDE REGEX "(^|/)\\.")  # of editors and file managers
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# What every folder's library has in common: name, warnings, include paths, installation. `options`, where it is
# given: the target that it is compiled with, instead of millrace_build_options.
function(millrace_library folder)
  set(target millrace_${folder})
  set(options millrace_build_options)
  if(ARGC GREATER 1)
    set(options ${ARGV1})
  endif()
  add_library(millrace::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${options}>)
  # Threads and global objects of a program use the library's statics to the end (engine/base/process_wide.h).
  target_compile_options(${target} PRIVATE -Wexit-time-destructors)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  else()
    install(TARGETS ${target} EXPORT millrace ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

# A precompiled header fits where the optimisation is the same.
function(millrace_program_headers target)
  if(MILLRACE_SANITIZE STREQUAL "")
    target_precompile_headers(${target} REUSE_FROM millrace_engine)
  elseif(${target} STREQUAL millrace_tools)
    target_precompile_headers(${target} PRIVATE
      $<$<BOOL:${BUILD_SHARED_LIBS}>:${PROJECT_SOURCE_DIR}/cmake/exported.inc> ${PROJECT_SOURCE_DIR}/engine/precompiled.h)
  else()
    target_precompile_headers(${target} REUSE_FROM millrace_tools)
  endif()
endfunction()

# Executables compile as the libraries do, so that they can share one precompiled header.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
