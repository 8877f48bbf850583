// Copying records into a database that is made like another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/database.h"
#include "perdure/pool.h"

namespace perdure::cli {

// How a database was made.
struct DatabaseShape {
  uint64_t page_bytes;
  uint64_t checksums;
  uint64_t log_bytes;
  uint64_t pages_max;
  uint64_t pm_bytes;
  uint64_t has_page_file;
  uint64_t has_log_file;
};

inline DatabaseShape shape_of(const DatabaseOptions& made) {
  return {made.page_bytes,
          made.checksums,
          made.log_bytes,
          made.pages_max,
          made.pm_bytes,
          made.page_file.empty() ? 0U : 1U,
          made.log_file.empty() ? 0U : 1U};
}

// Writes the records of a database, some in each transaction.
class DatabaseWriter {
 public:
  DatabaseWriter(Pool& pool, const std::string& name, const DatabaseShape& shape,
                 const std::string& page_file, const std::string& log_file)
      : database_(Database::create(pool, name, options_of(shape, page_file, log_file))),
        bytes_max_(shape.log_bytes / 64) {}

  void begin_tree(const std::string& name) {
    write();
    tree_.emplace(database_.tree(name));
  }
  void add(std::string key, std::string value) {
    if (!tree_) return;
    bytes_ += key.size() + value.size();
    records_.emplace_back(std::move(key), std::move(value));
    if (records_.size() >= kRecordsMax || bytes_ >= bytes_max_) write();
  }
  void write() {
    if (records_.empty()) return;
    database_.transact([&](Transaction& one) {
      for (const auto& [key, value] : records_) one.put(*tree_, key, value);
    });
    records_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kRecordsMax = 256;

  static DatabaseOptions options_of(const DatabaseShape& shape, const std::string& page_file,
                                    const std::string& log_file) {
    DatabaseOptions options;
    options.page_bytes = static_cast<uint32_t>(shape.page_bytes);
    options.checksums = static_cast<uint32_t>(shape.checksums);
    options.log_bytes = shape.log_bytes;
    options.pages_max = shape.pages_max;
    options.pm_bytes = shape.pm_bytes;
    options.pm_frames = shape.pm_bytes != 0;
    options.page_file = page_file;
    options.log_file = log_file;
    return options;
  }

  Database database_;
  std::optional<Tree> tree_;
  std::vector<std::pair<std::string, std::string>> records_;
  uint64_t bytes_ = 0;
  uint64_t bytes_max_;
};

}  // namespace perdure::cli
