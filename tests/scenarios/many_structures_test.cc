// Many structures in one pool.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "perdure/plush.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// Forty small structures, of all kinds of the catalogue in turn.
class ManyStructures : public testing::Test {
 protected:
  static constexpr uint64_t kStructures = 40;
  static constexpr uint64_t kKeys = 300;

  struct Open {
    Pool pool;
    std::vector<std::unique_ptr<AnyIndex>> indexes;

    std::vector<const AnyIndex*> all() const {
      std::vector<const AnyIndex*> pointers;
      for (const auto& index : indexes) pointers.push_back(index.get());
      return pointers;
    }
    void close() {
      indexes.clear();
      pool.close();
    }
  };

  static Case case_of(uint64_t i) {
    const std::vector<Case> cases = all_cases();
    return cases[i % cases.size()];
  }
  static std::string name_of(uint64_t i) { return "structure " + std::to_string(i); }

  PoolOptions options() const {
    PoolOptions options;
    options.capacity_bytes = uint64_t{512} << 20;
    options.growth_bytes = uint64_t{1} << 20;
    return options;
  }

  Open create_all() const {
    Open open{Pool::create(path_, options()), {}};
    for (uint64_t i = 0; i < kStructures; ++i) {
      const Case c = case_of(i);
      open.indexes.push_back(create_index(open.pool, name_of(i), c.structure, c.key, c.value,
                                          small_options(c.structure)));
    }
    return open;
  }

  Open open_all() const {
    Open open{Pool::open(path_, options()), {}};
    // In another order than they were made.
    open.indexes.resize(kStructures);
    for (uint64_t i = kStructures; i-- > 0;) {
      open.indexes[i] = open_index(open.pool, name_of(i));
    }
    return open;
  }

  // Interleaved operations on all structures of [first, end).
  static void write(const Open& open, std::vector<Model>& models, Random& random, uint64_t first,
                    uint64_t end, uint64_t operations) {
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t s = first + random.below(end - first);
      const TypedIndex index(*open.indexes[s]);
      const uint64_t key = random.below(kKeys);
      if (random.chance(30)) {
        // A lie shows later, as a record that the model has and the index has not.
        if (index.remove(key) != (models[s].erase(key) == 1)) models[s][~uint64_t{0}] = key;
      } else {
        models[s][key] = i;
        index.upsert(key, i);
      }
    }
  }

  static void expect_all(const Open& open, const std::vector<Model>& models) {
    for (uint64_t i = 0; i < kStructures; ++i) {
      EXPECT_EQ(difference(TypedIndex(*open.indexes[i]), models[i], kKeys), "") << name_of(i);
    }
  }

  TempDir dir_;
  std::string path_ = dir_.file("pool");
  std::vector<Model> models_{kStructures};
  Random random_{base_seed()};
};

