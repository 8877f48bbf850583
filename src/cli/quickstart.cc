#include "cli/quickstart.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/describe.h"
#include "cli/interrupt.h"
#include "cli/loader.h"
#include "cli/open_index.h"
#include "cli/pool_check.h"
#include "cli/served.h"
#include "cli/subprocess.h"
#include "cli/terminal.h"
#include "cli/word_sources.h"
#include "common/ticks.h"
#include "common/units.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

constexpr char kWordNetFolder[] = "/usr/share/wordnet";
constexpr char kAptFolder[] = "/var/lib/apt/lists";
constexpr int kAcknowledgeFd = 3;
// A small pipe holds the loader back until we have read what it acknowledged, so that it cannot run
// far ahead of the moment at which it is killed.
constexpr int kPipeBytes = 4096;
constexpr uint64_t kLeastCapacityBytes = uint64_t{64} << 20;

class Quickstart {
 public:
  explicit Quickstart(const QuickstartOptions& options)
      : options_(options),
        pool_path_(options.folder + "/words.pool"),
        source_path_(options.folder + "/words.tsv") {
    target_.pool = pool_path_;
  }

  QuickstartReport run();

 private:
  void gather();
  void gather_words();
  void load_and_kill();
  void reopen();
  void check_acknowledged();
  void finish_load();
  void verify_all();
  void look_up_words();
  void close();
  void serve();
  void check();
  void clean_up();

  void step(const std::string& text) const {
    if (!options_.quiet) fmt::print("{} {}\n", palette_.accent("*"), text);
    std::fflush(stdout);
  }
  bool is_right(const std::string& key, const std::string& value);
  std::string capacity() const;

  const QuickstartOptions& options_;
  const std::string pool_path_;
  const std::string source_path_;
  Target target_;
  const InterruptFlag interrupt_;
  const Palette palette_{stdout};
  Records records_;
  std::vector<bool> acknowledged_;  // by line of the source, from 0
  std::unique_ptr<OpenIndex> opened_;
  Value found_;
  QuickstartReport report_;
};

QuickstartReport Quickstart::run() {
  try {
    gather();
    load_and_kill();
    reopen();
    check_acknowledged();
    finish_load();
    verify_all();
    look_up_words();
    close();
    serve();
    check();
  } catch (...) {
    opened_.reset();
    clean_up();
    throw;
  }
  clean_up();
  return std::move(report_);
}

void Quickstart::gather() {
  std::error_code failed;
  std::filesystem::create_directories(options_.folder, failed);
  if (failed) {
    throw Error(ErrorCode::kPermission,
                fmt::format("cannot make the folder {}: {}; choose another with --dir",
                            options_.folder, failed.message()));
  }
  std::filesystem::remove(pool_path_, failed);
  if (options_.source.empty()) {
    gather_words();
  } else {
    const SourceNote note = add_file(options_.source, records_);
    step(fmt::format("{}: {} records", options_.source, format_count(note.records)));
  }
  if (records_.empty()) {
    throw Error(ErrorCode::kNotFound,
                "there is nothing to load: install wordnet-base, or name a file with --source");
  }
  report_.records = records_.size();
  report_.source_bytes = write_tsv(records_, source_path_);
}

void Quickstart::gather_words() {
  const auto tell = [this](const char* name, const SourceNote& note) {
    step(note.note.empty() ? fmt::format("{}: {} records", name, format_count(note.records))
                           : fmt::format("{}: skipped, {}", name, note.note));
  };
  tell("WordNet, words to their glosses", add_wordnet(kWordNetFolder, records_));
  tell("Debian packages to their descriptions", add_debian_packages(kAptFolder, records_));
}

std::string Quickstart::capacity() const {
  return std::to_string(std::max(kLeastCapacityBytes, 8 * report_.source_bytes));
}

void Quickstart::load_and_kill() {
  acknowledged_.assign(records_.size(), false);
  const uint64_t half = (report_.records + 1) / 2;
  step(fmt::format("loading {} with {} in another process, to be killed half-way",
                   format_bytes(report_.source_bytes), format_counted(options_.threads, "thread")));
  Subprocess loader(
      {"/proc/self/exe", "load", "--threads", std::to_string(options_.threads), "--capacity",
       capacity(), "--acknowledge", std::to_string(kAcknowledgeFd), pool_path_, source_path_},
      kAcknowledgeFd, kPipeBytes);
  ProgressBar bar("acknowledged");
  uint64_t count = 0;
  const auto take = [this, &count, &bar](std::string_view line) {
    uint64_t number = 0;
    std::from_chars(line.data(), line.data() + line.size(), number);
    if (number < 1 || number > acknowledged_.size() || acknowledged_[number - 1]) {
      throw Error(ErrorCode::kIo, fmt::format("the loader acknowledged \"{}\"", line));
    }
    acknowledged_[number - 1] = true;
    ++count;
    if (bar.visible()) {
      const double fraction = static_cast<double>(count) / static_cast<double>(report_.records);
      bar.show({"load", count, fraction});
    }
  };
  loader.read_lines([&take, &count, half](std::string_view line) {
    take(line);
    return count < half;
  });
  loader.kill_now();
  // What was written to the pipe before the signal was acknowledged too.
  loader.read_lines([&take](std::string_view line) { return take(line), true; });
  bar.clear();
  const int ended = loader.wait();
  report_.killed = ended == -SIGKILL;
  report_.acknowledged_before_kill = count;
  if (ended > 0) {
    throw Error(ErrorCode::kIo, fmt::format("the loader failed with exit code {}", ended));
  }
  step(report_.killed ? fmt::format("killed it with SIGKILL after {} acknowledged records",
                                    format_count(count))
                      : fmt::format("it had acknowledged all {} records before SIGKILL came",
                                    format_count(count)));
}

