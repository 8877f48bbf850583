// What the scenarios' keys do not reach in the height-optimised trie: long chains of keys that are
// beginnings of one another, the height it promises, and nodes that a crash left without entries.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/hot/layout.h"
#include "perdure/catalog.h"
#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/at_place.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::index {
namespace {

double figure(const AnyIndex& index, const std::string& name) {
  for (const Statistic& one : index.statistics()) {
    if (one.name == name) return one.value;
  }
  return -1;
}

std::string faults_of(const AnyIndex& index) {
  std::string faults;
  index.check([&](const std::string& fault) { faults += fault + "\n"; });
  return faults;
}

PoolOptions pool_options() {
  PoolOptions options;
  options.capacity_bytes = uint64_t{64} << 20;
  return options;
}

// Keys with their model.
template <typename Key>
class Modelled {
 public:
  explicit Modelled(const OptionMap& options = {})
      : index_(create_index(pool_, "index", "p-hot+vl", kKind, Kind::kU64, options)) {}

  void put(const Key& key) {
    index_->upsert(key, ++last_);
    model_[key] = last_;
  }
  void remove(const Key& key) { EXPECT_EQ(index_->remove(key), model_.erase(key) > 0); }
  void expect_equal() const {
    ASSERT_EQ(faults_of(*index_), "");
    Value value;
    for (const auto& [key, wanted] : model_) {
      ASSERT_TRUE(index_->lookup(key, value));
      ASSERT_EQ(value.word(), wanted);
    }
    uint64_t count = 0;
    index_->for_each([&](Datum, Datum) { ++count; });
    EXPECT_EQ(count, model_.size());
  }
  // From a key that is there or not, upwards and downwards.
  void expect_scans(const Key& from) const {
    std::vector<uint64_t> seen;
    const auto see = [&](Datum, Datum value) {
      seen.push_back(value.word());
      return true;
    };
    std::vector<uint64_t> wanted;
    index_->scan(from, 7, see);
    for (auto at = model_.lower_bound(from); at != model_.end() && wanted.size() < 7; ++at)
      wanted.push_back(at->second);
    EXPECT_EQ(seen, wanted);
    seen.clear();
    wanted.clear();
    index_->scan_back(Datum(from), 7, see);
    for (auto at = std::make_reverse_iterator(model_.upper_bound(from));
         at != model_.rend() && wanted.size() < 7; ++at) {
      wanted.push_back(at->second);
    }
    EXPECT_EQ(seen, wanted);
  }
  Pool& pool() { return pool_; }
  AnyIndex& index() { return *index_; }
  std::map<Key, uint64_t>& model() { return model_; }

