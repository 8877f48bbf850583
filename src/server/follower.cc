#include "server/follower.h"

#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <map>
#include <random>

#include "common/ticks.h"
#include "perdure/error.h"
#include "pm/heap.h"
#include "pm/thread.h"
#include "pm/unfinished_file.h"
#include "server/command_error.h"
#include "server/server.h"
#include "server/sync_client.h"

namespace perdure::server {

namespace {

constexpr std::string_view kChunkBytes = "262144";
constexpr uint64_t kPauseMs = 2;  // while the leader has nothing new
constexpr uint64_t kAcknowledgeMs = 100;
constexpr uint64_t kBackoffMs = 50;
constexpr uint64_t kBackoffMsMax = 5000;

constexpr std::string_view kNoRoomForBoth =
    "a copy is to be made anew, and there is no room for it beside what is here, which is served "
    "as "
    "it was: start this server with --follow-anew to give that up first, or with a larger pool";
constexpr std::string_view kDamagedOld =
    "a copy is to be made anew, and what is here is damaged, so that a copy cannot take its place; "
    "it is served as it was: start this server with --follow-anew to give it up first";
constexpr std::string_view kDamagedPart =
    "what is here was given up for a copy, and is damaged, so that it cannot be removed record by "
    "record: start this server again, which makes all of it anew";

uint64_t number_in(const std::map<std::string, std::string>& all, const std::string& name,
                   int base) {
  const auto found = all.find(name);
  uint64_t value = 0;
  if (found != all.end()) {
    const char* end = found->second.data() + found->second.size();
    const auto [rest, error] = std::from_chars(found->second.data(), end, value, base);
    if (error == std::errc() && rest == end) return value;
  }
  throw Error(ErrorCode::kIo, "the leader does not say its " + name);
}

SyncHeader header_of(std::string_view& chunk) {
  SyncHeader header;
  if (chunk.size() < sizeof header) throw Error(ErrorCode::kCorrupt, "a chunk is cut off");
  std::memcpy(&header, chunk.data(), sizeof header);
  if (header.magic != SyncHeader::kMagic) throw Error(ErrorCode::kCorrupt, "this is no chunk");
  chunk.remove_prefix(sizeof header);
  return header;
}

// What the leader says, so that it is of no use to ask again.
struct Refused {
  std::string words;
};
// It is to stop, or has taken over.
struct Ended {};
// A record of the leader's cannot stand beside what is there.
struct Unstageable {
  std::string words;
};

}  // namespace

Follower::Follower(Server& server, Keyspace& keys)
    : server_(server),
      keys_(keys),
      writer_(keys),
      stop_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      anew_(server.config().follow_anew) {
  if (stop_fd_ < 0) throw Error(ErrorCode::kIo, "eventfd has failed");
}

Follower::~Follower() {
  stop();
  ::close(stop_fd_);
}

std::optional<FollowState> Follower::must_make_anew(Keyspace& keys) {
  const ReplicaWriter writer(keys);
  FollowState state;
  try {
    keys.turn().store().require_ready(
        keys.turn().store().place_of(Keyspace::local_key(Keyspace::kFollowState)).number);
    state = writer.read_state();
  } catch (const Error&) {
    return std::nullopt;  // prepare() says so
  }
  if (state.status != FollowState::Status::kCopying) return std::nullopt;
  try {
    store::StoreImpl& store = keys.turn().store();
    for (uint32_t i = 0; i < store.partitions(); ++i) store.require_ready(i);
    for (ReplicaWriter::Sweep sweep; writer.look_at_some(sweep);) {
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return state;
  }
  return std::nullopt;
}

void Follower::prepare() {
  Keyspace& keys = keys_;
  keys.set_follower(true);
  store::StoreImpl& store = keys.turn().store();
  for (uint32_t i = 0; i < store.partitions(); ++i) store.require_ready(i);
  if (writer_.has_journal()) {
    try {
      writer_.finish_journal();
    } catch (const Error& error) {
      // It is done again before the leader is asked for more; nothing is served until then.
      server_.log().write(LogLevel::kError, "a unit of the leader's cannot be finished yet: {}",
                          error.what());
    }
  }
  state_ = writer_.read_state();
  const bool has_journal = writer_.has_journal();
  keys.set_hidden(state_.status != FollowState::Status::kFollowing || has_journal);
  if (!has_journal) writer_.remove_pieces();
  if (!anew_) writer_.note_anew(false);
  try {
    writer_.mend_mark(state_.status != FollowState::Status::kNone);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    server_.log().write(LogLevel::kWarning, "there is no room for the mark of a pool that follows");
  }
  if (state_.status != FollowState::Status::kNone) return;
  if (anew_ && writer_.has_noted_anew()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has taken over since --follow-anew was said, and its records are its "
                    "own: start it without that option, which then, if they are to go, may "
                    "be said again",
                    server_.config().pool));
  }
  if (anew_) return;
  keys.set_hidden(false);
  bool is_empty = true;
  for (uint32_t i = 0; i < kDatabases; ++i) is_empty = is_empty && keys.count_keys(i, 1) == 0;
  keys.set_hidden(true);
  if (!is_empty) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} has keys of its own, and is no follower's: name another pool, or "
                            "say --follow-anew to replace them by what {} has",
                            server_.config().pool, server_.config().follow));
  }
}

