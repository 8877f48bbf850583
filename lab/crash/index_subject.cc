#include "lab/crash/index_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "index/owned_blocks.h"
#include "index/presets.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/seam/runtime.h"
#include "lab/seam/schedule.h"
#include "perdure/error.h"
#include "pm/pool_impl.h"

namespace perdure::lab::crash {
namespace {

constexpr char kName[] = "index";
constexpr char kOtherName[] = "other";
constexpr char kBallastName[] = "ballast";
// Keys and values that only the use after a recovery has.
constexpr uint32_t kFurtherKeys = 4;
constexpr uint32_t kFurtherValues = 16;
// What an image without the structure looks like, and what any image with one has besides records.
constexpr uint64_t kAbsentDigest = 0xab5e27;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Of each hundred operations the inserts, updates, upserts, removals and lookups: growing, changing
// and shrinking by turns, so that a window of any length has all of it.
constexpr unsigned kShares[3][5] = {{60, 5, 20, 10, 5}, {15, 30, 30, 15, 10}, {10, 10, 10, 65, 5}};

// Lengths from nothing to a few KiB, short ones mostly.
std::string make_string(uint32_t number, uint64_t salt) {
  const uint64_t drawn = mix(number ^ salt);
  uint64_t bytes = 4 + drawn % 24;
  if (drawn % 16 == 1) bytes = 40 + (drawn >> 8) % 200;
  if (salt != 0 && drawn % 32 == 2) bytes = 300 + (drawn >> 8) % 1500;
  std::string text(bytes, '\0');
  // One key in three has its number at the end, behind what all of these begin with.
  const bool at_end = salt == 0 && number % 3 == 1;
  const uint64_t at = at_end ? bytes - 4 : 0;
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t filler = at_end ? 'p' : mix(drawn + i / 8) >> (8 * (i % 8));
    text[i] = static_cast<char>(i - at < 4 ? number >> (8 * (i - at)) : filler);
  }
  return number == 0 ? std::string() : text;
}

[[noreturn]] void report_damage(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

bool has_structure(const Pool& pool, std::string_view name) {
  const auto structures = pool.structures();
  return std::any_of(structures.begin(), structures.end(),
                     [&](const StructureInfo& structure) { return structure.name == name; });
}
bool has_index(const Pool& pool) { return has_structure(pool, kName); }

uint64_t digest_of(const std::map<uint32_t, uint32_t>& contents) {
  uint64_t digest = 0;
  for (const auto& [key, value] : contents) digest ^= record_digest(key, value);
  return digest;
}

// Writes old data to free space, as space has that was used before: nothing may rely on finding
// zeros there. Told like any store, so that the recording has it.
void scribble(unsigned char* begin, uint64_t bytes) {
  std::vector<unsigned char> pattern(bytes);
  for (uint64_t at = 0; at < bytes; ++at) pattern[at] = static_cast<unsigned char>(mix(at / 8) | 1);
  std::memcpy(begin, pattern.data(), bytes);  // a call, which the runtime sees
  perdure_lab_flush(begin, bytes, 0);
  perdure_lab_fence();
}

}  // namespace

class IndexSubject::Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed + 0x9e3779b97f4a7c15U)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }
  uint32_t below(uint64_t bound) { return static_cast<uint32_t>(next() % bound); }

 private:
  uint64_t state_;
};

Dictionary::Dictionary(Kind kind, uint32_t count, uint64_t salt) : kind_(kind) {
  for (uint32_t number = 0; number < count; ++number) {
    if (kind == Kind::kU64) {
      // The two words that a careless structure takes for its own are among them.
      words_.push_back(number == 0 ? 0 : number == 1 ? ~uint64_t{0} : mix(number ^ (salt << 32)));
      by_word_[words_.back()] = number;
    } else {
      strings_.push_back(make_string(number, salt));
      by_string_[strings_.back()] = number;
    }
  }
}

Datum Dictionary::operator[](uint32_t number) const {
  return kind_ == Kind::kU64 ? Datum(words_.at(number)) : Datum(strings_.at(number));
}

