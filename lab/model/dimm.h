// One DIMM: a write-combining buffer, a read buffer, and media of larger units than a line.
//
// Writes. A line goes into the buffer's copy of its unit. A unit whose lines are all dirty is
// written to the media at once, and stays in the buffer, clean, until it is replaced. When a slot
// is needed, a unit drawn at random leaves that is not among the recently written quarter; if it
// is dirty, it is written although incomplete, and what it lacks is read from the media first.
// Neither FIFO nor LRU nor plain random replacement gives the published curve of write
// amplification against working set; this does (docs/lab-model.md has the candidates).
//
// The DIMM's own writes (address indirection, wear levelling) add a constant share to all units
// but those that a sequential stream wrote: every line of them came right after the line before.
//
// Reads are served by the write buffer, by the read buffer (first in, first out), or by the media.
// A unit is in one of the two buffers only: written to, it moves to the write buffer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lab/model/ledger.h"
#include "lab/model/profile.h"
#include "lab/model/slot_index.h"

namespace perdure::lab {

// Recognises ascending sequences, several at a time.
class StreamHeads {
 public:
  // Whether `number` follows, or repeats, the last one of a sequence that was seen.
  bool follow(uint64_t number) {
    for (uint64_t& next : next_) {
      if (next == number) {
        ++next;
        return true;
      }
      if (next == number + 1) return true;
    }
    next_[oldest_] = number + 1;
    oldest_ = (oldest_ + 1) % next_.size();
    return false;
  }

 private:
  static constexpr uint64_t kNothing = ~uint64_t{0};
  std::array<uint64_t, 16> next_ = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                    kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                    kNothing, kNothing, kNothing, kNothing};
  size_t oldest_ = 0;
};

class Dimm {
 public:
  static constexpr uint64_t kLinesMax = 4;

  // `number` makes the replacement of each DIMM its own.
  Dimm(const Profile& profile, uint64_t number);

  // A line, by its number on this DIMM, arrives from the controller.
  void write(uint64_t line, LineOwner owner, Ledger& ledger);
  // The controller asks for a line. Returns whether a buffer served it.
  bool read(uint64_t line, uint16_t operation, Ledger& ledger);
  // Writes all incomplete units.
  void drain(Ledger& ledger);

  uint64_t dirty_units() const;
  uint64_t dirty_lines() const;

 private:
  struct Unit {
    uint8_t dirty = 0;  // a bit for each line
    uint8_t valid = 0;  // the lines whose content the buffer has
    bool sequential = false;
    std::array<LineOwner, kLinesMax> owners{};
  };

  uint32_t slot_for(uint64_t unit, Ledger& ledger);
  uint32_t choose_victim();
  void make_newest(uint32_t slot);
  void write_back(uint32_t slot, Ledger& ledger);
  void read_media(uint64_t unit, uint16_t operation, Ledger& ledger);
  void keep_read(uint64_t unit);
  bool take_read(uint64_t unit);

  uint64_t lines_per_unit_;
  uint8_t all_lines_;
  uint64_t controller_writes_ppm_;
  uint64_t controller_debt_ppm_ = 0;
  uint64_t random_;

  SlotIndex index_;
  std::vector<Unit> units_;
  uint32_t units_used_ = 0;
  std::vector<uint32_t> by_age_;  // slots, the one written longest ago first
  uint64_t victims_;              // the first so many of these may leave

  SlotIndex read_index_;
  std::vector<bool> read_present_;
  uint32_t read_next_ = 0;

  StreamHeads write_streams_;
  StreamHeads read_streams_;
};

}  // namespace perdure::lab