// Whom the pool has followed, of a server that follows nobody. Throws kCorrupt if it has, or may
// have, and that cannot be read: what it has may be a part of a copy, and the leader goes on.
FollowState Follower::state_at_start(Server& server, Keyspace& keys) {
  store::StoreImpl& store = keys.turn().store();
  const std::string key = Keyspace::local_key(Keyspace::kFollowState);
  FollowState state;
  std::string why;
  try {
    static_cast<void>(store.get(key, [&](const store::Partition::Found& found) {
      state = FollowState::decode(found.value);
    }));
    return state;
  } catch (const Error& error) {
    why = error.what();
  }
  bool may_have = true;
  if (!store.is_ready(store.place_of(key).number) && !keys.follow_mark().empty()) {
    // Of a partition that cannot be read at all nothing is served. Another one says whether it has
    // the note.
    try {
      may_have = store.get(keys.follow_mark(), [](const store::Partition::Found&) {});
    } catch (const Error& error) {
      why = error.what();
    }
  }
  if (may_have) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{} has followed a leader, or may have, and the note of it cannot be "
                            "read, so that it is not served as a leader itself; restore it, or "
                            "make another pool that follows: {}",
                            server.config().pool, why));
  }
  return {};
}

// What it has of the leader is its own from then on. Its ids of collections are random, so that
// none is the leader's.
void Follower::take_over_at_start(Server& server, Keyspace& keys) {
  ReplicaWriter writer(keys);
  store::StoreImpl& store = keys.turn().store();
  FollowState state = state_at_start(server, keys);
  const bool has_staged = [&] {
    try {
      return store.get(Keyspace::local_key(Keyspace::kStaging),
                       [](const store::Partition::Found&) {});
    } catch (const Error&) {
      return false;  // of the part that cannot be read
    }
  }();
  if (state.status == FollowState::Status::kNone && !has_staged) return;
  for (uint32_t i = 0; i < store.partitions(); ++i) store.require_ready(i);
  const auto drop_staged = [&] {
    if (!has_staged) return;
    try {
      for (ReplicaWriter::Sweep sweep; writer.drop_staged_some(sweep);) keys.finish_turn();
    } catch (const Error& error) {
      server.log().write(LogLevel::kWarning, "a part of a copy stays until the next start: {}",
                         error.what());
    }
  };
  if (state.status == FollowState::Status::kNone) return drop_staged();
  if (writer.has_journal()) {
    try {
      writer.finish_journal();
    } catch (const Error& error) {
      throw Error(
          error.code(),
          fmt::format("{} has a part of what its leader wrote together, and the rest cannot "
                      "be written: let it --follow the leader again, with --follow-anew "
                      "for a copy; {}",
                      server.config().pool, error.what()));
    }
    state = writer.read_state();
  }
  if (state.status == FollowState::Status::kCopying) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} has a part of a leader's records only, since the copy was "
                            "interrupted: let it --follow a leader, or make another pool",
                            server.config().pool));
  }
  if (state.is_placing()) {
    for (ReplicaWriter::Sweep sweep; writer.place_some(state, sweep);) keys.finish_turn();
  } else {
    drop_staged();
  }
  // Not to be given up because the option still stands there with the next --follow.
  if (server.config().follow_anew) writer.note_anew(true);
  writer.remove_state();
  server.log().write(LogLevel::kWarning, "{} has followed a leader, and takes over",
                     server.config().pool);
}

