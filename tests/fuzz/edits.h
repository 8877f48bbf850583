// What a fuzzer's input does to the bytes of a sound pool.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "support/damage.h"

namespace perdure::test {

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

// An offset in a region, a multiple of 8. In the heap mostly where something is stored.
inline uint64_t place(const SoundPool& sound, Region region, uint16_t number) {
  if (region == Region::kHeap) {
    return sound.lines_in_use[number / 8 % sound.lines_in_use.size()] + number % 8 * 8;
  }
  const Range range = range_of(sound, region);
  return range.begin + number % ((range.end - range.begin) / 8) * 8;
}

// One edit of a region.
inline void edit(const SoundPool& sound, Region region, Input& input, std::string& image) {
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

}  // namespace perdure::test
