// WOART's nodes by themselves, against a map; and what `check` says of ones that are damaged.
#include "index/trie/woart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "perdure/catalog.h"
#include "perdure/error.h"
#include "pm/pool_impl.h"
#include "support/random.h"

namespace perdure::index::trie {
namespace {

Pool new_pool() {
  return Pool::anonymous({.capacity_bytes = uint64_t{16} << 20, .growth_bytes = 1 << 20});
}

class WoartNode : public testing::TestWithParam<uint64_t> {
 protected:
  struct alignas(pm::kLineBytes) Bytes {
    std::array<char, kNodeBytesMax> of_node{};
  };
  using Model = std::map<uint32_t, uint64_t>;

  void expect_equal(const Model& model) {
    for (uint32_t symbol = 0; symbol < Woart::kSymbols; ++symbol) {
      const auto wanted = model.find(symbol);
      const uint64_t* slot = Woart::find(node_, tag_, symbol);
      ASSERT_EQ(slot != nullptr, wanted != model.end()) << symbol;
      ASSERT_EQ(Woart::child(node_, tag_, symbol), slot == nullptr ? 0 : wanted->second);
      ASSERT_EQ(slot == nullptr ? 0 : *slot, Woart::child(node_, tag_, symbol));
      uint32_t next = symbol;
      const auto above = model.lower_bound(symbol);
      slot = Woart::next(node_, tag_, next);
      ASSERT_EQ(slot != nullptr, above != model.end()) << symbol;
      if (slot != nullptr) {
        ASSERT_EQ(next, above->first);
        ASSERT_EQ(*slot, above->second);
      }
      uint32_t previous = symbol;
      const auto below = model.upper_bound(symbol);
      slot = Woart::previous(node_, tag_, previous);
      ASSERT_EQ(slot != nullptr, below != model.begin()) << symbol;
      if (slot != nullptr) {
        ASSERT_EQ(previous, std::prev(below)->first);
        ASSERT_EQ(*slot, std::prev(below)->second);
      }
    }
    ASSERT_TRUE(Woart::is_sound(node_, tag_));
    ASSERT_EQ(Woart::has_room(node_, tag_, 0),
              tag_ == Woart::kNode256 || model.size() < Woart::room_of(tag_));
  }

  Pool pool_ = new_pool();
  const pm::Memory& memory_ = pm::impl_of(pool_).memory();
  uint64_t tag_ = GetParam();
  Bytes bytes_;
  Node& node_ = *reinterpret_cast<Node*>(&bytes_);
};

TEST_P(WoartNode, IsAMapWhosePlacesAreUsedAgain) {
  test::Random random(test::base_seed());
  Model model;
  uint64_t child = 1;
  for (int step = 0; step < 1500; ++step) {
    const auto symbol = static_cast<uint32_t>(random.below(Woart::kSymbols));
    const auto present = model.lower_bound(symbol);
    if (present != model.end() && random.chance(step % 300 < 150 ? 20 : 70)) {
      uint64_t* slot = Woart::find(node_, tag_, present->first);
      ASSERT_NE(slot, nullptr);
      const Place place = Woart::removal(node_, tag_, present->first, slot);
      *place.word = place.value;
      model.erase(present);
    } else if (model.count(symbol) == 0) {
      const bool has_room = Woart::has_room(node_, tag_, symbol);
      const Place place = Woart::prepare(node_, tag_, symbol, child << 6 | kLeafTag, memory_);
      ASSERT_EQ(place.word != nullptr, has_room);
      if (!has_room) continue;
      // Nothing is there yet.
      ASSERT_EQ(Woart::find(node_, tag_, symbol), nullptr);
      ASSERT_EQ(Woart::child(node_, tag_, symbol), 0U);
      if (step % 50 == 0) expect_equal(model);
      if (random.chance(10)) continue;  // nor will it be: the next one uses its place
      *place.word = place.value;
      model[symbol] = child++ << 6 | kLeafTag;
    }
    if (step % 25 == 0) expect_equal(model);
  }
  expect_equal(model);
}

TEST_P(WoartNode, ACopyIsWhatItWasMadeOf) {
  test::Random random(test::base_seed());
  Model model;
  while (model.size() < std::min<size_t>(Woart::room_of(tag_), 200)) {
    const auto symbol = static_cast<uint32_t>(random.below(Woart::kSymbols));
    if (!model.try_emplace(symbol, uint64_t{symbol + 1} << 6 | kLeafTag).second) continue;
    Woart::add(node_, tag_, symbol, model[symbol]);
  }
  expect_equal(model);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WoartNode,
                         testing::Values(Woart::kNode4, Woart::kNode16, Woart::kNode48,
                                         Woart::kNode256),
                         [](const auto& given) {
                           return "of_" + std::to_string(Woart::room_of(given.param));
                         });

// A node with so many children, of which the first ones have the keys 0, 1, 2.
struct Damaged {
  const char* what;
  uint32_t children;
  std::function<void(char* node)> damage;
};

void set_byte(char* node, uint64_t at, uint32_t value) { node[at] = static_cast<char>(value); }

TEST(WoartCheck, NoticesEntriesThatContradictOneAnother) {
  const std::array<Damaged, 9> all = {{
      {"an order that names a slot twice", 3, [](char* node) { set_byte(node, 12, 0); }},
      {"an order that is none", 3, [](char* node) { set_byte(node, 12, 0b00'01'10'00); }},
      {"two equal keys of four", 3, [](char* node) { set_byte(node, 9, 0); }},
      {"a slot of four without a child", 3, [](char* node) { set_byte(node, 14, 0b1111); }},
      {"a bit beyond four", 3, [](char* node) { set_byte(node, 14, 0b10111); }},
      {"two equal keys of 16", 10, [](char* node) { set_byte(node, 33, 0); }},
      {"a slot of 16 without a child", 10, [](char* node) { set_byte(node, 9, 0xff); }},
      {"a slot beyond 48", 30, [](char* node) { set_byte(node, 64 + 200, 128 + 48); }},
      {"a slot of 48 that two entries lead to", 30,
       [](char* node) { node[64 + 200] = node[64 + 1]; }},
  }};
  for (const Damaged& one : all) {
    SCOPED_TRACE(one.what);
    Pool pool = new_pool();
    const auto index = create_index(pool, "index", "woart", Kind::kU64, Kind::kU64, {});
    for (uint64_t key = 0; key < one.children; ++key) index->insert(key, key);
    pm::PoolImpl& impl = pm::impl_of(pool);
    const auto& root = *impl.at<Root>(impl.find("index")->root);
    std::string said;
    const auto report = [&](const std::string& fault) { said += fault + "\n"; };
    EXPECT_EQ(index->check(report), 0U) << said;
    one.damage(impl.at<char>(offset_of(root.top)));
    EXPECT_GT(index->check(report), 0U);
    EXPECT_NE(said.find("contradict one another"), std::string::npos) << said;
    // Nor do they lead anywhere else.
    Value value;
    for (uint64_t key = 0; key < 256; ++key) index->lookup(key, value);
    uint64_t met = 0;
    index->for_each([&](Datum, Datum) { ++met; });
    EXPECT_LE(met, 256U);
    // A removal beside the damage takes nothing with it, if it does not refuse.
    std::set<uint64_t> found;
    for (uint64_t key = 0; key < one.children; ++key) {
      if (index->lookup(key, value)) found.insert(key);
    }
    try {
      index->remove(one.children - 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
    found.erase(one.children - 1);
    for (const uint64_t key : found) EXPECT_TRUE(index->lookup(key, value)) << key;
  }
}

}  // namespace
}  // namespace perdure::index::trie
