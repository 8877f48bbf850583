// pool create, info and check; stat and list.

#include "perdure/pool.h"

#include <filesystem>
#include <string_view>

#include "cli/command_runner.h"
#include "index/owned_blocks.h"
#include "perdure/catalog.h"
#include "pm/heap.h"
#include "pm/pool_impl.h"

namespace perdure::cli_test {
namespace {

class PoolCommand : public CommandTest {
 protected:
  void load_some(int count, const std::string& structure = "rstore") const {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "key" + std::to_string(i) + "\tvalue\n";
    ASSERT_EQ(run({"load", "--capacity", "64M", "--structure", structure, pool(), "-"}, lines).code,
              0);
  }

  // Inverts `count` bytes of the pool file from `offset` on.
  void damage(size_t offset, size_t count) const {
    std::string content = read_file("test.pool");
    ASSERT_GT(content.size(), offset + count);
    for (size_t i = 0; i < count; ++i)
      content[offset + i] = static_cast<char>(~content[offset + i]);
    write_file("test.pool", content);
  }
};

TEST_F(PoolCommand, CreateMakesAnEmptyPoolOnce) {
  const Result created = run({"pool", "create", "--capacity", "16MiB", pool()});
  EXPECT_EQ(created.code, 0) << created.err;
  EXPECT_NE(created.out.find("16.0 MiB"), std::string::npos) << created.out;
  EXPECT_EQ(run({"pool", "create", pool()}).code, 4);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(PoolCommand, CreateReservesWhatIsAskedFor) {
  EXPECT_EQ(run({"pool", "create", "--capacity", "16M", "--reserve", "5M", pool()}).code, 0);
  Pool opened = Pool::open(pool());
  EXPECT_GE(opened.info().size_bytes, 5U << 20);
  EXPECT_LT(opened.info().size_bytes, 10U << 20);
  EXPECT_LT(opened.info().high_water_bytes, 1U << 20);  // none of it is in use
  opened.close();
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);

  const std::string all = path("all.pool");
  EXPECT_EQ(run({"pool", "create", "--capacity", "16M", "--reserve", "all", all}).code, 0);
  EXPECT_GE(Pool::open(all).info().size_bytes, 15U << 20);
  EXPECT_EQ(run({"pool", "create", "--reserve", "much", path("none.pool")}).code, 2);
}

TEST_F(PoolCommand, CreateRefusesBadSizesAndFolders) {
  EXPECT_EQ(run({"pool", "create", "--capacity", "12Q", pool()}).code, 2);
  EXPECT_EQ(run({"pool", "create", "--capacity", "-1", pool()}).code, 2);
  EXPECT_EQ(run({"pool", "create", "--capacity", "4K", pool()}).code, 4);
  EXPECT_EQ(run({"pool", "create", path("no/such/folder/pool")}).code, 4);
  EXPECT_FALSE(std::filesystem::exists(pool()));
}

TEST_F(PoolCommand, InfoNamesMediumDomainDurabilityAndStructures) {
  load_some(10);
  const Result info = run({"pool", "info", pool()});
  EXPECT_EQ(info.code, 0);
  for (const char* word :
       {"medium", "domain", "durability", "capacity", "main: rstore", "main.progress"}) {
    EXPECT_NE(info.out.find(word), std::string::npos) << word << "\n" << info.out;
  }
  const nlohmann::json json = run({"pool", "info", "--json", pool()}).json();
  EXPECT_EQ(json["capacity_bytes"], 64 << 20);
  EXPECT_EQ(json["clean"], true);
  EXPECT_EQ(json["structures"].size(), 2U);
  for (const char* field : {"path", "uuid", "format_version", "medium", "domain", "durability",
                            "size_bytes", "allocated_bytes", "free_bytes", "generation"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
}

TEST_F(PoolCommand, ReadingModifiesNothing) {
  load_some(100);
  const std::string before = read_file("test.pool");
  EXPECT_EQ(run({"pool", "info", pool()}).code, 0);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"get", pool(), "key1"}).code, 0);
  EXPECT_EQ(run({"stat", pool()}).code, 0);
  EXPECT_EQ(run({"dump", pool()}).code, 0);
  EXPECT_TRUE(read_file("test.pool") == before);
}

TEST_F(PoolCommand, CheckFindsASoundPoolSound) {
  load_some(5000);
  const Result check = run({"pool", "check", pool()});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
  EXPECT_NE(check.out.find("sound"), std::string::npos) << check.out;
  const nlohmann::json json = run({"pool", "check", "--json", pool()}).json();
  EXPECT_EQ(json["sound"], true);
  EXPECT_EQ(json["structures"], 2);
  EXPECT_TRUE(json["problems"].empty());
}

TEST_F(PoolCommand, ShrinkCutsTheFileBehindWhatIsLeft) {
  load_some(100);
  const auto kept_bytes = std::filesystem::file_size(pool());
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += std::to_string(i) + "\t" + std::string(500, 'v') + "\n";
  ASSERT_EQ(run({"load", "--name", "old", "--structure", "rstore", pool(), "-"}, lines).code, 0);
  const auto before = std::filesystem::file_size(pool());
  ASSERT_EQ(run({"drop", pool(), "old"}).code, 0);
  EXPECT_EQ(std::filesystem::file_size(pool()), before);
  const nlohmann::json json = run({"pool", "shrink", "--json", pool()}).json();
  const auto after = std::filesystem::file_size(pool());
  EXPECT_EQ(json["shrunk_bytes"], before - after);
  EXPECT_LE(after, kept_bytes + (uint64_t{2} << 20));
  EXPECT_LE(json["size_bytes"], after);
  const Result again = run({"pool", "shrink", pool()});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.out.find(": 0 B shorter"), std::string::npos) << again.out;
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"get", pool(), "key99"}).out, "value\n");
  EXPECT_EQ(run({"pool", "shrink", path("none.pool")}).code, 4);
}