uint32_t Dictionary::number_of(const Datum& datum) const {
  if (kind_ == Kind::kU64) {
    const auto found = by_word_.find(datum.word());
    return found == by_word_.end() ? kUnknown : found->second;
  }
  const auto found = by_string_.find(std::string(datum.bytes()));
  return found == by_string_.end() ? kUnknown : found->second;
}

IndexSubject::IndexSubject(const IndexWorkload& workload)
    : workload_(workload),
      keys_(workload.key_kind, workload.keys + kFurtherKeys, 0),
      values_(workload.value_kind,
              workload.prepared + workload.operations +
                  kCrashesMax * (workload.further + kFurtherValues),
              7) {
  if (workload.batch > 0 && workload.batch <= kInFlightMax / workload.threads) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("batches of {} with {} threads: at most {} operations may be in flight",
                          workload.batch, workload.threads, kInFlightMax));
}

PoolOptions IndexSubject::pool_options() const {
  PoolOptions options;
  options.capacity_bytes = workload_.capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = workload_.domain;
  return options;
}

// One thread recovers: threads are for runs whose schedule is the explorer's.
OptionMap IndexSubject::opening_options() const {
  for (const OptionInfo& option : catalog_entry(workload_.structure).options) {
    if (option.name == "recovery_threads") return {{option.name, "1"}};
  }
  return {};
}

std::string IndexSubject::text_of(const Step& step) const {
  if (step.verb == Verb::kCheckpoint) return "checkpoint()";
  if (step.verb == Verb::kRemove || step.verb == Verb::kLookup) {
    return fmt::format("{}({})", to_string(step.verb), step.key);
  }
  return fmt::format("{}({}, {})", to_string(step.verb), step.key, step.value);
}

Step IndexSubject::make_step(Random& random, const Shares& shares, uint32_t value) const {
  unsigned drawn = random.below(100);
  size_t verb = 0;
  while (drawn >= shares[verb]) drawn -= shares[verb++];
  Step step{static_cast<Verb>(verb), random.below(workload_.keys), value};
  const bool writes = step.verb == Verb::kInsert || step.verb == Verb::kUpsert;
  if (workload_.bulk && writes && random.below(3) != 0) step.verb = Verb::kBulk;
  if (workload_.bulk && value % 48 == 47) step.verb = Verb::kCheckpoint;
  return step;
}

std::vector<Step> IndexSubject::make_steps() const {
  Random random(workload_.seed);
  std::vector<Step> steps;
  const uint32_t count = workload_.prepared + workload_.operations;
  for (uint32_t i = 0; i < count; ++i) {
    steps.push_back(make_step(random, kShares[i < workload_.prepared ? 0 : (i / 24) % 3], i));
  }
  return steps;
}

namespace {

// Half of what changes a key that is there reads it first, and changes it if it still has that
// value: to the outside the same.
bool by_comparison(const Step& step) { return step.value % 2 == 1; }

bool modify(AnyIndex& index, Datum key, Change wanted, Datum value) {
  const auto change = [&](const Value* before, Value& after) {
    if (before == nullptr) return Change::kKeep;
    if (value.kind() == Kind::kU64) {
      after.set(value.word());
    } else {
      after.set_bytes() = value.bytes();
    }
    return wanted;
  };
  return index.modify(key, change) != Change::kKeep;
}

}  // namespace

Answer IndexSubject::perform(AnyIndex& index, const Step& step) const {
  Answer answer;
  const Datum key = keys_[step.key];
  try {
    switch (step.verb) {
      case Verb::kInsert:
        answer.yes = index.insert(key, values_[step.value]);
        break;
      case Verb::kUpdate:
        answer.yes = by_comparison(step) ? modify(index, key, Change::kWrite, values_[step.value])
                                         : index.update(key, values_[step.value]);
        break;
      case Verb::kUpsert:
        index.upsert(key, values_[step.value]);
        break;
      case Verb::kRemove:
        answer.yes = by_comparison(step) ? modify(index, key, Change::kRemove, values_[step.value])
                                         : index.remove(key);
        break;
      case Verb::kLookup: {
        Value value;
        answer.yes = index.lookup(key, value);
        answer.value = answer.yes ? values_.number_of(value.datum()) : 0;
        break;
      }
      case Verb::kBulk:
        index.bulk_upsert(key, values_[step.value]);
        break;
      case Verb::kCheckpoint:
        index.checkpoint(1);
        break;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPoolFull && error.code() != ErrorCode::kNoSpace) throw;
    answer.full = true;
  }
  return answer;
}

