// Damage to the file of a pool, and what may come of it.
//
//   const SoundPool sound = make_sound_pool(path, c.structure, c.key, c.value);
//   std::string image = sound.image;
//   const DamageDone done = damage(sound, Region::kHeap, Random(7), image);
//   write_file(path, image);
//   EXPECT_EQ(live_with(path, sound, !done.mended), "") << done.text;  // in a child: it may crash
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perdure/index.h"
#include "support/data.h"
#include "support/random.h"

namespace perdure::test {

// A pool of one structure that was closed cleanly: its bytes, and the records that it holds.
//
// The number of each value says which key it was written for (owner_of), so that a value is known
// to belong to its key without knowing which of the key's values is the newest.
struct SoundPool {
  std::string structure;
  Kind key;
  Kind value;
  std::string image;
  Model model;
  uint64_t keys;                       // are below this; some of them are absent
  std::vector<uint64_t> lines_in_use;  // offsets in the segments of lines that are not all zeros

  uint64_t owner_of(uint64_t number) const { return number % keys; }
};

SoundPool make_sound_pool(const std::string& path, const std::string& structure, Kind key,
                          Kind value, uint64_t keys = 700);

// The parts of a pool file.
enum class Region : uint8_t { kHeader, kDirectory, kLanes, kDescriptors, kRoot, kHeap };
const char* to_string(Region region);

// Where a region lies in the file.
struct Range {
  uint64_t begin;
  uint64_t end;
};
Range range_of(const SoundPool& sound, Region region);

// What a damage did.
struct DamageDone {
  std::string text;     // in words
  bool mended = false;  // the checksum over it was made right again, so nothing shows it
};

// Changes a region of a sound pool's image: a bit, a word, a line, a block of 256 bytes or a page,
// to zeros, to noise, or to what stands elsewhere in the file. Half of the damages where one of the
// pool's own checksums protects get that checksum made right again.
DamageDone damage(const SoundPool& sound, Region region, Random random, std::string& image);

// Makes right again the checksums of the pool's own that are over a region. False if there are
// none.
bool mend(const SoundPool& sound, Region region, Random& random, std::string& image);

// Opens, checks, reads, writes and closes the pool at `path`, which holds a damaged image of
// `sound`. Returns what must never be, in words: an exception that is not an Error, a walk that
// does not end, a byte string that was never written for its key. With `must_be_found`, also
// records that are missing or changed although neither an error nor a check has said that the pool
// is damaged.
std::string live_with(const std::string& path, const SoundPool& sound, bool must_be_found);

}  // namespace perdure::test