 private:
  static constexpr Kind kKind = std::is_same_v<Key, uint64_t> ? Kind::kU64 : Kind::kBytes;
  test::TempDir dir_;
  Pool pool_ = Pool::create(dir_.file("pool"), pool_options());
  std::unique_ptr<AnyIndex> index_;
  std::map<Key, uint64_t> model_;
  uint64_t last_ = 0;
};

class HotChains : public testing::TestWithParam<const char*> {};

TEST_P(HotChains, KeysThatAreBeginningsOfOneAnother) {
  Modelled<std::string> trie(OptionMap{{"node_entries", GetParam()}});
  const double before = figure(trie.index(), "pool_bytes");
  for (size_t length = 0; length <= 1024; length += 2) trie.put(std::string(length, '\0'));
  for (size_t i = 1; i < 1024; i += 2) trie.put(std::string(1024 - i, '\0'));
  for (size_t length = 0; length <= 40; ++length) trie.put(std::string(length, '\xff'));
  trie.expect_equal();
  for (const size_t length : {0, 1, 2, 500, 1023, 1024}) {
    trie.expect_scans(std::string(length, '\0'));
    trie.expect_scans(std::string(length, '\xff'));
    trie.expect_scans(std::string(length / 2, '\0') + "a");
  }
  while (!trie.model().empty()) {
    const size_t half = trie.model().size() / 2;
    trie.remove(std::string(std::next(trie.model().begin(), static_cast<ptrdiff_t>(half))->first));
    if (half % 97 == 0) trie.expect_equal();
  }
  EXPECT_EQ(figure(trie.index(), "nodes"), 0);
  EXPECT_EQ(figure(trie.index(), "pool_bytes"), before);
}

INSTANTIATE_TEST_SUITE_P(Nodes, HotChains, testing::Values("3", "32"));

// Each of these keys parts from the way of all that follow it: as long a way as keys can have,
// 9,216 positions, which is deeper than the thread's stack would allow if each node on the way took
// some of it.
std::vector<std::string> comb() {
  std::vector<std::string> keys;
  for (size_t length = 0; length <= 1024; ++length) {
    const std::string base(length, '\0');
    keys.push_back(base);
    for (int bit = 0; bit < 8 && length < 1024; ++bit)
      keys.push_back(base + static_cast<char>(1 << bit));
  }
  return keys;
}

struct CombCase {
  const char* node_entries;
  const char* order;
  double height_max;
};
void PrintTo(const CombCase& one, std::ostream* out) { *out << one.node_entries << one.order; }

class HotCombs : public testing::TestWithParam<CombCase> {};

TEST_P(HotCombs, AWayOfAllPositionsIsNoHigherThanItsNodesAskFor) {
  const auto& [node_entries, order, height_max] = GetParam();
  Modelled<std::string> trie(OptionMap{{"node_entries", node_entries}});
  const double before = figure(trie.index(), "pool_bytes");
  std::vector<std::string> keys = comb();
  if (std::string_view(order) == "upwards") std::reverse(keys.begin(), keys.end());
  if (std::string_view(order) == "shuffled") {
    test::Random next(5);
    for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[next.below(i)]);
  }
  for (const std::string& key : keys) trie.put(key);
  trie.expect_equal();
  EXPECT_LE(figure(trie.index(), "height"), height_max);
  for (const size_t length : {0, 1, 500, 1023, 1024}) {
    trie.expect_scans(std::string(length, '\0'));
    trie.expect_scans(std::string(length / 2, '\0') + "a");
  }
  for (size_t i = 0; i < keys.size(); i += 2) trie.remove(keys[i]);
  trie.expect_equal();
  for (size_t i = 1; i < keys.size(); i += 2) trie.remove(keys[i]);
  trie.expect_equal();
  EXPECT_EQ(figure(trie.index(), "nodes"), 0);
  EXPECT_EQ(figure(trie.index(), "pool_bytes"), before);
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, HotCombs,
    testing::Values(CombCase{"3", "downwards", 5500}, CombCase{"8", "downwards", 1400},
                    CombCase{"32", "downwards", 320}, CombCase{"3", "upwards", 5500},
                    CombCase{"32", "upwards", 320}, CombCase{"3", "shuffled", 5500},
                    CombCase{"32", "shuffled", 400}));

TEST(Hot, IsAsLowAsItsNameSays) {
  Modelled<uint64_t> random;
  test::Random next(7);
  for (int i = 0; i < 30000; ++i) random.put(next.next());
  random.expect_equal();
  EXPECT_LE(figure(random.index(), "height"), 4);
  EXPECT_GE(figure(random.index(), "entries_of_a_node"), 16);

  Modelled<uint64_t> dense;
  for (uint64_t i = 0; i < 30000; ++i) dense.put(i);
  dense.expect_equal();
  EXPECT_LE(figure(dense.index(), "height"), 5);
}

TEST(Hot, WordsOfOneBitEach) {
  Modelled<uint64_t> trie;
  trie.put(0);
  for (uint32_t i = 0; i < 64; ++i) trie.put(uint64_t{1} << i);
  for (uint32_t i = 0; i < 64; ++i) trie.put(~uint64_t{0} << i);
  trie.expect_equal();
  for (uint32_t i = 0; i < 64; ++i) trie.expect_scans((uint64_t{1} << i) + 1);
}

// ---- records in spare slots