std::vector<Answer> IndexSubject::perform_batch(AnyIndex& index,
                                                std::span<const Step> steps) const {
  std::vector<AnyRecord> records;
  std::vector<Datum> keys;
  for (const Step& step : steps) {
    keys.push_back(keys_[step.key]);
    records.push_back({keys.back(), values_[step.value]});
  }
  std::vector<Value> found(steps.size());
  const auto flags = std::make_unique<bool[]>(steps.size());
  const std::span done(flags.get(), steps.size());
  std::vector<Answer> answers(steps.size());
  bool full = false;
  try {
    if (steps.front().verb == Verb::kUpsert) {
      index.multi_upsert(records);
      return answers;
    }
    if (steps.front().verb == Verb::kInsert) {
      index.multi_insert(records, done);
    } else {
      index.multi_lookup(keys, found, done);
    }
  } catch (const Error& error) {
    // Of upserts nobody says which were done.
    if (error.code() != ErrorCode::kPoolFull || steps.front().verb == Verb::kUpsert) throw;
    full = true;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    answers[i].yes = done[i];
    answers[i].full = full && !done[i];
    if (steps[i].verb == Verb::kLookup && done[i]) {
      answers[i].value = values_.number_of(found[i].datum());
    }
  }
  return answers;
}

// Records a pool and an index, operation by operation.
class IndexSubject::Recording {
 public:
  Recording(const IndexSubject& subject, Run& run) : subject_(subject), run_(run) {
    install(&recorder_);
  }
  ~Recording() { install(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  uint32_t position() const { return recorder_.position(); }
  // After the next event, or after the last one.
  void expect(std::vector<uint64_t> digests) { expect_at(position(), std::move(digests)); }
  void expect_after_last(std::vector<uint64_t> digests) {
    expect_at(position() - 1, std::move(digests));
  }
  void skip_from(uint32_t begin) { run_.skipped.emplace_back(begin, position()); }

  void step(AnyIndex& index, const Step& step) {
    const uint16_t thread = begin_text(subject_.text_of(step));
    oracle_.begin(thread, step);
    expect(oracle_.digests());
    log_.push_back({position(), ~0U, thread, step, {}, Oracle::kNone, {}});
    const size_t logged = log_.size() - 1;
    begin_operation(type_of(step.verb), 0);
    const Answer answer = subject_.perform(index, step);
    end_operation();
    if (answer.yes && !answer.full && step.verb != Verb::kLookup) in_making_ = false;
    oracle_.end(thread, answer);
    expect_after_last(oracle_.digests());
    if (run_.problem.empty()) run_.problem = oracle_.contradiction();
    log_[logged].end = position() - 1;
    log_[logged].answer = answer;
  }

  // Steps of one verb in one call. For the oracle they are operations of as many threads, of which
  // those on one key come one after the other.
  void batch(AnyIndex& index, std::span<const Step> steps) {
    std::string text;
    for (const Step& step : steps) text += (text.empty() ? "" : ", ") + subject_.text_of(step);
    const uint16_t thread = begin_text(std::move(text));
    const auto lane = [thread](size_t i) { return static_cast<uint32_t>(thread + i * 0x10000); };
    const size_t logged = log_.size();
    std::map<uint32_t, uint32_t> last;  // lane of a key
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto [before, first] = last.try_emplace(steps[i].key, lane(i));
      const uint32_t after = first ? Oracle::kNone : std::exchange(before->second, lane(i));
      oracle_.begin(lane(i), steps[i], after);
      log_.push_back({position(), ~0U, lane(i), steps[i], {}, after, {}});
    }
    expect(oracle_.digests());
    begin_operation(type_of(steps.front().verb), 0);
    const std::vector<Answer> answers = subject_.perform_batch(index, steps);
    end_operation();
    for (size_t i = 0; i < steps.size(); ++i) {
      oracle_.end(lane(i), answers[i]);
      log_[logged + i].end = position() - 1;
      log_[logged + i].answer = answers[i];
    }
    expect_after_last(oracle_.digests());
    if (run_.problem.empty()) run_.problem = oracle_.contradiction();
  }

  // Something that is not an operation on a key, and leaves what is there (or one of `digests`).
  template <typename Action>
  void other(const char* name, std::vector<uint64_t> during, std::vector<uint64_t> after,
             const Action& action) {
    expect(std::move(during));
    begin_text(name);
    begin_operation(operation_type(name), 0);
    action();
    end_operation();
    expect_after_last(std::move(after));
  }

  // A record that was there when the recording began.
  void found(const Step& step) {
    oracle_.begin(current_thread(), step);
    oracle_.end(current_thread(), {});
    log_.push_back({0, 0, current_thread(), step, {}, Oracle::kNone, {}});
  }
  // A key of which a crash may bring any of `values`, of one that was in flight when its process
  // died.
  void found_unsettled(uint32_t key, const Oracle::Held& held,
                       const std::set<Oracle::Held>& values) {
    oracle_.found_unsettled(key, held, values);
    const Verb verb = held ? Verb::kUpsert : Verb::kRemove;
    log_.push_back({0, 0, 0, {verb, key, held.value_or(0)}, {}, Oracle::kNone, values});
  }
  // The structure itself was being made when its process died: until something is written to it
  // there may be none.
  void found_in_making() { in_making_ = true; }
  bool is_in_making() const { return in_making_; }

  Oracle& oracle() { return oracle_; }

  void finish() {
    install(nullptr);
    run_.trace = recorder_.finish();
    run_.explain = [log = log_, subject = &subject_](uint32_t event, const std::string& contents) {
      return subject->explain(log, event, contents);
    };
    run_.unsettled = [log = log_](uint32_t event) { return oracle_at(log, event).unsettled(); };
  }

 private:
  friend class IndexSubject;

  static uint64_t type_of(Verb verb) {
    static const uint64_t types[] = {operation_type("insert"),    operation_type("update"),
                                     operation_type("upsert"),    operation_type("remove"),
                                     operation_type("lookup"),    operation_type("bulk"),
                                     operation_type("checkpoint")};
    return types[static_cast<size_t>(verb)];
  }

  void expect_at(uint32_t event, std::vector<uint64_t> digests) {
    if (in_making_) digests.push_back(kAbsentDigest);
    run_.expectations.push_back({event, std::move(digests)});
  }

  // Notes the calling thread's next operation.
  uint16_t begin_text(std::string text) {
    const uint16_t thread = current_thread();
    if (run_.operations.size() <= thread) run_.operations.resize(thread + 1U, {""});
    run_.operations[thread].push_back(std::move(text));
    return thread;
  }

  const IndexSubject& subject_;
  Run& run_;
  Recorder recorder_;
  Oracle oracle_;
  std::vector<LoggedStep> log_;
  bool in_making_ = false;
};

// The oracle as it was before an event.
Oracle IndexSubject::oracle_at(const std::vector<LoggedStep>& log, uint32_t event) {
  Oracle oracle;
  // Beginnings and ends as they came: by their events, which those of a batch share.
  std::multimap<uint32_t, std::pair<const LoggedStep*, bool>> moments;
  for (const LoggedStep& logged : log) {
    moments.emplace(logged.begin, std::pair(&logged, true));
    moments.emplace(logged.end, std::pair(&logged, false));
  }
  for (const auto& [at, moment] : moments) {
    const auto& [logged, begins] = moment;
    if (at >= event) break;
    if (!logged->others.empty()) {
      const Step& step = logged->step;
      const auto held = step.verb == Verb::kRemove ? Oracle::Held() : Oracle::Held(step.value);
      if (begins) oracle.found_unsettled(step.key, held, logged->others);
    } else if (begins) {
      oracle.begin(logged->lane, logged->step, logged->after);
    } else {
      oracle.end(logged->lane, logged->answer);
    }
  }
  return oracle;
}

std::string IndexSubject::explain(const std::vector<LoggedStep>& log, uint32_t event,
                                  const std::string& contents) const {
  Contents parsed;
  const char* at = contents.c_str();
  if (contents == "absent") return "the structure is not there";
  while (*at != 0) {
    char* end = nullptr;
    const auto key = static_cast<uint32_t>(std::strtoul(at, &end, 10));
    const auto value = static_cast<uint32_t>(std::strtoul(end + 1, &end, 10));
    parsed[key] = value;
    at = *end == 0 ? end : end + 1;
  }
  return oracle_at(log, event).difference(parsed, 6);
}

Run IndexSubject::record(const std::vector<uint32_t>& only) {
  const ScratchFolder folder;
  const std::vector<Step> steps = make_steps();
  Run run;
  Recording recording(*this, run);
  const uint64_t empty = 0;
  const index::EntryWithPresets& entry = index::presets_of(workload_.structure);
  const OptionMap& smallest = entry.tiny_options.empty() ? entry.small_options : entry.tiny_options;
  const OptionMap& options = workload_.options.empty() ? smallest : workload_.options;
  Pool pool = Pool::create(folder.file("pool"), pool_options());
  soil(pool, options);
  recording.expect({kAbsentDigest});
  recording.skip_from(0);
  std::unique_ptr<AnyIndex> index;
  const auto create = [&] {
    index = create_index(pool, kName, workload_.structure, workload_.key_kind, workload_.value_kind,
                         options);
  };
  const uint32_t created_at = recording.position();
  recording.other("create", {kAbsentDigest, empty}, {empty}, create);
  if (!workload_.life_cycle) recording.skip_from(created_at);
  const uint32_t prepared_at = recording.position();
  fill(pool);
  for (uint32_t i = 0; i < workload_.prepared; ++i) recording.step(*index, steps[i]);
  recording.skip_from(prepared_at);
  const std::vector<Step> explored(steps.begin() + workload_.prepared, steps.end());
  if (workload_.reopen_each != 0) {
    run_reopening(recording, pool, index, explored, only);
  } else {
    run_threads(recording, *index, explored, only);
  }
  run.explain_decides = workload_.bulk || workload_.batch > 1;
  const auto now = recording.oracle().digests();
  const uint32_t closed_at = recording.position();
  recording.other("close", now, now, [&] {  // which may make more of it durable: explain() decides
    index.reset();
    pool.close();
  });
  if (!workload_.life_cycle) recording.skip_from(closed_at);
  recording.finish();
  return run;
}

// Leaves so little room that what is written next meets a full pool.
void IndexSubject::fill(Pool& pool) const {
  if (workload_.room_bytes == 0) return;
  const OptionMap smallest = {{"initial_depth", "1"}, {"segment_buckets", "16"}};
  const auto ballast = create_index(pool, kBallastName, "cceh", Kind::kU64, Kind::kBytes, smallest);
  uint64_t key = 0;
  for (uint64_t bytes = pm::kSegmentBytes; bytes >= pm::kSegmentBytes / 64; bytes /= 2) {
    const std::string value(bytes - pm::kSegmentBytes / 256, 'b');
    try {
      for (;; ++key) ballast->insert(key, value);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPoolFull && error.code() != ErrorCode::kNoSpace) throw;
    }
  }
  // The first ones fill a segment each.
  for (uint64_t left = 0; left < workload_.room_bytes; left += pm::kSegmentBytes) {
    ballast->remove(left / pm::kSegmentBytes);
  }
}

