// What studies that measure have in common: their cells, who measures them, and where they are
// kept.
//
//   MeasuredCells cells("study.state", parameters, progress, stop);
//   cells.find_contenders({"fptree", "wbtree"});
//   cells.add("lookup", bench_options, false);   // of every structure
//   cells.measure();
//   json study = cells.document(cells.results([](const MeasuredCell&) { return true; }));
//
// A cell is one structure under one experiment with one number of threads. Cells are measured one
// after another, each in a process of its own, in the order in which they were added: what is
// compared is measured within the same minute. A cell that fails is reported, and the others go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "common/progress.h"
#include "lab/bench/bench.h"
#include "lab/bench/contender.h"
#include "lab/study/state.h"
#include "lab/study/workers.h"

namespace perdure::lab::study {

struct MeasuredCell {
  std::string experiment;  // among all
  std::string structure;
  BenchOptions bench;    // of one structure, one number of threads and one workload
  bool is_load = false;  // what is told is the load

  auto key() const { return std::tuple(experiment, structure, bench.threads.front()); }
  uint64_t steps() const { return bench.repeats * (bench.records + bench.operations); }
};

class MeasuredCells {
 public:
  // `state` and `parameters` as of StateFile, whose errors it throws.
  MeasuredCells(const std::string& state, const nlohmann::json& parameters,
                const ProgressSink& progress, const std::atomic<bool>& stop);

  // Notes those that this build has not. Throws Error(kInvalidArgument) on names that there are
  // not.
  void find_contenders(const std::vector<std::string>& structures);
  // The experiment of every contender that can do it; notes why others cannot. `bench` has no
  // structure; the first of them measures the limits of the machine, if it says so. Throws
  // Error(kInvalidArgument) if there are too few records for its operations.
  void add(const std::string& experiment, const BenchOptions& bench, bool is_load);

  // Those that the state file has not. Returns early when `stop` is set.
  void measure();

  // The results of these experiments that were measured, in the order of the cells.
  nlohmann::json results(const std::function<bool(const MeasuredCell&)>& chosen) const;
  // The members that all studies have, of which "results" is this.
  nlohmann::json document(const nlohmann::json& results) const;

 private:
  using CellKey = std::tuple<std::string, std::string, unsigned>;

  void note(const std::string& sentence);
  void show(uint64_t steps, const std::vector<const Job*>& running) const;
  nlohmann::json conditions() const;
  size_t done() const;

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  StateFile state_;
  std::vector<Contender> contenders_;
  std::vector<MeasuredCell> cells_;
  std::map<CellKey, nlohmann::json> measured_;
  std::vector<std::string> notes_;
  nlohmann::json failures_ = nlohmann::json::array();
  size_t resumed_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace perdure::lab::study
