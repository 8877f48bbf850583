// Pools that go before what is open in them, with every structure, the store, databases, files and
// typed indexes: reading goes on, writing is an error, and nothing is lost.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/database.h"
#include "perdure/files.h"
#include "perdure/plush.h"
#include "perdure/store.h"
#include "perdure/typed.h"
#include "support/at_place.h"
#include "support/errors.h"
#include "support/files.h"

namespace perdure::test {
namespace {

using KeyValueStore = perdure::Store;  // tests have a Store of their own

class LifetimesTest : public ::testing::Test {
 protected:
  LifetimesTest() : path_(dir_.file("a.pool")), pool_(create()) {}

  Pool create() const { return Pool::create(path_, {.capacity_bytes = uint64_t{64} << 20}); }
  void close_is_refused() {
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, "close structures", [&] { pool_->close(); }));
  }
  // The Pool object goes, in one of two ways.
  void drop_pool(bool assign_over) {
    if (assign_over) *pool_ = Pool::anonymous({.capacity_bytes = uint64_t{4} << 20});
    pool_.reset();
  }
  Pool reopened() const {
    Pool pool = Pool::open(path_);
    EXPECT_TRUE(pool.info().clean);
    return pool;
  }

  TempDir dir_;
  std::string path_;
  std::optional<Pool> pool_;
};

TEST_F(LifetimesTest, OfEveryStructureOfTheCatalogue) {
  for (const CatalogEntry& entry : catalog()) {
    for (const bool assign_over : {false, true}) {
      SCOPED_TRACE(entry.name);
      std::remove(path_.c_str());
      pool_ = create();
      const auto [key_kind, value_kind] = entry.traits.kinds.front();
      auto index = create_index(*pool_, "words", entry.name, key_kind, value_kind);
      const Datum key = key_kind == Kind::kU64 ? Datum(1) : Datum("key");
      const Datum content = value_kind == Kind::kU64 ? Datum(2) : Datum("value");
      index->upsert(key, content);
      close_is_refused();
      drop_pool(assign_over);
      Value value;
      EXPECT_TRUE(index->lookup(key, value));
      EXPECT_EQ(value.datum(), content);
      index->for_each([](Datum, Datum) {});
      EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { index->upsert(key, content); }));
      EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { index->remove(key); }));
      index.reset();
      Pool pool = reopened();
      EXPECT_TRUE(open_index(pool, "words")->lookup(key, value));
    }
  }
}

// A name that goes from one structure to another between the look for its root and the opening:
// nobody gets the one structure under the name of the other, whose second opening would not know of
// the first.
TEST_F(LifetimesTest, ANameThatChangesWhileItIsOpened) {
  std::vector<std::string> types;
  for (const CatalogEntry& entry : catalog()) types.emplace_back(entry.name);
  for (const std::string& type : types) {
    SCOPED_TRACE(type);
    std::remove(path_.c_str());
    pool_ = create();
    const auto [key_kind, value_kind] = catalog_entry(type).traits.kinds.front();
    const Datum key = key_kind == Kind::kU64 ? Datum(1) : Datum("key");
    const auto value = [kind = value_kind](uint64_t number) {
      Value made;
      kind == Kind::kU64 ? made.set(number)
                         : static_cast<void>(made.set_bytes().assign(std::to_string(number)));
      return made;
    };
    const auto holds = [&](const AnyIndex& index, uint64_t number) {
      Value found;
      return index.lookup(key, found) && found.datum() == value(number).datum();
    };
    create_index(*pool_, "first", type, key_kind, value_kind)->upsert(key, value(1).datum());
    create_index(*pool_, "second", type, key_kind, value_kind)->upsert(key, value(2).datum());
    {
      bool renamed = false;
      const AtPlace here("pool: takes a name", [&] {
        if (std::exchange(renamed, true)) return;
        pool_->rename("first", "third");
        pool_->rename("second", "first");
      });
      EXPECT_TRUE(
          fails_with(ErrorCode::kInUse, "open it again", [&] { open_index(*pool_, "first"); }));
      EXPECT_TRUE(renamed);
    }
    const auto second = open_index(*pool_, "first");
    const auto first = open_index(*pool_, "third");
    EXPECT_TRUE(holds(*second, 2) && holds(*first, 1));
  }
}