void Follower::forget_anew(Server& server, Keyspace& keys) {
  ReplicaWriter writer(keys);
  if (!server.config().follow_anew) writer.note_anew(false);
  if (writer.read_state().status != FollowState::Status::kNone) return;
  try {
    writer.mend_mark(false);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;  // later, then
  }
}

void Follower::start() {
  thread_ = pm::start_thread("the follower", [this] { run(); });
}

void Follower::stop() {
  leaves_.store(true);
  stopping_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof one);
  {
    const std::lock_guard lock(sleep_mutex_);
    sleep_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Follower::take_over() {
  if (ended_) return;
  if (state_.status == FollowState::Status::kCopying) {
    throw CommandError(
        "ERR what is here is a part of the leader's records only, since the copy has not ended: "
        "nobody can take over from it");
  }
  if (state_.is_placing()) {
    throw CommandError(
        "ERR a new copy is being put in the place of an older one: try again once follow_state of "
        "INFO is following");
  }
  Keyspace& keys = keys_;
  keys.finish_turn();
  // Before the state goes, so that no crash leaves a pool that has taken over without the note.
  // Mostly it is there since the pool follows.
  if (server_.config().follow_anew) {
    try {
      writer_.note_anew(true);
    } catch (const Error& error) {
      throw CommandError(fmt::format(
          "ERR there is no room to note that --follow-anew is not to be obeyed any more: start the "
          "server without --follow and --follow-anew instead: {}",
          error.what()));
    }
  }
  if (state_.status == FollowState::Status::kFollowing) {
    if (writer_.has_journal()) {
      try {
        writer_.finish_journal();
      } catch (const Error& error) {
        throw CommandError(fmt::format(
            "ERR what the leader wrote together is here in part, and the rest cannot be written, "
            "so nobody can take over: {}",
            error.what()));
      }
    }
    writer_.remove_state();
  }
  state_ = {};
  ended_ = true;
  keeps_old_ = false;
  link_ = Link::kEnded;
  keys.set_follower(false);
  keys.set_hidden(false);
  server_.log().write(LogLevel::kWarning, "takes over: follows {} no more",
                      server_.config().follow);
  stopping_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof one);
}

// False if it is to stop.
bool Follower::wait(uint64_t ms) {
  std::unique_lock lock(sleep_mutex_);
  sleep_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return stopping_.load(); });
  return !stopping_;
}

// With the execution lock, and behind it a fence, also if `work` throws: others may have seen what
// it wrote.
template <typename Work>
void Follower::in_turn(Work work) {
  const Server::Turn turn(server_);
  if (ended_ || stopping_) throw Ended();
  std::exception_ptr failure;
  try {
    work(keys_);
  } catch (...) {
    failure = std::current_exception();
  }
  if (!turn.finish()) throw Error(ErrorCode::kIo, "the medium has failed");
  if (failure) std::rethrow_exception(failure);
}

void Follower::run() {
  std::minstd_rand random(std::random_device{}());
  uint64_t backoff_ms = kBackoffMs;
  while (!stopping_) {
    const uint64_t began_ms = steady_ms();
    Link link = Link::kConnecting;
    std::string words;
    try {
      follow_leader();
    } catch (const Ended&) {
      break;
    } catch (const Refused& refused) {
      link = Link::kRefused;
      words = refused.words;
    } catch (const LeaderError& error) {
      words = error.text;
    } catch (const Error& error) {
      // Of the connection kIo; else of this store, which may be full.
      if (error.code() != ErrorCode::kIo) link = Link::kFailed;
      words = error.what();
    } catch (const std::exception& error) {
      link = Link::kFailed;
      words = error.what();
    }
    if (stopping_) break;
    {
      const std::lock_guard lock(server_.execution());
      if (ended_) break;
      if (words != words_ || link != link_) {
        server_.log().write(link == Link::kConnecting ? LogLevel::kWarning : LogLevel::kError,
                            "does not follow {}: {}", server_.config().follow, words);
      }
      link_ = link;
      words_ = words;
      ++reconnects_;
    }
    // Quickly again after a connection that was of use; more and more slowly, and not all followers
    // at once.
    if (steady_ms() - began_ms > kBackoffMsMax) backoff_ms = kBackoffMs;
    if (link != Link::kConnecting) backoff_ms = std::max<uint64_t>(backoff_ms, 1000);
    if (!wait(backoff_ms / 2 + random() % (backoff_ms / 2 + 1))) break;
    backoff_ms = std::min(2 * backoff_ms, kBackoffMsMax);
  }
  // It has taken over, maybe in the midst of a copy.
  try {
    drop_staged();
  } catch (const std::exception& error) {
    server_.log().write(LogLevel::kWarning, "a part of a copy stays until the next start: {}",
                        error.what());
  }
}

