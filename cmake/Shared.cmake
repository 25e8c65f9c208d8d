# libmillrace.so, of the same objects as the static libraries: programs of this build link those.
if(NOT BUILD_SHARED_LIBS)
  return()
endif()
add_library(millrace_shared SHARED
  $<TARGET_OBJECTS:millrace_engine> $<TARGET_OBJECTS:millrace_io> $<TARGET_OBJECTS:millrace_pipeline>
  $<TARGET_OBJECTS:millrace_tools>)
foreach(folder IN ITEMS engine io pipeline tools)
  get_target_property(libraries millrace_${folder} LINK_LIBRARIES)
  list(FILTER libraries EXCLUDE REGEX "^millrace::|millrace_")
  target_link_libraries(millrace_shared PRIVATE ${libraries})
endforeach()
# Before 1.0 each minor version has an interface of its own (docs/compatibility.md).
set_target_properties(millrace_shared PROPERTIES OUTPUT_NAME millrace EXPORT_NAME shared LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(millrace_shared INTERFACE cxx_std_20)
target_include_directories(millrace_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
if(MILLRACE_SANITIZE STREQUAL "")  # the functions of sanitizers are in the program
  target_link_options(millrace_shared PRIVATE LINKER:-z,defs)
endif()
install(TARGETS millrace_shared EXPORT millrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