class CountingMedia final : public pm::EmulatedMedia {
 public:
  CountingMedia() { pm::emulate_media(this); }
  ~CountingMedia() override { pm::emulate_media(nullptr); }
  CountingMedia(const CountingMedia&) = delete;
  CountingMedia& operator=(const CountingMedia&) = delete;
  void written_back(uintptr_t, size_t bytes) override { bytes_ += bytes; }
  void fenced() override { ++fences_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t fences() const { return fences_; }

 private:
  uint64_t bytes_ = 0;
  uint64_t fences_ = 0;
};

TEST(Hot, MostWordsAreAddedByOneFence) {
  constexpr uint64_t kInserts = 20000;
  CountingMedia media;
  PoolOptions options = pool_options();
  options.force_domain = true;
  options.domain = Domain::kLine;
  const test::TempDir dir;
  Pool pool = Pool::create(dir.file("pool"), options);
  const auto index = create_index(pool, "index", "p-hot+vl", Kind::kU64, Kind::kU64, {});
  const uint64_t fences = media.fences();
  const uint64_t bytes = media.bytes();
  for (uint64_t i = 1; i <= kInserts; ++i) ASSERT_TRUE(index->insert(test::mix(i), i));
  EXPECT_LT(media.fences() - fences, 2 * kInserts);
  EXPECT_LT(media.bytes() - bytes, 400 * kInserts);
}

TEST(Hot, RecordsThatAreAddedComeAndGoAsOthersDo) {
  for (const char* entries : {"32", "7"}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(seed);
      test::Random next(seed);
      Modelled<uint64_t> trie(OptionMap{{"node_entries", entries}});
      const double before = figure(trie.index(), "pool_bytes");
      // In few nodes, with the least and the largest key among them.
      const auto key = [&] { return next.below(16) == 0 ? ~next.below(2) + 1 : next.below(150); };
      for (int round = 0; round < 30; ++round) {
        for (int i = 0; i < 40; ++i) {
          if (next.below(2 + seed % 2) == 0) {
            trie.remove(key());
          } else {
            trie.put(key());
          }
        }
        trie.expect_equal();
        for (int i = 0; i < 10; ++i) trie.expect_scans(key());
      }
      for (const auto& [one, value] : std::map(trie.model())) trie.remove(one);
      EXPECT_EQ(figure(trie.index(), "pool_bytes"), before);
    }
  }
}

TEST(Hot, AScanGoesOnAfterTheLastRecordWhenItsVisitorWritesBesideIt) {
  Modelled<uint64_t> trie;
  for (uint64_t key = 2; key <= 40; key += 2) trie.put(key);
  std::vector<uint64_t> seen;
  trie.index().scan(uint64_t{0}, 100, [&](Datum key, Datum) {
    seen.push_back(key.word());
    if (key.word() % 8 == 0) trie.index().insert(key.word() + 1, uint64_t{1});  // will be met
    if (key.word() % 8 == 4) trie.index().remove(key.word() + 2);
    if (key.word() % 8 == 4) trie.index().insert(key.word() - 1, uint64_t{1});  // will not
    return true;
  });
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  for (uint64_t key = 2; key <= 40; key += 2) {
    if (key % 8 == 6) continue;  // those that the visitor removed
    EXPECT_TRUE(std::binary_search(seen.begin(), seen.end(), key)) << key;
  }
}

// ---- nodes without entries

using Form = hot::Form<true>;

uint64_t& top_of(Pool& pool) {
  pm::PoolImpl& impl = pm::impl_of(pool);
  return impl.at<hot::Root>(impl.find("index")->root)->top;
}

// Calls visit(node) for all nodes, the lowest ones first.
template <typename Visit>
void for_nodes(pm::PoolImpl& pool, uint64_t word, const Visit& visit) {
  auto& node = *pool.at<hot::Node>(hot::offset_of(word));
  for (uint32_t i = 0; i < node.count; ++i) {
    if (hot::is_live(node.state, i) && hot::is_child(node.state, i))
      for_nodes(pool, *Form::slot_in(node, i), visit);
  }
  visit(node);
}

// As a crash between removals and their shrinking leaves it: of some nodes all records are gone, of
// others some.
void lose_some_records(Modelled<uint64_t>& trie, test::Random& next, uint64_t one_in) {
  for_nodes(pm::impl_of(trie.pool()), top_of(trie.pool()), [&](hot::Node& node) {
    const uint64_t of_all = next.below(2) == 0 ? one_in : 1;
    if (next.below(one_in) != 0) return;
    for (uint32_t i = 0; i < node.count; ++i) {
      if (!hot::is_live(node.state, i) || hot::is_child(node.state, i)) continue;
      if (next.below(of_all) != 0) continue;
      trie.model().erase(*Form::slot_in(node, i));
      node.state &= ~hot::live_bit(i);
    }
  });
}