// What a copy has left that has not become whole.
// What cannot be removed stays, which hinders nothing else.
void Follower::drop_staged() {
  ReplicaWriter::Sweep sweep;
  for (bool more = true, begins = true; more && !leaves_; begins = false) {
    const Server::Turn turn(server_);
    try {
      more = (!begins || writer_.has_staged()) && writer_.drop_staged_some(sweep);
    } catch (const Error& error) {
      more = false;
      server_.log().write(LogLevel::kWarning, "a part of a copy stays until the next start: {}",
                          error.what());
    }
    if (!turn.finish()) throw Error(ErrorCode::kIo, "the medium has failed");
  }
}

// All that a copy will take the place of. Where a record of it is damaged, that is found here.
void Follower::require_removable() {
  ReplicaWriter::Sweep sweep;
  try {
    for (bool more = true; more;) {
      in_turn([&](Keyspace&) { more = writer_.look_at_some(sweep); });
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    refuse_replacement(fmt::format("{} ({})", kDamagedOld, error.what()));
  }
}

// Until the next start nobody is asked for a copy again.
void Follower::refuse_replacement(std::string words) {
  cannot_replace_ = std::move(words);
  drop_staged();
  throw Refused{cannot_replace_};
}

void Follower::follow_leader() {
  bool is_placing = false;
  in_turn([&](Keyspace&) { is_placing = state_.is_placing(); });
  if (is_placing && !anew_) place_copy();  // it needs no leader for that
  SyncClient leader(server_.config().follow, stop_fd_);
  const Config& config = server_.config();
  if (!config.follow_password.empty()) {
    leader.send({"AUTH", config.follow_user, config.follow_password});
    leader.read_text();
  }
  greet(leader);
  bool takes_copy = false;
  in_turn([&](Keyspace&) { takes_copy = state_.status != FollowState::Status::kFollowing; });
  if (replacement_) {
    stage_copy(leader);
  } else if (takes_copy) {
    take_copy(leader);
  } else {
    drop_staged();
  }
  take_log(leader);
}

// Who the leader is, and whether it goes on from here. Else a copy is to be made: of that the state
// is kCopying, or, where it replaces one that is there, the state of that stays, and replacement_
// is the copy's.
void Follower::greet(SyncClient& leader) {
  FollowState state;
  bool cannot_finish = false;
  in_turn([&](Keyspace& keys) {
    if (writer_.has_journal()) {
      try {
        writer_.finish_journal();
        keys.set_hidden(false);
      } catch (const Error&) {
        if (!anew_) throw;
        cannot_finish = true;
      }
      state_ = writer_.read_state();
      if (state_.status != FollowState::Status::kFollowing) keys.set_hidden(true);
    }
    state = state_;
  });
  if (state.follower == 0) state.follower = pm::random_number("the number of a follower") | 1;
  replacement_.reset();
  leader.send({"PERDURE.SYNC", "HELLO", fmt::format("{}", kSyncVersion),
               fmt::format("{:016x}", state.follower)});
  const std::vector<std::string> said = leader.read_texts();
  std::map<std::string, std::string> by_name;
  for (size_t i = 0; i + 1 < said.size(); i += 2) by_name[said[i]] = said[i + 1];
  const uint64_t identity = number_in(by_name, "store", 16);
  const uint64_t run = number_in(by_name, "run", 16);
  const uint64_t partitions = number_in(by_name, "partitions", 10);
  if (partitions == 0 || partitions > 1024) throw Error(ErrorCode::kIo, "the leader has no sense");
  bool follows = state.status == FollowState::Status::kFollowing && !cannot_finish;
  if (state.status != FollowState::Status::kNone && state.identity != identity && !anew_) {
    throw Refused{fmt::format(
        "{} has another store than the one that this pool has followed: say --follow-anew to "
        "give up what is here for a copy of that",
        server_.config().follow)};
  }
  if (follows && needs_copy_) {
    server_.log().write(LogLevel::kWarning, "a copy is to be made anew: the log did not go on");
    follows = false;
  }
  if (follows) {
    leader.send({"PERDURE.SYNC", "FOLLOW", fmt::format("{:016x}", state.identity),
                 fmt::format("{:016x}", state.run), bytes_of(state.positions)});
    try {
      leader.read_text();
    } catch (const LeaderError& error) {
      const bool is_other = error.has_code("DIVERGED") || error.has_code("OTHERLEADER");
      if (is_other && !anew_) throw Refused{error.text};
      if (!is_other && !error.has_code("COPYANEW")) throw;
      server_.log().write(LogLevel::kWarning, "a copy is to be made anew: {}", error.text);
      follows = false;
    }
  }
  const bool replaces = !follows && !anew_ && state.status == FollowState::Status::kFollowing;
  if (replaces && !cannot_replace_.empty()) throw Refused{cannot_replace_};
  const bool has_changed = !follows || state.run != run;
  state.identity = identity;
  state.run = run;
  if (!follows) {
    if (!replaces) state.status = FollowState::Status::kCopying;
    state.positions.assign(partitions, 0);
  }
  if (replaces) replacement_ = state;
  in_turn([&](Keyspace& keys) {
    // Before the first write of this run, and before anything is removed for a copy. From here on
    // what is there is not told.
    if (!follows && !replaces) {
      keys.set_hidden(true);
      writer_.drop_journal();
    }
    if (!replaces) {
      if (has_changed) writer_.write_state(state);
      state_ = state;
    }
    anew_ = false;
    link_ = follows ? Link::kFollowing : Link::kCopying;
    keeps_old_ = replaces;
    words_.clear();
    if (server_.config().follow_anew && !writer_.has_noted_anew()) {
      try {
        writer_.note_anew(true);
      } catch (const Error& error) {
        // Then a takeover tries it.
        if (!pm::is_full(error)) throw;
      }
    }
  });
}

void Follower::take_copy(SyncClient& leader) {
  ReplicaWriter::Sweep sweep;
  try {
    for (bool more = true; more;) {
      in_turn([&](Keyspace&) { more = writer_.clear_some(sweep); });
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    throw Error(error.code(), fmt::format("{} ({})", kDamagedPart, error.what()));
  }
  FollowState state;
  in_turn([&](Keyspace&) { state = state_; });
  state.positions = receive_copy(leader, false);
  state.status = FollowState::Status::kFollowing;
  in_turn([&](Keyspace& keys) {
    writer_.write_state(state);
    state_ = state;
    link_ = Link::kFollowing;
    ++copies_;
    keys.set_hidden(false);
  });
  server_.log().write(LogLevel::kInfo, "has a copy of {}, and follows its log",
                      server_.config().follow);
}

// A copy beside what is there, which then takes its place.
void Follower::stage_copy(SyncClient& leader) {
  require_removable();
  drop_staged();
  try {
    in_turn([&](Keyspace&) { writer_.begin_staging(); });
    replacement_->positions = receive_copy(leader, true);
    require_removable();  // from here on there is no way back
    in_turn([&](Keyspace& keys) {
      writer_.begin_placing(*replacement_);
      keys.set_hidden(true);
      state_ = *replacement_;
      keeps_old_ = false;
    });
  } catch (const Unstageable& error) {
    refuse_replacement(fmt::format("{} ({})", kNoRoomForBoth, error.words));
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    refuse_replacement(fmt::format("{} ({})", kNoRoomForBoth, error.what()));
  }
  place_copy();
}

void Follower::place_copy() {
  ReplicaWriter::Sweep sweep;
  for (bool more = true; more;) {
    in_turn([&](Keyspace& keys) {
      more = writer_.place_some(state_, sweep);
      if (more) return;
      link_ = Link::kFollowing;
      ++copies_;
      keys.set_hidden(false);
    });
  }
  server_.log().write(LogLevel::kInfo,
                      "has a copy of {} in the place of what it had, and follows its log",
                      server_.config().follow);
}

// Returns the positions behind it.
std::vector<uint64_t> Follower::receive_copy(SyncClient& leader, bool stages) {
  size_t partitions = 0;
  in_turn([&](Keyspace&) {
    partitions = stages ? replacement_->positions.size() : state_.positions.size();
  });
  leader.send({"PERDURE.SYNC", "COPY"});
  std::vector<uint64_t> positions = positions_of(leader.read_text());
  if (positions.size() != partitions) throw Error(ErrorCode::kIo, "the leader has no sense");
  leader.send({"PERDURE.SYNC", "MORE", kChunkBytes});
  for (bool ended = false; !ended;) {
    const std::string bytes = leader.read_chunk(server_.config().follow_chunk_max);
    std::string_view chunk = bytes;
    const SyncHeader header = header_of(chunk);
    if (header.is_copy == 0) throw Error(ErrorCode::kCorrupt, "a copy does not end");
    ended = header.ends_copy != 0;
    // The next one is on its way meanwhile.
    if (!ended) leader.send({"PERDURE.SYNC", "MORE", kChunkBytes});
    do {
      in_turn([&](Keyspace&) {
        note_answer(header);
        if (!stages) return writer_.copy_some(chunk);
        try {
          writer_.stage_some(chunk);
        } catch (const Error& error) {
          // A key that is too long for another one in front of it; of a chunk that is too long the
          // leader is to blame.
          if (error.code() == ErrorCode::kTooLarge) throw Unstageable{error.what()};
          throw;
        }
      });
    } while (!chunk.empty());
  }
  return positions;
}

void Follower::take_log(SyncClient& leader) {
  std::vector<uint64_t> applied;
  needs_copy_ = false;
  in_turn([&](Keyspace&) { applied = state_.positions; });
  std::vector<uint64_t> acknowledged;
  uint64_t acknowledged_ms = 0;
  bool acknowledges = false;  // the leader answers that first
  bool is_asked = false;
  uint64_t asked_ms = 0;
  // What is durable here the leader need not keep.
  const auto ask = [&] {
    asked_ms = steady_ms();
    acknowledges =
        (is_asked || asked_ms - acknowledged_ms >= kAcknowledgeMs) && acknowledged != applied;
    if (acknowledges) {
      acknowledged_ms = asked_ms;
      acknowledged = applied;
      leader.send({"PERDURE.SYNC", "ACK", bytes_of(applied)});
    }
    leader.send({"PERDURE.SYNC", "MORE", kChunkBytes});
  };
  ask();
  for (;;) {
    if (acknowledges) leader.read_text();
    std::string bytes;
    try {
      bytes = leader.read_chunk(server_.config().follow_chunk_max);
    } catch (const LeaderError& error) {
      needs_copy_ = error.has_code("COPYANEW");  // FOLLOW may not find that
      throw;
    }
    std::string_view chunk = bytes;
    const SyncHeader header = header_of(chunk);
    if (header.is_copy != 0) throw Error(ErrorCode::kCorrupt, "a copy begins again");
    const uint64_t this_asked_ms = asked_ms;
    const bool idle = chunk.empty();
    is_asked = header.asks != 0;
    if (!idle) ask();  // the next one is on its way meanwhile
    do {
      in_turn([&](Keyspace&) {
        note_answer(header);
        writer_.apply_some(chunk, state_);
        applied = state_.positions;
        // What the leader had when it was asked is here.
        if (chunk.empty() && header.caught_up != 0) abreast_ms_ = this_asked_ms;
      });
    } while (!chunk.empty());
    if (!idle) continue;
    if (!wait(kPauseMs)) throw Ended();
    ask();
  }
}

void Follower::note_answer(const SyncHeader& header) {
  heard_ = header;
  heard_ms_ = steady_ms();
}

Follower::Standing Follower::standing() const {
  const uint64_t now_ms = steady_ms();
  const auto since = [&](uint64_t ms) { return ms == 0 ? ~uint64_t{0} : now_ms - ms; };
  return {.link = link_,
          .words = words_,
          .state = state_,
          .applied = writer_.applied(),
          .copies = copies_,
          .reconnects = reconnects_,
          .records_behind = heard_ms_ == 0 ? ~uint64_t{0} : heard_.records_left,
          .bytes_behind = heard_ms_ == 0 ? ~uint64_t{0} : heard_.bytes_left,
          .ms_behind = since(abreast_ms_),
          .ms_since_answer = since(heard_ms_),
          .keeps_old = keeps_old_ && link_ == Link::kCopying};
}

}  // namespace perdure::server
