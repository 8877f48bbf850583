#include "cli/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "cli/load_lane.h"
#include "cli/open_index.h"
#include "common/permutation.h"
#include "common/ticks.h"
#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

// How often progress is made durable, in lines and in bytes of the source, and shown, in lines. A
// load that resumes holds about ten times as much in memory at most: what workers may have queued.
constexpr uint64_t kDurableEveryLines = 4096;
constexpr uint64_t kDurableEveryBytes = uint64_t{16} << 20;
// Where records become durable by checkpoints, which cost more.
constexpr uint64_t kCheckpointEveryLines = uint64_t{1} << 20;
constexpr uint64_t kShowEveryLines = 1024;
constexpr size_t kBadExamples = 5;
constexpr char kBegun[] = "begun ";  // before an identity, which is a path or a dash

size_t hash_of(const Value& key) {
  return key.kind() == Kind::kU64 ? mix_word(key.word())
                                  : std::hash<std::string_view>{}(key.bytes());
}

class Loader {
 public:
  Loader(AnyIndex& index, LoadProgress& durable_progress, LineSource& source, TextFormat format,
         const LoadOptions& options, const ProgressSink& progress, const std::atomic<bool>& stop);

  LoadReport load();

 private:
  void skip_done_lines();
  void store_begun_lines();
  void read_all();
  bool parse(std::string_view line, LoadRecord& record);
  bool progress_is_due() const;
  void collect(LoadRecord record);
  void begin_lines();
  void note_bad(const std::string& what);
  void give(LoadLane& lane);
  void give_all();
  void show() const;
  uint64_t lines_done() const;
  void make_progress_durable();
  void finish();
  void rethrow_first_error() const;

  AnyIndex& index_;
  LoadProgress& durable_progress_;
  LineSource& source_;
  const TextFormat format_;
  const LoadOptions& options_;
  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  const std::string identity_;
  std::atomic<bool> failed_{false};
  std::vector<std::unique_ptr<LoadLane>> lanes_;
  LoadReport report_;
  uint64_t lines_taken_ = 0;    // from the start of the source, skipped ones included
  uint64_t durable_lines_ = 0;  // as last written to the pool
  uint64_t durable_bytes_ = 0;  // of the source, when it was
  uint64_t begun_lines_ = 0;    // as last written to the pool
  // Progress does not stop before this line: the lines up to here are stored in another order.
  uint64_t no_stop_before_ = 0;
};

Loader::Loader(AnyIndex& index, LoadProgress& durable_progress, LineSource& source,
               TextFormat format, const LoadOptions& options, const ProgressSink& progress,
               const std::atomic<bool>& stop)
    : index_(index),
      durable_progress_(durable_progress),
      source_(source),
      format_(format),
      options_(options),
      progress_(progress),
      stop_(stop),
      identity_(source.identity()) {}

LoadReport Loader::load() {
  const double start_s = steady_seconds();
  skip_done_lines();
  for (unsigned lane = 0; lane < std::max(options_.threads, 1U); ++lane) {
    lanes_.push_back(std::make_unique<LoadLane>(index_, options_, source_.name(), failed_));
  }
  try {
    store_begun_lines();
    read_all();
  } catch (const BadLine& error) {
    finish();
    rethrow_first_error();
    if (!durable_progress_.kept()) throw;
    throw BadLine(fmt::format("{} ({} records before it are stored; --skip-bad goes on)",
                              error.what(), format_count(report_.acknowledged)));
  }
  finish();
  rethrow_first_error();
  report_.interrupted = stop_;
  report_.seconds = steady_seconds() - start_s;
  return std::move(report_);
}

void Loader::skip_done_lines() {
  const uint64_t done = options_.resume ? durable_progress_.lines_done(identity_) : 0;
  std::string_view line;
  while (lines_taken_ < done && source_.next(line)) ++lines_taken_;
  report_.resumed_after = lines_taken_;
  report_.lines = lines_taken_;
  durable_lines_ = lines_taken_;
  durable_bytes_ = source_.position_bytes();
  if (options_.resume) {
    begun_lines_ = durable_progress_.lines_begun(identity_);
  } else {
    // A load from the start makes no promise about the lines behind it, whatever one before it did.
    durable_progress_.restart(identity_);
  }
}

