// Files that are not sound pools, and calls that ask for what cannot be: each has its own error,
// and nothing is modified.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "perdure/perdure.h"
#include "pm/layout.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

constexpr uint64_t kRecords = 300;

class PoolInput : public testing::Test {
 protected:
  static PoolOptions options() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{4} << 20;
    options.growth_bytes = uint64_t{64} << 10;
    return options;
  }
  static PoolOptions read_only() {
    PoolOptions options;
    options.read_only = true;
    return options;
  }

  // A sound pool at path_, closed, with one structure of kRecords records. Returns its bytes.
  std::string make_pool() const {
    const Case c = all_cases().front();
    Store store = create_store(path_, options(), c, small_options(c.structure));
    for (uint64_t i = 0; i < kRecords; ++i) store.typed().upsert(i, i);
    store.close();
    return read_file(path_);
  }

  static Model records() {
    Model model;
    for (uint64_t i = 0; i < kRecords; ++i) model[i] = i;
    return model;
  }

  // Expects that opening fails with `code`, for writing and for reading, and that the file keeps
  // its bytes.
  void expect_refused(ErrorCode code) const {
    const std::string before = read_file(path_);
    EXPECT_TRUE(fails_with(code, path_, [&] { Pool::open(path_); }));
    EXPECT_TRUE(fails_with(code, path_, [&] { Pool::open(path_, read_only()); }));
    EXPECT_TRUE(read_file(path_) == before) << "the file was modified";
  }

  TempDir dir_;
  std::string path_ = dir_.file("pool");
};

TEST_F(PoolInput, AMissingFileIsNotFoundAndNotMade) {
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path_, [&] { Pool::open(path_); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, path_, [&] { Pool::open(path_, read_only()); }));
  EXPECT_FALSE(std::filesystem::exists(path_));
  const std::string nested = dir_.file("no/such/folder/pool");
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, dir_.path(), [&] { Pool::create(nested); }));
  EXPECT_TRUE(fails_with(ErrorCode::kNotFound, nested, [&] { Pool::open(nested); }));
}

TEST_F(PoolInput, ADirectoryADeviceAndAPipeAreNotFiles) {
  const std::string pipe = dir_.file("fifo");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {dir_.path(), std::string("/dev/null"), pipe}) {
    EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, path, [&] { Pool::open(path); }));
    EXPECT_TRUE(fails_with(ErrorCode::kNotAFile, path, [&] { Pool::open(path, read_only()); }));
  }
}

TEST_F(PoolInput, WithoutPermissionNothingIsOpenedOrMade) {
  const std::string before = make_pool();
  ASSERT_EQ(::chmod(path_.c_str(), 0400), 0);
  const auto attempt = [this]() -> std::string {
    std::string wrong;
    const auto expect = [&](const std::string& path, const std::function<void()>& call) {
      const auto result = fails_with(ErrorCode::kPermission, path, call);
      if (!result) wrong += std::string(result.message()) + "\n";
    };
    expect(path_, [&] { Pool::open(path_); });
    const std::string fresh = dir_.file("closed/pool");
    expect(dir_.path(), [&] { Pool::create(fresh, options()); });
    return wrong;
  };
  std::filesystem::create_directory(dir_.file("closed"));
  ASSERT_EQ(::chmod(dir_.file("closed").c_str(), 0500), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  EXPECT_EQ(::geteuid() == 0 ? in_unprivileged_child(attempt) : attempt(), "");
  EXPECT_TRUE(read_file(path_) == before);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.file("closed")));
}

TEST_F(PoolInput, AnEmptyFileIsToldSo) {
  write_file(path_, "");
  expect_refused(ErrorCode::kEmpty);
}

TEST_F(PoolInput, AForeignFileIsToldSo) {
  Random random(base_seed());
  std::string noise(1 << 20, '\0');
  for (char& c : noise) c = static_cast<char>(random.next());
  const std::string zeros(1 << 20, '\0');
  const std::string text = "The quick brown fox jumps over the lazy dog.\n";
  for (const std::string& content : {text, zeros, noise, zeros.substr(0, 100), noise.substr(0, 1),
                                     std::string("\x7f") + "ELF" + zeros}) {
    write_file(path_, content);
    SCOPED_TRACE(content.size());
    expect_refused(ErrorCode::kForeign);
  }
}

