// Damaged pools from anywhere: whatever has become of a pool's bytes, opening, checking, reading,
// writing and closing it is a described error, or right.
//
// An input is a list of edits to a sound pool of one structure. Environment variable PERDURE_FUZZ names
// the structure; without it, the input chooses. PERDURE_FUZZ=list prints the names
// of those without variants and ends.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "pm/layout.h"
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

// Takes numbers off the front of an input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  template <typename T>
  T take() {
    T value = 0;
    const size_t bytes = size_ < sizeof value ? size_ : sizeof value;
    std::memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A structure with one pair of kinds.
struct Subject {
  std::string structure;
  Kind key;
  Kind value;
};

// Variants differ in how records are written, and are read by the code of their structure.
bool is_variant(const CatalogEntry& entry) {
  return entry.name.find('+') != std::string::npos && entry.name != "plush+range" &&
         entry.name != "rstore+ordered";
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

// An offset in a region, a multiple of 8. In the heap mostly where something is stored.
uint64_t place(const SoundPool& sound, Region region, uint16_t number) {
  if (region == Region::kHeap) {
    return sound.lines_in_use[number / 8 % sound.lines_in_use.size()] + number % 8 * 8;
  }
  const Range range = range_of(sound, region);
  return range.begin + number % ((range.end - range.begin) / 8) * 8;
}

void edit(const SoundPool& sound, Region region, Input& input, std::string& image) {
  const auto how = input.take<uint8_t>();
  const uint64_t at = place(sound, region, input.take<uint16_t>());
  char* target = image.data() + at;
  constexpr uint64_t kSizes[] = {64, 256, 4096};
  const uint64_t bytes = kSizes[how / 8 % 3];
  char* block = image.data() + at / bytes * bytes;
  switch (how % 8) {
    case 0:
      target[how / 8 % 8] = static_cast<char>(target[how / 8 % 8] ^ (1 << how / 64));
      return;
    case 1: {
      const auto word = input.take<uint64_t>();
      std::memcpy(target, &word, sizeof word);
      return;
    }
    case 2:
      std::memcpy(target, sound.image.data() + place(sound, Region::kHeap, input.take<uint16_t>()),
                  sizeof(uint64_t));
      return;
    case 3: {
      uint64_t word;
      std::memcpy(&word, target, sizeof word);
      word += static_cast<uint64_t>(int64_t{input.take<int8_t>()});
      std::memcpy(target, &word, sizeof word);
      return;
    }
    case 4: {
      const uint64_t word = place(sound, Region::kHeap, input.take<uint16_t>()) / 64 * 64;
      std::memcpy(target, &word, sizeof word);  // an offset of something
      return;
    }
    case 5:
      std::memset(block, 0, bytes);
      return;
    case 6: {
      const uint64_t from = place(sound, Region::kHeap, input.take<uint16_t>()) / bytes * bytes;
      std::memcpy(block, sound.image.data() + from, bytes);
      return;
    }
    default:
      std::memset(target, input.take<uint8_t>(), 8);
      return;
  }
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
