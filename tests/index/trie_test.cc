// What the scenarios' keys do not reach in the radix trees: keys that are beginnings of others,
// compressed paths longer than a node's window, nodes of every size growing and shrinking, what a
// crash leaves of a removal, and damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "index/trie/layout.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::index {
namespace {

class Tries : public testing::TestWithParam<const char*> {
 protected:
  using Model = std::map<std::string, std::string>;

  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{64} << 20;
    return options;
  }
  std::string faults() const {
    std::string all;
    index_->check([&](const std::string& fault) { all += fault + "\n"; });
    return all;
  }
  double figure(const std::string& name) const {
    for (const Statistic& one : index_->statistics()) {
      if (one.name == name) return one.value;
    }
    return 0;
  }
  void put(Model& model, const std::string& key, const std::string& value) {
    index_->upsert(key, value);
    model[key] = value;
  }
  // As if the children of a small node had been removed one by one, and a crash had come before it
  // was taken away. Their blocks leak.
  void empty(uint64_t word) const {
    auto* node = pm::impl_of(pool_).at<uint64_t>(trie::offset_of(word));
    const std::string structure = GetParam();
    if (structure == "woart") {
      node[1] = 0;
      return;
    }
    const uint64_t words = structure == "wort" ? 192 / 8 : 64 / 8;
    for (uint64_t i = structure == "wort" ? 8 : 4; i < words; ++i) node[i] = 0;
  }
  void expect_equal(const Model& model) const {
    EXPECT_EQ(faults(), "");
    Value value;
    for (const auto& [key, wanted] : model) {
      ASSERT_TRUE(index_->lookup(key, value)) << key;
      ASSERT_EQ(value.bytes(), wanted);
    }
    auto expected = model.begin();
    index_->for_each([&](Datum key, Datum) {
      ASSERT_NE(expected, model.end());
      ASSERT_EQ(key.bytes(), expected->first);
      ++expected;
    });
    EXPECT_EQ(expected, model.end());
  }
  void expect_scan(const Model& model, const std::string& from) const {
    auto expected = model.lower_bound(from);
    index_->scan(from, 5, [&](Datum key, Datum) {
      EXPECT_NE(expected, model.end());
      if (expected == model.end()) return false;
      EXPECT_EQ(key.bytes(), expected->first) << "from " << from;
      ++expected;
      return true;
    });
    const auto left = std::distance(model.lower_bound(from), expected);
    EXPECT_EQ(left, std::min<ptrdiff_t>(5, std::distance(model.lower_bound(from), model.end())));
    expect_scan_back(model, from);
  }
  void expect_scan_back(const Model& model, const std::string& from) const {
    std::vector<std::string> seen;
    index_->scan_back(Datum(from), 5, [&](Datum key, Datum) {
      seen.emplace_back(key.bytes());
      return true;
    });
    std::vector<std::string> wanted;
    for (auto at = std::make_reverse_iterator(model.upper_bound(from));
         at != model.rend() && wanted.size() < 5; ++at) {
      wanted.push_back(at->first);
    }
    EXPECT_EQ(seen, wanted) << "from " << from;
  }

  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), options());
  std::unique_ptr<AnyIndex> index_ =
      create_index(pool_, "index", GetParam(), Kind::kBytes, Kind::kBytes, {});
};

TEST_P(Tries, KeysThatAreBeginningsOfOneAnotherAreToldApart) {
  Model model;
  std::string key;
  for (int i = 0; i < 300; ++i) {
    put(model, key, std::to_string(i));
    key.push_back(i % 3 == 0 ? '\0' : i % 3 == 1 ? '\xff' : 'a');
  }
  expect_equal(model);
  for (const auto& [one, value] : model) expect_scan(model, one + '\0');
  while (!model.empty()) {
    const auto middle = std::next(model.begin(), static_cast<ptrdiff_t>(model.size() / 2));
    ASSERT_TRUE(index_->remove(middle->first));
    model.erase(middle);
    if (model.size() % 50 == 0) expect_equal(model);
  }
  EXPECT_EQ(figure("pool_bytes"), 256);
}

// Few letters, long common parts: each kind of branch, at each place of a window.
TEST_P(Tries, LongCompressedPathsAreSplitAndJoinedAnywhere) {
  test::Random random(test::base_seed());
  Model model;
  const auto random_key = [&] {
    std::string key(random.below(4) * 13, 'x');
    key += std::string(random.below(40), 'y');
    for (uint64_t i = random.below(3); i > 0; --i)
      key.push_back(static_cast<char>(random.below(3)));
    return key;
  };
  for (int step = 0; step < 6000; ++step) {
    const std::string key = random_key();
    if (random.chance(60)) {
      put(model, key, std::to_string(step));
    } else {
      ASSERT_EQ(index_->remove(key), model.erase(key) != 0);
    }
    if (step % 20 == 0) expect_scan(model, random_key());
  }
  expect_equal(model);
}

