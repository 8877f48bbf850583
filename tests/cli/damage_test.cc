// Damaged pools, as the command meets them: every command ends with a documented exit code, and
// with words where something is wrong.
#include "support/damage.h"

#include <algorithm>
#include <set>

#include "cli/command_runner.h"
#include "perdure/catalog.h"
#include "pm/layout.h"
#include "support/random.h"

namespace perdure::cli_test {
namespace {

class DamagedPool : public CommandTest {
 protected:
  // Runs every command that opens a pool on this image.
  void expect_words(const std::string& image, const std::string& damage) const {
    const std::string record = write_file("one.tsv", "12345\t678\n");
    const std::vector<std::vector<std::string>> commands = {
        {"get", "--name", "index", pool(), "4711"},
        {"dump", "--name", "index", pool()},
        {"stat", "--name", "index", "--count", pool()},
        {"pool", "info", pool()},
        {"pool", "check", pool()},
        {"put", "--name", "index", pool(), "12345", "678"},
        {"del", "--name", "index", pool(), "4711"},
        {"load", "--name", "index", pool(), record}};
    for (const std::vector<std::string>& command : commands) {
      write_file("test.pool", image);
      const Result result = run(command);
      const std::string what = command[0] + " " + command[1] + ", " + damage;
      EXPECT_TRUE(std::set<int>({0, 1, 3, 4}).count(result.code) == 1)
          << what << " ends with " << result.code << ": " << result.err;
      if (result.code > 1) {
        EXPECT_NE(result.out + result.err, "") << what;
      }
    }
  }
};

TEST_F(DamagedPool, EveryCommandEndsWithWords) {
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name.find('+') != std::string::npos) continue;
    const std::pair strings(Kind::kBytes, Kind::kBytes);
    const auto& kinds = entry.traits.kinds;
    const bool takes_strings = std::find(kinds.begin(), kinds.end(), strings) != kinds.end();
    const Kind kind = takes_strings ? Kind::kBytes : Kind::kU64;
    const test::SoundPool sound =
        test::make_sound_pool(path("sound.pool"), entry.name, kind, kind, 300);
    write_file("test.pool", sound.image);
    ASSERT_EQ(run({"pool", "check", pool()}).code, 0);
    uint64_t number = 0;
    for (const test::Region region :
         {test::Region::kHeader, test::Region::kDirectory, test::Region::kLanes,
          test::Region::kDescriptors, test::Region::kRoot, test::Region::kHeap, test::Region::kHeap,
          test::Region::kHeap}) {
      std::string image = sound.image;
      const test::DamageDone done =
          test::damage(sound, region, test::Random(test::base_seed() * 100 + ++number), image);
      expect_words(image, entry.name + ", " + done.text);
    }
    std::remove(path("sound.pool").c_str());
  }
}

// A pool without names is not an empty pool that takes new ones.
TEST_F(DamagedPool, AZeroedRootDirectoryIsDamage) {
  ASSERT_EQ(run({"put", "--capacity", "16M", pool(), "a", "1"}).code, 0);
  const std::string sound = read_file("test.pool");
  for (const uint64_t page : {uint64_t{4096}, uint64_t{8192}, uint64_t{65536}}) {
    std::string image = sound;
    image.replace(page, 4096, 4096, '\0');
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"get", pool(), "a"},
                                               {"put", pool(), "a", "2"},
                                               {"pool", "info", pool()},
                                               {"pool", "check", pool()},
                                               {"dump", pool()},
                                               {"stat", pool()}}) {
      write_file("test.pool", image);
      const Result result = run(command);
      EXPECT_EQ(result.code, 3) << command[0] << ", page at " << page << ": " << result.out;
      EXPECT_NE(result.out + result.err, "");
      EXPECT_TRUE(read_file("test.pool") == image) << command[0] << " changes a damaged pool";
    }
  }
}

}  // namespace
}  // namespace perdure::cli_test