// Of the lines that an earlier load may have acknowledged, the last of each key; none of them if
// they cannot all be read.
void Loader::store_begun_lines() {
  if (begun_lines_ <= lines_taken_) return;
  no_stop_before_ = ~uint64_t{0};
  std::vector<LoadRecord> records;
  std::unordered_map<std::string, size_t> last_of_key;
  std::string_view line;
  while (lines_taken_ < begun_lines_ && source_.next(line)) {
    LoadRecord record;
    if (!parse(line, record)) continue;
    const Value& key = record.key;
    const std::string name =
        key.kind() == Kind::kU64 ? std::to_string(key.word()) : std::string(key.bytes());
    const auto [last, is_first] = last_of_key.try_emplace(name, records.size());
    if (!is_first) {
      LoadRecord& earlier = records[last->second];
      record.superseded = std::exchange(earlier.superseded, {});
      record.superseded.push_back(std::exchange(earlier, {}));
      last->second = records.size();
    }
    records.push_back(std::move(record));
  }
  if (stop_) return;
  for (LoadRecord& record : records) {
    if (record.line != 0) collect(std::move(record));
  }
  no_stop_before_ = lines_taken_;
}

void Loader::read_all() {
  std::string_view line;
  while (!stop_ && !failed_) {
    // Nothing waits here for more to come when the source makes us wait.
    if (!source_.has_buffered_line()) give_all();
    if (!source_.next(line)) break;
    LoadRecord record;
    if (parse(line, record)) collect(std::move(record));
    if (lines_taken_ % kShowEveryLines == 0) show();
    if (progress_is_due()) {
      // Or else a lane that few keys go to would hold progress back without end.
      if (!options_.bulk) give_all();
      make_progress_durable();
    }
  }
  give_all();
}

bool Loader::progress_is_due() const {
  if (options_.bulk) return lines_taken_ % kCheckpointEveryLines == 0;
  return lines_taken_ % kDurableEveryLines == 0 ||
         source_.position_bytes() - durable_bytes_ >= kDurableEveryBytes;
}

// Takes a line. Whether it is a record; else it is blank, or a bad line, which has been counted.
bool Loader::parse(std::string_view line, LoadRecord& record) {
  record.line = source_.line_number();
  report_.lines = ++lines_taken_;
  if (is_blank(line, format_) || (options_.header && record.line == 1)) return false;
  try {
    parse_record(line, format_, index_.key_kind(), index_.value_kind(), record.key, record.value);
    return true;
  } catch (const Error& error) {
    note_bad(error.what());
    return false;
  }
}

void Loader::collect(LoadRecord record) {
  LoadLane& lane = *lanes_[hash_of(record.key) % lanes_.size()];
  lane.collect(std::move(record));
  if (lane.full()) give(lane);
}

void Loader::note_bad(const std::string& what) {
  const std::string sentence = fmt::format("{}: {}", source_.place(source_.line_number()), what);
  if (!options_.skip_bad) {
    --lines_taken_;
    give_all();
    throw BadLine(sentence);
  }
  ++report_.bad;
  if (report_.bad_examples.size() < kBadExamples) report_.bad_examples.push_back(sentence);
}

// Before a worker gets a line behind those begun so far. Of a file some more at once; what comes
// through a pipe may be all that there is for now, and a load that resumes waits for all of it.
void Loader::begin_lines() {
  uint64_t ahead = 0;
  if (source_.is_file()) {
    const uint64_t line_bytes = source_.position_bytes() / source_.line_number() + 1;
    ahead = std::clamp<uint64_t>(kDurableEveryBytes / line_bytes, 1, kDurableEveryLines);
  }
  durable_progress_.set_lines_begun(identity_, lines_taken_ + ahead);
  begun_lines_ = lines_taken_ + ahead;
}

void Loader::give(LoadLane& lane) {
  if (!options_.bulk && lines_taken_ > begun_lines_) begin_lines();
  while (!lane.flush()) show();
}

void Loader::give_all() {
  for (auto& lane : lanes_) give(*lane);
}

