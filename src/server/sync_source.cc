#include "server/sync_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "common/ticks.h"
#include "perdure/error.h"
#include "server/command_error.h"
#include "server/resp_session.h"
#include "server/server.h"
#include "server/sync_format.h"

namespace perdure::server {

namespace {

constexpr size_t kCopiesMax = 4;                     // snapshots at the same time
constexpr uint64_t kLaneBytes = uint64_t{64} << 10;  // that are read ahead of a partition

constexpr uint64_t kActiveMs = 10'000;  // a follower that asked since is there

[[noreturn]] void throw_copy_anew(const std::string& why) { throw CommandError("COPYANEW " + why); }

}  // namespace

std::string SyncSource::consumer_of(uint64_t follower) {
  return fmt::format("follower-{:016x}", follower);
}

std::optional<uint64_t> SyncSource::follower_of(std::string_view consumer) {
  constexpr std::string_view kPrefix = "follower-";
  if (!consumer.starts_with(kPrefix)) return std::nullopt;
  consumer.remove_prefix(kPrefix.size());
  uint64_t follower = 0;
  const char* const end = std::to_address(consumer.end());
  const auto [rest, error] = std::from_chars(std::to_address(consumer.begin()), end, follower, 16);
  if (error != std::errc() || rest != end) return std::nullopt;
  return follower;
}

SyncSource::SyncSource(Server& server, RespSession& session, uint64_t follower)
    : server_(server), session_(session), follower_(follower) {
  Replica& own = replica();
  if (own.connection != 0) {
    // The same follower, whose last connection has not ended here yet; or a copy of its pool. Were
    // that one closed, it would come back and close this one.
    if (steady_ms() - own.asked_ms < kActiveMs) {
      throw CommandError(
          fmt::format("ERR follower {:016x} is connected from {}: if that is another server, one "
                      "of the two has "
                      "a copy of the other's pool, and needs a pool of its own",
                      follower_, own.peer));
    }
    for (const auto& loop : server_.loops()) loop->post_close(own.connection);
  }
  own.connection = session.connection().id;
  own.peer = session.connection().peer;
  own.copies = false;
  own.asked_ms = steady_ms();
  own.has.clear();
}

SyncSource::~SyncSource() {
  Replica& own = replica();
  if (own.connection != session_.connection().id) return;
  own.connection = 0;
  own.copies = false;
  // Of one that has only said its number nothing is kept.
  try {
    const std::vector<std::string> all = server_.store().consumers();
    if (std::ranges::find(all, consumer_of(follower_)) == all.end()) {
      server_.replicas().erase(follower_);
    }
  } catch (const std::exception&) {
    // It stays until the server ends.
  }
}

Replica& SyncSource::replica() { return server_.replicas()[follower_]; }

void SyncSource::add_consumer() {
  store::StoreImpl& store = server_.store();
  const std::string name = consumer_of(follower_);
  const std::vector<std::string> all = store.consumers();
  if (std::ranges::find(all, name) == all.end()) store.add_consumer(name);
}

std::vector<uint64_t> SyncSource::copy() {
  size_t others = 0;
  for (const auto& [id, one] : server_.replicas()) others += one.copies && id != follower_ ? 1 : 0;
  if (others >= kCopiesMax) {
    throw CommandError(fmt::format("ERR {} followers copy already; try again later", others));
  }
  server_.keys()->turn().require_all_ready();
  server_.keys()->finish_turn();  // what it tells is durable
  tells_log_ = false;
  lanes_.clear();
  snapshot_.reset();
  // Before the snapshot: the log is kept from the earlier of the two.
  add_consumer();
  snapshot_ = std::make_unique<store::StoreSnapshot>(server_.store());
  copied_to_.clear();
  for (uint32_t i = 0; i < server_.store().partitions(); ++i) {
    copied_to_.push_back(snapshot_->position(i));
  }
  copying_ = 0;
  place_ = {};
  replica().copies = true;
  replica().has.clear();
  acknowledge(copied_to_);
  return copied_to_;
}

void SyncSource::follow(uint64_t identity, uint64_t run, const std::vector<uint64_t>& positions) {
  store::StoreImpl& store = server_.store();
  if (identity != store.identity()) {
    throw CommandError(fmt::format(
        "OTHERLEADER this store is {:016x}, and the follower's leader was {:016x}; start the "
        "follower with --follow-anew to give up what it has for a copy of this one",
        store.identity(), identity));
  }
  if (positions.size() != store.partitions()) throw_copy_anew("the store has other partitions");
  server_.keys()->turn().require_all_ready();
  server_.keys()->finish_turn();
  switch (store.judge_run(run, positions)) {
    case store::Runs::Verdict::kLost:
      throw CommandError(
          "DIVERGED the follower has writes that this leader does not have (was its pool put back "
          "to an older state?), or has been away for too many restarts; if what the leader has is "
          "what counts, start the follower with --follow-anew");
    case store::Runs::Verdict::kUnknown:
      throw_copy_anew(
          "the leader evicted, was opened without being seen to its end, or was written to by a "
          "program that notes no runs");
    case store::Runs::Verdict::kGoesOn:
      break;
  }
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    if (positions[i] < store.kept_changes(i).first) {
      throw_copy_anew("the log is not kept from there on any more");
    }
  }
  snapshot_.reset();
  replica().copies = false;
  add_consumer();
  acknowledge(positions);
  begin_log(positions);
  note_what_it_has();
}

