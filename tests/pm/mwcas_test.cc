#include "pm/mwcas.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "index/structure.h"
#include "pm/pool_impl.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/files.h"

namespace perdure::pm {
namespace {

static_assert(std::is_standard_layout_v<MwcasDescriptor>);

constexpr uint32_t kDescriptors = 64;
constexpr uint32_t kAccounts = 24;
constexpr uint32_t kPlaces = 8;
constexpr uint64_t kInitial = 1000;
constexpr uint64_t kBlockBytes2 = 192;

// A bank: accounts whose sum never changes, and places that each lead to a block. A block's first
// word says which place it is at.
struct Bank {
  index::RootSeal seal;
  uint64_t descriptors;
  uint64_t reserved[5];
  uint64_t accounts[kAccounts];
  uint64_t places[kPlaces];
};
static_assert(sizeof(Bank) == 64 + 32 * 8);

class OpenBank {
 public:
  explicit OpenBank(PoolImpl& pool) : pool_(pool) {
    const DirectoryEntry* entry = pool.find("bank");
    if (entry == nullptr) entry = create();
    bank_ = pool.at<Bank>(entry->root);
    mwcas_.emplace(pool.memory(), pool.base(), epochs_, bank_->descriptors, kDescriptors);
    mwcas_->recover(pool.header().data_offset, pool.end_offset(), "the bank");
  }

  Bank& bank() { return *bank_; }
  Mwcas& mwcas() { return *mwcas_; }
  EpochManager& epochs() { return epochs_; }

  // Moves up to `most` from one of `words` accounts to each of the others. Whether it could.
  bool transfer(std::mt19937_64& random, uint32_t words) {
    std::array<uint32_t, kAccounts> order;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    bool full = false;
    bool done = false;
    {
      const EpochManager::Guard guard(epochs_);
      Mwcas::Operation operation(*mwcas_);
      full = !operation;
      if (operation) {
        uint64_t from = mwcas_->read(bank_->accounts[order[0]]);
        if (from < words) return false;
        operation.add(bank_->accounts[order[0]], from, from - (words - 1));
        for (uint32_t i = 1; i < words; ++i) {
          uint64_t& to = bank_->accounts[order[i]];
          const uint64_t have = mwcas_->read(to);
          operation.add(to, have, have + 1);
        }
        done = operation.execute();
      }
    }
    if (full) mwcas_->wait();
    return done;
  }

  // Exchanges the blocks of two places for new ones; sometimes for none.
  bool replace(std::mt19937_64& random) {
    const uint32_t a = random() % kPlaces;
    const uint32_t b = (a + 1 + random() % (kPlaces - 1)) % kPlaces;
    const uint64_t bytes = kBlockBytes2;
    uint64_t old[2] = {};
    bool full = false;
    bool done = false;
    {
      const EpochManager::Guard guard(epochs_);
      Heap::Txn txn(pool_.heap());
      Mwcas::Operation operation(*mwcas_, &txn);
      full = !operation;
      for (uint32_t i = 0; operation && i < 2; ++i) {
        const uint32_t place = i == 0 ? a : b;
        uint64_t fresh = 0;
        if (random() % 4 != 0) {
          fresh = txn.allocate(bytes);
          std::memset(pool_.at<char>(fresh), 0x77, bytes);
          *pool_.at<uint64_t>(fresh) = place;
          pool_.memory().flush(pool_.at<char>(fresh), bytes);
        }
        old[i] = mwcas_->read(bank_->places[place]);
        operation.add(bank_->places[place], old[i], fresh, MwcasPolicy::kFreeEither);
      }
      done = operation && operation.execute();
    }
    if (full) mwcas_->wait();
    if (done) {
      epochs_.retire([this, first = old[0], second = old[1]] {
        if (first != 0) pool_.heap().release(first);
        if (second != 0) pool_.heap().release(second);
      });
    }
    return done;
  }

