// Store::verify: a sound store has no faults, and each damaged place of another one is named.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "perdure/store.h"
#include "store/fixture.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {
namespace {

class StoreVerifyTest : public testing::Test {
 protected:
  static PoolOptions options() { return unsealed_store_pool(32); }
  std::string path() const { return dir_.file("pool"); }

  // Records that are all there, in many blocks, two long values, and garbage.
  void fill() {
    Pool pool = Pool::create(path(), options());
    Store store = Store::create(pool, "store", {.partitions = 4, .block_bytes = 4096});
    for (int i = 0; i < 1000; ++i) store.put("key" + std::to_string(i), value(i));
    for (int i = 0; i < 300; ++i) store.put("key" + std::to_string(i), value(i));
    for (int i = 900; i < 950; ++i) store.remove("key" + std::to_string(i));
    store.put("long1", std::string(5000, 'L'));
    store.put("long2", std::string(50000, 'M'));
    store.remove_prefix("key99");
  }
  static std::string value(int i) { return "<value of " + std::to_string(i) + ">"; }

  std::vector<std::string> faults() {
    PoolOptions reading = options();
    reading.read_only = true;
    Pool pool = Pool::open(path(), reading);
    std::vector<std::string> sentences;
    last_ = Store::verify(pool, "store",
                          [&](const std::string& sentence) { sentences.push_back(sentence); });
    EXPECT_EQ(last_.faults, sentences.size());
    return sentences;
  }

  std::string read() const { return read_file(path()); }
  void write(const std::string& image) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << image;
  }
  // Flips a bit in the last place that has the text.
  void damage(const std::string& text) const {
    std::string image = read();
    const size_t at = image.rfind(text);
    ASSERT_NE(at, std::string::npos);
    image[at + text.size() / 2] ^= 4;
    write(image);
  }

  TempDir dir_;
  StoreVerification last_;
};

TEST_F(StoreVerifyTest, ASoundStoreHasNoFaults) {
  fill();
  EXPECT_EQ(faults(), std::vector<std::string>());
  EXPECT_EQ(last_.partitions, 4U);
  EXPECT_EQ(last_.long_values, 2U);
  EXPECT_GE(last_.records, 1000U);
  EXPECT_GT(last_.blocks, 10U);
}

TEST_F(StoreVerifyTest, EachDamagedRecordIsNamedByItsKey) {
  fill();
  damage(value(400));
  damage(value(700));
  const std::vector<std::string> found = faults();
  ASSERT_EQ(found.size(), 2U);
  const std::string both = found[0] + found[1];
  EXPECT_NE(both.find("\"key400\""), std::string::npos) << both;
  EXPECT_NE(both.find("\"key700\""), std::string::npos) << both;
}

// What stands behind a record whose lengths are wrong is read all the same.
TEST_F(StoreVerifyTest, GoesOnBehindDamagedLengths) {
  fill();
  ASSERT_EQ(faults().size(), 0U);
  const uint64_t records = last_.records;
  std::string image = read();
  // The record begins 16 bytes before its key: checksum, lengths, version and flags.
  const size_t key = image.find("key500");
  ASSERT_NE(key, std::string::npos);
  for (size_t i = key - 12; i < key - 8; ++i) image[i] = '\xff';
  write(image);
  EXPECT_EQ(faults().size(), 1U);
  EXPECT_EQ(last_.records, records - 1);
}

TEST_F(StoreVerifyTest, ADamagedLongValueIsNamed) {
  fill();
  damage(std::string(3000, 'M'));
  const std::vector<std::string> found = faults();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("50000 bytes"), std::string::npos) << found[0];
}

// Any flipped bit of blocks and roots is found or harmless; none leads the verification astray.
TEST_F(StoreVerifyTest, SurvivesAnyFlippedBits) {
  fill();
  const std::string sound = read();
  Random random(base_seed());
  int found = 0;
  for (int i = 0; i < 150; ++i) {
    std::string image = sound;
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      image[random.below(image.size())] ^= static_cast<char>(1 << random.below(8));
    }
    write(image);
    try {
      found += faults().empty() ? 0 : 1;
    } catch (const Error&) {
      ++found;  // the pool itself
    }
  }
  EXPECT_GT(found, 10);
}

TEST_F(StoreVerifyTest, NamesWhatIsNoStore) {
  Pool pool = Pool::create(path(), options());
  EXPECT_TRUE(fails_with(ErrorCode::kNoSuchName, [&] { Store::verify(pool, "none", {}); }));
}

}  // namespace
}  // namespace perdure::test