TEST(Hot, EntriesThatHaveGoneAreNoneToReadersAndEmptyNodesGoWhenSomeoneWritesThere) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    test::Random next(seed);
    Modelled<uint64_t> trie(OptionMap{{"node_entries", seed % 2 == 0 ? "3" : "5"}});
    const double before = figure(trie.index(), "pool_bytes");
    const uint64_t keys = 12 + next.below(200);
    const auto key = [&] { return test::mix(next.below(keys)) >> (seed % 3 * 24); };
    for (int round = 0; round < 20; ++round) {
      for (uint64_t i = 0; i < keys / 2; ++i) trie.put(key());
      lose_some_records(trie, next, 1 + seed % 3);
      trie.expect_equal();
      for (int i = 0; i < 20; ++i) trie.expect_scans(key());
      for (uint64_t i = 0; i < keys / 8; ++i) trie.remove(key());
      trie.expect_equal();
    }
    for (uint64_t i = 0; i < keys; ++i) trie.put(test::mix(i));
    trie.expect_equal();
    for (const auto& [one, value] : std::map(trie.model())) trie.remove(one);
    trie.put(1);  // what is empty is on its way now
    trie.remove(1);
    trie.expect_equal();
    EXPECT_EQ(figure(trie.index(), "pool_bytes"), before);
  }
}

TEST(Hot, TheOnlyRecordLeftOfAHighNodeGetsNoNodeOfOneEntryAboveIt) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  Modelled<uint64_t> trie(OptionMap{{"node_entries", "3"}});
  for (const uint64_t key : {uint64_t{0}, kHalf, kHalf + 1, kHalf + 2}) trie.put(key);
  ASSERT_EQ(figure(trie.index(), "height"), 2);
  auto& top = *pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(top_of(trie.pool())));
  auto& low = *pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(*Form::slot_in(top, 1)));
  for (uint32_t i = 0; i < 3; ++i) trie.model().erase(kHalf + i);
  low.state = 0;
  trie.put(kHalf + 5);
  trie.put(kHalf + 6);
  trie.put(7);
  trie.expect_equal();
}

// Between finding its place and locking it an insert has nothing but a node's address: all records
// there may be removed meanwhile, and the node not yet be taken away.
TEST(Hot, AnInsertThatFindsItsPlaceEmptiedMakesNoNodeOfOneEntry) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  for (const bool below : {true, false}) {
    SCOPED_TRACE(below);
    Modelled<uint64_t> trie(OptionMap{{"node_entries", "4"}});
    const double before = figure(trie.index(), "pool_bytes");
    for (const uint64_t key : {1, 2, 3}) trie.put(key);
    if (below) {
      trie.put(kHalf);
      trie.put(kHalf + 1);
      ASSERT_EQ(figure(trie.index(), "height"), 2);
    }
    uint64_t word = top_of(trie.pool());
    if (below)
      word = *Form::slot_in(*pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(word)), 0);
    hot::Node& low = *pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(word));
    bool emptied = false;
    {
      const test::AtPlace here("p-hot: has found its place", [&] {
        if (std::exchange(emptied, true)) return;
        for (uint64_t key = 1; key <= 3; ++key) trie.model().erase(key);
        for (uint32_t i = 0; i < Form::spares_in(low, hot::bytes_of(word)); ++i)
          *Form::slot_in(low, low.count + i) = 0;
        low.state = 0;
      });
      trie.put(0);  // a key for which there is no spare slot
    }
    EXPECT_TRUE(emptied);
    trie.expect_equal();
    for (uint64_t key = 0; key < 20; ++key) trie.put(key);
    trie.expect_equal();
    for (const auto& [one, value] : std::map(trie.model())) trie.remove(one);
    EXPECT_EQ(figure(trie.index(), "pool_bytes"), before);
  }
}

// ---- damage