void Quickstart::reopen() {
  const double start_s = steady_seconds();
  opened_ = OpenIndex::open_to_write(target_);
  report_.recovery_ms = (steady_seconds() - start_s) * 1e3;
  step(fmt::format("opened the pool again in {}", format_nanoseconds(report_.recovery_ms * 1e6)));
}

bool Quickstart::is_right(const std::string& key, const std::string& value) {
  return opened_->index().lookup(key, found_) && found_.bytes() == value;
}

void Quickstart::check_acknowledged() {
  size_t line = 0;
  for (const auto& [key, value] : records_) {
    const bool was_acknowledged = acknowledged_[line++];
    if (!opened_->index().lookup(key, found_)) {
      report_.lost += was_acknowledged ? 1 : 0;
      continue;
    }
    ++report_.present_after_kill;
    report_.wrong += found_.bytes() == value ? 0 : 1;
  }
  step(fmt::format(
      "checked them: {} lost, {} wrong",
      report_.lost == 0 ? palette_.good("0") : palette_.bad(std::to_string(report_.lost)),
      report_.wrong == 0 ? palette_.good("0") : palette_.bad(std::to_string(report_.wrong))));
}

void Quickstart::finish_load() {
  LoadProgress durable_progress(opened_->pool(), target_.name);
  LineSource source(source_path_, &interrupt_.raised());
  LoadOptions load;
  load.threads = options_.threads;
  load.resume = true;
  ProgressBar bar("records");
  const LoadReport loaded =
      load_records(opened_->index(), durable_progress, source, TextFormat::kTsv, load,
                   options_.quiet ? ProgressSink() : bar.sink(), interrupt_.raised());
  bar.clear();
  if (loaded.interrupted) throw Error(ErrorCode::kIo, "stopped while finishing the load");
  report_.loaded_after_kill = loaded.acknowledged;
  report_.load_seconds = loaded.seconds;
  step(fmt::format("finished the load: went on after line {}, {} records in {:.2f} s",
                   format_count(loaded.resumed_after), format_count(loaded.acknowledged),
                   loaded.seconds));
}

void Quickstart::verify_all() {
  for (const auto& [key, value] : records_) report_.verified += is_right(key, value) ? 1 : 0;
  uint64_t present = 0;
  opened_->index().for_each([&present](Datum, Datum) { ++present; });
  report_.excess = present > records_.size() ? present - records_.size() : 0;
  const bool all = report_.verified == report_.records && report_.excess == 0;
  const std::string count = format_count(report_.verified);
  step(fmt::format("compared every record with the source: {} of {} are right",
                   all ? palette_.good(count) : palette_.bad(count),
                   format_count(report_.records)));
}

void Quickstart::look_up_words() {
  std::vector<std::string> words;
  for (const char* word : {"persist", "memory", "durable", "deb:bash"}) {
    if (records_.count(word) > 0) words.emplace_back(word);
  }
  for (auto record = records_.begin(); words.empty() && record != records_.end();) {
    words.push_back(record->first);
    record = records_.end();
  }
  for (const std::string& word : words) {
    if (!opened_->index().lookup(word, found_)) continue;
    const std::string& text = found_.bytes();
    const std::string first_line = text.substr(0, text.find('\n'));
    report_.looked_up.emplace_back(word, text);
    step(fmt::format("{}  {}", palette_.bold(word), first_line));
  }
}

void Quickstart::close() {
  report_.pool = opened_->pool().info();
  report_.dram_bytes = statistic_value(opened_->index().statistics(), "dram_bytes");
  opened_->close();
  opened_.reset();
}

void Quickstart::serve() {
  constexpr uint64_t kWrites = 100;
  const ServedReport served = serve_and_ask(pool_path_, kWrites, report_.looked_up);
  report_.served_asked = served.asked;
  report_.served_right = served.right;
  report_.served_first_answer_ms = served.first_answer_ms;
  const bool all = served.right == served.asked;
  const std::string count = format_count(served.right);
  step(
      fmt::format("served it to a Redis and a memcached client, killed the server with SIGKILL, "
                  "served it again: {} of {} answers right, the first after {}",
                  all ? palette_.good(count) : palette_.bad(count), format_count(served.asked),
                  format_nanoseconds(served.first_answer_ms * 1e6)));
}

void Quickstart::check() {
  report_.problems = check_pool(pool_path_).problems;
  for (const std::string& problem : report_.problems) step(palette_.bad(problem));
}

void Quickstart::clean_up() {
  if (options_.keep) return;
  std::error_code ignored;  // a folder with other files in it stays
  std::filesystem::remove(pool_path_, ignored);
  std::filesystem::remove(source_path_, ignored);
  std::filesystem::remove(options_.folder, ignored);
}

}  // namespace

bool QuickstartReport::sound() const {
  return lost == 0 && wrong == 0 && verified == records && excess == 0 && problems.empty() &&
         served_right == served_asked;
}

QuickstartReport run_quickstart(const QuickstartOptions& options) {
  return Quickstart(options).run();
}

}  // namespace perdure::cli
