#include "store/runtime/clients.h"

#include <algorithm>

namespace perdure::store {

// The slots that a thread has, in the tables of all runtimes.
class ClientThread {
 public:
  ~ClientThread() {
    ClientTable::recent = {0, nullptr};
    for (const Registration& registration : registrations_) {
      if (const auto table = registration.table.lock()) table->give_back(*registration.client);
    }
  }
  Client& slot_in(ClientTable& table) {
    std::erase_if(registrations_, [](const Registration& old) { return old.table.expired(); });
    for (const Registration& registration : registrations_) {
      if (registration.number == table.number_) return *registration.client;
    }
    registrations_.reserve(registrations_.size() + 1);
    Client& client = table.take();
    registrations_.push_back({table.weak_from_this(), table.number_, &client});
    return client;
  }

 private:
  struct Registration {
    std::weak_ptr<ClientTable> table;
    uint64_t number;
    Client* client;
  };
  std::vector<Registration> registrations_;
};

namespace {

uint64_t next_table_number() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Client::Client(uint32_t workers, uint32_t ring_size, bool shared) : shared_(shared) {
  to_worker_.reserve(workers);
  for (uint32_t i = 0; i < workers; ++i) to_worker_.emplace_back(ring_size);
}

ClientTable::ClientTable(uint32_t slots, uint32_t workers, uint32_t ring_size)
    : number_(next_table_number()), workers_(workers), ring_size_(ring_size), clients_(slots + 1) {
  free_.reserve(slots);
  clients_[0] = std::make_unique<Client>(workers, ring_size, true);
  used_.store(1, std::memory_order_release);
}

Client& ClientTable::find_mine() {
  thread_local ClientThread thread;
  Client& client = thread.slot_in(*this);
  recent = {number_, &client};
  return client;
}

Client& ClientTable::take() {
  const std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    Client& client = *free_.back();
    free_.pop_back();
    return client;
  }
  const uint32_t used = used_.load(std::memory_order_relaxed);
  if (used == clients_.size()) return *clients_[0];
  clients_[used] = std::make_unique<Client>(workers_, ring_size_, false);
  pm::publish(used_, used + 1);  // the slot, before the count that reveals it
  return *clients_[used];
}

void ClientTable::give_back(Client& client) {
  if (&client == clients_[0].get()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(&client);
}

}  // namespace perdure::store