TEST_F(LifetimesTest, OfTypedStructures) {
  auto scores = FastFair<std::string, int64_t>::create(*pool_, "scores");
  auto words = Plush<std::string, std::string>::create(*pool_, "words");
  scores.upsert("ada", -3);
  words.upsert("perdure", "to last");
  auto cursor = scores.all();
  close_is_refused();
  drop_pool(false);
  EXPECT_EQ(scores.get("ada"), -3);
  EXPECT_EQ(cursor.key(), "ada");
  cursor.next();
  std::string gloss;
  EXPECT_TRUE(words.lookup("perdure", gloss));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { scores.upsert("ada", 1); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { words.upsert("perdure", ""); }));
}

TEST_F(LifetimesTest, OfTheStoreItsSnapshotsAndItsCursors) {
  for (const uint32_t workers : {0U, 2U}) {
    SCOPED_TRACE(workers);
    std::remove(path_.c_str());
    pool_ = create();
    std::optional<KeyValueStore> store =
        KeyValueStore::create(*pool_, "store", {.index = StoreIndex::kOrdered, .workers = workers});
    store->put("perdure", "to last");
    std::optional<KeyValueStore::Snapshot> snapshot = store->snapshot();
    std::optional<KeyValueStore::Cursor> cursor = store->cursor();
    close_is_refused();
    drop_pool(false);
    EXPECT_EQ(store->get("perdure"), "to last");
    EXPECT_EQ(snapshot->get("perdure"), "to last");
    cursor->first();
    ASSERT_TRUE(cursor->valid());
    EXPECT_EQ(cursor->key(), "perdure");
    EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { store->put("perdure", ""); }));
    cursor.reset();
    snapshot.reset();
    store.reset();
    Pool pool = reopened();
    EXPECT_EQ(KeyValueStore::open(pool, "store").get("perdure"), "to last");
  }
}

TEST_F(LifetimesTest, OfADatabaseItsTransactionsAndItsCursors) {
  const DatabaseOptions options{.page_file = dir_.file("a.pages")};
  std::optional<Database> bank = Database::create(*pool_, "bank", options);
  const Tree accounts = bank->tree("accounts");
  bank->transact([&](Transaction& transaction) { transaction.put(accounts, "alice", "100"); });
  std::optional<Transaction> reading = bank->begin();
  std::optional<Cursor> cursor = reading->cursor(accounts);
  close_is_refused();
  drop_pool(false);
  EXPECT_EQ(reading->get(accounts, "alice"), "100");
  EXPECT_TRUE(cursor->seek_first());
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] {
    bank->transact([&](Transaction& writing) { writing.put(accounts, "alice", "70"); });
  }));
  cursor.reset();
  reading.reset();
  bank.reset();
  Pool pool = reopened();
  bank = Database::open(pool, "bank", options);
  EXPECT_EQ(bank->begin().get(bank->tree("accounts"), "alice"), "100");
}