// Makes the pool one that has been in use: another structure is in it, and the free space around it
// holds old data.
void IndexSubject::soil(Pool& pool, const OptionMap& options) {
  auto other = create_index(pool, kOtherName, workload_.structure, workload_.key_kind,
                            workload_.value_kind, options);
  std::map<uint64_t, uint64_t> blocks;
  index::visit_blocks_of(*other, [&](uint64_t offset, uint64_t bytes) { blocks[offset] = bytes; });
  const pm::PoolImpl& impl = pm::impl_of(pool);
  blocks[impl.end_offset()] = 0;
  uint64_t at = impl.header().data_offset;
  for (const auto& [offset, bytes] : blocks) {
    if (offset > at) scribble(impl.at<unsigned char>(at), offset - at);
    at = offset + bytes;
  }
  other.reset();  // which may leave more in the pool than an open one has
  other_bytes_ = pool.info().allocated_bytes;
}

// The operations in question: dealt out to the threads, if there are several, and run in an order
// that the seed decides.
void IndexSubject::run_threads(Recording& recording, AnyIndex& index,
                               const std::vector<Step>& steps,
                               const std::vector<uint32_t>& only) const {
  const auto run_those_of = [&](uint32_t thread) {
    std::vector<Step> together;
    for (uint32_t i = thread; i < steps.size(); i += workload_.threads) {
      if (!only.empty() && !std::binary_search(only.begin(), only.end(), i)) continue;
      together.push_back(steps[i]);
      if (together.size() == workload_.batch)
        run_steps(recording, index, std::exchange(together, {}));
    }
    if (!together.empty()) run_steps(recording, index, together);
  };
  if (workload_.threads == 1) return run_those_of(0);
  std::vector<std::function<void()>> threads;
  for (uint32_t thread = 0; thread < workload_.threads; ++thread) {
    threads.emplace_back([&run_those_of, thread] { run_those_of(thread); });
  }
  Schedule(workload_.schedule).run(threads);
}

