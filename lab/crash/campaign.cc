#include "lab/crash/campaign.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "lab/crash/coverage.h"
#include "lab/crash/shrink.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

using Clock = std::chrono::steady_clock;

std::string hex(const std::vector<unsigned char>& bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    text += fmt::format("{}{:02x}", i == 0 ? "" : i % 8 == 0 ? "  " : " ", bytes[i]);
  }
  return text;
}

std::string describe_lost(const Run& run, const SiteNames& names, const LostStore& lost) {
  const TraceEvent& store = run.trace.events[lost.event];
  std::string why;
  switch (lost.state) {
    case LostState::kUnflushed:
      why = "nothing has flushed it";
      break;
    case LostState::kUnfenced:
      why = fmt::format("flushed at {}, and no fence since",
                        names.of(run.trace.events[lost.flush_event].pc));
      break;
    case LostState::kStreamUnfenced:
      why = "written past the caches, and no fence since";
      break;
  }
  return fmt::format("{} bytes at offset {:#x}, stored at {}: {}{}", store.bytes, store.offset,
                     names.of(store.pc), lost.torn ? "torn, some of its words had arrived; " : "",
                     why);
}

FindingReport describe(const Run& run, const Finding& finding) {
  FindingReport report;
  report.what = finding.what;
  const std::string operation = operation_of(run, finding);
  if (operation.empty()) {
    report.crash = fmt::format("before event {}", finding.event);
  } else {
    report.crash = fmt::format("{} {}{} (before event {})", finding.in_flight ? "in" : "after",
                               operation, finding.in_flight ? "" : " had returned", finding.event);
  }
  if (finding.death) {
    report.crash = "of the power, after the process had died " + report.crash;
  } else if (finding.nested) {
    report.crash = "of the recovery from a crash " + report.crash;
  }
  const SiteNames names(run.trace);
  for (const LostStore& lost : finding.lost) report.lost.push_back(describe_lost(run, names, lost));
  for (const uint32_t event : finding.last_stores) {
    const TraceEvent& store = run.trace.events[event];
    report.last_stores.push_back(fmt::format("{} bytes at offset {:#x}, stored at {}", store.bytes,
                                             store.offset, names.of(store.pc)));
  }
  report.times = finding.times;
  report.image = finding.image;
  for (const LineBytes& line : finding.lines) {
    report.lines.push_back(fmt::format("{:#x} in memory  {}", line.offset, hex(line.crashed)));
    report.lines.push_back(fmt::format("{:#x} written    {}", line.offset, hex(line.complete)));
  }
  return report;
}

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options)
      : options_(options), begin_(Clock::now()), mutations_(options.mutants) {}

  CampaignReport run(std::vector<CampaignRun> runs) {
    if (!runs.empty()) {
      report_.structure = runs.front().subject->name();
      report_.domain = to_string(runs.front().subject->domain());
    }
    for (size_t i = 0; i < runs.size() && !stopped(); ++i) {
      // What one run leaves of its time is for those that follow.
      const double left = options_.seconds - spent_;
      explore_run(runs[i], std::max(left, 0.0) / static_cast<double>(runs.size() - i));
    }
    report_.mutated = options_.mutate;
    report_.mutation = mutations_.result();
    report_.reached = coverage_.reached();
    report_.unreached = coverage_.unreached();
    report_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    return std::move(report_);
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }

  void explore_run(CampaignRun& campaign_run, double seconds) {
    Subject& subject = *campaign_run.subject;
    tell(campaign_run.title + ": recording", 0, -1);
    const Run run = obtain(campaign_run);
    if (!campaign_run.keep_trace.empty()) run.trace.save(campaign_run.keep_trace);
    RunReport report;
    report.title = campaign_run.title;
    report.operations =
        campaign_run.only.empty() ? subject.operation_count() : campaign_run.only.size();
    report.events = run.trace.events.size();
    ExploreOptions explore_options = options_.explore;
    explore_options.seconds_max = seconds;
    explore_options.stop = options_.stop;
    explore_options.progress = [&](const ExploreProgress& progress) {
      tell(campaign_run.title, progress.states, progress.fraction);
    };
    if (!options_.again_at.empty()) {
      explore_options.nested_only = true;
      explore_options.crashes_again_at = [&run, this](const TraceEvent& event) {
        return SiteNames(run.trace).of(event.pc).find(options_.again_at) != std::string::npos;
      };
    }
    Verdicts verdicts;
    report.exploration = explore(run, subject, explore_options, verdicts);
    spent_ += report.exploration.seconds;
    coverage_.add(run, report.exploration);
    for (const Finding& finding : report.exploration.findings) {
      report.findings.push_back(describe(run, finding));
      report.findings.back().command = campaign_run.command;
    }
    if (!report.findings.empty() && !stopped()) shorten(campaign_run, report);
    if (options_.mutate && !stopped()) {
      if (!report.findings.empty() || !report.exploration.finished) {
        report_.unmutated.push_back(
            fmt::format("{}: not mutated, for the exploration without mutations {}", report.title,
                        report.findings.empty() ? "was ended by a limit (give it more --budget)"
                                                : "has findings"));
        report_.runs.push_back(std::move(report));
        return;
      }
      explore_options.seconds_max = options_.mutant_seconds;
      explore_options.nested_only = false;
      mutations_.add(run, subject, explore_options, report.exploration, verdicts,
                     [&](const MutationSite& site, size_t done, size_t of) {
                       tell(fmt::format("{}: without the {} at {}", campaign_run.title,
                                        to_string(site.kind), site.place),
                            done, static_cast<double>(done) / static_cast<double>(of));
                     });
    }
    report_.runs.push_back(std::move(report));
  }

  // A kept trace has no model of its operations: it is judged by what recovery gives before and
  // after each of them.
  static Run obtain(CampaignRun& campaign_run) {
    if (campaign_run.replay.empty()) return campaign_run.subject->record(campaign_run.only);
    Run run;
    run.trace = Trace::load(campaign_run.replay);
    // What comes before the first operation makes the file.
    const auto first =
        std::find_if(run.trace.events.begin(), run.trace.events.end(),
                     [](const TraceEvent& event) { return event.kind == EventKind::kBegin; });
    run.skipped = {{0, static_cast<uint32_t>(first - run.trace.events.begin())}};
    return run;
  }

  // The shortest workload goes to the first finding; it usually has the cause of all.
  void shorten(CampaignRun& campaign_run, RunReport& report) {
    const auto& findings = report.exploration.findings;
    if (findings.front().nested || options_.shrink_seconds <= 0) return;
    if (!campaign_run.replay.empty() || !campaign_run.subject->can_leave_out()) return;
    tell(campaign_run.title + ": looking for the shortest workload", 0, -1);
    const auto kept = shrink(*campaign_run.subject, options_.explore, options_.shrink_seconds);
    if (kept.empty()) return;
    const Run run = campaign_run.subject->record(kept);
    ExploreOptions again = options_.explore;
    again.seconds_max = options_.shrink_seconds;
    again.findings_max = 1;
    again.nested_max = 0;
    again.deaths_max = 0;
    again.image_folder.clear();
    Verdicts verdicts;
    const Exploration shown = explore(run, *campaign_run.subject, again, verdicts);
    if (shown.findings.empty()) return;
    FindingReport shortest = describe(run, shown.findings.front());
    shortest.times = findings.front().times;
    shortest.image = findings.front().image;
    for (const auto& operations : run.operations) {
      const size_t count = std::min(operations.size(), kept.size() + 2);
      for (size_t i = operations.size() - std::min(count, operations.size()); i < operations.size();
           ++i) {
        if (!operations[i].empty()) shortest.workload.push_back(operations[i]);
      }
    }
    std::string only;
    for (const uint32_t number : kept) only += fmt::format("{}{}", only.empty() ? "" : ",", number);
    shortest.command = fmt::format("{} --only {}", campaign_run.command, only);
    report.findings.front() = std::move(shortest);
  }

  void tell(const std::string& phase, uint64_t states, double fraction) const {
    if (options_.progress) options_.progress(phase, states, fraction);
  }

  const CampaignOptions& options_;
  Clock::time_point begin_;
  double spent_ = 0;
  CampaignReport report_;
  Mutations mutations_;
  Coverage coverage_;
};

}  // namespace

uint64_t CampaignReport::states() const {
  return std::accumulate(runs.begin(), runs.end(), uint64_t{0}, [](uint64_t sum, const auto& run) {
    return sum + run.exploration.states + run.exploration.nested_states +
           run.exploration.death_states;
  });
}

// Too little to say anything: hardly an image, or a run that was cut off near its beginning.
bool RunReport::explored_little() const {
  constexpr uint64_t kImagesFew = 100;
  constexpr double kPartSmall = 0.1;
  return exploration.states + exploration.nested_states + exploration.death_states < kImagesFew ||
         exploration.part < kPartSmall;
}

bool CampaignReport::explored_little() const {
  return runs.empty() || std::ranges::any_of(runs, &RunReport::explored_little);
}

uint64_t CampaignReport::findings() const {
  return std::accumulate(runs.begin(), runs.end(), uint64_t{0},
                         [](uint64_t sum, const auto& run) { return sum + run.findings.size(); });
}

CampaignReport run_campaign(std::vector<CampaignRun> runs, const CampaignOptions& options) {
  return Campaign(options).run(std::move(runs));
}

}  // namespace perdure::lab::crash