void SyncSource::begin_log(const std::vector<uint64_t>& positions) {
  lanes_.assign(positions.size(), Lane());
  for (size_t i = 0; i < positions.size(); ++i)
    lanes_[i].from = lanes_[i].told = lanes_[i].sent = positions[i];
  tells_log_ = true;
}

void SyncSource::acknowledge(const std::vector<uint64_t>& positions) {
  store::StoreImpl& store = server_.store();
  if (positions.size() != store.partitions()) throw CommandError("ERR not as many partitions");
  const std::string name = consumer_of(follower_);
  Replica& own = replica();
  own.records_left = own.bytes_left = 0;
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    if (positions[i] > store.consumer_position(name, i)) {
      store.acknowledge(name, i, positions[i]);
    }
    const uint64_t next = store.kept_changes(i).next;
    own.records_left += next - std::min(next, positions[i]);
    own.bytes_left += store.change_bytes(i, positions[i]);
  }
  own.acknowledged = positions;
  note_what_it_has();
}

// A follower that asks for the log has all of its copy. What comes behind the last position that it
// was told, and was read, but sent nothing, it has as it has that.
void SyncSource::note_what_it_has() {
  Replica& own = replica();
  if (!tells_log_ || own.acknowledged.size() != lanes_.size()) return;
  bool is_new = own.has.size() != lanes_.size();
  own.has.resize(lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    const uint64_t position = own.acknowledged[i];
    const uint64_t has = position >= lane.sent ? std::max(position, lane.told) : position;
    is_new = is_new || own.has[i] != has;
    own.has[i] = has;
  }
  if (is_new) server_.note_acknowledged();
}

void SyncSource::more(uint64_t bytes_max, std::string& chunk) {
  if (snapshot_ == nullptr && !tells_log_) {
    throw CommandError("ERR say first where to begin: PERDURE.SYNC COPY or FOLLOW");
  }
  // Nothing of a turn that is not durable is told.
  server_.keys()->finish_turn();
  replica().asked_ms = steady_ms();
  SyncHeader header{.asks = static_cast<uint8_t>(server_.is_follower_awaited()),
                    .leader_ms = server_.keys()->now_ms()};
  chunk.assign(sizeof header, '\0');
  if (snapshot_ != nullptr) {
    more_copy(bytes_max, header, chunk);
  } else {
    more_log(bytes_max, header, chunk);
  }
  std::memcpy(chunk.data(), &header, sizeof header);
}

void SyncSource::more_copy(uint64_t bytes_max, SyncHeader& header, std::string& chunk) {
  store::StoreImpl& store = server_.store();
  header.is_copy = 1;
  while (copying_ < store.partitions() && chunk.size() < bytes_max) {
    if (place_.has_ended) {
      ++copying_;
      place_ = {};
      continue;
    }
    store.copy_some(copying_, snapshot_.get(), place_, copies_);
    for (const store::RecordCopy& copy : copies_) {
      if (Keyspace::is_local(copy.key)) continue;
      append_entry(chunk, {.kind = SyncEntry::Kind::kPut,
                           .partition = copying_,
                           .number = copy.expiry_ms,
                           .key = copy.key,
                           .value = copy.value});
    }
  }
  if (copying_ < store.partitions()) return;
  header.ends_copy = 1;
  snapshot_.reset();
  copies_ = {};
  replica().copies = false;
  for (uint32_t i = 0; i < store.partitions(); ++i) {
    if (copied_to_[i] < store.kept_changes(i).first) {
      throw_copy_anew(
          "while it was copied more was written than the log keeps; raise the leader's log-bytes");
    }
  }
  begin_log(copied_to_);
}

// Whether the partition has something to tell.
bool SyncSource::fill(uint32_t number) {
  Lane& lane = lanes_[number];
  if (lane.at < lane.ahead.size()) return true;
  lane.ahead.clear();
  lane.at = 0;
  store::StoreImpl& store = server_.store();
  const store::StoreImpl::KeptChanges kept = store.kept_changes(number);
  if (lane.from < kept.first) throw_copy_anew("the log is not kept from there on any more");
  const uint64_t bytes = std::max<uint64_t>((uint64_t{1} << 20) / lanes_.size(), 4096);
  store.read_log(number, lane.from, lane.hint, std::min(bytes, kLaneBytes), lane.ahead);
  // What removed nothing is no write, and is behind it.
  if (lane.ahead.empty()) lane.told = lane.from;
  return !lane.ahead.empty();
}

size_t SyncSource::unit_end(const Lane& lane) const {
  size_t end = lane.at;
  while (lane.ahead[end].goes_on) ++end;
  return end + 1;
}

