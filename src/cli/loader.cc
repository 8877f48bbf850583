#include "cli/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "cli/load_lane.h"
#include "cli/store.h"
#include "lab/permutation.h"
#include "lab/ticks.h"
#include "lab/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

// How often progress is made durable and shown, in lines.
constexpr uint64_t kDurableEveryLines = 4096;
// Where records become durable by checkpoints, which cost more.
constexpr uint64_t kCheckpointEveryLines = uint64_t{1} << 20;
constexpr uint64_t kShowEveryLines = 1024;
constexpr size_t kBadExamples = 5;

size_t hash_of(const Value& key) {
  return key.kind() == Kind::kU64 ? lab::mix_word(key.word())
                                  : std::hash<std::string_view>{}(key.bytes());
}

class Loader {
 public:
  Loader(AnyIndex& index, LoadProgress& durable_progress, LineSource& source, TextFormat format,
         const LoadOptions& options, const lab::ProgressSink& progress,
         const std::atomic<bool>& stop);

  LoadReport load();

 private:
  void skip_done_lines();
  void read_all();
  void take_line(std::string_view line);
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
  const lab::ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  const std::string identity_;
  std::atomic<bool> failed_{false};
  std::vector<std::unique_ptr<LoadLane>> lanes_;
  LoadReport report_;
  uint64_t lines_taken_ = 0;    // from the start of the source, skipped ones included
  uint64_t durable_lines_ = 0;  // as last written to the pool
};

Loader::Loader(AnyIndex& index, LoadProgress& durable_progress, LineSource& source,
               TextFormat format, const LoadOptions& options, const lab::ProgressSink& progress,
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
  const double start_s = lab::steady_seconds();
  skip_done_lines();
  for (unsigned lane = 0; lane < std::max(options_.threads, 1U); ++lane) {
    lanes_.push_back(std::make_unique<LoadLane>(index_, options_, source_.name(), failed_));
  }
  try {
    read_all();
  } catch (const BadLine& error) {
    finish();
    rethrow_first_error();
    throw BadLine(fmt::format("{} ({} records before it are stored; --skip-bad goes on)",
                              error.what(), lab::format_count(report_.acknowledged)));
  }
  finish();
  rethrow_first_error();
  report_.interrupted = stop_;
  report_.seconds = lab::steady_seconds() - start_s;
  return std::move(report_);
}

void Loader::skip_done_lines() {
  const uint64_t done = options_.resume ? durable_progress_.lines_done(identity_) : 0;
  std::string_view line;
  while (lines_taken_ < done && source_.next(line)) ++lines_taken_;
  report_.resumed_after = lines_taken_;
  report_.lines = lines_taken_;
  durable_lines_ = lines_taken_;
  // A load from the start makes no promise about the lines behind it, whatever one before it did.
  if (!options_.resume) durable_progress_.set_lines_done(identity_, 0);
}

void Loader::read_all() {
  std::string_view line;
  while (!stop_ && !failed_) {
    // Nothing waits here for more to come when the source makes us wait.
    if (!source_.has_buffered_line()) give_all();
    if (!source_.next(line)) break;
    take_line(line);
    if (lines_taken_ % kShowEveryLines == 0) show();
    const uint64_t every = options_.bulk ? kCheckpointEveryLines : kDurableEveryLines;
    if (lines_taken_ % every == 0) make_progress_durable();
  }
  give_all();
}

void Loader::take_line(std::string_view line) {
  LoadRecord record;
  record.line = source_.line_number();
  report_.lines = ++lines_taken_;
  try {
    parse_record(line, format_, index_.key_kind(), index_.value_kind(), record.key, record.value);
  } catch (const Error& error) {
    note_bad(error.what());
    return;
  }
  LoadLane& lane = *lanes_[hash_of(record.key) % lanes_.size()];
  lane.collect(std::move(record));
  if (lane.full()) give(lane);
}

void Loader::note_bad(const std::string& what) {
  const std::string sentence =
      fmt::format("{}, line {}: {}", source_.name(), source_.line_number(), what);
  if (!options_.skip_bad) {
    --lines_taken_;
    give_all();
    throw BadLine(sentence);
  }
  ++report_.bad;
  if (report_.bad_examples.size() < kBadExamples) report_.bad_examples.push_back(sentence);
}

void Loader::give(LoadLane& lane) {
  while (!lane.flush()) show();
}

void Loader::give_all() {
  for (auto& lane : lanes_) give(*lane);
}

void Loader::show() const {
  if (!progress_) return;
  lab::Progress progress;
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
  return done;
}

void Loader::make_progress_durable() {
  const uint64_t done = lines_done();
  if (done == durable_lines_) return;
  if (options_.bulk) index_.checkpoint(options_.threads);  // the records, before what tells of them
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
    throw Error(error.code(),
                fmt::format("{}, line {}: {} ({} records of this load are stored; --resume goes on "
                            "from there)",
                            source_.name(), first->error_line(), error.what(),
                            lab::format_count(report_.acknowledged)));
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

uint64_t LoadProgress::lines_done(const std::string& identity) const {
  Value lines;
  return index_->lookup(identity, lines) ? lines.word() : 0;
}

void LoadProgress::set_lines_done(const std::string& identity, uint64_t lines) {
  index_->upsert(identity, lines);
}

LoadReport load_records(AnyIndex& index, LoadProgress& durable_progress, LineSource& source,
                        TextFormat format, const LoadOptions& options,
                        const lab::ProgressSink& progress, const std::atomic<bool>& stop) {
  return Loader(index, durable_progress, source, format, options, progress, stop).load();
}

}  // namespace perdure::cli