// One thread, which closes the structure and opens it again every now and then, in a pool that
// stays open.
void IndexSubject::run_reopening(Recording& recording, Pool& pool, std::unique_ptr<AnyIndex>& index,
                                 const std::vector<Step>& steps,
                                 const std::vector<uint32_t>& only) const {
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (i % workload_.reopen_each == 0) {
      const auto now = recording.oracle().digests();
      recording.other("reopen", now, now, [&] {
        index.reset();
        index = open_index(pool, kName, opening_options());
      });
    }
    if (only.empty() || std::binary_search(only.begin(), only.end(), i)) {
      run_steps(recording, *index, {steps[i]});
    }
  }
}

// In one batch, all with the first one's verb, if there are batched calls of that verb.
void IndexSubject::run_steps(Recording& recording, AnyIndex& index, std::vector<Step> steps) const {
  const Verb verb = steps.front().verb;
  if (workload_.batch == 1 || verb == Verb::kUpdate || verb == Verb::kRemove) {
    for (const Step& step : steps) {
      Schedule::make_way();
      recording.step(index, step);
    }
    return;
  }
  for (Step& step : steps) step.verb = verb;
  Schedule::make_way();
  recording.batch(index, steps);
}

IndexSubject::Contents IndexSubject::inspect(const Pool& pool, AnyIndex& index) const {
  std::string violations;
  const auto report = [&](const std::string& sentence) {
    if (violations.size() < 400) violations += (violations.empty() ? "" : "; ") + sentence;
  };
  pool.check(report);
  index.check(report);
  if (!violations.empty()) report_damage(violations);
  Contents contents;
  index.for_each([&](const Datum& key, const Datum& value) {
    const uint32_t number = keys_.number_of(key);
    const uint32_t held = values_.number_of(value);
    if (number == Dictionary::kUnknown) report_damage("a record has a key that nobody wrote");
    if (held == Dictionary::kUnknown) report_damage(fmt::format("key {} has a torn value", number));
    if (!contents.emplace(number, held).second) {
      report_damage(fmt::format("key {} is there twice", number));
    }
  });
  check_lookups(index, contents);
  check_scan(index, contents);
  return contents;
}

