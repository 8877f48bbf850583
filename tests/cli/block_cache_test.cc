// What commands do with a block cache in a pool, which programs make.
#include "perdure/block_cache.h"

#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class BlockCacheCommand : public CommandTest {
 protected:
  void make() const {
    Pool made = Pool::create(pool(), {.capacity_bytes = uint64_t{16} << 20});
    BlockCache cache = BlockCache::create(
        made, "main", {.capacity_bytes = uint64_t{4} << 20, .segment_bytes = 65536});
    for (int i = 0; i < 100; ++i)
      ASSERT_TRUE(cache.insert("block" + std::to_string(i), std::string(3000, 'x')));
  }
};

TEST_F(BlockCacheCommand, IsSeenCheckedCompactedAndDropped) {
  make();
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  const Result stat = run({"stat", pool()});
  EXPECT_EQ(stat.code, 0) << stat.err;
  EXPECT_NE(stat.out.find("block-cache"), std::string::npos) << stat.out;
  const nlohmann::json json = run({"stat", "--json", pool()}).json();
  EXPECT_EQ(json["structure"]["statistics"]["blocks"]["value"], 100) << json;
  const Result got = run({"get", pool(), "block1"});
  EXPECT_EQ(got.code, 4);
  EXPECT_NE(got.err.find("perdure stat"), std::string::npos) << got.err;

  const Result compacted = run({"pool", "compact", pool()});
  EXPECT_EQ(compacted.code, 0) << compacted.err;
  EXPECT_NE(compacted.out.find("100 blocks"), std::string::npos) << compacted.out;
  EXPECT_EQ(run({"stat", "--json", pool()}).json()["structure"]["statistics"]["blocks"]["value"],
            100);

  EXPECT_EQ(run({"pool", "salvage", pool(), path("saved.pool")}).code, 0);
  EXPECT_EQ(run({"pool", "check", path("saved.pool")}).code, 0);

  EXPECT_EQ(run({"drop", pool(), "main"}).code, 0);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_NE(run({"stat", pool()}).code, 0);
}

}  // namespace
}  // namespace perdure::cli_test
