// Verification of a store that need not open: all that stands in its pool is read, each damaged
// place is named, and what lies behind it is read, too.
//
// Nothing is believed: an offset is followed only into what the heap has allocated, a length only
// as far as the block goes. A record whose lengths are damaged hides where the next one begins;
// that is found as the next place whose checksum holds, which nothing else has by chance (one in
// 2^32).
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "pm/checksum.h"
#include "store/record.h"
#include "store/store_impl.h"

namespace perdure::store {

std::string in_words(std::string_view key) {
  constexpr size_t kShown = 40;
  std::string text = "\"";
  for (const char c : key.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '"' || c == '\\') {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  text += key.size() > kShown ? "...\"" : "\"";
  return text;
}

namespace {

using Report = std::function<void(const std::string&)>;

class PartitionVerifier {
 public:
  PartitionVerifier(pm::PoolImpl& pool, const Root& root, uint32_t number, const Report& fail,
                    StoreVerification& result)
      : pool_(pool), root_(root), number_(number), fail_(fail), result_(result) {}

  // `met`: what the store's table pages and blocks are, so that none is there twice.
  void run(const PartitionRoot& partition, std::unordered_set<uint64_t>& met) {
    verify_root(partition);
    uint64_t page = partition.table;
    for (uint32_t slot = 0; page != 0; page = pool_.at<TablePage>(page)->next) {
      if (!pool_.leads_inside(page, sizeof(TablePage)) ||
          !pool_.heap().is_allocated(page, sizeof(TablePage)) || !met.insert(page).second) {
        return fail(
            fmt::format("its table leads to {:#x}, which is no page of it; what the rest of "
                        "the table leads to is not known",
                        page));
      }
      for (const uint64_t& entry : pool_.at<TablePage>(page)->entries) {
        const uint64_t offset = pm::load_acquire(entry);
        if (offset != 0) verify_block(slot, offset, met);
        ++slot;
      }
    }
    // Whether a removal by prefix takes it away is known to an opening only, which looks for the
    // value, too.
    if (removes_prefixes_) return;
    for (const auto& [place, owner] : wanted_) {
      if (!superseded_.contains(owner.version) && !long_values_.contains(place)) {
        fail(fmt::format("the record at {:#x} has lost its value: no block has it", owner.at));
      }
    }
  }

 private:
  struct Owner {
    uint64_t at;
    uint64_t version;
  };

  void fail(const std::string& what) {
    ++result_.faults;
    fail_(fmt::format("partition {}: {}", number_, what));
  }
  uint64_t seed_of(uint64_t incarnation) const {
    return block_seed(root_.salt, number_, incarnation);
  }

  void verify_root(const PartitionRoot& partition) {
    uint64_t floor = 0;
    if (!pm::unseal_word(partition.version_floor, kVersionSalt, floor)) {
      fail("the lowest version that may be given is damaged in its root");
    }
    if (!pm::unseal_word(partition.incarnation_floor, kIncarnationSalt, floor)) {
      fail("the lowest number that a block may be given is damaged in its root");
    }
    const CloseRecord& close = partition.close;
    if (close.generation != 0 && close.checksum != checksum_of(close, seed_of(close.generation))) {
      fail("what its last close noted is damaged in its root");
    }
    if (partition.snapshot != 0 && !is_sound(pool_, partition.snapshot, root_.salt, number_)) {
      fail(fmt::format("its index snapshot at {:#x} is damaged: an opening reads the records",
                       partition.snapshot));
    }
    for (const uint64_t offset : partition.snapshots) {
      if (offset == 0 || is_recent_sound(pool_, offset, root_.salt, number_)) continue;
      fail(fmt::format("its index snapshot at {:#x} is damaged: an opening reads the records",
                       offset));
    }
    if (partition.checkpoint != 0 && !is_sound(pool_, partition.checkpoint, root_.salt, number_)) {
      fail(fmt::format("its checkpoint at {:#x} is damaged: an opening reads the records",
                       partition.checkpoint));
    }
  }

  void verify_block(uint32_t slot, uint64_t offset, std::unordered_set<uint64_t>& met) {
    const auto fail_block = [&](const std::string& what) {
      fail(fmt::format("block {} at {:#x} {}", slot, offset, what));
    };
    if (offset % pm::kLineBytes != 0 || !pool_.leads_inside(offset, sizeof(BlockHeader))) {
      return fail_block("is outside of the pool");
    }
    if (!met.insert(offset).second) return fail_block("is there twice");
    const auto& header = *pool_.at<BlockHeader>(offset);
    if (header.incarnation == 0) {
      ++result_.unused_blocks;
      if (!pool_.heap().is_allocated(offset, root_.block_bytes)) fail_block("is not allocated");
      return;
    }
    if (header.checksum != checksum_of(header, seed_of(header.incarnation)) ||
        header.partition != number_) {
      return fail_block("has a damaged header: what it holds is not known");
    }
    if (header.kind == BlockKind::kOverflow) return verify_long_value(slot, offset, header);
    if ((header.kind != BlockKind::kLog && header.kind != BlockKind::kMoved) ||
        header.bytes != root_.block_bytes ||
        !pool_.heap().is_allocated(offset, root_.block_bytes)) {
      return fail_block("is not one of records");
    }
    ++result_.blocks;
    uint64_t end = 0;
    if (header.end == 0) return verify_records(offset, header, root_.block_bytes, true);
    const bool intact = pm::unseal_word(header.end, header.incarnation, end);
    end &= ~kSucceeded;
    if (!intact || end < sizeof(BlockHeader) || end > root_.block_bytes) {
      fail_block("does not tell where its records end");
      end = root_.block_bytes;
      return verify_records(offset, header, end, true);
    }
    verify_records(offset, header, end, false);
  }

  void verify_long_value(uint32_t slot, uint64_t offset, const BlockHeader& header) {
    ++result_.long_values;
    if (!pool_.leads_inside(offset, sizeof(BlockHeader) + header.bytes) ||
        !pool_.heap().is_allocated(offset, sizeof(BlockHeader) + header.bytes)) {
      return fail(fmt::format("block {} at {:#x} is not allocated", slot, offset));
    }
    long_values_.insert(header.incarnation);
    const char* text = pool_.at<char>(offset + sizeof(BlockHeader));
    if (header.content != pm::checksum64(text, header.bytes, seed_of(header.incarnation))) {
      fail(fmt::format("the checksum of the long value at {:#x}, of {} bytes, does not hold",
                       offset, header.bytes));
    }
  }

  bool is_record(const char* base, uint64_t at, uint64_t end, uint64_t seed, RecordView& out) {
    return parse(base + at, end - at, out) && is_intact(base + at, out, seed);
  }

  // Of an open block the first record that does not fit is the end.
  void verify_records(uint64_t offset, const BlockHeader& header, uint64_t end, bool open) {
    const char* base = pool_.at<char>(offset);
    const uint64_t seed = seed_of(header.incarnation);
    RecordView record;
    for (uint64_t at = sizeof(BlockHeader); at < end;) {
      if (is_record(base, at, end, seed, record)) {
        meet(record, offset + at);
        at += record.bytes;
        continue;
      }
      if (open) return;
      std::string key = "its key cannot be read";
      if (parse(base + at, end - at, record) && !record.key.empty()) {
        key = fmt::format("its key reads {}", in_words(record.key));
      }
      uint64_t next = at + 8;
      while (next < end && !is_record(base, next, end, seed, record)) next += 8;
      fail(fmt::format("the record at {:#x} is damaged ({}): {} bytes of block {:#x} are lost",
                       offset + at, key, next - at, offset));
      at = next;
    }
  }

  void meet(const RecordView& record, uint64_t at) {
    ++result_.records;
    result_.record_bytes += record.bytes;
    if (record.has(kSupersedes)) superseded_.insert(record.superseded.version);
    if (record.has(kPrefix)) removes_prefixes_ = true;
    if (!record.has(kOverflow) || !record.is_put()) return;
    wanted_[record.overflow.incarnation] = {at, record.version};
  }

  pm::PoolImpl& pool_;
  const Root& root_;
  const uint32_t number_;
  const Report& fail_;
  StoreVerification& result_;
  std::unordered_set<uint64_t> superseded_;     // versions
  std::unordered_set<uint64_t> long_values_;    // incarnations of their blocks
  std::unordered_map<uint64_t, Owner> wanted_;  // by the same
  bool removes_prefixes_ = false;
};

}  // namespace

StoreVerification StoreImpl::verify(Pool& its_pool, const std::string& name, const Report& report) {
  pm::PoolImpl& pool = pm::impl_of(its_pool);
  StoreVerification result;
  const auto fail = [&](const std::string& what) { report(fmt::format("'{}', {}", name, what)); };
  const auto take_error = [&](const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw error;
    ++result.faults;
    report(error.what());
  };
  uint64_t at = 0;
  try {
    at = root_of(pool, name).first;
  } catch (const Error& error) {
    take_error(error);
    return result;
  }
  const Root& root = *pool.at<Root>(at);
  const auto* roots = pool.at<PartitionRoot>(root.partition_roots);
  result.partitions = root.partitions;
  std::unordered_set<uint64_t> met;
  for (uint32_t number = 0; number < root.partitions; ++number) {
    PartitionVerifier(pool, root, number, fail, result).run(roots[number], met);
  }
  if (result.faults != 0) return result;  // an opening would not get further
  try {
    const std::unique_ptr<StoreImpl> store = open(its_pool, name, {});
    result.faults += store->check(report);
  } catch (const Error& error) {
    take_error(error);
  }
  return result;
}

}  // namespace perdure::store
