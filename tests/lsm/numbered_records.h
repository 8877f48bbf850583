// What the tests of LevelDB and RocksDB write, and how they take power away from it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "perdure/pool.h"
#include "support/failing_medium.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {

using Model = std::map<std::string, std::string>;

inline std::string key_of(uint64_t number) { return "key" + std::to_string(mix(number) % 100'000); }
// In the order of numbers.
inline std::string number_of(uint64_t number) {
  return std::to_string(uint64_t{1'000'000} + number);
}
inline std::string value_of(uint64_t number) {
  return std::to_string(number) +
         std::string(mix(number) % 400, static_cast<char>('a' + number % 26));
}

// Power fails under a database in the pool at `path`, which is not there yet, at any persist, so
// many times; the medium refuses all from then on. What was synced is there at the next opening,
// and what was not is there in order. Returns how many records were synced at last.
//
// `Database` is made of the path and the options of the pool, and has
//   bool opened() const
//   Model contents() const
//   bool put(const std::string& key, const std::string& value, bool sync)   which expects what an error says
//   bool has(const std::string& key) const
template <typename Database>
uint64_t fail_power(const std::string& path, PoolOptions line, uint64_t times) {
  line.force_domain = true;
  line.domain = Domain::kLine;
  Pool::create(path, line).close();
  Random random(base_seed());
  uint64_t synced = 0;   // records 0, 1, ... below
  uint64_t written = 0;  // begun
  const auto expect_all = [&](const Model& there) {
    for (uint64_t i = 0; i < there.size(); ++i) {
      const auto found = there.find(number_of(i));
      ASSERT_TRUE(found != there.end() && found->second == value_of(i)) << i;
    }
    ASSERT_GE(there.size(), synced);
    ASSERT_LE(there.size(), written);
    synced = written = there.size();
  };
  for (uint64_t round = 0; round < times; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    FailingMedium medium(path, Domain::kLine);
    medium.begin();
    medium.refuse_here(random.below(random.chance(50) ? 100 : 3000), true);
    try {
      Database database(path, line);
      if (database.opened()) {
        expect_all(database.contents());
        if (testing::Test::HasFailure()) return synced;
        for (bool well = true; well;) {
          const bool sync = random.chance(40);
          well = database.put(number_of(written), value_of(written), sync);
          ++written;
          if (well && sync) synced = written;
        }
        EXPECT_TRUE(synced == 0 || database.has(number_of(0)));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    EXPECT_TRUE(medium.refused());
    if (testing::Test::HasFailure()) return synced;
    using Image = FailingMedium::Image;
    const Image image = random.chance(40) ? Image::kLeast : Image::kMixed;
    std::filesystem::rename(medium.make_image(image, random.next()), path);
  }
  return synced;
}

}  // namespace perdure::test