TEST_F(PoolInput, ATruncatedPoolIsToldSo) {
  const std::string whole = make_pool();
  const uint64_t header_bytes = pm::kHeaderBytes;
  ASSERT_GT(whole.size(), 2 * header_bytes);
  for (const uint64_t size :
       {uint64_t{8}, uint64_t{100}, header_bytes / 2, header_bytes - 1, header_bytes,
        header_bytes + 1, whole.size() / 2, whole.size() - header_bytes, whole.size() - 1}) {
    SCOPED_TRACE(size);
    write_file(path_, whole.substr(0, size));
    expect_refused(ErrorCode::kTruncated);
  }
}

// A header with one bit flipped is refused; or, where the bit means nothing, all is as before.
TEST_F(PoolInput, AFlippedBitInTheHeaderNeverChangesTheMeaning) {
  const std::string whole = make_pool();
  PoolInfo sound = Pool::open(path_).info();
  std::set<ErrorCode> codes;
  uint64_t refused = 0;
  write_file(path_, whole);  // as it was before it was opened
  std::string damaged = whole;
  const auto put = [&](uint64_t at, char value) {
    damaged[at] = value;
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(value);
  };
  for (uint64_t byte = 0; byte < pm::kHeaderBytes; ++byte) {
    // All bits of what is used, and some of the padding.
    const uint64_t bits = byte < sizeof(pm::PoolHeader) ? 8 : byte % 16 == 0 ? 1 : 0;
    for (uint64_t bit = 0; bit < bits; bit += kUnderThreadSanitizer ? 5 : 1) {
      put(byte, static_cast<char>(whole[byte] ^ (1 << bit)));
      SCOPED_TRACE("byte " + std::to_string(byte) + ", bit " + std::to_string(bit));
      try {
        Store store = open_store(path_, PoolOptions());
        const PoolInfo info = store.pool.info();
        ASSERT_EQ(info.uuid, sound.uuid);
        ASSERT_EQ(info.capacity_bytes, sound.capacity_bytes);
        ASSERT_EQ(info.format_version, sound.format_version);
        ASSERT_EQ(info.generation, sound.generation);
        ASSERT_EQ(info.clean, sound.clean);
        ASSERT_EQ(difference(store.typed(), records(), kRecords), "");
        store.close();
        write_file(path_, whole);
        damaged = whole;
      } catch (const Error& error) {
        codes.insert(error.code());
        ++refused;
        ASSERT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
        ASSERT_TRUE(read_file(path_) == damaged) << "the file was modified";
        put(byte, whole[byte]);
      }
    }
  }
  EXPECT_GT(refused, 2U * 64);
  EXPECT_EQ(codes, (std::set{ErrorCode::kCorrupt, ErrorCode::kVersion}));
}

TEST_F(PoolInput, AFlippedBitInTheRootDirectoryNeverChangesTheMeaning) {
  const std::string whole = make_pool();
  const uint64_t begin = whole.find(kIndexName);
  ASSERT_NE(begin, std::string::npos);
  const uint64_t entry = begin / sizeof(pm::DirectoryEntry) * sizeof(pm::DirectoryEntry);
  uint64_t refused = 0;
  for (uint64_t byte = entry; byte < entry + sizeof(pm::DirectoryEntry); ++byte) {
    for (uint64_t bit = 0; bit < 8; bit += kUnderThreadSanitizer ? 5 : 1) {
      std::string damaged = whole;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      write_file(path_, damaged);
      SCOPED_TRACE("byte " + std::to_string(byte) + ", bit " + std::to_string(bit));
      try {
        Store store = open_store(path_, PoolOptions());
        ASSERT_EQ(difference(store.typed(), records(), kRecords), "");
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
        ASSERT_TRUE(read_file(path_) == damaged) << "the file was modified";
      }
    }
  }
  EXPECT_GT(refused, 2U * 64);
}

TEST_F(PoolInput, ANewerFormatVersionIsToldSo) {
  std::string newer = make_pool();
  const uint64_t offset = offsetof(pm::PoolHeader, format_version);
  for (const uint32_t version : {kFormatVersion + 1, ~uint32_t{0}}) {
    std::memcpy(newer.data() + offset, &version, sizeof(version));
    write_file(path_, newer);
    expect_refused(ErrorCode::kVersion);
  }
}