TEST_P(Tries, NodesGrowAndShrinkThroughAllSizes) {
  Model model;
  const auto key = [](int i) {
    return "a common beginning " + std::string(1, static_cast<char>(i * 91 % 256));
  };
  for (int i = 0; i < 256; ++i) {
    put(model, key(i), "value");
    expect_scan(model, key(i));
  }
  expect_equal(model);
  const double full = figure("pool_bytes");
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 254; ++i) {
      ASSERT_TRUE(index_->remove(key(i)));
      model.erase(key(i));
      if (i % 16 == 0) expect_equal(model);
    }
    EXPECT_LT(figure("pool_bytes"), 1024);
    for (int i = 0; i < 256; ++i) put(model, key(i), "again");
    expect_equal(model);
    EXPECT_EQ(figure("pool_bytes"), full);
  }
}

// A crash after the last children of a node were removed, before the node is taken away.
TEST_P(Tries, ANodeWithoutChildrenIsTakenAwayByWhoNeedsItsPath) {
  Model model;
  const std::string common(40, 'c');  // longer than a window: only a leaf has all of it
  put(model, common + "1", "one");
  put(model, common + "2", "two");
  put(model, common + "33", "three");
  pm::PoolImpl& impl = pm::impl_of(pool_);
  const auto& root = *impl.at<trie::Root>(impl.find("index")->root);
  ASSERT_FALSE(trie::is_leaf(root.top));
  empty(root.top);
  Value value;
  EXPECT_FALSE(index_->lookup(common + "1", value));
  index_->scan(std::string("b"), 10, [](Datum, Datum) { return ADD_FAILURE(), true; });
  EXPECT_FALSE(index_->remove(common + "2"));
  EXPECT_TRUE(index_->insert(common.substr(0, 20) + "x", "fresh"));
  EXPECT_TRUE(index_->lookup(common.substr(0, 20) + "x", value));
  EXPECT_TRUE(trie::is_leaf(root.top));
}

// The same below another node, whose place for it goes as well, or is used again.
TEST_P(Tries, ANodeWithoutChildrenLeavesItsParent) {
  Model model;
  const std::string common(40, 'c');
  put(model, "a", "in the parent");
  put(model, "b", "in the parent");
  index_->insert(common + "1", "one");
  index_->insert(common + "2", "two");
  pm::PoolImpl& impl = pm::impl_of(pool_);
  const auto& root = *impl.at<trie::Root>(impl.find("index")->root);
  const auto words_of = [&](uint64_t word) { return impl.at<uint64_t>(trie::offset_of(word)); };
  // Its place is in the parent's last words.
  uint64_t found = 0;
  for (uint64_t i = 4; i < 24; ++i) {
    const uint64_t word = words_of(root.top)[i];
    if (word == 0 || trie::is_leaf(word) || trie::branch_of(word) < common.size()) continue;
    found = word;
    break;
  }
  ASSERT_NE(found, 0U);
  empty(found);
  EXPECT_FALSE(index_->remove(common + "1"));
  expect_equal(model);
  put(model, common.substr(0, 20) + "x", "fresh");
  expect_equal(model);
  put(model, common.substr(0, 20) + "y", "fresh");
  expect_equal(model);
  for (const char* key : {"a", "b"}) {
    ASSERT_TRUE(index_->remove(key));
    model.erase(key);
  }
  expect_equal(model);
}

// What a reader finds in a place that is used again and again is what was inserted, not what is
// about to be.
TEST_P(Tries, NothingIsSeenBeforeItIsThere) {
  constexpr uint64_t kRounds = 1000;
  constexpr uint64_t kKey = 7;
  for (const uint64_t others : {3, 10, 30}) {  // in a node of each size
    SCOPED_TRACE(others);
    const auto words = create_index(pool_, "words of " + std::to_string(others), GetParam(),
                                    Kind::kU64, Kind::kU64, {});
    for (uint64_t key = 0; key <= others; ++key) {
      if (key != kKey) words->insert(key, 0);
    }
    std::atomic<uint64_t> removing{0};
    std::atomic<bool> writing{true};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int reader = 0; reader < 2; ++reader) {
      threads.emplace_back([&] {
        Value value;
        uint64_t last = 0;
        while (writing) {
          if (!words->lookup(kKey, value)) continue;
          const uint64_t seen = value.word();
          if (seen < last) ++wrong;
          last = seen;
          // Who has seen it, and sees it no more, was overtaken by its removal.
          if (!words->lookup(kKey, value) && removing < seen) ++wrong;
        }
      });
    }
    for (uint64_t round = 1; round <= kRounds; ++round) {
      if (!words->insert(kKey, round)) ++wrong;
      removing = round;
      if (!words->remove(kKey)) ++wrong;
    }
    writing = false;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST_P(Tries, WritersOfOnePathDoNotLoseOneAnothersRecords) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 40;
  constexpr int kKeys = 60;
  const auto key = [](int thread, int i) {
    return std::string(static_cast<size_t>(i % 20), 'p') + static_cast<char>(i * 7 + thread * 60);
  };
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Value value;
      for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < kKeys; ++i) {
          if (!index_->insert(key(thread, i) + static_cast<char>('A' + thread), "v")) ++wrong;
        }
        for (int i = 0; i < kKeys; ++i) {
          if (!index_->lookup(key(thread, i) + static_cast<char>('A' + thread), value)) ++wrong;
        }
        if (round + 1 == kRounds) break;
        for (int i = 0; i < kKeys; ++i) {
          if (!index_->remove(key(thread, i) + static_cast<char>('A' + thread))) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(figure("records"), kThreads * kKeys);
  EXPECT_EQ(faults(), "");
}

