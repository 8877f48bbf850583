// Opening: what concerns all partitions, then each by itself, by several threads. A partition
// serves as soon as it is ready; who needs one before that recovers it, or waits for who does.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "pm/thread.h"
#include "store/store_impl.h"

namespace perdure::store {

std::atomic<void (*)(uint32_t number)> StoreImpl::before_recovery{nullptr};

// Has `work(i)` done for each partition by some threads. Throws what failed first.
template <typename Work>
void StoreImpl::side_by_side(uint32_t threads, Work work_on) const {
  std::atomic<uint32_t> next{0};
  pm::in_threads(threads, [&](uint32_t) {
    try {
      for (uint32_t i = 0; (i = next.fetch_add(1)) < shards_.size();) work_on(i);
    } catch (...) {
      next.store(root_.partitions);
      throw;
    }
  });
}

// A batch over several partitions may be unfinished where it was the last write of each that has
// its part: it counts if all of them do. Then, and if a partition that has gone on since, it was
// durable as a whole before that. So this is settled for all partitions before any recovers.
void StoreImpl::look(uint32_t threads) {
  std::vector<std::optional<Partition::LastBatch>> batches(shards_.size());
  side_by_side(threads, [&](uint32_t i) { batches[i] = shards_[i]->partition.look(); });
  const auto reached = [&](const BatchPart& part) {
    if (part.partition >= shards_.size()) return false;
    const Partition& partition = shards_[part.partition]->partition;
    if (partition.has_reached(part.version)) return true;
    if (partition.ends_damaged()) {
      pool_.throw_corrupt(
          fmt::format("'{}', partition {}: its last records are damaged, and with them whether a "
                      "batch over several "
                      "partitions was finished",
                      config_.name, part.partition));
    }
    return false;
  };
  const auto is_whole = [&](const Partition::LastBatch& batch) {
    const BatchPart& coordinator = batch.parts.front();
    if (!reached(coordinator)) return false;
    const auto& named = batches[coordinator.partition];
    if (!named || named->version != coordinator.version) return true;  // it has gone on
    return std::ranges::all_of(named->parts, reached);
  };
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->keeps_batch = batches[i] && is_whole(*batches[i]);
  }
  if (pool_.read_only()) return;
  // All of it goes before anything is noted from which the next recovery would take that a
  // partition has gone on. A crash in between finds the batch unfinished again: some of its parts
  // are gone. In the same way one that counts becomes durable as a whole: a process that died may
  // have left parts in the caches only.
  bool keeps_any = false;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    if (batches[i] && !shard.keeps_batch) shard.partition.drop_batch();
    if (shard.keeps_batch) shard.partition.flush_batch();
    keeps_any = keeps_any || shard.keeps_batch;
  }
  if (keeps_any) fence();
}

// A partition without a checkpoint is about to read its records, and the structure in PM to forget
// it, for which the whole structure is read. If that is damaged the log has all the same: another
// structure is made in its place, which all partitions tell what their records say. Their
// checkpoints go first, durably, since they rely on the one that goes: a crash in between comes
// here again. Before any partition is recovered.
void StoreImpl::mend_index(Pool& its_pool) {
  if (pm_index_ == nullptr || pool_.read_only() || pm_index_->find_announced()) return;
  for (const auto& shard : shards_) shard->partition.give_up_checkpoint();
  pm_index_->make_anew(its_pool);
}

void StoreImpl::begin_run(bool serves_early) const {
  const auto nobody_wrote_since = [&](uint64_t generation) {
    // This opening's is the one after, or the same if the store is opened once more in it, or to
    // read: that begins none.
    if (generation + (pool_.read_only() ? 0 : 1) >= pool_.generation()) return true;
    return std::ranges::all_of(shards_, [&](const auto& shard) {
      return shard->partition.closed_generation() == generation;
    });
  };
  runs_->begin(nobody_wrote_since, config_.evicts, serves_early);
}

// All partitions are ready. What they began with stays the same when they are written to.
void StoreImpl::end_last_run() const {
  std::vector<uint64_t> positions;
  for (const auto& shard : shards_) positions.push_back(shard->partition.opened_change());
  runs_->end_last(positions);
}