void Loader::show() const {
  if (!progress_) return;
  Progress progress;
  progress.phase = "load";
  progress.items = report_.resumed_after;
  for (const auto& lane : lanes_) progress.items += lane->acknowledged();
  if (source_.is_file() && source_.size_bytes() > 0) {
    progress.fraction =
        static_cast<double>(source_.position_bytes()) / static_cast<double>(source_.size_bytes());
  }
  progress_(progress);
}

uint64_t Loader::lines_done() const {
  uint64_t done = lines_taken_;
  for (const auto& lane : lanes_) {
    done = std::min(done, std::max(lane->lines_done(lines_taken_), report_.resumed_after));
  }
  return done < no_stop_before_ ? report_.resumed_after : done;
}

void Loader::make_progress_durable() {
  durable_bytes_ = source_.position_bytes();
  const uint64_t done = lines_done();
  if (done == durable_lines_) return;
  if (options_.bulk) index_.checkpoint(options_.threads);  // the records, before what reports them
  durable_progress_.set_lines_done(identity_, done);
  durable_lines_ = done;
}

void Loader::finish() {
  for (auto& lane : lanes_) lane->finish();
  for (const auto& lane : lanes_) {
    report_.acknowledged += lane->acknowledged();
    report_.bad += lane->bad().size();
    for (const std::string& sentence : lane->bad()) {
      if (report_.bad_examples.size() < kBadExamples) report_.bad_examples.push_back(sentence);
    }
  }
  try {
    make_progress_durable();
  } catch (const Error&) {
    // A pool that is full has no room for this either. What is durable of it is still true.
    if (!failed_) throw;
  }
}

void Loader::rethrow_first_error() const {
  const LoadLane* first = nullptr;
  for (const auto& lane : lanes_) {
    if (lane->error() == nullptr) continue;
    if (first == nullptr || lane->error_line() < first->error_line()) first = lane.get();
  }
  if (first == nullptr) return;
  try {
    std::rethrow_exception(first->error());
  } catch (const Error& error) {
    const std::string sentence =
        fmt::format("{}: {}", source_.place(first->error_line()), error.what());
    if (!durable_progress_.kept()) throw Error(error.code(), sentence);
    throw Error(error.code(),
                fmt::format("{} ({} records of this load are stored; --resume goes on from there)",
                            sentence, format_count(report_.acknowledged)));
  }
}

}  // namespace

LoadProgress::LoadProgress(Pool& pool, const std::string& name) {
  const std::string progress_name = name + ".progress";
  if (find_structure(pool, progress_name)) {
    index_ = open_index(pool, progress_name);
    return;
  }
  // A handful of records: the smallest table there is.
  const OptionMap smallest = {{"directory_bits", "6"}, {"partitions", "1"}, {"fanout", "2"}};
  index_ = create_index(pool, progress_name, "plush", Kind::kBytes, Kind::kU64, smallest);
}

uint64_t LoadProgress::count_of(const std::string& key) const {
  Value lines;
  return kept() && index_->lookup(key, lines) ? lines.word() : 0;
}

uint64_t LoadProgress::lines_done(const std::string& identity) const { return count_of(identity); }

void LoadProgress::set_lines_done(const std::string& identity, uint64_t lines) {
  if (kept()) index_->upsert(identity, lines);
}

uint64_t LoadProgress::lines_begun(const std::string& identity) const {
  return count_of(kBegun + identity);
}

void LoadProgress::set_lines_begun(const std::string& identity, uint64_t lines) {
  if (kept()) index_->upsert(kBegun + identity, lines);
}

void LoadProgress::restart(const std::string& identity) {
  // In this order: a crash between the two leaves a load that has only its leading lines to show.
  set_lines_begun(identity, 0);
  set_lines_done(identity, 0);
}

LoadReport load_records(AnyIndex& index, LoadProgress& durable_progress, LineSource& source,
                        TextFormat format, const LoadOptions& options, const ProgressSink& progress,
                        const std::atomic<bool>& stop) {
  return Loader(index, durable_progress, source, format, options, progress, stop).load();
}

}  // namespace perdure::cli