TEST_F(PoolCommand, GrowRaisesWhatThePoolMayGrowTo) {
  load_some(100);
  const auto file_bytes = std::filesystem::file_size(pool());
  const nlohmann::json json = run({"pool", "grow", "--json", "--capacity", "1G", pool()}).json();
  EXPECT_EQ(json["capacity_bytes"], 1 << 30);
  EXPECT_EQ(json["capacity_bytes_before"], 64 << 20);
  EXPECT_EQ(std::filesystem::file_size(pool()), file_bytes);
  const Result again = run({"pool", "grow", "--capacity", "2G", pool()});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.out.find("may grow to 2.0 GiB, before to 1.0 GiB"), std::string::npos)
      << again.out;
  EXPECT_EQ(run({"pool", "info", "--json", pool()}).json()["capacity_bytes"], uint64_t{2} << 30);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"get", pool(), "key99"}).out, "value\n");
  const Result lower = run({"pool", "grow", "--capacity", "1G", pool()});
  EXPECT_EQ(lower.code, 4);
  EXPECT_NE(lower.err.find("cannot be lowered"), std::string::npos) << lower.err;
  EXPECT_EQ(run({"pool", "grow", "--capacity", "2T", pool()}).code, 4);
  EXPECT_EQ(run({"pool", "grow", "--capacity", "1Q", pool()}).code, 2);
  EXPECT_EQ(run({"pool", "grow", pool()}).code, 2);
  EXPECT_EQ(run({"pool", "grow", "--capacity", "1G", path("none.pool")}).code, 4);
  // What is saved of it may grow as far.
  EXPECT_EQ(run({"pool", "salvage", pool(), path("saved.pool")}).code, 0);
  EXPECT_EQ(run({"get", path("saved.pool"), "key99"}).out, "value\n");
  EXPECT_EQ(run({"pool", "info", "--json", path("saved.pool")}).json()["capacity_bytes"],
            uint64_t{2} << 30);
  // Elsewhere the option is for new pools, and says so.
  const Result put = run({"put", "--capacity", "4G", pool(), "key", "value"});
  EXPECT_EQ(put.code, 0);
  EXPECT_NE(put.err.find("perdure pool grow"), std::string::npos) << put.err;
}

TEST_F(PoolCommand, CheckNamesADamagedHeader) {
  load_some(10);
  damage(24, 8);
  const Result check = run({"pool", "check", pool()});
  EXPECT_EQ(check.code, 3);
  EXPECT_NE(check.out.find("damaged"), std::string::npos) << check.out;
  const Result json = run({"pool", "check", "--json", pool()});
  EXPECT_EQ(json.code, 3);
  EXPECT_EQ(json.json()["sound"], false);
  EXPECT_FALSE(json.json()["problems"].empty());
}

