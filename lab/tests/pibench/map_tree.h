// An index for PiBench that is a std::map under a lock, of either interface.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "perdure/pibench.h"

template <typename Interface>
class MapTree : public Interface {
 public:
  explicit MapTree(const tree_options_t& options) : options_(options) {}

  bool find(const char* key, size_t key_size, char* value_out) override {
    const std::scoped_lock lock(mutex_);
    const auto found = records_.find({key, key_size});
    if (found == records_.end()) return false;
    std::memcpy(value_out, found->second.data(), options_.value_size);
    return true;
  }
  bool insert(const char* key, size_t key_size, const char* value, size_t value_size) override {
    const std::scoped_lock lock(mutex_);
    return records_.emplace(std::string(key, key_size), std::string(value, value_size)).second;
  }
  bool update(const char* key, size_t key_size, const char* value, size_t value_size) override {
    const std::scoped_lock lock(mutex_);
    const auto found = records_.find({key, key_size});
    if (found == records_.end()) return false;
    found->second.assign(value, value_size);
    return true;
  }
  bool remove(const char* key, size_t key_size) override {
    const std::scoped_lock lock(mutex_);
    return records_.erase({key, key_size}) == 1;
  }
  int scan(const char* key, size_t key_size, int records, char*& pairs_out) override {
    const std::scoped_lock lock(mutex_);
    static thread_local std::string pairs;
    pairs.clear();
    int found = 0;
    for (auto at = records_.lower_bound({key, key_size}); at != records_.end() && found < records;
         ++at, ++found) {
      pairs += at->first + at->second;
    }
    pairs_out = pairs.data();
    return found;
  }

 private:
  const tree_options_t options_;
  std::mutex mutex_;
  std::map<std::string, std::string> records_;
};