  // What is wrong, with nobody at work.
  std::string faults() {
    uint64_t sum = 0;
    uint64_t blocks = 0;
    const EpochManager::Guard guard(epochs_);
    for (const uint64_t& account : bank_->accounts) sum += mwcas_->read(account);
    if (sum != kAccounts * kInitial) return "the sum is " + std::to_string(sum);
    for (uint32_t i = 0; i < kPlaces; ++i) {
      const uint64_t block = mwcas_->read(bank_->places[i]);
      if (block == 0) continue;
      ++blocks;
      if (!pool_.heap().is_allocated(block, kBlockBytes2)) return "a block is not allocated";
      if (*pool_.at<uint64_t>(block) != i) return "a block is another place's";
    }
    const uint64_t owned = Heap::block_bytes(sizeof(Bank)) +
                           Heap::block_bytes(Mwcas::bytes_for(kDescriptors)) +
                           blocks * Heap::block_bytes(kBlockBytes2);
    const uint64_t allocated = pool_.heap().usage().allocated_bytes;
    if (allocated != owned) return std::to_string(allocated - owned) + " bytes leaked";
    return "";
  }

 private:
  const DirectoryEntry* create() {
    Bank fresh{};
    fresh.seal.magic = 1;
    for (uint64_t& account : fresh.accounts) account = kInitial;
    const index::NewBlock block{Mwcas::bytes_for(kDescriptors), offsetof(Bank, descriptors),
                                [&](char* at) { Mwcas::format(pool_.memory(), at, kDescriptors); }};
    index::make_structure(pool_, "bank", "bank", Kind::kU64, Kind::kU64, &fresh, sizeof fresh, 0,
                          {&block, 1});
    return pool_.find("bank");
  }

  PoolImpl& pool_;
  Bank* bank_ = nullptr;
  std::optional<Mwcas> mwcas_;
  EpochManager epochs_;
};

class MwcasTest : public testing::Test {
 protected:
  MwcasTest()
      : pool_(Pool::anonymous({.capacity_bytes = uint64_t{8} << 20, .growth_bytes = 1 << 16})),
        open_(pm::impl_of(pool_)) {}

  uint64_t read(uint64_t& word) {
    const EpochManager::Guard guard(open_.epochs());
    return open_.mwcas().read(word);
  }

  Pool pool_;
  OpenBank open_;
};

TEST_F(MwcasTest, ChangesAllWordsOrNone) {
  auto& accounts = open_.bank().accounts;
  const EpochManager::Guard guard(open_.epochs());
  {
    Mwcas::Operation operation(open_.mwcas());
    for (uint32_t i = 12; i > 0; --i) operation.add(accounts[i - 1], kInitial, i);
    EXPECT_TRUE(operation.execute());
  }
  for (uint32_t i = 0; i < 12; ++i) EXPECT_EQ(open_.mwcas().read(accounts[i]), i + 1);
  {
    Mwcas::Operation operation(open_.mwcas());
    for (uint32_t i = 0; i < 11; ++i) operation.add(accounts[i], i + 1, 7);
    operation.add(accounts[11], 5, 7);  // it is 12
    EXPECT_FALSE(operation.execute());
  }
  for (uint32_t i = 0; i < 12; ++i) EXPECT_EQ(accounts[i], i + 1) << "no mark is left";
}

TEST_F(MwcasTest, AMarkThatNoOperationLeftIsDamage) {
  uint64_t& word = open_.bank().accounts[5];
  for (const uint64_t mark : {uint64_t{1} << 63, uint64_t{1} << 62}) {
    word = kInitial | mark;
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, [&] { read(word); }));
  }
  word = kInitial | uint64_t{1} << 61;
  EXPECT_EQ(read(word), kInitial) << "which only says that the value may not be durable";
}

