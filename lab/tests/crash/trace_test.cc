// A trace keeps in a file, and nothing but such a file is taken for one.
#include "lab/crash/trace.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "crash/trace_builder.h"
#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

class TraceFile : public testing::Test {
 protected:
  TraceFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "perdure-trace-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "run.trace";
  }
  ~TraceFile() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  using Bytes = std::vector<unsigned char>;

  Bytes saved(const Trace& trace) const {
    trace.save(path_);
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const Bytes& bytes) const {
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }
  // The same bytes with a checksum that is right.
  static Bytes sealed(Bytes bytes) {
    const std::span<const unsigned char> summed(bytes.data(), bytes.size() - 8);
    const uint64_t sum = trace_checksum(summed);
    std::memcpy(bytes.data() + summed.size(), &sum, sizeof sum);
    return bytes;
  }
  static ErrorCode code_of(const Bytes& bytes) {
    try {
      Trace::parse(bytes, "file");
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("file: ")) << error.what();
      return error.code();
    }
    return ErrorCode{};
  }

  std::filesystem::path folder_;
  std::string path_;
};

TraceBuilder example() {
  TraceBuilder builder;
  builder.held(8, 5).held(4096, 6);
  builder.begin().store(0, {1, 2}).flush(0, 16, FlushKind::kClflushopt).fence().end();
  builder.store(2 * kImagePageBytes - 8, {3});  // up to the end
  builder.thread(3).stream(64, {7}).update(128, 9).locked().sync(0, 4096);
  return builder;
}

void expect_same(const Trace& one, const Trace& two) {
  EXPECT_EQ(one.region_name, two.region_name);
  EXPECT_EQ(one.region_bytes, two.region_bytes);
  EXPECT_EQ(one.base, two.base);
  EXPECT_EQ(one.data, two.data);
  EXPECT_EQ(one.operation_types, two.operation_types);
  EXPECT_EQ(one.load_address, two.load_address);
  EXPECT_EQ(one.program, two.program);
  ASSERT_EQ(one.events.size(), two.events.size());
  EXPECT_EQ(
      std::memcmp(one.events.data(), two.events.data(), one.events.size() * sizeof(TraceEvent)), 0);
}

TEST_F(TraceFile, ComesBackAsItWas) {
  Trace trace = example().trace();
  trace.program = "/some/program";
  trace.load_address = 0x555500000000;
  trace.save(path_);
  expect_same(Trace::load(path_), trace);
  const Trace empty;
  empty.save(path_);
  expect_same(Trace::load(path_), empty);
}

TEST_F(TraceFile, IsRefusedWhenDamaged) {
  const Bytes good = saved(example().trace());
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes bad = good;
    bad[i] ^= 0x10;
    const ErrorCode expected = i < 8    ? ErrorCode::kForeign
                               : i < 16 ? ErrorCode::kVersion
                                        : ErrorCode::kCorrupt;
    EXPECT_EQ(code_of(bad), expected) << "byte " << i;
  }
}

TEST_F(TraceFile, IsRefusedWhenTruncatedOrTooLong) {
  const Bytes good = saved(example().trace());
  for (size_t length = 0; length < good.size(); ++length) {
    const Bytes bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(code_of(bad), length < 8 ? ErrorCode::kForeign : ErrorCode::kCorrupt) << length;
    if (length < 24) continue;
    EXPECT_EQ(code_of(sealed(bad)), ErrorCode::kCorrupt) << length;
  }
  Bytes longer = good;
  longer.resize(good.size() + 8);
  EXPECT_EQ(code_of(longer), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of(sealed(longer)), ErrorCode::kCorrupt);
}

// Damage with a checksum that fits: by another program, or on purpose.
TEST_F(TraceFile, NeverYieldsWhatCannotBeReplayed) {
  const Bytes good = saved(example().trace());
  size_t refused = 0;
  for (size_t i = 16; i + 8 < good.size(); ++i) {
    for (const unsigned value : {0x00U, 0x7fU, 0xffU}) {
      Bytes bad = good;
      bad[i] = static_cast<unsigned char>(value);
      bad = sealed(std::move(bad));
      try {
        const Trace trace = Trace::parse(bad, "file");
        for (const TraceEvent& event : trace.events) {
          if (!is_store(event.kind)) continue;
          ASSERT_LE(event.offset + event.bytes, trace.region_bytes);
          ASSERT_LE(event.data + event.bytes, trace.data.size());
        }
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100U);
}

TEST_F(TraceFile, IsRefusedWhenForeign) {
  const std::string text = "#!/bin/sh\necho this is something else\n";
  write({text.begin(), text.end()});
  try {
    Trace::load(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kForeign);
    EXPECT_NE(std::string(error.what()).find(path_), std::string::npos);
  }
  write({});
  EXPECT_THROW(Trace::load(path_), Error);
}

TEST_F(TraceFile, SaysWhatIsWrongWithThePath) {
  EXPECT_THROW(Trace::load(folder_ / "missing"), Error);
  EXPECT_THROW(Trace::load(folder_), Error);
  EXPECT_THROW(example().trace().save(folder_ / "no" / "folder"), Error);
}

}  // namespace
}  // namespace perdure::lab::crash