TEST_F(PoolCommand, CheckNamesATruncatedPool) {
  load_some(5000);
  std::filesystem::resize_file(pool(), std::filesystem::file_size(pool()) / 2);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 3);
}

// 64 KiB here or there, over the whole file. The check must name it, and neither die of it nor run
// for ever; only areas that hold nothing may be damaged unseen.
TEST_F(PoolCommand, CheckNamesDamageWhereverItIs) {
  load_some(5000);
  const std::string sound = read_file("test.pool");
  constexpr size_t kStep = size_t{64} << 10;
  // Without its first bytes it is no pool any more: see AForeignFileIsNotCalledDamaged.
  for (size_t offset = kStep; offset + kStep < sound.size(); offset += kStep) {
    const std::string_view area = std::string_view(sound).substr(offset, kStep);
    if (area.find_first_not_of('\0') == std::string_view::npos) continue;
    std::string damaged = sound;
    for (size_t i = 0; i < kStep; ++i)
      damaged[offset + i] = static_cast<char>(~damaged[offset + i]);
    write_file("test.pool", damaged);
    const Result check = run({"pool", "check", "--json", pool()});
    EXPECT_EQ(check.code, 3) << "offset " << offset << "\n" << check.out << check.err;
    EXPECT_FALSE(check.json()["problems"].empty());
  }
}

// Allocates a block that is linked, and yet belongs to no structure.
TEST_F(PoolCommand, CheckFindsALeakedBlock) {
  load_some(100);
  {
    Pool opened = Pool::open(pool());
    pm::PoolImpl& impl = pm::impl_of(opened);
    pm::Heap::Txn txn(impl.heap());
    const uint64_t block = txn.allocate(256);
    auto* word = impl.at<uint64_t>(block);
    txn.will_link(block, word, pm::Link::kOffset);
    txn.prepare();
    *word = block;
    txn.settle();
    txn.finish();
  }
  const Result check = run({"pool", "check", pool()});
  EXPECT_EQ(check.code, 3) << check.out;
  EXPECT_NE(check.out.find("256 bytes of the heap are allocated but belong to no structure"),
            std::string::npos)
      << check.out;
}