// Even words stay; odd ones come and go, so that every node changes its size under the readers.
TEST_P(Tries, ReadersSeeWhatStaysWhileNodesGrowAndShrink) {
  constexpr uint64_t kKeys = 1200;
  constexpr uint64_t kStride = 0x0101010101;
  const auto words = create_index(pool_, "words", GetParam(), Kind::kU64, Kind::kU64, {});
  for (uint64_t i = 0; i < kKeys; i += 2) words->insert(i * kStride, i);
  std::atomic<int> wrong{0};
  std::atomic<int> writing{2};
  std::vector<std::thread> threads;
  for (uint64_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (int round = 0; round < 8; ++round) {
        for (uint64_t i = 1 + 2 * writer; i < kKeys; i += 4) {
          if (!words->insert(i * kStride, i)) ++wrong;
          if (!words->update((i - 1) * kStride, i - 1)) ++wrong;
        }
        for (uint64_t i = 1 + 2 * writer; i < kKeys; i += 4) {
          if (!words->remove(i * kStride)) ++wrong;
        }
      }
      --writing;
    });
  }
  threads.emplace_back([&] {
    while (writing > 0) {
      uint64_t next = 0;  // of those that stay
      bool first = true;
      uint64_t before = 0;
      words->for_each([&](Datum key, Datum value) {
        const uint64_t i = value.word();
        if (key.word() != i * kStride || (!first && key.word() <= before)) ++wrong;
        first = false;
        before = key.word();
        if (i % 2 == 0 && i != next) ++wrong;
        if (i % 2 == 0) next = i + 2;
      });
      if (next != kKeys) ++wrong;
    }
  });
  threads.emplace_back([&] {
    Value value;
    for (uint64_t i = 0; writing > 0; i = (i + 2) % kKeys) {
      if (!words->lookup(i * kStride, value) || value.word() != i) ++wrong;
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(words->check([](const std::string& fault) { ADD_FAILURE() << fault; }), 0);
}

// A scan reads several children of a node at a time: those that its visitor removes before it comes
// to them are gone. Nodes of all sizes, and small ones below large ones.
TEST_P(Tries, AScanMissesWhatItsVisitorRemoves) {
  for (const uint64_t count : {4, 16, 40, 200, 1024}) {
    auto words = create_index(pool_, "words", GetParam(), Kind::kU64, Kind::kU64, {});
    const auto key_of = [](uint64_t i) { return 1 + 3 * i; };
    std::vector<uint64_t> seen;
    std::vector<uint64_t> wanted;
    for (uint64_t i = 0; i < count; ++i) words->insert(key_of(i), i);
    for (uint64_t i = 0; i < count; i += 2) wanted.push_back(key_of(i));
    words->scan(0, count, [&](Datum key, Datum) {
      seen.push_back(key.word());
      words->remove(key.word() + 3);
      return true;
    });
    EXPECT_EQ(seen, wanted);
    for (uint64_t i = 1; i < count; i += 2) words->insert(key_of(i), i);
    seen.clear();
    wanted.clear();
    for (uint64_t i = count; i > 0; i -= 2) wanted.push_back(key_of(i - 1));
    words->scan_back(std::nullopt, count, [&](Datum key, Datum) {
      seen.push_back(key.word());
      words->remove(key.word() - 3);
      return true;
    });
    EXPECT_EQ(seen, wanted);
    words.reset();
    drop_structure(pool_, "words");
  }
}

TEST_P(Tries, AWordThatLeadsUpwardsIsDamage) {
  index_->insert("aa1", "1");
  index_->insert("aa2", "2");
  index_->insert("ab", "3");
  pm::PoolImpl& impl = pm::impl_of(pool_);
  auto& root = *impl.at<trie::Root>(impl.find("index")->root);
  auto& top = *impl.at<trie::Node>(trie::offset_of(root.top));
  top.end = root.top;  // a circle
  EXPECT_NE(faults(), "");
  Value value;
  EXPECT_FALSE(index_->lookup("zz", value));
  EXPECT_THROW(index_->for_each([](Datum, Datum) {}), Error);
  top.end = 0;
  const uint64_t sound = root.top;
  for (const uint64_t wrong : {sound | 7, sound ^ uint64_t{1} << 46, sound | uint64_t{1} << 63}) {
    root.top = wrong;
    EXPECT_NE(faults(), "") << wrong;
    try {
      index_->lookup("aa1", value);
      index_->insert("ac", "4");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    root.top = sound;
  }
}

INSTANTIATE_TEST_SUITE_P(Structures, Tries,
                         testing::Values("p-art+vl", "p-art", "wort", "woart", "art-cow"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '+'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace perdure::index
