// The calls of a store as tasks.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "perdure/store.h"
#include "store/modify.h"
#include "store/store_impl.h"

namespace perdure {

namespace {

using store::Partition;
using store::StoreImpl;
using store::WriteRequest;

// Key and value live in the frame of who awaits it.
Task<bool> write(const StoreImpl& store, WriteRequest request, uint64_t* version = nullptr) {
  const auto [hash, number] = store.place_of(request.key);
  store::Sought sought{hash, request.key};
  co_return co_await store.async(number, true,
                                 [&request, version, &sought](Partition& partition) {
                                   return partition.put(sought.hash, request, StoreImpl::now_ms(),
                                                        version, &sought);
                                 },
                                 {&sought, 1});
}

template <typename Change>
Task<void> change_value(const StoreImpl& store, std::string_view key, Change& change) {
  const auto [hash, number] = store.place_of(key);
  co_await store.async(number, true, [key, hash, &change](Partition& partition) {
    store::modify(partition, hash, key, StoreImpl::now_ms(), change);
  });
}

// The next records of a partition.
struct Piece {
  std::vector<Store::Record> records;
  bool ended = true;  // the partition has no more
};

// `from.key` lives in the frame of who awaits it. At least one record, if there is one.
Task<Piece> read_piece(const StoreImpl& store, uint32_t number, store::ScanFrom from) {
  constexpr uint64_t kBytesMax = 1 << 20;  // and one record more
  Piece piece;
  co_await store.async(number, false, [&](Partition& partition) {
    uint64_t bytes = 0;
    partition.scan(
        from, StoreImpl::now_ms(), [&](std::string_view key, const Partition::Found& found) {
          piece.ended = piece.records.size() < from.expected && bytes <= kBytesMax;
          if (!piece.ended) return false;
          bytes += key.size() + found.value.size();
          piece.records.push_back({std::string(key), std::string(found.value), found.version});
          return true;
        });
  });
  co_return piece;
}

}  // namespace

// The frame keeps what it is given, for as long as it is suspended.
// NOLINTBEGIN(performance-unnecessary-value-param)
Task<std::optional<std::string>> Store::async_get(std::string key, uint64_t* version) const {
  const auto [hash, number] = impl_->place_of(key);
  store::Sought sought{hash, key};
  co_return co_await impl_->async(
      number, false,
      [&sought, version](Partition& partition) -> std::optional<std::string> {
        Partition::Found found;
        if (!partition.get_lazily(sought.hash, sought.key, StoreImpl::now_ms, found, &sought)) {
          return std::nullopt;
        }
        if (version != nullptr) *version = found.version;
        return std::string(found.value);
      },
      {&sought, 1});
}

Task<bool> Store::async_contains(std::string key) const {
  const auto [hash, number] = impl_->place_of(key);
  co_return co_await impl_->async(number, false, [&key, hash](Partition& partition) {
    Partition::Found found;
    return partition.get_lazily(hash, key, StoreImpl::now_ms, found);
  });
}

Task<uint64_t> Store::async_put(std::string key, std::string value, std::optional<Time> expires) {
  uint64_t version = 0;
  co_await write(*impl_, {.key = key, .value = value, .expiry_ms = StoreImpl::expiry_of(expires)},
                 &version);
  co_return version;
}

Task<bool> Store::async_insert(std::string key, std::string value, std::optional<Time> expires) {
  co_return co_await write(*impl_, {.key = key,
                                    .value = value,
                                    .condition = WriteRequest::Condition::kIfAbsent,
                                    .expiry_ms = StoreImpl::expiry_of(expires)});
}

Task<bool> Store::async_update(std::string key, std::string value, std::optional<Time> expires) {
  co_return co_await write(*impl_, {.key = key,
                                    .value = value,
                                    .condition = WriteRequest::Condition::kIfPresent,
                                    .expiry_ms = StoreImpl::expiry_of(expires)});
}

Task<bool> Store::async_compare_and_swap(std::string key, uint64_t version, std::string value,
                                         std::optional<Time> expires) {
  co_return co_await write(*impl_, {.key = key,
                                    .value = value,
                                    .condition = WriteRequest::Condition::kIfVersion,
                                    .version = version,
                                    .expiry_ms = StoreImpl::expiry_of(expires)});
}

Task<bool> Store::async_remove(std::string key) {
  const auto [hash, number] = impl_->place_of(key);
  co_return co_await impl_->async(number, true, [&key, hash](Partition& partition) {
    return partition.remove(hash, key, StoreImpl::now_ms());
  });
}

Task<bool> Store::async_compare_and_remove(std::string key, uint64_t version) {
  const auto [hash, number] = impl_->place_of(key);
  co_return co_await impl_->async(number, true, [&key, version, hash](Partition& partition) {
    return StoreImpl::compare_remove(partition, hash, key, version);
  });
}

Task<int64_t> Store::async_increment(std::string key, int64_t by) {
  store::Increment increment{.key = key, .by = by};
  co_await change_value(*impl_, key, increment);
  co_return increment.sum;
}

Task<uint64_t> Store::async_append(std::string key, std::string suffix) {
  store::Append append{.suffix = suffix};
  co_await change_value(*impl_, key, append);
  co_return append.bytes;
}

Task<void> Store::async_modify(
    std::string key, std::function<std::optional<std::string>(const std::string_view*)> change) {
  co_await change_value(*impl_, key, change);
}

Task<std::vector<std::optional<std::string>>> Store::async_multi_get(
    std::vector<std::string> keys) const {
  struct Member {
    store::Sought sought;
    size_t i;
  };
  std::map<uint32_t, std::vector<Member>> parts;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [hash, number] = impl_->place_of(keys[i]);
    parts[number].push_back({{hash, keys[i]}, i});
  }
  std::vector<std::optional<std::string>> values(keys.size());
  for (auto& part : parts) {
    co_await impl_->async(part.first, false, [&values, &part](Partition& partition) {
      for (int step = 0; step < store::PartitionIndex::kAheadSteps; ++step) {
        for (Member& member : part.second) partition.prefetch(step, member.sought);
      }
      for (const auto& [sought, i] : part.second) {
        Partition::Found found;
        if (partition.get_lazily(sought.hash, sought.key, StoreImpl::now_ms, found)) {
          values[i].emplace(found.value);
        }
      }
    });
  }
  co_return values;
}

