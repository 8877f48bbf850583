// The public facade of a store.
#include "perdure/store.h"

#include <fmt/core.h>

#include <functional>
#include <utility>

#include "store/cursor.h"
#include "store/modify.h"
#include "store/snapshot.h"
#include "store/store_impl.h"

namespace perdure {

using Condition = store::WriteRequest::Condition;

Store::Store(std::unique_ptr<store::StoreImpl> impl) : impl_(std::move(impl)) {
  impl_->answer_backups(nullptr);
}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Store Store::create(Pool& pool, const std::string& name, const StoreOptions& options) {
  return Store(store::StoreImpl::create(pool, name, options));
}

Store Store::open(Pool& pool, const std::string& name, const StoreOptions& options) {
  return Store(store::StoreImpl::open(pool, name, options));
}

std::vector<std::string> Store::boundaries_of(std::vector<std::string> sample,
                                              uint32_t partitions) {
  return store::Boundaries::of_sample(std::move(sample), partitions).texts();
}

bool Store::is_ready(uint32_t partition) const {
  impl_->require_partition(partition);
  if (impl_->is_opening(partition)) return false;
  impl_->require_ready(partition);  // throws if it has failed: it will never be ready
  return true;
}
bool Store::is_ready() const {
  bool all = true;
  for (uint32_t i = 0; i < impl_->partitions(); ++i) all = is_ready(i) && all;
  return all;
}
void Store::wait_until_ready() const {
  for (uint32_t i = 0; i < impl_->partitions(); ++i) impl_->require_ready(i);
}

std::optional<std::string> Store::get(std::string_view key) const {
  std::optional<std::string> value;
  impl_->get(key, [&](const store::Partition::Found& found) { value.emplace(found.value); });
  return value;
}

bool Store::get(std::string_view key, std::string& value, uint64_t* version) const {
  return impl_->get(key, [&](const store::Partition::Found& found) {
    value.assign(found.value);
    if (version != nullptr) *version = found.version;
  });
}

bool Store::contains(std::string_view key) const {
  return impl_->get(key, [](const store::Partition::Found&) {});
}

uint64_t Store::put(std::string_view key, std::string_view value, std::optional<Time> expires) {
  uint64_t version = 0;
  impl_->write({.key = key, .value = value, .expiry_ms = store::StoreImpl::expiry_of(expires)},
               &version);
  return version;
}

bool Store::insert(std::string_view key, std::string_view value, std::optional<Time> expires) {
  return impl_->write({.key = key,
                       .value = value,
                       .condition = Condition::kIfAbsent,
                       .expiry_ms = store::StoreImpl::expiry_of(expires)});
}

bool Store::update(std::string_view key, std::string_view value, std::optional<Time> expires) {
  return impl_->write({.key = key,
                       .value = value,
                       .condition = Condition::kIfPresent,
                       .expiry_ms = store::StoreImpl::expiry_of(expires)});
}

bool Store::compare_and_swap(std::string_view key, uint64_t version, std::string_view value,
                             std::optional<Time> expires) {
  return impl_->write({.key = key,
                       .value = value,
                       .condition = Condition::kIfVersion,
                       .version = version,
                       .expiry_ms = store::StoreImpl::expiry_of(expires)});
}

bool Store::compare_and_remove(std::string_view key, uint64_t version) {
  return impl_->compare_remove(key, version);
}

bool Store::remove(std::string_view key) { return impl_->remove(key); }

int64_t Store::increment(std::string_view key, int64_t by) {
  store::Increment increment{.key = key, .by = by};
  impl_->modify(key, std::ref(increment));
  return increment.sum;
}

uint64_t Store::append(std::string_view key, std::string_view suffix) {
  store::Append append{.suffix = suffix};
  impl_->modify(key, std::ref(append));
  return append.bytes;
}

void Store::modify(
    std::string_view key,
    const std::function<std::optional<std::string>(const std::string_view*)>& change) {
  impl_->modify(key, change);
}

uint64_t Store::multi_get(std::span<const std::string_view> keys,
                          std::span<std::optional<std::string>> values) const {
  if (values.size() < keys.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} keys, and room for {} values", keys.size(), values.size()));
  }
  for (size_t i = 0; i < keys.size(); ++i) values[i].reset();
  uint64_t count = 0;
  impl_->multi_get(keys, [&](size_t i, const store::Partition::Found& found) {
    values[i].emplace(found.value);
    ++count;
  });
  return count;
}

void Store::Batch::put(std::string_view key, std::string_view value, std::optional<Time> expires) {
  writes_.push_back(
      {std::string(key), std::string(value), store::StoreImpl::expiry_of(expires), false});
}
void Store::Batch::remove(std::string_view key) {
  writes_.push_back({std::string(key), {}, store::kNoExpiry, true});
}
void Store::apply(const Batch& batch) { impl_->apply(batch); }

void Store::for_each(
    const std::function<void(std::string_view key, std::string_view value)>& visit) const {
  impl_->for_each(visit);
}

void Store::scan(
    std::string_view from, uint64_t limit,
    const std::function<bool(std::string_view key, std::string_view value)>& visit) const {
  impl_->scan(from, limit, visit);
}

void Store::add_consumer(const std::string& name) { impl_->add_consumer(name); }
void Store::remove_consumer(const std::string& name) { impl_->remove_consumer(name); }
std::vector<std::string> Store::consumers() const { return impl_->consumers(); }
uint64_t Store::consumer_position(const std::string& name, uint32_t partition) const {
  return impl_->consumer_position(name, partition);
}
void Store::acknowledge(const std::string& name, uint32_t partition, uint64_t position) {
  impl_->acknowledge(name, partition, position);
}
uint64_t Store::first_change(uint32_t partition) const {
  return impl_->kept_changes(partition).first;
}
uint64_t Store::next_change(uint32_t partition) const {
  return impl_->kept_changes(partition).next;
}

