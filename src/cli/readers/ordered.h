// Records by an iterator of LevelDB's kind.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cli/readers/reader.h"

namespace perdure::readers {

template <typename Status>
void require(const Status& status) {
  if (!status.ok()) throw Failure(status.ToString());
}

// Before a library sees the folder: opening makes it, or notes in it.
inline void require_database(const Request& request) {
  std::error_code ignored;
  if (!std::filesystem::exists(request.path + "/CURRENT", ignored)) {
    throw Failure(request.path + ": no database, for there is no file CURRENT");
  }
}

template <typename Iterator>
void write_all(std::unique_ptr<Iterator> iterator, Output& output) {
  for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
    output.record({iterator->key().data(), iterator->key().size()},
                  {iterator->value().data(), iterator->value().size()});
  }
  require(iterator->status());
}

}  // namespace perdure::readers