// Whether all parts of a batch are what comes next in their partitions, which then are the members.
bool SyncSource::is_whole(const store::BatchPart& coordinator, std::vector<uint32_t>& members) {
  using Kind = store::LogEntry::Kind;
  const auto damaged = [] {
    throw_copy_anew("the positions lie within a batch");  // of no follower of ours
  };
  // The end of the unit that comes next, if it is this one.
  const auto end_of = [&](const store::BatchPart& part) -> const store::LogEntry* {
    if (part.partition >= lanes_.size()) damaged();
    const auto number = static_cast<uint32_t>(part.partition);
    if (lanes_[number].told > part.version) damaged();
    if (!fill(number)) return nullptr;
    const Lane& lane = lanes_[number];
    const store::LogEntry& end = lane.ahead[unit_end(lane) - 1];
    return end.kind == Kind::kEndsBatch && end.version == part.version ? &end : nullptr;
  };
  members.clear();
  const store::LogEntry* first = end_of(coordinator);
  if (first == nullptr) return false;
  const std::vector<store::BatchPart> parts = first->parts;
  for (const store::BatchPart& part : parts) {
    if (end_of(part) == nullptr) return false;
    members.push_back(static_cast<uint32_t>(part.partition));
  }
  return true;
}

// Of a chunk, by the units that come next in these partitions.
uint64_t SyncSource::bytes_of_units(const std::vector<uint32_t>& members) const {
  uint64_t bytes = 0;
  for (const uint32_t number : members) {
    const Lane& lane = lanes_[number];
    for (size_t i = lane.at, end = unit_end(lane); i < end; ++i) {
      const store::LogEntry& entry = lane.ahead[i];
      bytes += sizeof(sync_layout::Entry) + entry.key.size() + entry.value.size();
    }
  }
  return bytes;
}

// The units that come next in these partitions, as one. What was told is not held any longer.
void SyncSource::tell(const std::vector<uint32_t>& members, std::string& chunk) {
  using Kind = store::LogEntry::Kind;
  for (size_t i = 0; i < members.size(); ++i) {
    Lane& lane = lanes_[members[i]];
    const size_t end = unit_end(lane);
    for (; lane.at < end; ++lane.at) {
      const store::LogEntry entry = std::move(lane.ahead[lane.at]);
      lane.told = entry.version + 1;
      if (entry.kind == Kind::kEndsBatch || Keyspace::is_local(entry.key)) continue;
      append_entry(chunk, {.kind = entry.kind == Kind::kPut      ? SyncEntry::Kind::kPut
                                   : entry.kind == Kind::kRemove ? SyncEntry::Kind::kRemove
                                                                 : SyncEntry::Kind::kRemovePrefix,
                           .goes_on = true,
                           .partition = members[i],
                           .number = entry.kind == Kind::kPut ? entry.expiry_ms : 0,
                           .key = entry.key,
                           .value = entry.value});
    }
    append_entry(chunk, {.kind = SyncEntry::Kind::kPosition,
                         .goes_on = i + 1 < members.size(),
                         .partition = members[i],
                         .number = lane.told});
    lane.sent = lane.told;
  }
}

void SyncSource::more_log(uint64_t bytes_max, SyncHeader& header, std::string& chunk) {
  using Kind = store::LogEntry::Kind;
  std::vector<uint32_t> members;
  bool stuck = false;  // something waits for others
  bool is_full = false;
  const uint64_t most = server_.config().follower_output_max;
  for (bool goes_on = true; goes_on && !is_full && chunk.size() < bytes_max;) {
    goes_on = false;
    stuck = false;
    for (uint32_t number = 0; number < lanes_.size(); ++number) {
      while (!is_full && chunk.size() < bytes_max && fill(number)) {
        const Lane& lane = lanes_[number];
        const store::LogEntry& end = lane.ahead[unit_end(lane) - 1];
        if (end.kind != Kind::kEndsBatch) {
          members.assign(1, number);
        } else if (end.parts.empty() || !is_whole(end.parts.front(), members)) {
          stuck = true;
          break;
        }
        const uint64_t bytes = bytes_of_units(members);
        if (sizeof header + bytes > most) {
          server_.log().write(
              LogLevel::kWarning,
              "follower {:016x} would have to be told of {} bytes that were written "
              "together, more than follower-output-max: it copies anew",
              follower_, bytes);
          throw_copy_anew(fmt::format(
              "{} bytes were written together, more than the leader's follower-output-max", bytes));
        }
        is_full = chunk.size() + bytes > most;  // by what came before it
        if (is_full) break;
        tell(members, chunk);
        goes_on = true;
      }
    }
  }
  is_full = is_full || chunk.size() >= bytes_max;
  if (stuck && !is_full) {
    throw_copy_anew("a batch over several partitions cannot be told: a part of it is not there");
  }
  header.caught_up = is_full ? 0 : 1;
  note_what_it_has();
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const uint64_t next = server_.store().kept_changes(i).next;
    header.records_left += next - std::min(next, lanes_[i].told);
    header.bytes_left += server_.store().change_bytes(i, lanes_[i].told);
  }
}

}  // namespace perdure::server