// Any of the persists of an operation of three words may be refused.
TEST(MwcasOnAFailingMedium, LeavesEveryWordReadableAndTheDecisionToTheNextOpening) {
  const test::TempDir dir;
  const std::string path = dir.file("pool");
  bool done = false;
  for (uint64_t refused = 0; !done; ++refused) {
    SCOPED_TRACE(refused);
    std::filesystem::remove(path);
    test::FailingMedium medium(path, Domain::kLine);
    PoolOptions options{.capacity_bytes = uint64_t{8} << 20};
    options.force_domain = true;
    options.domain = Domain::kLine;
    {
      Pool pool = Pool::create(path, options);
      OpenBank open(pm::impl_of(pool));
      auto& accounts = open.bank().accounts;
      medium.begin();
      medium.refuse_here(refused, false);
      const EpochManager::Guard guard(open.epochs());
      try {
        Mwcas::Operation operation(open.mwcas());
        operation.add(accounts[0], kInitial, kInitial - 2);
        operation.add(accounts[9], kInitial, kInitial + 1);
        operation.add(accounts[20], kInitial, kInitial + 1);
        EXPECT_TRUE(operation.execute());
        done = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
      }
      const uint64_t first = open.mwcas().read(accounts[0]);
      EXPECT_TRUE(first == kInitial || first == kInitial - 2) << first;
      const uint64_t moved = first == kInitial ? 0 : 1;
      EXPECT_EQ(open.mwcas().read(accounts[9]), kInitial + moved);
      EXPECT_EQ(open.mwcas().read(accounts[20]), kInitial + moved);
    }
    medium.mend();
    Pool pool = Pool::open(path, options);
    OpenBank open(pm::impl_of(pool));
    EXPECT_EQ(open.faults(), "");
  }
}

TEST_F(MwcasTest, TakesTheWholeRangeOfValues) {
  uint64_t& word = open_.bank().accounts[3];
  const EpochManager::Guard guard(open_.epochs());
  uint64_t before = kInitial;
  for (const uint64_t value : {uint64_t{0}, Mwcas::kValueMask, uint64_t{1} << 60, uint64_t{1}}) {
    Mwcas::Operation operation(open_.mwcas());
    operation.add(word, before, value);
    EXPECT_TRUE(operation.execute());
    EXPECT_EQ(open_.mwcas().read(word), value);
    before = value;
  }
}

TEST_F(MwcasTest, AnOperationThatIsNotExecutedCostsNoDescriptor) {
  const EpochManager::Guard guard(open_.epochs());
  for (uint32_t i = 0; i < 10 * kDescriptors; ++i) {
    Mwcas::Operation operation(open_.mwcas());
    ASSERT_TRUE(operation);
    operation.add(open_.bank().accounts[0], 1, 2);
  }
}

TEST_F(MwcasTest, SaysThatNoDescriptorIsFreeAndFindsOneAfterTheGuard) {
  std::mt19937_64 random(1);
  {
    const EpochManager::Guard guard(open_.epochs());
    uint32_t done = 0;
    for (;; ++done) {
      Mwcas::Operation operation(open_.mwcas());
      if (!operation) break;
      operation.add(open_.bank().accounts[0], done + kInitial, done + kInitial + 1);
      ASSERT_TRUE(operation.execute());
    }
    EXPECT_EQ(done, kDescriptors);
  }
  open_.mwcas().wait();
  const EpochManager::Guard guard(open_.epochs());
  EXPECT_TRUE(Mwcas::Operation(open_.mwcas()));
}

TEST_F(MwcasTest, TransfersOfManyThreadsKeepTheSum) {
  std::atomic<uint64_t> transfers{0};
  std::atomic<uint64_t> looks{0};
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 4000; ++i) {
          transfers += open_.transfer(random, 2 + static_cast<uint32_t>(random() % 11));
        }
      });
    }
    // Looks at twelve accounts in one instant: an operation that changes nothing.
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        bool done = false;
        {
          const EpochManager::Guard guard(open_.epochs());
          Mwcas::Operation operation(open_.mwcas());
          for (uint32_t a = 0; operation && a < 12; ++a) {
            uint64_t& account = open_.bank().accounts[a];
            const uint64_t have = open_.mwcas().read(account);
            operation.add(account, have, have);
          }
          done = operation && operation.execute();
        }
        if (!done) open_.mwcas().wait();
        looks += done;
      }
    });
  }
  EXPECT_GT(transfers, 1000U);
  EXPECT_EQ(open_.faults(), "");
}

