// How fast the ordered structures of the catalogue scan: half a million records, then scans of 100
// records from random keys, and one of everything.
//
//   scan_rate POOL-FILE STRUCTURE...
#include <perdure/perdure.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace {

constexpr uint64_t kRecords = 500'000;
constexpr uint64_t kScans = 20'000;

uint64_t mixed(uint64_t number) {
  number = (number ^ (number >> 32)) * 0xd6e8feb86659fd93;
  return number ^ (number >> 32);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void measure(const std::string& path, const std::string& structure) {
  perdure::PoolOptions options;
  options.capacity_bytes = uint64_t{128} << 20;
  perdure::Pool pool = perdure::Pool::create(path, options);
  const auto index =
      perdure::create_index(pool, "index", structure, perdure::Kind::kU64, perdure::Kind::kU64);
  for (uint64_t i = 0; i < kRecords; ++i) index->insert(mixed(i), i);
  const double begin = seconds();
  uint64_t seen = 0;
  for (uint64_t i = 0; i < kScans; ++i) {
    index->scan(mixed(i * 77 + 5), 100,
                [&](perdure::Datum, perdure::Datum) { return ++seen != 0; });
  }
  const double middle = seconds();
  uint64_t all = 0;
  index->for_each([&](perdure::Datum, perdure::Datum) { ++all; });
  const double end = seconds();
  std::printf("%-18s %8.2f us for a scan of 100, %6.1f ns for a record of a whole scan\n",
              structure.c_str(), (middle - begin) / static_cast<double>(kScans) * 1e6,
              (end - middle) / static_cast<double>(all) * 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: scan_rate POOL-FILE STRUCTURE...\n");
    return 2;
  }
  try {
    for (int i = 2; i < argc; ++i) {
      measure(argv[1], argv[i]);
      std::remove(argv[1]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scan_rate: %s\n", error.what());
    return 1;
  }
  return 0;
}