StoreBackup Store::backup(const std::string& file, const std::string& since) const {
  return impl_->backup(file, since);
}
bool Store::can_back_up_since() const { return !impl_->tells_no_run(); }
StoreBackup Store::backup_live(const std::string& pool, const std::string& name,
                               const std::string& file, const std::string& since,
                               const std::string& consumer) {
  return store::StoreImpl::backup_live(pool, name, file, since, consumer, nullptr);
}
Store Store::restore(Pool& pool, const std::string& name, std::span<const std::string> files,
                     const StoreOptions& options) {
  return Store(store::StoreImpl::restore(pool, name, files, options));
}

struct Store::Changes::Impl {
  const store::StoreImpl* store;
  uint32_t partition;
  uint64_t read_to;  // of the partition
  store::Partition::LogPlace hint = {};
  std::vector<Change> ahead = {};
  size_t given = 0;
  uint64_t position = 0;
};

Store::Changes Store::changes(uint32_t partition, uint64_t from) const {
  return Changes(std::make_unique<Changes::Impl>(impl_.get(), partition, from));
}
Store::Changes::Changes(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->position = impl_->read_to;
  impl_->store->changes(impl_->partition, impl_->read_to, impl_->hint, 0, impl_->ahead);
}
Store::Changes::Changes(Changes&&) noexcept = default;
Store::Changes& Store::Changes::operator=(Changes&&) noexcept = default;
Store::Changes::~Changes() = default;

bool Store::Changes::next(Change& out) {
  constexpr uint64_t kBytesAhead = 256 << 10;
  if (impl_->given == impl_->ahead.size()) {
    impl_->ahead.clear();
    impl_->given = 0;
    impl_->store->changes(impl_->partition, impl_->read_to, impl_->hint, kBytesAhead, impl_->ahead);
    if (impl_->ahead.empty()) {
      impl_->position = impl_->read_to;
      return false;
    }
  }
  out = std::move(impl_->ahead[impl_->given++]);
  impl_->position = out.version + 1;
  return true;
}
uint64_t Store::Changes::position() const { return impl_->position; }

uint64_t Store::remove_prefix(std::string_view prefix) { return impl_->remove_prefix(prefix); }

Store::Snapshot::Snapshot(std::unique_ptr<store::StoreSnapshot> impl) : impl_(std::move(impl)) {}
Store::Snapshot::Snapshot(Snapshot&&) noexcept = default;
Store::Snapshot& Store::Snapshot::operator=(Snapshot&&) noexcept = default;
Store::Snapshot::~Snapshot() = default;

Store::Snapshot Store::snapshot() const {
  return Snapshot(std::make_unique<store::StoreSnapshot>(*impl_));
}

std::optional<std::string> Store::Snapshot::get(std::string_view key) const {
  std::optional<std::string> value;
  impl_->get(key, [&](const store::Partition::Found& found) { value.emplace(found.value); });
  return value;
}

void Store::Snapshot::for_each(
    const std::function<void(std::string_view key, std::string_view value)>& visit) const {
  impl_->store().for_each(visit, impl_.get());
}

void Store::Snapshot::scan(
    std::string_view from, uint64_t limit,
    const std::function<bool(std::string_view key, std::string_view value)>& visit) const {
  impl_->store().scan(from, limit, visit, impl_.get());
}

Store::Cursor Store::Snapshot::cursor() const {
  impl_->store().require_ordered();
  return Cursor(std::make_unique<store::StoreCursor>(impl_->store(), 64, impl_.get()));
}

uint64_t Store::Snapshot::version(uint32_t partition) const {
  impl_->store().require_partition(partition);
  return impl_->version(partition);
}
uint64_t Store::Snapshot::position(uint32_t partition) const {
  impl_->store().require_partition(partition);
  return impl_->position(partition);
}

uint32_t Store::partitions() const { return impl_->partitions(); }
uint32_t Store::partition_of(std::string_view key) const { return impl_->place_of(key).number; }

Store::Cursor::Cursor(std::unique_ptr<store::StoreCursor> impl) : impl_(std::move(impl)) {}
Store::Cursor::Cursor(Cursor&&) noexcept = default;
Store::Cursor& Store::Cursor::operator=(Cursor&&) noexcept = default;
Store::Cursor::~Cursor() = default;

Store::Cursor Store::cursor() const {
  impl_->require_ordered();
  return Cursor(std::make_unique<store::StoreCursor>(*impl_));
}

void Store::Cursor::first() { impl_->seek({.whole = true}); }
void Store::Cursor::last() { impl_->seek({.whole = true, .downwards = true}); }
void Store::Cursor::seek(std::string_view key) { impl_->seek({.key = key}); }
void Store::Cursor::seek_down(std::string_view key) {
  impl_->seek({.key = key, .downwards = true});
}
bool Store::Cursor::valid() const { return impl_->valid(); }
void Store::Cursor::next() { impl_->next(); }
void Store::Cursor::previous() { impl_->previous(); }
std::string_view Store::Cursor::key() const { return impl_->key(); }
std::string_view Store::Cursor::value() const { return impl_->value(); }
uint64_t Store::Cursor::version() const { return impl_->version(); }

uint64_t Store::size() const { return impl_->size(); }

uint64_t Store::check(const std::function<void(const std::string&)>& report) const {
  return impl_->check(report);
}

StoreVerification Store::verify(Pool& pool, const std::string& name,
                                const std::function<void(const std::string&)>& report) {
  return store::StoreImpl::verify(pool, name, report);
}

std::vector<Statistic> Store::statistics() const { return impl_->statistics(); }

}  // namespace perdure