TEST_F(MwcasTest, BlocksFollowTheDecisionInEveryThread) {
  std::atomic<uint64_t> done{0};
  {
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 2000; ++i) done += open_.replace(random);
      });
    }
  }
  EXPECT_GT(done, 100U);
  EXPECT_EQ(open_.faults(), "");
}

TEST_F(MwcasTest, RefusesADamagedDescriptor) {
  auto* descriptors = pm::impl_of(pool_).at<MwcasDescriptor>(open_.bank().descriptors);
  const MwcasDescriptor before = descriptors[5];
  for (const uint64_t status :
       {uint64_t{3}, before.status | 1, before.status | 13 << 4 | 1, before.status | 1 << 4 | 2}) {
    descriptors[5].status = status;
    descriptors[5].entries[0] = {3, 0, 0};
    EXPECT_TRUE(test::fails_with(ErrorCode::kCorrupt, "the bank", [&] {
      open_.mwcas().recover(pm::impl_of(pool_).header().data_offset,
                            pm::impl_of(pool_).end_offset(), "the bank");
    }));
  }
  descriptors[5] = before;
}

// Each state that a crash may leave of an operation, seen by recovery.
TEST_F(MwcasTest, RecoveryFollowsTheStatus) {
  PoolImpl& pool = pm::impl_of(pool_);
  auto* descriptors = pool.at<MwcasDescriptor>(open_.bank().descriptors);
  auto& accounts = open_.bank().accounts;
  const uint64_t use = descriptors[7].status >> 8;
  const uint64_t operation = uint64_t{1} << 63 | 7 | use << 14;
  const auto condition = [&](uint64_t entry) {
    return uint64_t{1} << 62 | 7 | entry << 14 | (use & 0xffffff) << 18 | uint64_t{99} << 42;
  };
  for (const uint64_t state : {5, 1, 9, 2, 10}) {
    SCOPED_TRACE(state);
    for (uint32_t i = 0; i < 4; ++i) {
      descriptors[7].entries[i] = {pool.offset_of(&accounts[i]), i + 10, i + 20};
    }
    descriptors[7].status = use << 8 | 4 << 4 | state;
    accounts[0] = operation;
    accounts[1] = condition(1);
    accounts[2] = condition(0);  // of another entry: not a mark of this word
    accounts[3] = uint64_t{33} | uint64_t{1} << 61;
    EXPECT_EQ(open_.mwcas().recover(pool.header().data_offset, pool.end_offset(), ""), 1U);
    const bool succeeded = (state & 2) != 0;
    EXPECT_EQ(accounts[0], succeeded ? 20U : 10U);
    EXPECT_EQ(accounts[1], 11U);
    EXPECT_EQ(accounts[2], condition(0));
    accounts[2] = 0;
    EXPECT_EQ(read(accounts[3]), 33U);
    EXPECT_EQ(accounts[3], 33U) << "who reads a dirty word cleans it";
    EXPECT_EQ(descriptors[7].status, use << 8 | 4 << 4);
  }
}

TEST_F(MwcasTest, WhatIsForgottenIsNotRecovered) {
  PoolImpl& pool = pm::impl_of(pool_);
  auto* descriptors = pool.at<MwcasDescriptor>(open_.bank().descriptors);
  auto& accounts = open_.bank().accounts;
  const auto leave = [&](uint32_t index, uint64_t& word) {
    const uint64_t use = descriptors[index].status >> 8;
    descriptors[index].entries[0] = {pool.offset_of(&word), 1, 2};
    descriptors[index].status = use << 8 | 1 << 4 | 2;
    word = uint64_t{1} << 63 | index | use << 14;
    return word;
  };
  const uint64_t first = leave(3, accounts[1]);
  leave(4, accounts[2]);
  const std::pair<uint64_t, uint64_t> block{pool.offset_of(&accounts[1]), 8};
  open_.mwcas().forget({&block, 1});
  open_.mwcas().recover(pool.header().data_offset, pool.end_offset(), "");
  EXPECT_EQ(accounts[1], first);
  EXPECT_EQ(accounts[2], 2U);
}

