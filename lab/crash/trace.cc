#include "lab/crash/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "perdure/error.h"

// The file: a header of seven words (magic, version, and how many of each part follow), the
// strings, the events, the pages of the base image, the stored bytes, and a checksum of all of it.

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kMagic = 0x3143415254445250;  // "PRDTRAC1"
constexpr uint64_t kVersion = 1;
constexpr uint64_t kPartBytesMax = uint64_t{1} << 36;

// FNV-1a over words, and over the bytes of what is left in the end: found damage, not malice.
// However the bytes are divided among calls, the sum is the same.
class Sum {
 public:
  void add(const void* data, uint64_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    while (bytes > 0) {
      const uint64_t taken = std::min<uint64_t>(bytes, sizeof word_ - filled_);
      std::memcpy(reinterpret_cast<unsigned char*>(&word_) + filled_, at, taken);
      at += taken;
      bytes -= taken;
      filled_ += taken;
      if (filled_ < sizeof word_) return;
      value_ = mixed(value_, word_);
      filled_ = 0;
    }
  }
  uint64_t value() const {
    uint64_t value = value_;
    for (uint64_t i = 0; i < filled_; ++i) value = mixed(value, (word_ >> (8 * i)) & 0xff);
    return value;
  }

 private:
  static uint64_t mixed(uint64_t value, uint64_t word) {
    value = (value ^ word) * 0x100000001b3;
    return value ^ (value >> 29);
  }
  uint64_t value_ = 0xcbf29ce484222325;
  uint64_t word_ = 0;
  uint64_t filled_ = 0;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path), out_(path, std::ios::binary) {}
  void bytes(const void* data, uint64_t count) {
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(count));
    sum_.add(data, count);
  }
  void word(uint64_t value) { bytes(&value, sizeof value); }
  void text(const std::string& value) {
    word(value.size());
    bytes(value.data(), value.size());
  }
  void finish() {
    const uint64_t sum = sum_.value();
    out_.write(reinterpret_cast<const char*>(&sum), sizeof sum);
    out_.flush();
    if (!out_) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{}: cannot write the trace: {}", path_, std::strerror(errno)));
    }
  }

 private:
  std::string path_;
  std::ofstream out_;
  Sum sum_;
};

class Reader {
 public:
  Reader(std::span<const unsigned char> file, std::string name)
      : file_(file), name_(std::move(name)) {}
  void bytes(void* data, uint64_t count) {
    if (count > left()) fail("ends too early");
    if (count > 0) std::memcpy(data, file_.data() + at_, count);
    at_ += count;
  }
  uint64_t word() {
    uint64_t value = 0;
    bytes(&value, sizeof value);
    return value;
  }
  // How many items of a size follow: no more than the file can hold.
  uint64_t count(uint64_t item_bytes) {
    const uint64_t value = word();
    if (value > kPartBytesMax || value * item_bytes > left()) fail("names more than it holds");
    return value;
  }
  std::string text() {
    std::string value(count(1), '\0');
    bytes(value.data(), value.size());
    return value;
  }
  // Before anything is made of the content: it is as it was written.
  void check_sum() const {
    if (left() < sizeof(uint64_t)) fail("ends too early");
    const auto summed = file_.first(file_.size() - sizeof(uint64_t));
    uint64_t sum = 0;
    std::memcpy(&sum, file_.data() + summed.size(), sizeof sum);
    if (sum != trace_checksum(summed)) fail("fails its checksum");
  }
  void finish() {
    word();
    if (left() != 0) fail("has more than it names");
  }
  [[noreturn]] void fail(const char* how) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: the trace {}", name_, how));
  }

 private:
  uint64_t left() const { return file_.size() - at_; }

  std::span<const unsigned char> file_;
  std::string name_;
  uint64_t at_ = 0;
};

bool is_sound(const TraceEvent& event, const Trace& trace) {
  if (event.kind > EventKind::kEnd || event.flush > FlushKind::kClflush) return false;
  if (event.kind == EventKind::kBegin) return event.data < trace.operation_types.size();
  const bool ranged =
      is_store(event.kind) || event.kind == EventKind::kFlush || event.kind == EventKind::kSync;
  if (ranged &&
      (event.offset > trace.region_bytes || event.bytes > trace.region_bytes - event.offset)) {
    return false;
  }
  return !is_store(event.kind) ||
         (event.data <= trace.data.size() && event.bytes <= trace.data.size() - event.data);
}

}  // namespace

void Trace::save(const std::string& path) const {
  Writer out(path);
  out.word(kMagic);
  out.word(kVersion);
  out.word(region_bytes);
  out.word(load_address);
  out.text(region_name);
  out.text(program);
  out.word(operation_types.size());
  for (const std::string& type : operation_types) out.text(type);
  out.word(base.size());
  for (const auto& [number, page] : base) {
    out.word(number);
    out.word(page.size());
    out.bytes(page.data(), page.size());
  }
  out.word(data.size());
  out.bytes(data.data(), data.size());
  out.word(events.size());
  out.bytes(events.data(), events.size() * sizeof(TraceEvent));
  out.finish();
}

uint64_t trace_checksum(std::span<const unsigned char> bytes) {
  Sum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.value();
}

Trace Trace::load(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: cannot open the trace: {}", path,
                                                  error ? error.message() : std::strerror(errno)));
  }
  std::vector<unsigned char> file(bytes);
  in.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(bytes));
  if (!in) throw Error(ErrorCode::kIo, fmt::format("{}: cannot read the trace", path));
  return parse(file, path);
}

Trace Trace::parse(std::span<const unsigned char> file, const std::string& name) {
  Reader in(file, name);
  if (file.size() < sizeof kMagic || in.word() != kMagic) {
    throw Error(ErrorCode::kForeign, fmt::format("{}: is not a trace", name));
  }
  if (const uint64_t version = in.word(); version != kVersion) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: is a trace of format {}, and this build reads format {}", name,
                            version, kVersion));
  }
  in.check_sum();
  Trace trace;
  trace.region_bytes = in.word();
  trace.load_address = in.word();
  trace.region_name = in.text();
  trace.program = in.text();
  trace.operation_types.resize(in.count(8));
  for (std::string& type : trace.operation_types) type = in.text();
  const uint64_t pages_max = (trace.region_bytes + kImagePageBytes - 1) / kImagePageBytes;
  const uint64_t pages = in.count(16);
  for (uint64_t i = 0; i < pages; ++i) {
    const uint64_t number = in.word();
    const uint64_t bytes = in.count(1);
    if (number >= pages_max || bytes > kImagePageBytes) in.fail("has a page out of place");
    auto& page = trace.base[number];
    page.resize(bytes);
    in.bytes(page.data(), bytes);
  }
  trace.data.resize(in.count(1));
  in.bytes(trace.data.data(), trace.data.size());
  trace.events.resize(in.count(sizeof(TraceEvent)));
  in.bytes(trace.events.data(), trace.events.size() * sizeof(TraceEvent));
  in.finish();
  for (const TraceEvent& event : trace.events) {
    if (!is_sound(event, trace)) in.fail("has an event that makes no sense");
  }
  return trace;
}

}  // namespace perdure::lab::crash
