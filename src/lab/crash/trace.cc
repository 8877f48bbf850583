#include "lab/crash/trace.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "perdure/error.h"

// The file: a header of seven words (magic, version, and how many of each part follow), the strings,
// the events, the pages of the base image, the stored bytes, and a checksum of all of it.

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kMagic = 0x3143415254445250;  // "PRDTRAC1"
constexpr uint64_t kVersion = 1;
constexpr uint64_t kPartBytesMax = uint64_t{1} << 36;

// FNV-1a over words and their rest: found damage, not malice.
class Sum {
 public:
  void add(const void* data, uint64_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (; bytes >= 8; at += 8, bytes -= 8) {
      uint64_t word = 0;
      std::memcpy(&word, at, 8);
      add_word(word);
    }
    for (; bytes > 0; ++at, --bytes) add_word(*at);
  }
  uint64_t value() const { return value_; }

 private:
  void add_word(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3;
    value_ ^= value_ >> 29;
  }
  uint64_t value_ = 0xcbf29ce484222325;
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
  explicit Reader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) {
      throw Error(ErrorCode::kNotFound,
                  fmt::format("{}: cannot open the trace: {}", path, std::strerror(errno)));
    }
    in_.seekg(0, std::ios::end);
    left_ = static_cast<uint64_t>(in_.tellg());
    in_.seekg(0);
  }
  void bytes(void* data, uint64_t count) {
    if (count > left_) fail("ends too early");
    in_.read(static_cast<char*>(data), static_cast<std::streamsize>(count));
    if (!in_) fail("cannot be read");
    left_ -= count;
    sum_.add(data, count);
  }
  uint64_t word() {
    uint64_t value = 0;
    bytes(&value, sizeof value);
    return value;
  }
  // How many items of a size follow: no more than the file can hold.
  uint64_t count(uint64_t item_bytes) {
    const uint64_t value = word();
    if (value > kPartBytesMax || value * item_bytes > left_) fail("names more than it holds");
    return value;
  }
  std::string text() {
    std::string value(count(1), '\0');
    bytes(value.data(), value.size());
    return value;
  }
  void finish() {
    const uint64_t sum = sum_.value();
    if (word() != sum || left_ != 0) fail("fails its checksum");
  }
  [[noreturn]] void fail(const char* how) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: the trace {}", path_, how));
  }

 private:
  std::string path_;
  std::ifstream in_;
  uint64_t left_ = 0;
  Sum sum_;
};

bool is_sound(const TraceEvent& event, const Trace& trace) {
  if (event.kind > EventKind::kEnd || event.flush > FlushKind::kClflush) return false;
  if (event.kind == EventKind::kBegin) return event.data < trace.operation_types.size();
  const bool ranged =
      is_store(event.kind) || event.kind == EventKind::kFlush || event.kind == EventKind::kSync;
  if (ranged && (event.offset > trace.region_bytes ||
                 event.bytes > trace.region_bytes - event.offset)) {
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

Trace Trace::load(const std::string& path) {
  Reader in(path);
  if (in.word() != kMagic) {
    throw Error(ErrorCode::kForeign, fmt::format("{}: is not a trace", path));
  }
  if (const uint64_t version = in.word(); version != kVersion) {
    throw Error(ErrorCode::kVersion,
                fmt::format("{}: is a trace of format {}, and this build reads format {}", path,
                            version, kVersion));
  }
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
