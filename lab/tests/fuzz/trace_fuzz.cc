// Traces from anywhere: whatever a file holds, it is refused with an error or can be replayed.
//
// Most inputs would fail at the magic number or the checksum. Those whose first byte is odd are
// given both, so that what lies behind is reached.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "lab/crash/pending.h"
#include "lab/crash/trace.h"
#include "perdure/error.h"

namespace {

using namespace perdure;
using namespace perdure::lab::crash;

constexpr size_t kHeadBytes = 16;
constexpr uint64_t kReplayedRegionBytesMax = uint64_t{1} << 20;

// Magic number and version, from a trace that was saved.
const std::vector<unsigned char>& head() {
  static const std::vector<unsigned char> bytes = [] {
    const std::string path = "/tmp/perdure-trace-fuzz-" + std::to_string(getpid());
    Trace{}.save(path);
    std::vector<unsigned char> read(kHeadBytes);
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(read.data()), kHeadBytes);
    std::remove(path.c_str());
    return read;
  }();
  return bytes;
}

void replay(const Trace& trace) {
  if (trace.region_bytes > kReplayedRegionBytesMax) return;
  for (const Domain domain : {Domain::kLine, Domain::kPage, Domain::kByte}) {
    // As image files are: whole pages.
    const uint64_t pages = trace.region_bytes / kImagePageBytes + 1;
    std::vector<unsigned char> image(pages * kImagePageBytes);
    PendingMemory memory(trace, domain, image.data());
    while (memory.position() < trace.events.size()) memory.step();
    for (const auto& [number, line] : memory.pending()) memory.options(line, 10);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<unsigned char> file(data, data + size);
  if (size >= kHeadBytes + sizeof(uint64_t) && (file[0] & 1) != 0) {
    std::memcpy(file.data(), head().data(), kHeadBytes);
    const std::span<const unsigned char> summed(file.data(), size - sizeof(uint64_t));
    const uint64_t sum = trace_checksum(summed);
    std::memcpy(file.data() + summed.size(), &sum, sizeof sum);
  }
  try {
    replay(Trace::parse(file, "input"));
  } catch (const Error& error) {
    if (std::string(error.what()).rfind("input: ", 0) != 0) std::abort();
  }
  return 0;
}
