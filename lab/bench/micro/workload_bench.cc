// What it costs the benchmark to know its next operation. Each must stay below 15 ns.

#include <benchmark/benchmark.h>

#include "lab/bench/workload.h"

namespace perdure::lab {
namespace {

void next_operation(benchmark::State& state, const char* mix, const char* distribution) {
  const Workload workload{
      .name = mix, .mix = Mix::parse(mix), .distribution = Distribution::parse(distribution)};
  constexpr uint64_t kOperations = uint64_t{1} << 27;
  const OperationPlan plan(workload, 10'000'000, kOperations, 1, KeyOrder::kMixed);
  uint64_t place = 0;
  for (auto unused : state) {
    const Operation operation = plan.at(place++ % kOperations);
    benchmark::DoNotOptimize(plan.key_of(operation.record));
  }
}

BENCHMARK_CAPTURE(next_operation, insert, "insert", "uniform");
BENCHMARK_CAPTURE(next_operation, uniform, "lookup", "uniform");
BENCHMARK_CAPTURE(next_operation, sequential, "lookup", "sequential");
BENCHMARK_CAPTURE(next_operation, zipfian, "lookup", "zipfian=0.99");
BENCHMARK_CAPTURE(next_operation, zipfian_steep, "lookup", "zipfian=1.5");
BENCHMARK_CAPTURE(next_operation, selfsimilar, "lookup", "selfsimilar=0.2");
BENCHMARK_CAPTURE(next_operation, latest, "lookup=.95,insert=.05", "latest");
BENCHMARK_CAPTURE(next_operation, mixed_uniform, "lookup=.5,update=.5", "uniform");

}  // namespace
}  // namespace perdure::lab