// Each round reads the next records of all partitions that may have some: of one at a time, where
// boundaries cut the store. It gives out those that no partition has others before.
Task<std::vector<Store::Record>> Store::async_scan(std::string from, uint64_t limit,
                                                   bool downwards) const {
  constexpr uint64_t kRecordsMax = 256;  // of a partition in a round
  impl_->require_ordered();
  const auto comes_before = [downwards](const std::string& a, const std::string& b) {
    return downwards ? a > b : a < b;
  };
  const bool one_by_one = impl_->cut_by_boundaries();
  const uint32_t partitions = impl_->partitions();
  uint32_t number = one_by_one ? impl_->place_of(from).number : 0;
  store::ScanFrom next{.downwards = downwards};
  std::vector<Record> records;
  while (records.size() < limit) {
    const uint64_t wanted = std::min(limit - records.size(), kRecordsMax * partitions);
    // Somewhat more than its share, as a cursor does it.
    const uint64_t share = one_by_one ? wanted : wanted * 5 / 4 / partitions + 1;
    next.key = from;
    next.expected = std::min(share, kRecordsMax);
    std::vector<Record> read;
    // to this key all partitions have been read; else to the end
    std::optional<std::string> known_to;
    for (uint32_t i = number; i < (one_by_one ? number + 1 : partitions); ++i) {
      Piece piece = co_await read_piece(*impl_, i, next);
      if (!piece.ended) {
        const std::string& last = piece.records.back().key;
        if (!known_to || comes_before(last, *known_to)) known_to = last;
      }
      std::ranges::move(piece.records, std::back_inserter(read));
    }
    std::ranges::sort(read, comes_before, &Record::key);
    for (Record& record : read) {
      if (records.size() == limit || (known_to && comes_before(*known_to, record.key))) break;
      records.push_back(std::move(record));
    }
    if (known_to) {
      from = std::move(*known_to);
      next.whole = false;
      next.beyond = true;
    } else if (one_by_one && number != (downwards ? 0 : partitions - 1)) {
      number += downwards ? -1 : 1;
      next.whole = true;
    } else {
      break;
    }
  }
  co_return records;
}

Task<void> Store::async_apply(Batch batch) {
  impl_->apply(batch);
  co_return;
}

Task<uint64_t> Store::async_remove_prefix(std::string prefix) {
  co_return impl_->remove_prefix(prefix);
}

// NOLINTEND(performance-unnecessary-value-param)

void Store::run_to_end(Task<void> task) { impl_->run(std::move(task)); }
void Store::spawn(Task<void> task) { impl_->spawn(std::move(task)); }

}  // namespace perdure
