// What happens to one record or structure leaves its neighbours in the pool alone.
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "pm/emulated_media.h"
#include "pm/pool_impl.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// Several segments of the heap.
std::string large(char letter) { return std::string(100'000, letter); }

std::vector<Case> byte_string_cases() {
  std::vector<Case> cases;
  for (const Case& c : all_cases()) {
    if (c.key == Kind::kBytes && c.value == Kind::kBytes) cases.push_back(c);
  }
  return cases;
}

class Neighbours : public ScenarioTest {};

// A length with a flipped bit must not take the segments behind the record along when this goes.
TEST_P(Neighbours, OfARecordWithADamagedLengthStay) {
  const PoolOptions options = pool_options(MiB(64));
  Store store = create_store(pool_path(), options, GetParam(), {});
  for (char c = 'a'; c <= 'h'; ++c) store.index->insert(std::string(1, c), large(c));
  store.close();
  std::string image = read_file(pool_path());
  size_t at = image.find("a" + large('a'));
  if (at == std::string::npos) at = image.find(large('a'));  // where the key stands elsewhere
  ASSERT_NE(at, std::string::npos);
  // The length of the value stands somewhere before.
  uint32_t value_bytes = 0;
  size_t length_at = at;
  do {
    ASSERT_GT(length_at, at - 72);
    --length_at;  // `at` may be a byte early: what stands before a value alone may end like the key
    std::memcpy(&value_bytes, &image[length_at], sizeof value_bytes);
  } while (value_bytes != large('a').size());
  value_bytes ^= 1U << 17;
  std::memcpy(&image[length_at], &value_bytes, sizeof value_bytes);
  write_file(pool_path(), image);

  const auto attempt = [](auto work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
  };
  store.pool = Pool::open(pool_path(), options);
  attempt([&] { store.index = open_index(store.pool, kIndexName); });
  if (store.index == nullptr) return;  // trees that read their leaves then have found it
  attempt([&] { store.index->remove("a"); });
  store.index.reset();  // what waits to be handed out again is, at the latest now
  attempt([&] { store.index = open_index(store.pool, kIndexName); });
  if (store.index == nullptr) return;
  for (char c = 'p'; c <= 'u'; ++c) {
    attempt([&] { store.index->insert(std::string(1, c), large(c)); });
  }
  for (char c = 'b'; c <= 'h'; ++c) {
    Value value;
    attempt([&] {
      EXPECT_TRUE(store.index->lookup(std::string(1, c), value)) << c;
      EXPECT_EQ(value.bytes(), large(c)) << c;
    });
  }
}

// Records wait for their readers in groups; large ones do not wait for a group.
TEST_P(Neighbours, HaveTheRoomThatLargeRecordsLeave) {
  const PoolOptions options = pool_options(MiB(12));
  Store store = create_store(pool_path(), options, GetParam(), small_options(GetParam().structure));
  const Case& c = GetParam();
  const auto other =
      create_index(store.pool, "other", c.structure, c.key, c.value, small_options(c.structure));
  const auto fill = [](AnyIndex& index, uint64_t most) {
    uint64_t count = 0;
    try {
      for (; count < most; ++count) index.insert("key" + std::to_string(count), large('x'));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
    }
    return count;
  };
  const uint64_t count = fill(*store.index, 50);
  ASSERT_GT(count, 20U);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(store.index->remove("key" + std::to_string(i)));
  }
  if (c.structure == "plush") return;  // collects garbage when it is written to
  EXPECT_GT(fill(*other, count), count / 2);
}

// Keeps the lines that were written back, as a power failure would.
class WrittenBack final : public pm::EmulatedMedia {
 public:
  void written_back(uintptr_t address, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    for (uintptr_t line = address & ~uintptr_t{63}; line < address + bytes; line += 64) {
      std::memcpy(lines_[line].data(), reinterpret_cast<const void*>(line), 64);
    }
  }
  void fenced() override {}

  std::string image(const char* base, uint64_t bytes) const {
    std::string image(bytes, '\0');
    const auto begin = reinterpret_cast<uintptr_t>(base);
    for (auto at = lines_.lower_bound(begin); at != lines_.end() && at->first < begin + bytes;
         ++at) {
      std::memcpy(&image[at->first - begin], at->second.data(), 64);
    }
    return image;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::array<char, 64>> lines_;
};

// A pool that was closed in order is whole after a power failure, down to words that nobody needs.
TEST_P(Neighbours, SealsCoverWhatIsDurable) {
  PoolOptions options;
  options.capacity_bytes = MiB(64);
  options.force_domain = true;
  options.domain = Domain::kLine;
  WrittenBack medium;
  pm::emulate_media(&medium);
  std::string image;
  {
    Store store = create_store(pool_path(), options, GetParam(), {});
    const pm::PoolImpl& impl = pm::impl_of(store.pool);
    for (uint64_t i = 0; i < 3000; ++i) store.typed().insert(i, i);
    for (uint64_t i = 0; i < 3000; i += 3) store.typed().remove(i);
    store.index.reset();
    const char* base = impl.base();
    const uint64_t bytes = impl.end_offset();
    store.pool.close();
    image = medium.image(base, bytes);
  }
  pm::emulate_media(nullptr);
  write_file(dir_.file("after"), image);
  options.verify = true;
  const Pool pool = Pool::open(dir_.file("after"), options);
  EXPECT_TRUE(pool.info().sealed);
}

INSTANTIATE_TEST_SUITE_P(Catalog, Neighbours, wanted(byte_string_cases()), case_name);

}  // namespace
}  // namespace perdure::test