void IndexSubject::check_lookups(AnyIndex& index, const Contents& contents) const {
  Value value;
  for (uint32_t number = 0; number < workload_.keys + kFurtherKeys; ++number) {
    const auto expected = contents.find(number);
    const bool present = index.lookup(keys_[number], value);
    if (present != (expected != contents.end())) {
      report_damage(fmt::format("a lookup {} key {}, which iteration {}",
                                present ? "finds" : "misses", number,
                                present ? "misses" : "finds"));
    }
    if (present && values_.number_of(value.datum()) != expected->second) {
      report_damage(fmt::format("a lookup of key {} gives another value than iteration", number));
    }
  }
}

void IndexSubject::check_scan(const AnyIndex& index, const Contents& contents) const {
  if (!catalog_entry(workload_.structure).traits.ordered) return;
  const auto least = workload_.key_kind == Kind::kU64 ? Datum(uint64_t{0}) : Datum("");
  Contents scanned;
  std::vector<uint32_t> order;
  Value last;
  index.scan(least, ~uint64_t{0}, [&](const Datum& key, const Datum& value) {
    const bool ascends = order.empty() || (key.kind() == Kind::kU64 ? key.word() > last.word()
                                                                    : key.bytes() > last.bytes());
    if (!ascends) report_damage("a scan does not ascend");
    if (key.kind() == Kind::kU64) {
      last.set(key.word());
    } else {
      last.set_bytes().assign(key.bytes());
    }
    order.push_back(keys_.number_of(key));
    scanned[order.back()] = values_.number_of(value);
    return true;
  });
  if (scanned != contents) report_damage("a scan and an iteration give different records");
  // Backward the same records, in the opposite order.
  index.scan_back(std::nullopt, ~uint64_t{0}, [&](const Datum& key, const Datum& value) {
    const uint32_t number = keys_.number_of(key);
    if (order.empty() || order.back() != number ||
        contents.at(number) != values_.number_of(value)) {
      report_damage("a scan backward gives other records than a scan");
    }
    order.pop_back();
    return true;
  });
  if (!order.empty()) report_damage("a scan backward gives fewer records than a scan");
}