TEST_F(ManyStructures, EachKeepsItsOwnRecords) {
  Open open = create_all();
  write(open, models_, random_, 0, kStructures, scaled(60'000));
  expect_all(open, models_);
  open.close();
  for (int round = 0; round < 3; ++round) {
    open = open_all();
    expect_all(open, models_);
    EXPECT_EQ(faults_and_leaks(open.pool, open.all()), "");
    write(open, models_, random_, 0, kStructures, scaled(20'000));
    expect_all(open, models_);
    open.close();
  }
}

TEST_F(ManyStructures, EachKeepsItsOwnRecordsWhenThreadsWriteThemAll) {
  constexpr uint64_t kThreads = 4;
  Open open = create_all();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(base_seed() + t);
      write(open, models_, random, t * kStructures / kThreads, (t + 1) * kStructures / kThreads,
            scaled(20'000));
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_all(open, models_);
  EXPECT_EQ(faults(open.pool, open.all()), "");
}

TEST_F(ManyStructures, EachKeepsItsOwnRecordsThroughACrash) {
  create_all().close();
  const uint64_t operations = scaled(40'000);
  for (int round = 0; round < 3; ++round) {
    const Random before = random_;
    ASSERT_EQ(in_crashing_child([&]() -> std::string {
                const auto* open = new Open(open_all());  // never closed
                write(*open, models_, random_, 0, kStructures, operations);
                return {};
              }),
              "");
    // The child's models died with it: the same operations again, on models alone.
    random_ = before;
    for (uint64_t i = 0; i < operations; ++i) {
      Model& model = models_[random_.below(kStructures)];
      const uint64_t key = random_.below(kKeys);
      if (random_.chance(30)) {
        model.erase(key);
      } else {
        model[key] = i;
      }
    }
    Open open = open_all();
    expect_all(open, models_);
    EXPECT_EQ(faults_and_leaks(open.pool, open.all()), "");
    open.close();
  }
}

TEST_F(ManyStructures, ThePoolListsThemAll) {
  const auto expect_listed = [](const Pool& pool) {
    const std::vector<StructureInfo> listed = pool.structures();
    ASSERT_EQ(listed.size(), kStructures);
    std::set<std::string> names;
    for (const StructureInfo& info : listed) names.insert(info.name);
    for (uint64_t i = 0; i < kStructures; ++i) ASSERT_TRUE(names.contains(name_of(i)));
    for (const StructureInfo& info : listed) {
      const Case c = case_of(std::stoull(info.name.substr(std::string("structure ").size())));
      EXPECT_EQ(info.type, c.structure);
      EXPECT_EQ(info.key_kind, to_string(c.key));
      EXPECT_EQ(info.value_kind, to_string(c.value));
    }
  };
  Open open = create_all();
  expect_listed(open.pool);
  open.close();
  const Pool pool = Pool::open(path_, options());
  expect_listed(pool);
}

TEST_F(ManyStructures, ANameIsTakenOnce) {
  Open open = create_all();
  write(open, models_, random_, 0, kStructures, 1000);
  const uint64_t allocated_bytes = open.pool.info().allocated_bytes;
  for (uint64_t i = 0; i < kStructures; ++i) {
    const Case c = case_of(i + 1);
    EXPECT_TRUE(fails_with(ErrorCode::kNameExists, name_of(i), [&] {
      create_index(open.pool, name_of(i), c.structure, c.key, c.value, small_options(c.structure));
    }));
  }
  EXPECT_EQ(open.pool.structures().size(), kStructures);
  EXPECT_EQ(open.pool.info().allocated_bytes, allocated_bytes);
  expect_all(open, models_);
}

TEST_F(ManyStructures, ANameThatIsNotThereIsToldSo) {
  Open open = create_all();
  for (const std::string& name : {std::string("structure"), std::string("structure 00"),
                                  std::string("Structure 1"), std::string(300, 'n')}) {
    EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, name, [&] { open_index(open.pool, name); }));
  }
}

TEST_F(ManyStructures, NamesThatCannotBeStoredAreRefused) {
  Open open = create_all();
  const Case c = case_of(0);
  for (const std::string& name : {std::string(), std::string(5000, 'n')}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, [&] {
      create_index(open.pool, name, c.structure, c.key, c.value, small_options(c.structure));
    })) << name.size();
  }
  EXPECT_EQ(open.pool.structures().size(), kStructures);
}

TEST_F(ManyStructures, AStructureIsOpenedAsWhatItIsOnly) {
  Open open = create_all();
  for (uint64_t i = 0; i < kStructures; ++i) {
    for (const CatalogEntry& entry : catalog()) {
      if (entry.name == case_of(i).structure) continue;
      EXPECT_TRUE(fails_with(ErrorCode::kWrongType, name_of(i),
                             [&] { entry.open(open.pool, name_of(i), {}); }));
    }
  }
}

TEST_F(ManyStructures, AStructureThatThisBuildDoesNotKnowIsRefused) {
  Open open = create_all();
  const auto* known = pm::impl_of(open.pool).find(name_of(3));
  ASSERT_NE(known, nullptr);
  // As a later release would have written it.
  *const_cast<pm::DirectoryEntry*>(known) = pm::impl_of(open.pool).make_entry(
      known, name_of(3), "structure-of-2049", known->key_kind, known->value_kind, known->root);
  open.close();
  Pool pool = Pool::open(path_, options());
  EXPECT_EQ(pool.structures().size(), kStructures);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, name_of(3), [&] { open_index(pool, name_of(3)); }));
  for (const CatalogEntry& entry : catalog()) {
    EXPECT_TRUE(
        fails_with(ErrorCode::kWrongType, name_of(3), [&] { entry.open(pool, name_of(3), {}); }));
  }
  EXPECT_EQ(difference(TypedIndex(*open_index(pool, name_of(4))), {}, kKeys), "");
}

TEST_F(ManyStructures, KeyAndValueKindsAreCheckedWhenAStructureIsOpened) {
  Pool pool = Pool::create(path_, options());
  const OptionMap small = small_options("plush");
  create_index(pool, "words", "plush", Kind::kBytes, Kind::kU64, small);
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "words",
                         [&] { Plush<uint64_t, uint64_t>::open(pool, "words"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "words",
                         [&] { Plush<uint64_t, std::string>::open(pool, "words"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kWrongType, "words",
                         [&] { Plush<std::string, std::string>::open(pool, "words"); }));
  auto words = Plush<std::string, uint64_t>::open(pool, "words");
  EXPECT_TRUE(words.insert("perdure", 1));
}

TEST_F(ManyStructures, UnknownTypesAndOptionsAreRefusedAndLeaveNothing) {
  Pool pool = Pool::create(path_, options());
  const uint64_t allocated_bytes = pool.info().allocated_bytes;
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, catalog().front().name, [&] {
    create_index(pool, "x", "no-such-type", Kind::kU64, Kind::kU64);
  })) << "the message lists the types there are";
  for (const Case& c : all_cases()) {
    const auto refused = [&](const OptionMap& bad) {
      return fails_with(ErrorCode::kInvalidArgument, bad.begin()->first,
                        [&] { create_index(pool, "x", c.structure, c.key, c.value, bad); });
    };
    EXPECT_TRUE(refused({{"no_such_option", "1"}})) << c;
    for (const OptionInfo& option : c.entry().options) {
      // Of keys nearly every text is a list.
      const bool takes_keys = option.name == "boundaries";
      const std::vector<const char*> bad =
          takes_keys ? std::vector<const char*>{"", "b,a", "a,a", "a,", "a\\", "\\x1", "\\xgg"}
                     : std::vector<const char*>{"", "-1", "many", "1 ", "99999999999999999999999"};
      for (const char* text : bad) {
        EXPECT_TRUE(refused({{option.name, text}})) << c << ", " << option.name << "=" << text;
      }
    }
  }
  EXPECT_TRUE(pool.structures().empty());
  EXPECT_EQ(pool.info().allocated_bytes, allocated_bytes);
  EXPECT_EQ(faults(pool, {}), "");
}

TEST_F(ManyStructures, AsManyAsThereIsRoomForAndNotOneMore) {
  constexpr uint64_t kLimit = 100'000;  // far more than there is room for
  const Case c = case_of(0);
  PoolOptions little = options();
  little.capacity_bytes = uint64_t{32} << 20;
  Open open{Pool::create(path_, little), {}};
  std::optional<ErrorCode> refusal;
  for (uint64_t i = 0; i < kLimit && !refusal; ++i) {
    try {
      create_index(open.pool, name_of(i), c.structure, c.key, c.value, small_options(c.structure));
    } catch (const Error& error) {
      refusal = error.code();
    }
  }
  EXPECT_EQ(refusal, ErrorCode::kPoolFull);
  const uint64_t count = open.pool.structures().size();
  EXPECT_GT(count, pm::kDirectoryEntries);
  for (uint64_t i = 0; i < count; ++i) {
    open.indexes.push_back(open_index(open.pool, name_of(i)));
    EXPECT_TRUE(TypedIndex(*open.indexes.back()).insert(i, i));
  }
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(difference(TypedIndex(*open.indexes[i]), {{i, i}}, 0), "");
  }
  EXPECT_EQ(faults_and_leaks(open.pool, open.all()), "");
}

}  // namespace
}  // namespace perdure::test
