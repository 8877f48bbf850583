// The threads that send requests and are no workers: each has a slot with a ring to every worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "store/runtime/request.h"
#include "store/runtime/ring.h"

namespace perdure::store {

class ClientTable;

class Client {
 public:
  Client(uint32_t workers, uint32_t ring_size, bool shared);

  // False if the ring is full.
  bool push(Request& request, uint32_t worker) {
    if (!shared_) return to_worker_[worker].push(request);
    const std::lock_guard lock(mutex_);
    return to_worker_[worker].push(request);
  }
  Ring<Request>& ring_to(uint32_t worker) noexcept { return to_worker_[worker]; }

 private:
  std::vector<Ring<Request>> to_worker_;
  const bool shared_;
  std::mutex mutex_;
};

// All methods from any thread.
class ClientTable : public std::enable_shared_from_this<ClientTable> {
 public:
  ClientTable(uint32_t slots, uint32_t workers, uint32_t ring_size);

  // The calling thread's slot: taken at its first call, given back when it ends. When all are
  // taken, the one that such threads share.
  Client& mine() {
    if (recent.table == number_) [[likely]]
      return *recent.client;
    return find_mine();
  }
  // Slots that were ever taken; the others have never had a message.
  uint32_t used() const noexcept { return used_.load(std::memory_order_acquire); }
  Client& at(uint32_t index) noexcept { return *clients_[index]; }

 private:
  friend class ClientThread;
  struct Recent {
    uint64_t table;
    Client* client;
  };
  static constinit inline thread_local Recent recent{};

  Client& find_mine();
  Client& take();
  void give_back(Client& client);

  const uint64_t number_;  // of no other table, ever
  const uint32_t workers_;
  const uint32_t ring_size_;
  std::mutex mutex_;
  std::vector<Client*> free_;
  std::vector<std::unique_ptr<Client>> clients_;  // the first is shared
  std::atomic<uint32_t> used_{0};
};

}  // namespace perdure::store
