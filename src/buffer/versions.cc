#include "buffer/versions.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "perdure/error.h"
#include "pm/pause.h"

namespace perdure::buffer {

Moment::~Moment() { versions_->end(*this); }

std::shared_ptr<const PageVersion> Moment::find(uint64_t page) const {
  return versions_->find(*this, page);
}

void Moment::require() const {
  if (!pm::acquire(given_up_)) return;
  throw Error(
      ErrorCode::kTooOld,
      fmt::format("the snapshot was given up: what pages were before takes more than the {} "
                  "bytes of snapshot_bytes; let go of snapshots sooner, or raise it",
                  versions_->bytes_max()));
}

std::shared_ptr<Moment> Versions::begin(const std::atomic<uint64_t>& visible) {
  const std::lock_guard lock(mutex_);
  auto moment = std::make_shared<Moment>(shared_from_this(), pm::acquire(visible));
  moment->older_ = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = moment.get();
  newest_ = moment.get();
  moments_.fetch_add(1, std::memory_order_relaxed);
  return moment;
}

void Versions::publish(std::atomic<uint64_t>& visible, uint64_t now, uint64_t lsn,
                       const std::function<void(const Keep&)>& replaced) {
  Garbage garbage;
  {
    const std::lock_guard lock(mutex_);
    pm::publish(visible, uint64_t{now});
    if (newest_ == nullptr) return;
    try {
      replaced([&](uint64_t page, uint64_t page_lsn, const std::function<std::string()>& before) {
        // Nobody needs what came after the newest of them, and was replaced by now.
        if (page_lsn <= newest_->lsn_) keep(page, page_lsn, lsn, before());
      });
    } catch (const std::bad_alloc&) {
      while (oldest_ != nullptr) give_up_oldest(garbage);
    }
    while (bytes() > bytes_max_ && oldest_ != nullptr) give_up_oldest(garbage);
  }
  free(std::move(garbage));
}

void Versions::keep(uint64_t page, uint64_t page_lsn, uint64_t until, std::string&& before) {
  const auto version =
      std::make_shared<PageVersion>(PageVersion{page, page_lsn, until, std::move(before), nullptr});
  {
    Shard& shard = shard_of(page);
    const std::lock_guard lock(shard.mutex);
    auto& versions = shard.pages[page];
    try {
      versions.push_back(version);
    } catch (...) {
      if (versions.empty()) shard.pages.erase(page);
      throw;
    }
  }
  bytes_.fetch_add(bytes_of(*version), std::memory_order_relaxed);
  version->next = std::move(newest_->owned_);
  newest_->owned_ = version;
}

std::shared_ptr<const PageVersion> Versions::find(const Moment& moment, uint64_t page) {
  if (bytes() == 0) return nullptr;
  Shard& shard = shard_of(page);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.pages.find(page);
  if (found == shard.pages.end()) return nullptr;
  for (const auto& version : found->second) {
    if (version->until <= moment.lsn_) continue;
    if (version->lsn <= moment.lsn_) return version;
    break;
  }
  return nullptr;
}

uint64_t Versions::pages() {
  uint64_t count = 0;
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    count += shard.pages.size();
  }
  return count;
}

void Versions::drop(std::shared_ptr<PageVersion> version, Garbage& garbage) {
  {
    Shard& shard = shard_of(version->page);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.pages.find(version->page);
    std::erase(found->second, version);
    if (found->second.empty()) shard.pages.erase(found);
  }
  bytes_.fetch_sub(bytes_of(*version), std::memory_order_relaxed);
  version->next = std::move(garbage);
  garbage = std::move(version);
}

// Takes the moment from the others; its versions go to the next older one, or to nobody. mutex_ is
// held.
void Versions::unlink(Moment& moment, Garbage& garbage) {
  Moment* const older = moment.older_;
  (older == nullptr ? oldest_ : older->newer_) = moment.newer_;
  (moment.newer_ == nullptr ? newest_ : moment.newer_->older_) = older;
  moments_.fetch_sub(1, std::memory_order_relaxed);
  while (std::shared_ptr<PageVersion> version = std::move(moment.owned_)) {
    moment.owned_ = std::move(version->next);
    if (older != nullptr && older->lsn_ >= version->lsn) {
      version->next = std::move(older->owned_);
      older->owned_ = std::move(version);
    } else {
      drop(std::move(version), garbage);
    }
  }
}

void Versions::give_up_oldest(Garbage& garbage) {
  Moment& moment = *oldest_;
  // Before its versions go: who misses one then knows why.
  pm::publish(moment.given_up_, true);
  unlink(moment, garbage);
  given_up_.fetch_add(1, std::memory_order_relaxed);
}

void Versions::end(Moment& moment) {
  Garbage garbage;
  {
    const std::lock_guard lock(mutex_);
    if (!moment.given_up_.load(std::memory_order_relaxed)) unlink(moment, garbage);
  }
  free(std::move(garbage));
}

// One by one: a list that is freed by its head takes a call for each.
void Versions::free(Garbage garbage) {
  while (garbage) garbage = std::move(garbage->next);
}

}  // namespace perdure::buffer