// What refers to a database that is closed, to a transaction that has ended, or to nothing any
// more: words, and no wild access.
class DatabaseLifetimesTest : public LifetimesTest {
 protected:
  DatabaseLifetimesTest() {
    bank_ = Database::create(*pool_, "bank", options());
    accounts_ = bank_->tree("accounts");
    bank_->transact([&](Transaction& writing) {
      for (int i = 0; i < 1000; ++i) writing.put(*accounts_, "account" + std::to_string(i), "100");
    });
  }
  DatabaseOptions options() const { return {.page_file = dir_.file("a.pages")}; }
  static void expect_refused(const std::string& why, const std::function<void()>& call) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, why, call));
  }
  void expect_refused(const std::string& why, Transaction& one, bool even_abort = true) const {
    expect_refused(why, [&] { one.get(*accounts_, "account1"); });
    expect_refused(why, [&] { one.cursor(*accounts_); });
    expect_refused(why, [&] { one.put(*accounts_, "account1", "1"); });
    expect_refused(why, [&] { one.insert(*accounts_, "account1", "1"); });
    expect_refused(why, [&] { one.erase(*accounts_, "account1"); });
    expect_refused(why, [&] { one.savepoint(); });
    expect_refused(why, [&] { one.rollback_to(0); });
    expect_refused(why, [&] { one.commit(); });
    if (even_abort) expect_refused(why, [&] { one.abort(); });
  }
  static void expect_refused(const std::string& why, Cursor& cursor) {
    expect_refused(why, [&] { cursor.seek("account1"); });
    expect_refused(why, [&] { cursor.seek_first(); });
    expect_refused(why, [&] { cursor.seek_last(); });
    expect_refused(why, [&] { cursor.seek_below("account2"); });
    expect_refused(why, [&] { cursor.next(); });
    expect_refused(why, [&] { cursor.previous(); });
  }
  void expect_refused(const std::string& why, const Snapshot& snapshot) const {
    expect_refused(why, [&] { (void)snapshot.get(*accounts_, "account1"); });
    expect_refused(why, [&] { (void)snapshot.cursor(*accounts_); });
    expect_refused(why, [&] { (void)snapshot.find_tree("accounts"); });
    expect_refused(why, [&] { (void)snapshot.trees(); });
  }

  std::optional<Database> bank_;
  std::optional<Tree> accounts_;
};

TEST_F(DatabaseLifetimesTest, OfADatabaseThatIsClosed) {
  for (const bool assign_over : {false, true}) {
    Transaction reading = bank_->begin();
    EXPECT_EQ(reading.get(*accounts_, "account1"), "100");
    Transaction writing = bank_->begin();
    writing.put(*accounts_, "account1", "1");
    Cursor cursor = reading.cursor(*accounts_);
    Cursor fresh = writing.cursor(*accounts_);
    ASSERT_TRUE(cursor.seek("account5"));
    Snapshot snapshot = bank_->snapshot();
    Cursor of_snapshot = snapshot.cursor(*accounts_);
    ASSERT_TRUE(of_snapshot.seek_last());
    // The snapshot has a version of its own.
    bank_->transact([&](Transaction& other) { other.put(*accounts_, "account1", "100"); });
    if (assign_over) {
      DatabaseOptions others{.page_file = dir_.file("b.pages"), .pm_frames = false};
      others.log_bytes = uint64_t{1} << 20;
      *bank_ = Database::create(*pool_, "another", others);
    } else {
      bank_.reset();
    }
    const std::string why = "its database was closed";
    expect_refused(why, reading, false);
    expect_refused(why, writing, false);
    expect_refused(why, cursor);
    expect_refused(why, fresh);
    expect_refused(why, of_snapshot);
    expect_refused(why, snapshot);
    EXPECT_EQ(cursor.key(), "account5");
    EXPECT_EQ(of_snapshot.value(), "100");
    writing.abort();
    // A tree of another opening, whatever memory that has got.
    bank_.reset();
    bank_ = Database::open(*pool_, "bank", options());
    Transaction later = bank_->begin();
    expect_refused("was closed", [&] { later.get(*accounts_, "account1"); });
    expect_refused("was closed", [&] { (void)bank_->snapshot().get(*accounts_, "account1"); });
    accounts_ = bank_->find_tree("accounts");
    EXPECT_EQ(later.get(*accounts_, "account1"), "100");
    expect_refused("was closed", [&] { reading.get(*accounts_, "account1"); });
  }
}

TEST_F(DatabaseLifetimesTest, OfATransactionThatHasEnded) {
  const std::string why = "after it was committed or aborted";
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(way);
    std::optional<Transaction> one = bank_->begin();
    one->put(*accounts_, "account1", "1");
    Cursor cursor = one->cursor(*accounts_);
    ASSERT_TRUE(cursor.seek("account1"));
    if (way == 0) one->commit();
    if (way == 1) one->abort();
    if (way == 2) one.reset();
    if (way == 3) *one = bank_->begin();
    expect_refused(why, cursor);
    EXPECT_EQ(cursor.value(), "1");
    if (way < 2) expect_refused(why, *one, false);
    EXPECT_EQ(bank_->begin().get(*accounts_, "account1"), way == 0 ? "1" : "100");
    bank_->transact([&](Transaction& other) { other.put(*accounts_, "account1", "100"); });
  }
}

