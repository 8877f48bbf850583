// The index of a partition, as the store was opened: by hash, or in the order of keys.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "store/hash_index.h"
#include "store/ordered_index.h"

namespace perdure::store {

class PartitionIndex {
 public:
  static constexpr uint64_t kNone = HashIndex::kNone;

  // By hash, unless `ordered` is given.
  explicit PartitionIndex(std::unique_ptr<OrderedIndex> ordered) : ordered_(std::move(ordered)) {}

  // Calls `is_it(Location)` for entries that may be the key's until it returns true. Returns that entry, or
  // kNone. Entries are valid until the next reserve(), insert() or erase().
  template <typename IsIt>
  uint64_t find(uint64_t hash, std::string_view key, IsIt is_it) const {
    return ordered_ != nullptr ? ordered_->find(key, is_it) : hash_.find(hash, is_it);
  }
  Location at(uint64_t entry) const {
    return ordered_ != nullptr ? ordered_->at(entry) : hash_.at(entry);
  }
  void move(uint64_t entry, Location to) {
    ordered_ != nullptr ? ordered_->move(entry, to) : hash_.move(entry, to);
  }
  // Makes room for `count` inserts, one of which is the key's. May throw, having changed nothing.
  void reserve(std::string_view key, uint64_t count) {
    ordered_ != nullptr ? ordered_->reserve(key, count) : hash_.reserve(count);
  }
  void insert(uint64_t hash, std::string_view key, Location location) {
    ordered_ != nullptr ? ordered_->insert(key, location) : hash_.insert(hash, location);
  }
  void erase(uint64_t entry) { ordered_ != nullptr ? ordered_->erase(entry) : hash_.erase(entry); }
  // Once before an erase() that no reserve() comes before. May throw, having changed nothing.
  void tidy() {
    if (ordered_ != nullptr) ordered_->tidy();
  }
  uint64_t size() const { return ordered_ != nullptr ? ordered_->size() : hash_.size(); }
  uint64_t dram_bytes() const {
    return ordered_ != nullptr ? ordered_->dram_bytes() : hash_.dram_bytes();
  }

  // With a hash index; they do nothing else.
  void expect(uint64_t records) {
    if (ordered_ == nullptr) hash_.reserve(records);
  }
  void prefetch(uint64_t hash) const {
    if (ordered_ == nullptr) hash_.prefetch(hash);
  }
  void assign(std::span<const uint64_t> words) { hash_.assign(words); }
  const HashIndex& hash() const { return hash_; }
  // Null with a hash index.
  const OrderedIndex* ordered() const { return ordered_.get(); }

 private:
  HashIndex hash_;
  std::unique_ptr<OrderedIndex> ordered_;
};

}  // namespace perdure::store
