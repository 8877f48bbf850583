// Batches over several partitions, and removal by prefix, which is one.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "store/held_shards.h"
#include "store/store_impl.h"

namespace perdure::store {

void StoreImpl::apply(const Store::Batch& batch) {
  with_all_room([&] { apply_once(batch); });
}

void StoreImpl::apply_once(const Store::Batch& batch, bool frees) {
  const uint64_t now = now_ms();
  // By partition, each in the order of the batch.
  struct Member {
    Place place;
    uint32_t i;
  };
  std::vector<Member> order;
  order.reserve(batch.writes_.size());
  std::vector<uint32_t> numbers;
  for (const Store::Batch::Write& write : batch.writes_) {
    order.push_back({place_of(write.key), static_cast<uint32_t>(order.size())});
    numbers.push_back(order.back().place.number);
  }
  std::ranges::sort(order, {},
                    [](const Member& member) { return std::pair(member.place.number, member.i); });
  std::vector<GroupWrite> writes;
  writes.reserve(order.size());
  for (const Member& member : order) {
    const Store::Batch::Write& write = batch.writes_[member.i];
    writes.emplace_back(member.place.hash, WriteRequest{.key = write.key,
                                                        .value = write.value,
                                                        .expiry_ms = write.expiry_ms,
                                                        .removal = write.removal,
                                                        .frees = frees});
  }
  const auto number = [&](size_t i) { return order[i].place.number; };
  const auto for_groups = [&](auto work) {
    for (size_t begin = 0, end = 0; begin < writes.size(); begin = end) {
      while (end < writes.size() && number(end) == number(begin)) ++end;
      work(number(begin), std::span(writes).subspan(begin, end - begin));
    }
  };
  HeldShards held(*this, std::move(numbers));
  std::vector<Sought> sought;
  sought.reserve(writes.size());
  for (const auto& [hash, request] : writes) sought.push_back({hash, request.key});
  for (int step = 0; step < PartitionIndex::kAheadSteps; ++step) {
    for (size_t i = 0; i < sought.size(); ++i) {
      shards_[number(i)]->partition.prefetch(step, sought[i]);
    }
  }
  held.write([&] {
    std::vector<std::pair<Partition*, Partition::Group>> prepared;
    // Where the batch ends in each partition. The first one is the coordinator: its record names
    // all.
    std::vector<BatchPart> parts;
    const auto count = static_cast<uint32_t>(held.count());
    try {
      for_groups([&](uint32_t n, std::span<const GroupWrite> group) {
        Partition& partition = shards_[n]->partition;
        prepared.reserve(prepared.size() + 1);
        const uint32_t named = count == 1 ? 0 : parts.empty() ? count : 1;
        prepared.emplace_back(&partition, partition.prepare(group, now, named));
        parts.push_back(partition.part_of(group.size()));
      });
    } catch (...) {
      for (const auto& [partition, group] : prepared) partition->abandon(group);
      throw;
    }
    // From here on nothing throws.
    size_t i = 0;
    for_groups([&](uint32_t n, std::span<const GroupWrite> group) {
      std::span<const BatchPart> named(parts);
      if (count == 1) named = {};
      if (i > 0) named = named.first(1);
      shards_[n]->partition.write_group(group, prepared[i++].second, named);
    });
    if (count == 1) return;
    fence();  // before anything that recovery takes for a sign that a partition has gone on
    for (const auto& [partition, group] : prepared) partition->note_durable();
  });
}

std::vector<uint32_t> StoreImpl::partitions_with(std::string_view prefix) const {
  uint32_t first = 0;
  uint32_t last = root_.partitions - 1;
  if (!boundaries_.empty()) {
    first = boundaries_.partition_of(prefix);
    std::string beyond(prefix);  // the least key that is greater than all that begin so
    while (!beyond.empty() && static_cast<unsigned char>(beyond.back()) == 0xff) beyond.pop_back();
    if (!beyond.empty()) {
      ++beyond.back();
      last = boundaries_.partition_of(beyond);
    }
  }
  std::vector<uint32_t> numbers(last - first + 1);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

uint64_t StoreImpl::remove_prefix(std::string_view prefix, std::vector<uint32_t> numbers) {
  return with_all_room([&] { return remove_prefix_once(prefix, numbers); });
}

uint64_t StoreImpl::remove_prefix_once(std::string_view prefix,
                                       const std::vector<uint32_t>& numbers) {
  const uint64_t now = now_ms();
  HeldShards held(*this, numbers);
  uint64_t removed = 0;
  held.write([&] {
    std::vector<std::pair<Partition*, PrefixMatches>> all;
    for (const uint32_t number : held.numbers()) {
      Partition& partition = shards_[number]->partition;
      PrefixMatches matches = partition.match_prefix(prefix, now);
      if (!matches.records.empty()) all.emplace_back(&partition, std::move(matches));
    }
    const auto count = static_cast<uint32_t>(all.size());
    std::vector<BatchPart> parts;
    try {
      for (auto& [partition, matches] : all) {
        partition->prepare_prefix(matches, now, count == 1 ? 0 : parts.empty() ? count : 1);
        parts.push_back(partition->part_of(1));
      }
    } catch (...) {
      for (auto& [partition, matches] : all) partition->abandon_prefix();
      throw;
    }
    // From here on nothing throws.
    std::span<const BatchPart> named(parts);
    if (count == 1) named = {};
    for (auto& [partition, matches] : all) {
      partition->write_prefix(matches, named);
      if (count > 1) named = named.first(1);
      removed += matches.present;
    }
    if (count <= 1) return;
    fence();  // as for a batch
    for (auto& [partition, matches] : all) partition->note_durable();
  });
  return removed;
}

}  // namespace perdure::store
