// A long value that is looked up: in a copy, or seen where it lies. 4 KiB each, 200 MB of them; who
// looks reads only their length. A read verifies the checksum of the whole value, unless the pool
// was opened not to.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "perdure/catalog.h"
#include "perdure/pool.h"

namespace perdure {
namespace {

constexpr uint64_t kRecords = 50'000;

void look_up(benchmark::State& state, const char* structure, bool verifies, bool copies) {
  const std::string path = "/dev/shm/perdure-visit-bench.pool";
  std::remove(path.c_str());
  PoolOptions options;
  options.capacity_bytes = uint64_t{1} << 30;
  options.verify_payload = verifies;
  Pool pool = Pool::create(path, options);
  {
    const auto index = catalog_entry(structure).create(pool, "t", Kind::kU64, Kind::kBytes, {});
    const std::string text(4096, 'v');
    for (uint64_t i = 0; i < kRecords; ++i) index->insert(i, text);
    uint64_t at = 0;
    uint64_t sum = 0;
    Value found;
    for (auto _ : state) {
      at = (at + 38'603) % kRecords;
      if (copies) {
        index->lookup(at, found);
        sum += found.bytes().size();
      } else {
        index->visit(at, [&](Datum value) { sum += value.bytes().size(); });
      }
    }
    benchmark::DoNotOptimize(sum);
  }
  pool.close();
  std::remove(path.c_str());
}

const bool kRegistered = [] {
  for (const char* structure : {"fptree", "p-clht", "plush", "bztree"}) {
    for (const bool verifies : {true, false}) {
      for (const bool copies : {true, false}) {
        const std::string name = std::string("visit/") + structure +
                                 (verifies ? "/verified" : "/unverified") +
                                 (copies ? "/lookup" : "/visit");
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          look_up(state, structure, verifies, copies);
        })->Iterations(1'000'000);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace perdure