// Frees a block that a structure still owns.
TEST_F(PoolCommand, CheckFindsABlockThatIsFreeAndOwned) {
  load_some(20'000, "plush");
  {
    Pool opened = Pool::open(pool());
    uint64_t owned = 0;
    uint64_t smallest = ~uint64_t{0};
    const auto note = [&](uint64_t offset, uint64_t bytes) {
      if (bytes >= smallest) return;
      smallest = bytes;
      owned = offset;
    };
    index::visit_blocks_of(*open_index(opened, "main"), note);
    ASSERT_NE(owned, 0U);
    pm::PoolImpl& impl = pm::impl_of(opened);
    pm::Heap::Txn txn(impl.heap());
    const uint64_t elsewhere = txn.allocate(256);
    txn.will_unlink(owned, impl.at<uint64_t>(elsewhere), pm::Link::kOffset);
    txn.prepare();
    txn.settle();
    txn.finish();
  }
  const Result check = run({"pool", "check", pool()});
  EXPECT_EQ(check.code, 3) << check.out;
}

TEST_F(PoolCommand, CheckOfAMissingPoolIsAnErrorAndNoDamage) {
  EXPECT_EQ(run({"pool", "check", pool()}).code, 4);
}

// Nor is a file that never was a pool.
TEST_F(PoolCommand, AForeignFileIsNotCalledDamaged) {
  for (const std::string& content :
       {std::string(), std::string("not a pool"), std::string(4096, 'x')}) {
    const Result check = run({"pool", "check", write_file("notes.txt", content)});
    EXPECT_EQ(check.code, 4);
    EXPECT_EQ(check.out, "");
    EXPECT_EQ(check.err.find("damage"), std::string::npos) << check.err;
    EXPECT_NE(check.err.find(content.empty() ? "is empty, not a pool" : "is not a Perdure pool"),
              std::string::npos)
        << check.err;
  }
}

// One whose first bytes were overwritten was a pool, and says so.
TEST_F(PoolCommand, ADamagedMagicIsDamage) {
  load_some(10);
  damage(0, 4);
  const Result check = run({"pool", "check", pool()});
  EXPECT_EQ(check.code, 3);
  EXPECT_NE(check.out.find("magic"), std::string::npos) << check.out;
}

// Who reads its answer has run it already; others get it reported.
TEST_F(PoolCommand, CheckDoesNotAdviseItself) {
  load_some(10);
  damage(24, 8);
  EXPECT_EQ(run({"pool", "check", pool()}).out.find("perdure pool check"), std::string::npos);
  const Result get = run({"get", pool(), "key1"});
  EXPECT_EQ(get.code, 3);
  EXPECT_NE(get.err.find("`perdure pool check`"), std::string::npos) << get.err;
}

TEST_F(PoolCommand, PowerDurabilityIsRefusedWhereTheMediumCannotGiveIt) {
  const Result refused =
      run({"pool", "create", "--durability", "power", "/dev/shm/perdure-cli-test.pool"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/perdure-cli-test.pool"));
}

TEST_F(PoolCommand, StatShowsPoolAndStructure) {
  load_some(100);
  const Result stat = run({"stat", pool()});
  EXPECT_EQ(stat.code, 0);
  EXPECT_NE(stat.out.find("dram_bytes"), std::string::npos) << stat.out;
  const nlohmann::json json = run({"stat", "--json", pool()}).json();
  EXPECT_EQ(json["structure"]["type"], "rstore");
  EXPECT_GT(json["structure"]["statistics"]["dram_bytes"]["value"], 0);
  EXPECT_GT(json["pool"]["size_bytes"], 0);
  EXPECT_TRUE(json["structure"]["statistics"]["dram_bytes"]["value"].is_number_integer());
  EXPECT_EQ(run({"stat", "--name", "none", pool()}).code, 4);
  EXPECT_EQ(run({"stat", path("missing")}).code, 4);
}

TEST_F(PoolCommand, StatTellsHowManyRecordsThereAre) {
  load_some(100);
  load_some(100);  // the same keys: what Plush keeps of the first load does not count
  EXPECT_EQ(run({"stat", "--count", "--json", pool()}).json()["structure"]["live_records"], 100);
  EXPECT_NE(run({"stat", "--count", pool()}).out.find("live records"), std::string::npos);
  for (const std::string structure : {"fptree", "level", "bztree"}) {
    const std::string other = path(structure + ".pool");
    ASSERT_EQ(run({"put", "--structure", structure, other, "a", "1"}).code, 0);
    EXPECT_EQ(run({"stat", "--json", other}).json()["structure"]["live_records"], 1) << structure;
  }
}

// Of a pool on tmpfs, which asks for huge pages as it grows.
TEST_F(PoolCommand, StatAndInfoAgreeOnHugePages) {
  const std::string place = "/dev/shm/perdure-cli-huge-" + std::to_string(getpid()) + ".pool";
  std::string lines;
  const std::string value(4000, 'v');
  for (int i = 0; i < 3000; ++i) lines += std::to_string(i) + "\t" + value + "\n";
  EXPECT_EQ(run({"load", "--capacity", "64M", place, "-"}, lines).code, 0);
  EXPECT_EQ(run({"stat", "--json", place}).json()["pool"]["huge_pages"],
            run({"pool", "info", "--json", place}).json()["huge_pages"]);
  std::filesystem::remove(place);
}

TEST_F(PoolCommand, ListShowsTheCatalogue) {
  const Result list = run({"list"});
  EXPECT_EQ(list.code, 0);
  EXPECT_NE(list.out.find("plush"), std::string::npos);
  EXPECT_NE(list.out.find("fanout"), std::string::npos);
  const nlohmann::json entries = run({"list", "--json"}).json();
  ASSERT_FALSE(entries.empty());
  EXPECT_TRUE(entries[0].contains("kinds"));
  EXPECT_TRUE(entries[0].contains("options"));
  for (const nlohmann::json& entry : entries) {
    EXPECT_FALSE(entry["ordered"] == true && entry["family"] == "hash table") << entry["name"];
  }
}

}  // namespace
}  // namespace perdure::cli_test
