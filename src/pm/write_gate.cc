#include "pm/write_gate.h"

#include <fmt/core.h>

#include "pm/pool_impl.h"

namespace perdure::pm {

WriteGate::WriteGate(PoolImpl& pool, std::string_view name)
    : writers_(pool.writers()), pool_(pool), name_(name) {
  const DirectoryEntry* entry = pool.find(name);
  if (entry == nullptr) pool.throw_no_such_name(name);
  root_ = entry->root;
  type_ = entry->type;
}

void WriteGate::latch_writers() {
  if (ready_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (ready_.load(std::memory_order_relaxed)) return;
  if (latches_ == nullptr) latches_ = std::make_unique<Latch[]>(kLatches);
  latched_.store(true, std::memory_order_seq_cst);  // releases the latches to writers, too
  // Writers that announce themselves from now on see the flag: the action runs when the others have
  // left.
  const auto left = std::make_shared<std::atomic<bool>>(false);
  writers_.retire([left] { left->store(true, std::memory_order_release); });
  while (!left->load(std::memory_order_acquire)) {
    PoolImpl::pause();
    writers_.collect();
  }
  ready_.store(true, std::memory_order_release);
}

void WriteGate::throw_blocked() const {
  if (pool_.failed()) pool_.require_writable();  // throws kIo
  throw Error(
      ErrorCode::kPoolFull,
      fmt::format("{}: a committed transaction could not be applied to '{}', since the pool is "
                  "full; make room in other structures, and open it again",
                  pool_.mapping().path(), name_));
}

}  // namespace perdure::pm