uint32_t IndexSubject::first_value_of_work(uint32_t crashes) const {
  return workload_.prepared + workload_.operations + crashes * (workload_.further + kFurtherValues);
}

std::vector<Step> IndexSubject::further_steps(const Contents& contents, uint32_t value) const {
  const uint32_t key = workload_.keys;
  std::vector<Step> steps = {{Verb::kInsert, key, value},
                             {Verb::kUpsert, key + 1, value + 1},
                             {Verb::kUpdate, key, value + 2},
                             {Verb::kRemove, key + 1, 0}};
  if (!contents.empty()) {
    const uint32_t first = contents.begin()->first;
    const uint32_t last = contents.rbegin()->first;
    steps.push_back({Verb::kUpdate, first, value + 3});
    steps.push_back({Verb::kRemove, last, 0});
    steps.push_back({Verb::kInsert, last, value + 4});
  }
  return steps;
}

// Work of every kind: a structure of a ring, a journal or a free list comes to use all of it again.
std::vector<Step> IndexSubject::work_steps(const Work& work) const {
  const uint32_t value = first_value_of_work(work.crashes) + kFurtherValues;
  Random random(work.seed);
  std::vector<Step> steps;
  for (uint32_t i = 0; i < std::min(work.operations, workload_.further); ++i) {
    steps.push_back(make_step(random, kShares[(i / 24) % 3], value + i));
    // What a dead process left in the caches is met where it was at work.
    if (work.unsettled.empty() || random.below(i < 8 ? 2 : 8) != 0) continue;
    steps.back().key =
        std::next(work.unsettled.begin(), random.below(work.unsettled.size()))->first;
  }
  return steps;
}

void IndexSubject::use(AnyIndex& index, Contents& contents) const {
  for (const Step& step : further_steps(contents, first_value_of_work(0))) {
    Oracle oracle;
    if (const auto held = contents.find(step.key); held != contents.end()) {
      oracle.begin(0, {Verb::kUpsert, step.key, held->second});
      oracle.end(0, {});
    }
    oracle.begin(0, step);
    const Answer answer = perform(index, step);
    oracle.end(0, answer);
    if (!oracle.contradiction().empty()) report_damage("after recovery: " + oracle.contradiction());
    const auto allowed = oracle.allowed();
    contents.erase(step.key);
    if (const auto held = allowed.find(step.key); held != allowed.end()) {
      if (const Oracle::Held value = *held->second.begin()) contents[step.key] = *value;
    }
  }
}

