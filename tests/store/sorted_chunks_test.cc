#include "store/sorted_chunks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace perdure::store {
namespace {

using Chunks = SortedChunks<std::string, uint64_t>;
using Model = std::multimap<std::string, uint64_t>;
using Items = std::vector<std::pair<std::string, uint64_t>>;

Items items_of(const Model& model) { return {model.begin(), model.end()}; }

void expect_same(const Chunks& chunks, const Model& model) {
  ASSERT_EQ(chunks.size(), model.size());
  Items up;
  for (auto at = chunks.begin(); at != chunks.end(); ++at) up.push_back(*at);
  ASSERT_EQ(up, items_of(model));
  Items down;
  for (auto at = chunks.end(); at != chunks.begin();) down.push_back(*--at);
  ASSERT_EQ(down, Items(up.rbegin(), up.rend()));
}

// The items from a bound on, of both.
void expect_same_bounds(const Chunks& chunks, const Model& model, const std::string& key) {
  const auto rest = [&](auto at, auto end) {
    Items items;
    for (; at != end; ++at) items.emplace_back(at->first, at->second);
    return items;
  };
  ASSERT_EQ(rest(chunks.lower_bound(key), chunks.end()), rest(model.lower_bound(key), model.end()));
  ASSERT_EQ(rest(chunks.upper_bound(key), chunks.end()), rest(model.upper_bound(key), model.end()));
}

TEST(SortedChunks, IsAMultimap) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Chunks chunks;
    Model model;
    const uint64_t keys = seed % 4 == 0 ? 3 : 500;  // also so few that one key fills chunks
    for (int round = 0; round < 6; ++round) {
      for (uint64_t i = 0; i < 400; ++i) {
        const std::string key = std::to_string(random() % keys);
        chunks.insert(key, i);
        model.emplace(key, i);
      }
      expect_same(chunks, model);
      for (int i = 0; i < 10; ++i) {
        expect_same_bounds(chunks, model, std::to_string(random() % (keys + 2)));
      }
      expect_same_bounds(chunks, model, "");
      const uint64_t part = random() % 4;  // 0: all go
      const auto is_gone = [&](const auto& item) { return part == 0 || item.second % part == 0; };
      chunks.erase_if(is_gone);
      std::erase_if(model, is_gone);
      expect_same(chunks, model);
    }
  }
}

TEST(SortedChunks, TakesKeysThatAscendOrDescend) {
  Chunks up;
  Chunks down;
  Model model;
  for (uint64_t i = 1000; i < 3000; ++i) {
    up.insert(std::to_string(i), i);
    down.insert(std::to_string(3999 - i), 3999 - i);
    model.emplace(std::to_string(i), i);
  }
  expect_same(up, model);
  expect_same(down, model);
}

}  // namespace
}  // namespace perdure::store