// Partitions are opened in the order of their numbers, but for those of these keys.
void StoreImpl::open_first(std::span<const std::string> keys) {
  for (const std::string& key : keys) opening_order_.push_back(place_of(key).number);
  for (uint32_t i = 0; i < root_.partitions; ++i) opening_order_.push_back(i);
  std::vector<bool> met(root_.partitions);
  std::erase_if(opening_order_, [&](uint32_t number) {
    const bool again = met[number];
    met[number] = true;
    return again;
  });
}

void StoreImpl::recover(Pool& its_pool, uint32_t threads, bool serve_early) {
  if (threads == 0) threads = std::thread::hardware_concurrency();
  threads = std::clamp<uint32_t>(threads, 1, std::max<uint32_t>(1, root_.partitions / 4));
  serves_early_ = serve_early;
  if (opening_order_.empty()) open_first({});
  begin_run(serve_early);
  look(threads);
  mend_index(its_pool);
  if (!serve_early) {
    side_by_side(threads, [&](uint32_t i) { await_ready(i); });
    return end_last_run();
  }
  const auto work = [this] {
    for (uint32_t i = 0; (i = next_to_open_.fetch_add(1)) < root_.partitions;) {
      try_recover(opening_order_[i]);
    }
  };
  // Each thread has its first partition before any runs: who needs one of these at once waits, and
  // does not take a processor from the threads that open them.
  const auto firsts = std::span(opening_order_).first(threads);
  for (const uint32_t first : firsts) shards_[first]->opening.store(Opening::kRecovering);
  openers_.reserve(threads);
  try {
    for (const uint32_t first : firsts) {
      openers_.push_back(pm::start_thread("opening a store", [this, work, first] {
        recover_begun(first);
        work();
      }));
    }
  } catch (const Error&) {
    // Fewer will do, and without any each partition is recovered by who needs it.
    for (const uint32_t first : firsts.subspan(openers_.size())) {
      shards_[first]->opening.store(Opening::kWaiting);
    }
    next_to_open_.store(0);  // those that there are look once more
  }
}

// Unless somebody else has begun to.
void StoreImpl::try_recover(uint32_t number) const noexcept {
  Opening before = Opening::kWaiting;
  if (shards_[number]->opening.compare_exchange_strong(before, Opening::kRecovering)) {
    recover_begun(number);
  }
}

void StoreImpl::recover_begun(uint32_t number) const noexcept {
  Shard& shard = *shards_[number];
  Opening after = Opening::kReady;
  try {
    if (auto* const hook = before_recovery.load()) hook(number);
    shard.partition.recover(shard.keeps_batch);
    runs_->begin_partition(number, shard.partition.opened_change());
  } catch (...) {
    shard.failure = std::current_exception();
    after = Opening::kFailed;
  }
  shard.opening.store(after, std::memory_order_release);
  shard.opening.notify_all();
  if (!serves_early_ || progress().ready != root_.partitions) return;
  try {
    end_last_run();
  } catch (const std::exception&) {
    // The medium has failed, or memory is short. It is noted when it is asked for; until then, and
    // if it never is, no position is taken for one of the last run.
  }
}

void StoreImpl::await_ready(uint32_t number) const {
  try_recover(number);
  const Shard& shard = *shards_[number];
  shard.opening.wait(Opening::kRecovering, std::memory_order_acquire);
  if (shard.opening.load(std::memory_order_acquire) == Opening::kFailed) {
    std::rethrow_exception(shard.failure);
  }
}

StoreImpl::Progress StoreImpl::progress() const {
  Progress now;
  for (const auto& shard : shards_) {
    const Opening opening = shard->opening.load(std::memory_order_acquire);
    now.ready += opening == Opening::kReady ? 1 : 0;
    now.failed += opening == Opening::kFailed ? 1 : 0;
  }
  return now;
}

bool StoreImpl::wait_for_room() const {
  bool waited = false;
  for (uint32_t i = 0; i < root_.partitions; ++i) {
    if (!is_opening(i)) continue;
    end_own_batch();  // who waits has no latch
    try_recover(i);
    shards_[i]->opening.wait(Opening::kRecovering, std::memory_order_acquire);
    waited = true;
  }
  return waited;
}

// Partitions that nobody has begun with stay as they are.
void StoreImpl::end_opening() {
  next_to_open_.store(root_.partitions);
  for (std::thread& thread : openers_) thread.join();
  openers_.clear();
}

}  // namespace perdure::store
