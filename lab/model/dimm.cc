#include "lab/model/dimm.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace perdure::lab {
namespace {

// SplitMix64.
uint64_t next_random(uint64_t& state) {
  uint64_t value = state += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

Dimm::Dimm(const Profile& profile, uint64_t number)
    : lines_per_unit_(profile.media_unit_bytes / kLineBytes),
      all_lines_(static_cast<uint8_t>((1U << lines_per_unit_) - 1)),
      controller_writes_ppm_(profile.controller_writes_ppm),
      random_(profile.seed * 0x2545F4914F6CDD1D + number),
      index_(profile.write_buffer_units),
      units_(profile.write_buffer_units),
      victims_(profile.write_buffer_units - profile.write_buffer_recent_units),
      read_index_(profile.read_buffer_units),
      read_present_(profile.read_buffer_units) {
  by_age_.reserve(units_.size());
}

void Dimm::write(uint64_t line, LineOwner owner, Ledger& ledger) {
  const uint64_t unit_number = line / lines_per_unit_;
  const uint64_t position = line % lines_per_unit_;
  const uint32_t slot = slot_for(unit_number, ledger);
  make_newest(slot);

  Unit& unit = units_[slot];
  const bool follows = write_streams_.follow(line);
  unit.sequential = follows && (unit.dirty == 0 || unit.sequential);
  const auto bit = static_cast<uint8_t>(1U << position);
  unit.dirty |= bit;
  unit.valid |= bit;
  unit.owners[position] = owner;
  if (unit.dirty == all_lines_) write_back(slot, ledger);
}

bool Dimm::read(uint64_t line, uint16_t operation, Ledger& ledger) {
  const uint64_t unit_number = line / lines_per_unit_;
  const uint32_t slot = index_.find(unit_number);
  if (slot != SlotIndex::kNone) {
    Unit& unit = units_[slot];
    if ((unit.valid >> (line % lines_per_unit_) & 1) != 0) return true;
    read_media(unit_number, operation, ledger);
    unit.valid = all_lines_;
    return false;
  }
  if (read_index_.find(unit_number) != SlotIndex::kNone) return true;
  read_media(unit_number, operation, ledger);
  keep_read(unit_number);
  return false;
}

void Dimm::drain(Ledger& ledger) {
  for (uint32_t slot = 0; slot < units_used_; ++slot) {
    if (units_[slot].dirty != 0) write_back(slot, ledger);
  }
}

uint64_t Dimm::dirty_units() const {
  return static_cast<uint64_t>(std::count_if(units_.begin(), units_.end(),
                                             [](const Unit& unit) { return unit.dirty != 0; }));
}

uint64_t Dimm::dirty_lines() const {
  uint64_t lines = 0;
  for (const Unit& unit : units_) lines += static_cast<uint64_t>(std::popcount(unit.dirty));
  return lines;
}

// The slot that holds the unit, made room for if need be.
uint32_t Dimm::slot_for(uint64_t unit, Ledger& ledger) {
  uint32_t slot = index_.find(unit);
  if (slot != SlotIndex::kNone) return slot;
  if (units_used_ < units_.size()) {
    slot = units_used_++;
    by_age_.push_back(slot);
  } else {
    slot = choose_victim();
    if (units_[slot].dirty != 0) write_back(slot, ledger);
    index_.erase(slot);
  }
  index_.insert(slot, unit);
  units_[slot] = Unit{};
  if (take_read(unit)) units_[slot].valid = all_lines_;
  return slot;
}

uint32_t Dimm::choose_victim() {
  const uint64_t drawn = ((next_random(random_) >> 32) * victims_) >> 32;
  return by_age_[drawn];
}

void Dimm::make_newest(uint32_t slot) {
  uint32_t carried = slot;
  for (size_t at = by_age_.size(); carried != slot || at == by_age_.size();) {
    std::swap(carried, by_age_[--at]);
  }
}

// Writes a dirty unit to the media; it stays, clean and complete.
void Dimm::write_back(uint32_t slot, Ledger& ledger) {
  Unit& unit = units_[slot];
  const bool partial = unit.dirty != all_lines_;
  const bool random = partial || !unit.sequential;
  bool own_write = false;
  if (random) {
    controller_debt_ppm_ += controller_writes_ppm_;
    own_write = controller_debt_ppm_ >= kPpm;
    if (own_write) controller_debt_ppm_ -= kPpm;
  }
  const auto dirty_lines = static_cast<uint64_t>(std::popcount(unit.dirty));
  const uint64_t share = lines_per_unit_ * kTwelfths / dirty_lines;
  for (uint64_t position = 0; position < lines_per_unit_; ++position) {
    if ((unit.dirty >> position & 1) == 0) continue;
    const LineOwner owner = unit.owners[position];
    const uint64_t written = own_write ? 2 * share : share;
    Counters& counters = ledger.operation(owner.operation);
    counters.media_write_twelfths += written;
    if (partial) counters.media_write_partial_twelfths += share;
    if (random) counters.media_write_random_twelfths += written;
    if (own_write) counters.media_write_controller_twelfths += share;
    ledger.site(owner.site).media_write_twelfths += written;
  }
  if (unit.valid != all_lines_) {
    const auto last = static_cast<size_t>(std::bit_width(unit.dirty)) - 1;
    const uint16_t operation = unit.owners[last].operation;
    read_media(index_.number(slot), operation, ledger);
    ledger.operation(operation).media_read_for_write_units += lines_per_unit_;
  }
  unit.dirty = 0;
  unit.valid = all_lines_;
}

void Dimm::read_media(uint64_t unit, uint16_t operation, Ledger& ledger) {
  Counters& counters = ledger.operation(operation);
  counters.media_read_units += lines_per_unit_;
  if (!read_streams_.follow(unit)) counters.media_read_random_units += lines_per_unit_;
}

void Dimm::keep_read(uint64_t unit) {
  if (read_present_.empty()) return;
  const uint32_t slot = read_next_;
  read_next_ = slot + 1 == read_present_.size() ? 0 : slot + 1;
  if (read_present_[slot]) read_index_.erase(slot);
  read_index_.insert(slot, unit);
  read_present_[slot] = true;
}

// Takes the unit out of the read buffer. Returns whether it was there.
bool Dimm::take_read(uint64_t unit) {
  const uint32_t slot = read_index_.find(unit);
  if (slot == SlotIndex::kNone) return false;
  read_index_.erase(slot);
  read_present_[slot] = false;
  return true;
}

}  // namespace perdure::lab
