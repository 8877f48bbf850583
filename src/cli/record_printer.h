// Records as text that `perdure load` reads back.
#pragma once

#include <cstdio>
#include <string>

#include "cli/record_source.h"
#include "perdure/index.h"

namespace perdure::cli {

class RecordPrinter {
 public:
  // To a file, or to standard output if `path` is empty. Throws kPermission, kIo, kNoSpace.
  RecordPrinter(const std::string& path, TextFormat format);
  ~RecordPrinter();
  RecordPrinter(const RecordPrinter&) = delete;
  RecordPrinter& operator=(const RecordPrinter&) = delete;

  // Throws kIo, kNoSpace, as close() does.
  void print(Datum key, Datum value);
  // All that was printed has been written.
  void close();

 private:
  std::string name_;
  std::FILE* file_;
  TextFormat format_;
  std::string line_;
};

}  // namespace perdure::cli