TEST_F(PoolInput, APoolOpenElsewhereIsLocked) {
  const std::string before = make_pool();
  {
    Child holder([&](int out) {
      const Pool pool = Pool::open(path_);
      send(out, "o", 1);
      ::pause();
    });
    char byte = 0;
    ASSERT_TRUE(holder.receive(&byte, 1));
    const std::string held = read_file(path_);
    EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_); }));
    EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_, read_only()); }));
    EXPECT_TRUE(fails_with(ErrorCode::kExists, path_, [&] { Pool::create(path_, options()); }));
    EXPECT_TRUE(read_file(path_) == held);
  }
  // The lock died with its holder.
  Store store = open_store(path_, PoolOptions());
  EXPECT_EQ(difference(store.typed(), records(), kRecords), "");
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_); }));
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_, read_only()); }));
  EXPECT_EQ(difference(store.typed(), records(), kRecords), "");
}

TEST_F(PoolInput, ReadersShareAPoolAndKeepWritersOut) {
  make_pool();
  const Store first = open_store(path_, read_only());
  const Store second = open_store(path_, read_only());
  EXPECT_TRUE(fails_with(ErrorCode::kLocked, path_, [&] { Pool::open(path_); }));
  EXPECT_EQ(difference(first.typed(), records(), kRecords), "");
  EXPECT_EQ(difference(second.typed(), records(), kRecords), "");
}

TEST_F(PoolInput, ACapacityOutOfRangeIsRefusedAndLeavesNoFile) {
  for (const uint64_t capacity_bytes : {uint64_t{0}, uint64_t{1}, Pool::kMinCapacityBytes - 1,
                                        Pool::kMaxCapacityBytes + 65536, ~uint64_t{0}}) {
    PoolOptions bad = options();
    bad.capacity_bytes = capacity_bytes;
    SCOPED_TRACE(capacity_bytes);
    EXPECT_TRUE(fails_with(ErrorCode::kCapacity, [&] { Pool::create(path_, bad); }));
    EXPECT_TRUE(fails_with(ErrorCode::kCapacity, [&] { Pool::anonymous(bad); }));
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  PoolOptions smallest = options();
  smallest.capacity_bytes = Pool::kMinCapacityBytes;
  EXPECT_EQ(Pool::create(path_, smallest).info().capacity_bytes, Pool::kMinCapacityBytes);
}

TEST_F(PoolInput, CreatingOverAnExistingFileIsRefused) {
  make_pool();
  const std::string pool = read_file(path_);
  EXPECT_TRUE(fails_with(ErrorCode::kExists, path_, [&] { Pool::create(path_, options()); }));
  EXPECT_TRUE(read_file(path_) == pool);
  write_file(path_, "mine");
  EXPECT_TRUE(fails_with(ErrorCode::kExists, path_, [&] { Pool::create(path_, options()); }));
  EXPECT_EQ(read_file(path_), "mine");
}

TEST_F(PoolInput, ACreationThatFailsLeavesNoFile) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) {
    GTEST_SKIP() << "a sanitizer needs the address space that is taken away here";
  }
  PoolOptions large = options();
  large.capacity_bytes = uint64_t{64} << 30;
  EXPECT_EQ(in_crashing_child([&]() -> std::string {
              const rlimit less_than_the_capacity{uint64_t{1} << 30, uint64_t{1} << 30};
              ::setrlimit(RLIMIT_AS, &less_than_the_capacity);
              const auto result =
                  fails_with(ErrorCode::kIo, path_, [&] { Pool::create(path_, large); });
              return result ? "" : result.message();
            }),
            "");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(PoolInput, NamesOfDomainsKindsAndDurabilitiesAreParsedOrRefused) {
  for (const Domain domain : {Domain::kPage, Domain::kLine, Domain::kByte}) {
    EXPECT_EQ(parse_domain(to_string(domain)), domain);
  }
  for (const Durability durability :
       {Durability::kBest, Durability::kProcess, Durability::kPower}) {
    EXPECT_EQ(parse_durability(to_string(durability)), durability);
  }
  for (const Kind kind : {Kind::kU64, Kind::kBytes}) {
    EXPECT_EQ(parse_kind(to_string(kind)), kind);
  }
  for (const std::string text : {"", "lines", "Page", "u65", " byte"}) {
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, text, [&] { parse_domain(text); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, text, [&] { parse_durability(text); }));
    EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument, text, [&] { parse_kind(text); }));
  }
}

}  // namespace
}  // namespace perdure::test