// NOLINTBEGIN(bugprone-use-after-move): what this is about
TEST_F(DatabaseLifetimesTest, OfObjectsThatWereMovedFrom) {
  const std::string why = "moved from";
  Transaction one = bank_->begin();
  Cursor cursor = one.cursor(*accounts_);
  Transaction other = std::move(one);
  expect_refused(why, one);
  ASSERT_TRUE(cursor.seek("account1"));  // it is the other's now
  Cursor last = std::move(cursor);
  expect_refused(why, cursor);
  expect_refused(why, [&] { (void)cursor.valid(); });
  expect_refused(why, [&] { (void)cursor.key(); });
  expect_refused(why, [&] { (void)cursor.value(); });
  EXPECT_EQ(last.key(), "account1");
  Snapshot snapshot = bank_->snapshot();
  const Snapshot moved = std::move(snapshot);
  expect_refused(why, snapshot);
  const Snapshot copy = snapshot;
  expect_refused(why, copy);
  EXPECT_EQ(moved.get(*accounts_, "account1"), "100");
  Tree accounts = *accounts_;
  const Tree taken = std::move(accounts);
  one = bank_->begin();
  expect_refused(why, [&] { one.get(accounts, "account1"); });
  expect_refused(why, [&] { one.put(accounts, "account1", "1"); });
  expect_refused(why, [&] { one.cursor(accounts); });
  expect_refused(why, [&] { (void)moved.get(accounts, "account1"); });
  expect_refused(why, [&] { (void)moved.cursor(accounts); });
  EXPECT_EQ(one.get(taken, "account1"), "100");
  accounts = taken;
  EXPECT_EQ(one.get(accounts, "account1"), "100");
  Tree another = bank_->tree("another");
  another = std::move(accounts);
  expect_refused(why, [&] { one.get(accounts, "account1"); });
  EXPECT_EQ(one.get(another, "account1"), "100");
  EXPECT_EQ(another.name(), "accounts");
  // By who is called with it.
  bank_->transact([&](Transaction& taken) { one = std::move(taken); });
  one.put(*accounts_, "account1", "1");
  one.commit();
  Database bank = std::move(*bank_);
  EXPECT_EQ(other.get(*accounts_, "account2"), "100");
  expect_refused(why, [&] { bank_->tree("accounts"); });
  expect_refused(why, [&] { (void)bank_->find_tree("accounts"); });
  expect_refused(why, [&] { (void)bank_->trees(); });
  expect_refused(why, [&] { bank_->begin(); });
  expect_refused(why, [&] { bank_->transact([](Transaction&) {}); });
  expect_refused(why, [&] { (void)bank_->snapshot(); });
  expect_refused(why, [&] { bank_->checkpoint(); });
  expect_refused(why, [&] { bank_->recover(); });
  expect_refused(why, [&] { (void)bank_->recovery(); });
  expect_refused(why, [&] { (void)bank_->check([](const std::string&) {}); });
  expect_refused(why, [&] { (void)bank_->statistics(); });
  *bank_ = std::move(bank);
  EXPECT_EQ(bank_->begin().get(*accounts_, "account1"), "1");
}
// NOLINTEND(bugprone-use-after-move)

TEST_F(LifetimesTest, OfFilesTheirReadersAndTheirWriters) {
  std::optional<Files> files = Files::create(*pool_, "files");
  std::optional<FileWriter> writer = files->create_file("/a");
  writer->append("a record");
  writer->sync();
  std::optional<FileReader> reader = files->open_file("/a");
  close_is_refused();
  drop_pool(false);
  std::string scratch(8, ' ');
  EXPECT_EQ(reader->read(0, 8, scratch.data()), "a record");
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] { files->create_file("/b"); }));
  EXPECT_TRUE(fails_with(ErrorCode::kInUse, path_, [&] {
    writer->append("more");
    writer->sync();
  }));
  reader.reset();
  writer.reset();
  files.reset();
  Pool pool = reopened();
  EXPECT_EQ(Files::open(pool, "files").open_file("/a").read(0, 8, scratch.data()), "a record");
}

}  // namespace
}  // namespace perdure::test