// What the pool's other structures have of the heap. They never change once they are there.
uint64_t IndexSubject::bytes_of_others(Pool& pool) {
  const auto bytes_of = [&](const char* name, const OptionMap& options) {
    const auto allocated = [&] { return pm::impl_of(pool).heap().usage().allocated_bytes; };
    uint64_t sum = 0;
    auto index = open_index(pool, name, options);
    index::visit_blocks_of(*index, [&](uint64_t, uint64_t bytes) { sum += bytes; });
    const uint64_t while_open = allocated();
    index.reset();
    return sum + allocated() - while_open;
  };
  if (other_bytes_ == 0) other_bytes_ = bytes_of(kOtherName, opening_options());
  if (!has_structure(pool, kBallastName)) return other_bytes_;
  if (ballast_bytes_ == 0) ballast_bytes_ = bytes_of(kBallastName, {});
  return other_bytes_ + ballast_bytes_;
}

// Every block of the heap is owned or free.
void IndexSubject::check_heap(const Pool& pool, AnyIndex* index, uint64_t others) const {
  uint64_t owned = others;
  if (index != nullptr)
    index::visit_blocks_of(*index, [&](uint64_t, uint64_t bytes) { owned += bytes; });
  const uint64_t allocated = pm::impl_of(pool).heap().usage().allocated_bytes;
  if (owned == allocated) return;
  report_damage(fmt::format("structures own {} bytes and {} are allocated: {}", owned, allocated,
                            owned < allocated ? "a leak" : "a block that is free is in use"));
}

Observation IndexSubject::observe(const std::string& path, bool with_contents) {
  Observation seen;
  const bool absent = [&] {
    Pool pool = Pool::open(path, pool_options());
    const uint64_t others = bytes_of_others(pool);
    if (!has_index(pool)) {
      pool.check([](const std::string& sentence) { report_damage(sentence); });
      check_heap(pool, nullptr, others);
      seen.digest = kAbsentDigest;
      if (with_contents) seen.contents = "absent";
      return true;
    }
    const auto index = open_index(pool, kName, opening_options());
    check_heap(pool, index.get(), others);
    Contents contents = inspect(pool, *index);
    seen.digest = digest_of(contents);
    if (with_contents) {
      for (const auto& [key, value] : contents) {
        seen.contents += fmt::format("{} {}\n", key, value);
      }
      return false;
    }
    use(*index, contents);
    if (inspect(pool, *index) != contents) report_damage("after recovery operations go astray");
    used_ = std::move(contents);
    return false;
  }();
  if (!absent && !with_contents) observe_again(path);
  return seen;
}

// What was closed in order has all that it had.
void IndexSubject::observe_again(const std::string& path) {
  Pool pool = Pool::open(path, pool_options());
  const auto index = open_index(pool, kName, opening_options());
  check_heap(pool, index.get(), bytes_of_others(pool));
  const Contents again = inspect(pool, *index);
  if (again == used_) return;
  const auto differs = [](const Contents& has, const Contents& lacks) {
    for (const auto& [key, value] : has) {
      const auto other = lacks.find(key);
      if (other == lacks.end() || other->second != value) return fmt::format("key {}", key);
    }
    return std::string("none");
  };
  report_damage(fmt::format(
      "closed after recovery and use, and opened again, it holds other records: {} of {} "
      "then, {} of {} now",
      differs(used_, again), used_.size(), differs(again, used_), again.size()));
}

Run IndexSubject::record_recovery(const std::string& path, const Work& work) {
  Run run;
  Recording recording(*this, run);
  Pool pool = Pool::open(path, pool_options());
  if (!has_index(pool)) return {};
  const auto index = open_index(pool, kName, opening_options());
  // Recorded as well: in a structure that marks what is not yet durable, who reads may write.
  const Contents contents = inspect(pool, *index);
  note_found(recording, contents, work.unsettled);
  if (std::ranges::find(work.digests, kAbsentDigest) != work.digests.end())
    recording.found_in_making();
  run.expectations.push_back({0, recording.oracle().digests()});
  // Where combinations are too many to be told, what was found may not be among those that are.
  run.expectations.front().digests.push_back(digest_of(contents));
  if (recording.is_in_making()) run.expectations.front().digests.push_back(kAbsentDigest);
  run.explain_decides = workload_.bulk || workload_.batch > 1;
  run.recovered_at = recording.position();
  for (const Step& step : further_steps(contents, first_value_of_work(work.crashes))) {
    recording.step(*index, step);
  }
  run_threads(recording, *index, work_steps(work), {});
  recording.finish();
  return run;
}

}  // namespace perdure::lab::crash
