// TPC-C that is killed, again and again: no money is lost, each commit that was acknowledged is
// there, and none is there by half.
#include <fmt/core.h>

#include <map>
#include <set>

#include "common/permutation.h"
#include "lab/study/buffer/run.h"

namespace perdure::lab::study::buffer_pool {
namespace {

constexpr TpccSize kSmall{.warehouses = 2, .districts = 4, .customers = 100, .items = 2000};
constexpr uint64_t kFrame = 4096;

// Far fewer frames than pages, and a log that wraps around.
RunSetup small_setup(const Course& course) {
  RunSetup setup;
  setup.path = course.folder + "/kills";
  setup.database.dram_bytes = 40 * kFrame;
  setup.database.pm_bytes = 160 * kFrame;
  setup.database.log_bytes = uint64_t{2} << 20;
  setup.tables = Tpcc::kTables;
  setup.capacity_bytes = uint64_t{32} << 20;
  setup.threads = course.options.threads;
  return setup;
}

// What a database has after a crash: the number of commits of each terminal, and what does not
// hold.
json look_at(const RunSetup& setup, const Tpcc& tpcc) {
  DatabaseStore store(setup.path, setup.database, setup.tables, setup.capacity_bytes);
  json problems = json::array();
  const auto report = [&](const std::string& sentence) { problems.push_back(sentence); };
  tpcc.check(store, report);
  store.database().check(report);
  std::map<uint32_t, std::set<uint64_t>> commits;
  tpcc.visit_commits(store, [&](uint32_t terminal, uint64_t commit) {
    if (!commits[terminal].insert(commit).second)
      report(fmt::format("commit {} of terminal {} is there twice", commit, terminal));
  });
  json counts = json::array();
  for (const auto& [terminal, numbers] : commits) {
    if (*numbers.begin() != 1 || *numbers.rbegin() != numbers.size())
      report(fmt::format("commits of terminal {} are missing", terminal));
    counts.push_back({terminal, *numbers.rbegin()});
  }
  store.database().recover();
  const RecoveryProgress mended = store.database().recovery();
  return {{"problems", problems},     {"commits", counts},     {"right", mended.right},
          {"older", mended.older},    {"newer", mended.newer}, {"corrupted", mended.corrupted},
          {"fetched", mended.fetched}};
}

}  // namespace

json measure_kills(const Course& course) {
  const BufferStudyOptions& options = course.options;
  const Tpcc tpcc(kSmall);
  RunSetup setup = small_setup(course);
  in_a_process(course, [&] {
    DatabaseStore store(setup.path, setup.database, setup.tables, setup.capacity_bytes);
    tpcc.load(store);
    return json(true);
  });
  setup.database.pm_bytes = 0;
  json sum = {{"kills", 0},     {"acknowledged", 0}, {"problems", json::array()},
              {"right", 0},     {"older", 0},        {"newer", 0},
              {"corrupted", 0}, {"fetched", 0}};
  std::map<uint32_t, uint64_t> commits;  // of each terminal, all that must be there
  BufferStudyOptions fast = options;     // kills, not waits
  fast.latency_us = fast.write_latency_us = fast.pm_ns = 0;
  fast.medium.clear();
  for (uint64_t round = 0; round < options.kills && !course.stop; ++round) {
    course.tell("kill and recover",
                static_cast<double>(round) / static_cast<double>(options.kills));
    // Checksums that are out of date when the process dies, in every second round: pages to repair.
    setup.database.checksum_every = round % 2 == 0 ? 1 : 16;
    const auto first = static_cast<uint32_t>(round * setup.threads + 1);
    {
      DatabaseRun run(fast, setup, [&](DatabaseStore& store, unsigned thread, Gauge& gauge) {
        Tpcc::Terminal terminal =
            tpcc.terminal(first + thread, mix_word(options.seed * 1000 + first + thread));
        while (!gauge.stop.load(std::memory_order_relaxed)) {
          if (terminal.run(store) != Tpcc::Terminal::Done::kNone)
            gauge.count(thread, terminal.committed());
        }
      });
      const uint64_t enough = 1 + mix_word(options.seed * 77 + round) % 4000;
      run.wait_until(course, [&](const Gauge& gauge) { return gauge.operations() >= enough; });
      run.kill();
      for (uint32_t thread = 0; thread < setup.threads; ++thread)
        commits[first + thread] = run.gauge().threads[thread].operations;
      sum["acknowledged"] = sum["acknowledged"].get<uint64_t>() + run.gauge().operations();
    }
    json found = in_a_process(course, [&] { return look_at(setup, tpcc); });
    if (found.is_null()) break;
    std::map<uint32_t, uint64_t> there;
    for (const json& each : found.at("commits"))
      there[each[0].get<uint32_t>()] = each[1].get<uint64_t>();
    for (auto& [terminal, count] : commits) {
      const uint64_t has = there[terminal];
      // Of those that were killed just now, the last one may have happened without having been
      // told.
      if (has != count && !(terminal >= first && has == count + 1)) {
        found["problems"].push_back(fmt::format(
            "terminal {} had {} commits acknowledged, and {} are there", terminal, count, has));
      }
      count = has;
    }
    for (const json& each : found.at("problems"))
      sum["problems"].push_back(fmt::format("kill {}: {}", round + 1, each.get<std::string>()));
    for (const char* what : {"right", "older", "newer", "corrupted", "fetched"})
      sum[what] = sum[what].get<uint64_t>() + found.at(what).get<uint64_t>();
    sum["kills"] = round + 1;
  }
  return sum;
}

}  // namespace perdure::lab::study::buffer_pool
