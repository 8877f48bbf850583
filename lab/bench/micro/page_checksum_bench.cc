// A change of 8 bytes in a page in place, as pages in PM are changed: without checksum, with a copy
// of the page to DRAM first, with one checksum over all of it, and with partitioned ones. Pages are
// picked at random from more than fits the caches. Arguments: bytes of a page, checksums (0: none,
// -1: a copy).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "buffer/page.h"

namespace perdure::buffer {
namespace {

constexpr uint64_t kAreaBytes = uint64_t{256} << 20;

char* area() {
  static const std::unique_ptr<char, void (*)(void*)> memory(
      [] {
        auto* bytes = static_cast<char*>(std::aligned_alloc(4096, kAreaBytes));
        std::memset(bytes, 1, kAreaBytes);
        return bytes;
      }(),
      std::free);
  return memory.get();
}

void change_page(benchmark::State& state) {
  const auto page_bytes = static_cast<uint32_t>(state.range(0));
  const auto checksums = static_cast<int>(state.range(1));
  const PageFormat format(page_bytes, checksums > 0 ? static_cast<uint32_t>(checksums) : 1);
  const uint64_t pages = kAreaBytes / page_bytes;
  std::vector<char> copy(page_bytes);
  uint64_t random = 1;
  for (auto unused : state) {
    static_cast<void>(unused);
    random = random * 6364136223846793005U + 1442695040888963407U;
    char* page = area() + (random >> 33) % pages * page_bytes;
    const uint32_t offset =
        format.body() + static_cast<uint32_t>(random >> 20) % (format.body_bytes() - 8) / 8 * 8;
    if (checksums < 0) std::memcpy(copy.data(), page, page_bytes);
    char* target = checksums < 0 ? copy.data() : page;
    PageEdit edit(format, target, checksums > 0 ? Checksums::kNow : Checksums::kLater);
    edit.will_change(offset, sizeof random);
    std::memcpy(target + offset, &random, sizeof random);
    edit.end_step();
    const PartMask parts = edit.finish(1, random);
    if (checksums > 0) format.seal(page, parts);
    benchmark::ClobberMemory();
  }
}

BENCHMARK(change_page)
    ->ArgNames({"page_bytes", "checksums"})
    ->ArgsProduct({{4096, 16384, 65536}, {0, -1, 1, 8, 32}});

}  // namespace
}  // namespace perdure::buffer