TEST(Hot, ANodeThatContradictsItselfIsToldAndNotCopied) {
  Modelled<uint64_t> trie;
  for (uint64_t key = 0; key < 20; ++key) trie.put(key * 1000);
  auto& node = *pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(top_of(trie.pool())));
  ASSERT_EQ(faults_of(trie.index()), "");
  const auto expect_told = [&](auto& where, auto value) {
    const auto right = where;
    where = value;
    EXPECT_NE(faults_of(trie.index()), "");
    EXPECT_THROW(
        {
          for (uint64_t key = 1; key < 20000; key += 500) trie.index().insert(key, key);
        },
        Error);
    where = right;
    EXPECT_EQ(faults_of(trie.index()), "");
  };
  expect_told(node.count, uint8_t{0});
  expect_told(node.count, uint8_t{33});
  expect_told(node.width, uint8_t{3});
  expect_told(node.bits, uint8_t{0});
  auto& mask = reinterpret_cast<uint64_t*>(&node)[2];
  expect_told(mask, uint64_t{mask ^ 1ULL << 40});
  auto& partial = reinterpret_cast<uint8_t*>(&node)[Form::partials_at(node.bits) + node.width];
  expect_told(partial, static_cast<uint8_t>(partial ^ 64));
}

TEST(Hot, ARecordThatWasAddedWhereItDoesNotBelongIsTold) {
  Modelled<uint64_t> trie(OptionMap{{"node_entries", "4"}});
  for (uint64_t key = 1; key < 40; ++key) trie.put(key * 3);
  uint32_t told = 0;
  for_nodes(pm::impl_of(trie.pool()), top_of(trie.pool()), [&](hot::Node& node) {
    // One with as many entries as a node may have needs no spare slot.
    if (!Form::is_row(node) || Form::first_position(node) == 0 || node.count == 4) return;
    uint64_t* spare = Form::slot_in(node, node.count);
    const uint64_t right = *spare;
    for (const uint64_t wrong : {~uint64_t{0}, *Form::slot_in(node, 0)}) {
      if (!hot::is_live(node.state, 0)) continue;
      *spare = wrong;
      EXPECT_NE(faults_of(trie.index()), "");
      ++told;
    }
    *spare = right;
  });
  EXPECT_GT(told, 4U);
  EXPECT_EQ(faults_of(trie.index()), "");
}

// Nor does it take those beside it along: a copy with it would be one that no way leads through.
TEST(Hot, ARecordThatWasAddedWhereItDoesNotBelongIsNotCopied) {
  Modelled<uint64_t> trie(OptionMap{{"node_entries", "16"}});
  test::Random next(test::base_seed());
  for (int i = 0; i < 400; ++i) trie.put(next.below(uint64_t{1} << 40));
  std::vector<uint64_t> wrong;
  for_nodes(pm::impl_of(trie.pool()), top_of(trie.pool()), [&](hot::Node& node) {
    if (!Form::is_row(node) || Form::first_position(node) == 0 || node.count == 16) return;
    uint64_t* spare = Form::slot_in(node, node.count);
    if (*spare == 0) return;
    trie.model().erase(*spare);
    *spare |= uint64_t{1} << 63;
    wrong.push_back(*spare);
  });
  ASSERT_GT(wrong.size(), 3U);
  uint32_t told = 0;
  for (int i = 0; i < 400; ++i) {
    const uint64_t key = next.below(uint64_t{1} << 40);
    try {
      trie.index().upsert(key, uint64_t{7});
      trie.model()[key] = 7;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      ++told;
    }
  }
  EXPECT_GT(told, 0U);
  Value value;
  for (const auto& [key, wanted] : trie.model()) {
    ASSERT_TRUE(trie.index().lookup(key, value)) << key;
    ASSERT_EQ(value.word(), wanted);
  }
}

TEST(Hot, APositionThatNoKeyHasIsToldAndNotCopied) {
  Modelled<std::string> trie;
  for (char key = 'a'; key < 'u'; ++key) trie.put(std::string(1, key));
  auto& node = *pm::impl_of(trie.pool()).at<hot::Node>(hot::offset_of(top_of(trie.pool())));
  uint16_t& last = reinterpret_cast<uint16_t*>(&node + 1)[node.bits - 1];
  ASSERT_EQ(last, 8);  // of the first byte the lowest bit
  for (uint16_t wrong = 9; wrong < 16; ++wrong) {
    last = wrong;
    EXPECT_NE(faults_of(trie.index()), "");
    EXPECT_THROW(trie.index().insert(std::string("z"), uint64_t{1}), Error);
  }
  last = 8;
  EXPECT_EQ(faults_of(trie.index()), "");
}

}  // namespace
}  // namespace perdure::index
