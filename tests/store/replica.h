// A copy of a store that follows its changes, as another machine would.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perdure/store.h"

namespace perdure::test {

class Replica {
 public:
  // Begins with what is there.
  void begin(const Store& store) {
    const Store::Snapshot snapshot = store.snapshot();
    parts_.assign(store.partitions(), {});
    for (uint32_t i = 0; i < store.partitions(); ++i) parts_[i].position = snapshot.position(i);
    snapshot.for_each([&](std::string_view key, std::string_view value) {
      parts_[store.partition_of(key)].records[std::string(key)].value = value;
    });
  }
  // Takes what has come since. Returns false if the log was not kept.
  bool follow(const Store& store) {
    for (uint32_t i = 0; i < store.partitions(); ++i) {
      Part& part = parts_[i];
      // What it knows has not been taken back.
      EXPECT_LE(part.position, store.next_change(i)) << "partition " << i;
      if (part.position < store.first_change(i)) return false;
      Store::Changes changes = store.changes(i, part.position);
      for (Store::Change change; changes.next(change);) {
        EXPECT_GE(change.version, part.position);
        part.position = change.version + 1;
        EXPECT_EQ(changes.position(), part.position);
        apply(part, change);
        ++changes_;
      }
    }
    return true;
  }
  uint64_t position(uint32_t partition) const { return parts_[partition].position; }
  uint64_t changes() const { return changes_; }

  std::map<std::string, std::string> content() const {
    std::map<std::string, std::string> all;
    const auto now = std::chrono::system_clock::now();
    for (const Part& part : parts_) {
      for (const auto& [key, record] : part.records) {
        if (!record.expires || *record.expires > now) all[key] = record.value;
      }
    }
    return all;
  }

 private:
  struct Record {
    std::string value;
    std::optional<Store::Time> expires;
  };
  struct Part {
    uint64_t position = 0;
    std::map<std::string, Record> records;
  };
  static void apply(Part& part, const Store::Change& change) {
    switch (change.kind) {
      case Store::Change::Kind::kPut:
        part.records[change.key] = {change.value, change.expires};
        break;
      case Store::Change::Kind::kRemove:
        part.records.erase(change.key);
        break;
      case Store::Change::Kind::kRemovePrefix:
        std::erase_if(part.records,
                      [&](const auto& one) { return one.first.starts_with(change.key); });
        break;
    }
  }

  std::vector<Part> parts_;
  uint64_t changes_ = 0;
};

}  // namespace perdure::test
