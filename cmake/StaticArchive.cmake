# libarchive's own objects, for a wheel: what millrace uses of them needs neither libacl nor libxml2, which the shared
# library brings along with 30 MB of ICU. Its symbols stay inside, since it was not compiled to be shared.
find_library(MILLRACE_ARCHIVE libarchive.a)
if(NOT MILLRACE_ARCHIVE)
  message(STATUS "no libarchive.a: the shared library is linked, with all that it needs")
  return()
endif()
get_filename_component(folder ${MILLRACE_ARCHIVE} DIRECTORY)
set(linked ${MILLRACE_ARCHIVE} -Wl,--exclude-libs,libarchive.a)
foreach(name IN ITEMS nettle lzma zstd lz4 bz2)
  # Of some, setup installs no headers, and so no name without a version.
  file(GLOB found ${folder}/lib${name}.so.[0-9]*)
  list(GET found 0 first)
  list(APPEND linked ${first})
endforeach()
set_target_properties(PkgConfig::libarchive PROPERTIES INTERFACE_LINK_LIBRARIES "${linked}")
