// What no scenario reaches: options out of range, and heavy traffic on a tree of a few tiny nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "index/bztree/layout.h"
#include "perdure/catalog.h"
#include "pm/checksum.h"
#include "pm/pool_impl.h"
#include "support/errors.h"

namespace perdure::index {
namespace {

Pool make_pool() {
  return Pool::anonymous({.capacity_bytes = uint64_t{64} << 20, .growth_bytes = 1 << 20});
}

TEST(BzTree, RefusesOptionsThatMakeNoSense) {
  Pool pool = make_pool();
  for (const OptionMap& options :
       {OptionMap{{"node_bytes", "64"}}, OptionMap{{"node_bytes", "1000"}},
        OptionMap{{"node_bytes", "65536"}}, OptionMap{{"descriptors", "8"}},
        OptionMap{{"descriptors", "20000"}}}) {
    EXPECT_TRUE(test::fails_with(ErrorCode::kInvalidArgument, "", [&] {
      create_index(pool, "tree", "bztree", Kind::kU64, Kind::kU64, options);
    }));
  }
}

// Threads that write, remove and scan the same few hundred keys in leaves of four records, with few
// descriptors: nearly every operation meets others, and nodes are split and merged all the time.
TEST(BzTree, SplitsAndMergesUnderTrafficKeepEveryCount) {
  constexpr uint32_t kThreads = 4;
  constexpr uint64_t kKeys = 300;
  Pool pool = make_pool();
  const auto tree = create_index(pool, "tree", "bztree", Kind::kU64, Kind::kU64,
                                 {{"node_bytes", "128"}, {"descriptors", "48"}});
  std::vector<std::atomic<int>> present(kKeys);  // inserts that succeeded less removals
  std::atomic<uint64_t> disorder{0};
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 6000; ++i) {
          // Mostly inserts for a while, then mostly removals.
          const bool growing = i / 1000 % 2 == 0;
          const uint64_t key = random() % kKeys;
          if (random() % 10 < (growing ? 7 : 3)) {
            if (tree->insert(key, key * 2)) ++present[key];
          } else if (tree->remove(key)) {
            --present[key];
          }
          if (i % 100 != 0) continue;
          uint64_t next = 0;
          tree->scan(uint64_t{0}, kKeys, [&](const Datum& at, const Datum& value) {
            if (at.word() < next || value.word() != at.word() * 2) ++disorder;
            next = at.word() + 1;
            return true;
          });
        }
      });
    }
  }
  EXPECT_EQ(disorder, 0U);
  Value value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(tree->lookup(key, value) ? 1 : 0, present[key]) << "key " << key;
  }
  EXPECT_EQ(tree->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  for (uint64_t key = 0; key < kKeys; ++key) tree->remove(key);
  for (const Statistic& statistic : tree->statistics()) {
    if (statistic.name == "leaves") {
      EXPECT_EQ(statistic.value, 1);
    }
  }
}

// A scan may change the tree that it scans.
TEST(BzTree, AVisitMayWrite) {
  Pool pool = make_pool();
  const auto tree = create_index(pool, "tree", "bztree", Kind::kU64, Kind::kU64,
                                 {{"node_bytes", "128"}, {"descriptors", "16"}});
  for (uint64_t key = 0; key < 500; ++key) tree->insert(key, key);
  uint64_t visited = 0;
  tree->scan(uint64_t{0}, 500, [&](const Datum& key, const Datum&) {
    ++visited;
    return tree->update(key, key.word() + 1) && tree->insert(key.word() + 1000, 1);
  });
  EXPECT_EQ(visited, 500U);
  EXPECT_EQ(tree->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

// A root whose seal holds may still say what no tree has.
TEST(BzTree, ARootThatSaysWhatNoTreeHasIsDamage) {
  Pool pool = make_pool();
  create_index(pool, "tree", "bztree", Kind::kU64, Kind::kU64, {}).reset();
  auto& root = *pm::impl_of(pool).at<bztree::Root>(pm::impl_of(pool).find("tree")->root);
  const bztree::Root sound = root;
  const auto seal = [&] {
    root.seal.checksum = pm::checksum64(&root.seal + 1, bztree::kSealedBytes);
  };
  for (const auto& [node_bytes, descriptors] :
       std::vector<std::pair<uint64_t, uint64_t>>{{1024, 0},
                                                  {1024, 15},
                                                  {1024, 1 << 15},
                                                  {1024, uint64_t{1} << 32 | 96},
                                                  {0, 96},
                                                  {1000, 96},
                                                  {65536, 96}}) {
    root.node_bytes = node_bytes;
    root.descriptor_count = descriptors;
    seal();
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "", [&] { open_index(pool, "tree"); }));
  }
  root = sound;
  EXPECT_NE(open_index(pool, "tree"), nullptr);
}

// Short byte strings stand in the nodes: a changed byte is found before anybody gets the value, and
// is not copied to another node under a checksum that holds.
TEST(BzTree, AChangedByteOfARecordInANodeIsDamage) {
  Pool pool = make_pool();
  const auto tree = create_index(pool, "tree", "bztree", Kind::kBytes, Kind::kBytes, {});
  const std::string needle = "a value to be found";
  tree->insert("key", needle);
  auto& impl = pm::impl_of(pool);
  char* from = impl.at<char>(impl.header().data_offset);
  char* to = impl.at<char>(impl.end_offset() - 1);
  char* at = std::search(from, to, needle.begin(), needle.end());
  ASSERT_NE(at, to);
  Value value;
  for (const int place : {-7, 0, 18}) {  // of the checksum, and of the value
    at[place] ^= 1;
    EXPECT_TRUE(
        test::fails_with(ErrorCode::kCorrupt, "checksum", [&] { tree->lookup("key", value); }));
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "checksum", [&] {
      for (int i = 0; i < 100; ++i) tree->upsert("other" + std::to_string(i), needle);
    }));
    at[place] ^= 1;
  }
  EXPECT_TRUE(tree->lookup("key", value));
  EXPECT_EQ(value.bytes(), needle);
}

// What a writer wrote whose reservation a crash forgot is no record of the slot that comes to be
// there.
TEST(BzTree, WhatAForgottenWriterLeftIsNoRecord) {
  Pool pool = make_pool();
  const auto tree = create_index(pool, "tree", "bztree", Kind::kU64, Kind::kU64, {});
  tree->insert(1, 10);
  auto& impl = pm::impl_of(pool);
  const auto& root = *impl.at<bztree::Root>(impl.find("tree")->root);
  // Visible records, outside of the node and inside; words with the marks of Mwcas.
  const std::vector<uint64_t> left{~uint64_t{0} >> 4, bztree::Meta::make(1008, 8, 16, false).word,
                                   ~uint64_t{0}, uint64_t{5} << 61};
  Value value;
  for (uint64_t key = 2; key < 2 + left.size() + 1; ++key) {
    EXPECT_FALSE(tree->lookup(key, value));
    auto& leaf = *impl.at<bztree::Node>(root.root);
    const uint32_t slots = bztree::LeafStatus{leaf.status}.slots();
    leaf.words()[slots] = left[key % left.size()];
    EXPECT_TRUE(tree->insert(key, key * 10));
    EXPECT_EQ(tree->check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
  for (uint64_t key = 1; key < 2 + left.size() + 1; ++key) {
    ASSERT_TRUE(tree->lookup(key, value));
    EXPECT_EQ(value.word(), key * 10);
  }
}

}  // namespace
}  // namespace perdure::index
