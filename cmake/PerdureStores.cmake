# Stores of others that Debian has packages of, without a CMake file: found by header and library. Each that is there
# has PERDURE_<store>_INCLUDE and PERDURE_<store>_LIBRARY, and is in PERDURE_STORES.
set(PERDURE_STORES)
foreach(store_and_header leveldb:leveldb/db.h lmdb:lmdb.h rocksdb:rocksdb/db.h)
  string(REGEX MATCH "^[a-z]+" store ${store_and_header})
  string(REGEX REPLACE "^[a-z]+:" "" header ${store_and_header})
  find_path(PERDURE_${store}_INCLUDE ${header})
  find_library(PERDURE_${store}_LIBRARY ${store})
  mark_as_advanced(PERDURE_${store}_INCLUDE PERDURE_${store}_LIBRARY)
  if(PERDURE_${store}_INCLUDE AND PERDURE_${store}_LIBRARY)
    list(APPEND PERDURE_STORES ${store})
  endif()
endforeach()