// A child that works with several threads is killed, again and again: the sum agrees, and no block
// is lost.
TEST(MwcasKill, TransfersAndBlocksSurviveAnyMoment) {
  const test::TempDir dir;
  const std::string path = dir.file("bank");
  const PoolOptions options{.capacity_bytes = uint64_t{8} << 20, .growth_bytes = 1 << 16};
  {
    Pool pool = Pool::create(path, options);
    OpenBank open(pm::impl_of(pool));
  }
  std::mt19937_64 random(11);
  for (int round = 0; round < 40; ++round) {
    test::Child child([&](int out) {
      auto* pool = new Pool(Pool::open(path, options));
      auto* open = new OpenBank(pm::impl_of(*pool));
      std::vector<std::jthread> threads;
      for (uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937_64 own(static_cast<uint64_t>(round) * 3 + t);
          for (;;) {
            for (int i = 0; i < 16; ++i) {
              if (own() % 2 == 0) {
                open->replace(own);
              } else {
                open->transfer(own, 2 + static_cast<uint32_t>(own() % 11));
              }
            }
            test::send(out, "x", 1);
          }
        });
      }
    });
    char told = 0;
    const uint64_t enough = random() % 60 + 1;
    for (uint64_t i = 0; i < enough; ++i) ASSERT_TRUE(child.receive(&told, 1));
    child.kill();
    child.receive_rest();
    child.wait();
    Pool pool = Pool::open(path, options);
    OpenBank open(pm::impl_of(pool));
    ASSERT_EQ(open.faults(), "") << "round " << round;
    std::mt19937_64 own(7);
    for (int i = 0; i < 20; ++i) open.transfer(own, 12);
    ASSERT_EQ(open.faults(), "") << "round " << round;
  }
}

// A process that died may have stored a decision in the caches only. Recovery must not let the
// power fail between some of the words that follow it.
TEST(MwcasRecovery, ADecisionInTheCachesOnlyIsNotTakenBackByHalves) {
  using Image = test::FailingMedium::Image;
  constexpr uint64_t kSeeds = 8;
  constexpr uint64_t kPersists = 8;  // more than a change of four words has
  test::TempDir dir;
  const std::string path = dir.file("bank");
  PoolOptions forced;
  forced.domain = Domain::kLine;
  forced.force_domain = true;
  for (uint64_t dies = 0; dies < kPersists; ++dies) {
    bool goes_on = true;
    for (uint64_t persist = 0; goes_on; ++persist) {
      for (uint64_t seed = 0; seed < kSeeds && goes_on; ++seed) {
        std::filesystem::remove(path);
        {
          Pool pool = Pool::create(path, {.capacity_bytes = uint64_t{16} << 20});
          OpenBank bank(pm::impl_of(pool));
        }
        test::FailingMedium medium(path, Domain::kLine);
        medium.begin();
        {
          Pool pool = Pool::open(path, forced);
          OpenBank bank(pm::impl_of(pool));
          medium.refuse_here(medium.persists() + dies, true);
          std::mt19937_64 random(seed);
          try {
            bank.transfer(random, 4);
          } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the process dies
          }
        }
        medium.refuse_here(medium.persists() + persist, true);
        try {
          Pool pool = Pool::open(path, forced);
          OpenBank bank(pm::impl_of(pool));
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the power fails
        }
        goes_on = medium.refused();
        if (!goes_on) break;
        std::filesystem::rename(medium.make_image(Image::kMixed, seed), path);
        Pool pool = Pool::open(path);
        OpenBank bank(pm::impl_of(pool));
        uint64_t sum = 0;
        for (uint64_t& account : bank.bank().accounts) sum += bank.mwcas().read(account);
        EXPECT_EQ(sum, kAccounts * kInitial)
            << "dies at " << dies << ", persist " << persist << ", image " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace perdure::pm
