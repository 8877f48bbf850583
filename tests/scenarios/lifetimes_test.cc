// Pools that go before what is open in them, with every structure, the store, databases, files and
// typed indexes: reading goes on, writing is an error, and nothing is lost.
#include <gtest/gtest.h>

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
