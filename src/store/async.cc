// The calls of a store as tasks.
#include <utility>

#include "perdure/store.h"
#include "store/store_impl.h"

namespace perdure {

namespace {

using store::Partition;
using store::StoreImpl;
using store::WriteRequest;

// Key and value live in the frame of who awaits it.
Task<bool> write(const StoreImpl& store, WriteRequest request, uint64_t* version = nullptr) {
  const auto [hash, number] = store.place_of(request.key);
  co_return co_await store.async(number, true, [request, version, hash](Partition& partition) {
    return partition.put(hash, request, StoreImpl::now_ms(), version);
  });
}

}  // namespace

// The frame keeps what it is given, for as long as it is suspended.
// NOLINTBEGIN(performance-unnecessary-value-param)
Task<std::optional<std::string>> Store::async_get(std::string key, uint64_t* version) const {
  const auto [hash, number] = impl_->place_of(key);
  co_return co_await impl_->async(
      number, false, [&key, version, hash](Partition& partition) -> std::optional<std::string> {
        Partition::Found found;
        if (!partition.get_lazily(hash, key, StoreImpl::now_ms, found)) return std::nullopt;
        if (version != nullptr) *version = found.version;
        return std::string(found.value);
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

Task<void> Store::async_apply(Batch batch) {
  impl_->apply(batch);
  co_return;
}

// NOLINTEND(performance-unnecessary-value-param)

void Store::run_to_end(Task<void> task) { impl_->run(std::move(task)); }
void Store::spawn(Task<void> task) { impl_->spawn(std::move(task)); }

}  // namespace perdure
