// A library for PiBench as research code has them: one class in the header of its interface, keys
// and values of 8 bytes as integers. Include it after the declaration of tree_api.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

class words_wrapper : public tree_api {
 public:
  bool find(const char* key, size_t, char* value_out) override {
    const auto found = words_.find(word(key));
    if (found == words_.end()) return false;
    std::memcpy(value_out, &found->second, sizeof(uint64_t));
    return true;
  }
  bool insert(const char* key, size_t, const char* value, size_t) override {
    return words_.emplace(word(key), word(value)).second;
  }
  bool update(const char* key, size_t, const char* value, size_t) override {
    const auto found = words_.find(word(key));
    if (found == words_.end()) return false;
    found->second = word(value);
    return true;
  }
  bool remove(const char* key, size_t) override { return words_.erase(word(key)) == 1; }
  int scan(const char* key, size_t, int scan_sz, char*& values_out) override {
    static thread_local std::vector<std::pair<uint64_t, uint64_t>> results;
    results.clear();
    for (auto at = words_.lower_bound(word(key));
         at != words_.end() && static_cast<int>(results.size()) < scan_sz; ++at) {
      results.emplace_back(at->first, at->second);
    }
    values_out = reinterpret_cast<char*>(results.data());
    return static_cast<int>(results.size());
  }

 private:
  static uint64_t word(const char* bytes) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    return word;
  }
  std::map<uint64_t, uint64_t> words_;
};

inline tree_api* make_words(const tree_options_t& options) {
  return options.key_size == 8 && options.value_size == 8 ? new words_wrapper : nullptr;
}
