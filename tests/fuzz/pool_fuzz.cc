// Damaged pools from anywhere: whatever has become of a pool's bytes, opening, checking, reading,
// writing and closing it is a described error, or right.
//
// An input is a list of edits to a sound pool of one structure. Environment variable PERDURE_FUZZ
// names the structure; without it, the input chooses. PERDURE_FUZZ=list prints the names of those
// without variants and ends.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/edits.h"
#include "perdure/catalog.h"
#include "support/damage.h"
#include "support/files.h"

namespace {

using namespace perdure;
using namespace perdure::test;

constexpr uint64_t kKeys = 150;

const std::string& pool_path() {
  static const TempDir folder;
  static const std::string path = folder.file("pool");
  return path;
}

// A structure with one pair of kinds.
struct Subject {
  std::string structure;
  Kind key;
  Kind value;
};

// Variants differ in how records are written, and are read by the code of their structure:
// p-clht+fc by that of p-clht. Those with "+vl" do not: their nodes have another layout than those
// of the references, whose locks are in them.
bool is_variant(const CatalogEntry& entry) {
  if (entry.name == "plush+range" || entry.name == "rstore+ordered" || entry.name == "rstore+pm" ||
      entry.name.ends_with("+vl")) {
    return false;
  }
  const size_t plus = entry.name.find('+');
  const std::string base = entry.name.substr(0, plus);
  return plus != std::string::npos &&
         std::ranges::any_of(catalog(), [&](const CatalogEntry& one) { return one.name == base; });
}

std::vector<Subject> subjects() {
  const char* wanted = std::getenv("PERDURE_FUZZ");
  std::vector<Subject> all;
  for (const CatalogEntry& entry : catalog()) {
    if (wanted == nullptr ? is_variant(entry) : entry.name != wanted) continue;
    for (const auto& [key, value] : entry.traits.kinds) all.push_back({entry.name, key, value});
  }
  if (all.empty()) {
    std::fprintf(stderr, "PERDURE_FUZZ=%s: there is no such structure\n", wanted);
    std::exit(2);
  }
  return all;
}

const SoundPool& sound_pool_of(uint8_t choice) {
  static const std::vector<Subject> all = subjects();
  static std::map<size_t, SoundPool> pools;
  const size_t number = choice % all.size();
  if (pools.count(number) == 0) {
    const Subject& subject = all[number];
    std::remove(pool_path().c_str());
    pools[number] =
        make_sound_pool(pool_path(), subject.structure, subject.key, subject.value, kKeys);
  }
  return pools.at(number);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* wanted = std::getenv("PERDURE_FUZZ");
  if (wanted == nullptr || std::strcmp(wanted, "list") != 0) return 0;
  for (const CatalogEntry& entry : catalog()) {
    if (!is_variant(entry)) std::printf("%s\n", entry.name.c_str());
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const SoundPool& sound = sound_pool_of(input.take<uint8_t>());
  std::string image = sound.image;
  Random random(size);
  for (int edits = 0; edits < 8 && !input.empty(); ++edits) {
    const auto what = input.take<uint8_t>();
    const auto region = static_cast<Region>(what % 8 < 6 ? what % 8 : 5);
    edit(sound, region, input, image);
    if (what / 8 % 2 == 1) mend(sound, region, random, image);
  }
  write_file(pool_path(), image);
  const std::string wrong = live_with(pool_path(), sound, false);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s from %s to %s:\n%s", sound.structure.c_str(), to_string(sound.key),
                 to_string(sound.value), wrong.c_str());
    std::abort();
  }
  return 0;
}
