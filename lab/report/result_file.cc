#include "lab/report/result_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/units.h"
#include "perdure/error.h"

namespace perdure::lab::report {
namespace {

using nlohmann::json;

constexpr char kBenchSchema[] = "perdure-bench-2";
constexpr char kAmpSchema[] = "perdure-amp-1";
constexpr char kStudySchema[] = "perdure-study-write-amplification-1";
// What it has in common with the benchmark has the same names.
constexpr char kRangeStudySchema[] = "perdure-study-range-indexes-1";
constexpr char kRadixStudySchema[] = "perdure-study-radix-trees-1";
constexpr char kServingStudySchema[] = "perdure-study-serving-1";
constexpr std::array kMeasuredSchemas = {kBenchSchema, kRangeStudySchema, kRadixStudySchema,
                                         kServingStudySchema};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kNotAFile, path + " is a folder; name a file with results");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const ErrorCode code = errno == ENOENT   ? ErrorCode::kNotFound
                           : errno == EACCES ? ErrorCode::kPermission
                                             : ErrorCode::kIo;
    throw Error(code,
                fmt::format("cannot read {}: {}", path, std::generic_category().message(errno)));
  }
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) throw Error(ErrorCode::kIo, "cannot read " + path);
  return text;
}

// A member of an object that knows its place, for messages.
class Member {
 public:
  Member(const json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  Member at(const char* name) const {
    if (!has(name)) refuse(fmt::format("{} has no member \"{}\"", place_, name));
    return {(*value_)[name], fmt::format("{}.{}", place_, name)};
  }
  bool has(const char* name) const { return value_->is_object() && value_->contains(name); }
  // What is null counts as not there.
  bool measured(const char* name) const { return has(name) && !(*value_)[name].is_null(); }
  std::vector<Member> elements() const {
    if (!value_->is_array()) refuse(place_ + " is not an array");
    std::vector<Member> members;
    for (size_t i = 0; i < value_->size(); ++i) {
      members.emplace_back((*value_)[i], fmt::format("{}[{}]", place_, i));
    }
    return members;
  }
  std::vector<std::pair<std::string, Member>> members() const {
    if (!value_->is_object()) refuse(place_ + " is not an object");
    std::vector<std::pair<std::string, Member>> all;
    for (const auto& [name, value] : value_->items()) {
      all.emplace_back(name, Member(value, fmt::format("{}.{}", place_, name)));
    }
    return all;
  }
  std::string text() const {
    if (!value_->is_string()) refuse(place_ + " is not a string");
    return value_->get<std::string>();
  }
  bool flag() const {
    if (!value_->is_boolean()) refuse(place_ + " is neither true nor false");
    return value_->get<bool>();
  }
  double number() const {
    if (!value_->is_number() || !std::isfinite(value_->get<double>()) ||
        value_->get<double>() < 0) {
      refuse(place_ + " is not a number from 0 on");
    }
    return value_->get<double>();
  }
  uint64_t count() const {
    if (!value_->is_number_unsigned()) refuse(place_ + " is not a count");
    return value_->get<uint64_t>();
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const Member& element : elements()) all.push_back(element.number());
    return all;
  }
  // As people read it, whatever it is.
  std::string words() const {
    if (value_->is_string()) return value_->get<std::string>();
    if (value_->is_null()) return "none";
    if (value_->is_array()) {
      std::string list;
      for (const Member& element : elements()) list += (list.empty() ? "" : ", ") + element.words();
      return list;
    }
    return value_->dump();
  }

 private:
  const json* value_;
  std::string place_;
};

double number_or_none(const Member& object, const char* name) {
  return object.measured(name) ? object.at(name).number() : kNone;
}

// As the file and the axis have them.
constexpr const char* kPercentiles[] = {"min",   "p50",    "p90",     "p99",
                                        "p99.9", "p99.99", "p99.999", "max"};

Percentiles read_percentiles(const Member& object) {
  Percentiles percentiles;
  for (const char* name : kPercentiles) percentiles.push_back(number_or_none(object, name));
  return percentiles;
}

void read_windows(const Member& windows, BenchRow& row) {
  row.window_s = windows.at("window_ms").number() / 1000;
  for (const Member& repeat : windows.at("series").elements()) {
    row.windows.push_back(repeat.numbers());
  }
}

BenchRow read_row(const Member& result) {
  BenchRow row;
  row.structure = result.at("structure").text();
  row.kind = result.at("kind").text();
  row.durability = result.at("durability").text();
  row.operation = result.at("operation").text();
  row.is_load = result.at("phase").text() == "load";
  row.threads = static_cast<unsigned>(result.at("threads").count());
  row.records = result.at("records").count();
  row.operations = result.at("operations").count();
  row.failed = result.at("failed").count();
  row.mops = result.at("mops").numbers();
  row.ns_per_op = result.at("ns_per_op_median").number();
  row.pool_bytes = result.at("pool_bytes").number();
  row.dram_bytes = result.at("dram_bytes").number();
  row.raw_bytes = result.at("raw_bytes").number();
  if (result.measured("space_amplification")) {
    row.space_amplification = result.at("space_amplification").number();
  }
  if (result.measured("percentiles")) {
    row.percentiles = read_percentiles(result.at("percentiles"));
  }
  if (result.measured("by_operation")) {
    for (const auto& [type, figures] : result.at("by_operation").members()) {
      if (!figures.measured("percentiles")) continue;
      row.by_operation.emplace_back(type, read_percentiles(figures.at("percentiles")));
    }
  }
  if (result.measured("windows")) read_windows(result.at("windows"), row);
  if (result.measured("open_clean_ms")) row.open_clean_ms = result.at("open_clean_ms").numbers();
  if (result.measured("open_killed_ms")) row.open_killed_ms = result.at("open_killed_ms").numbers();
  row.lines_per_op = number_or_none(result, "lines_per_operation");
  row.fences_per_op = number_or_none(result, "fences_per_operation");
  if (result.measured("served")) {
    const Member served = result.at("served");
    row.workload = served.at("workload").text();
    if (served.measured("offered_per_s_median")) {
      row.offered_per_s = served.at("offered_per_s_median").number();
    }
    row.server_us_per_op = number_or_none(served, "server_us_per_op_median");
  }
  return row;
}

std::string with_unit(const Member& object, const char* name, std::string_view unit) {
  return object.measured(name) ? fmt::format("{:g}{}", object.at(name).number(), unit) : "none";
}

void add_machine(const Member& machine, ResultFile& file) {
  file.conditions.emplace_back(
      "machine",
      fmt::format("{}, {} processors, {}, {}", machine.at("cpu").words(),
                  machine.at("processors").words(),
                  format_bytes(machine.at("memory_bytes").count()), machine.at("kernel").words()));
  std::string build = machine.at("compiler").words();
  for (const char* name : {"flags", "build", "commit"}) {
    if (machine.has(name)) build += ", " + machine.at(name).words();
  }
  file.conditions.emplace_back("build", build);
}

void add_workload(const Member& parameters, ResultFile& file) {
  const auto kind = [&](const char* kind_name, const char* bytes_name) {
    return fmt::format("{} bytes ({})", parameters.at(bytes_name).words(),
                       parameters.at(kind_name).words());
  };
  file.conditions.emplace_back("records",
                               fmt::format("{}, {} operations after {} of warm-up, {} repeats",
                                           format_count(parameters.at("records").count()),
                                           format_count(parameters.at("operations").count()),
                                           format_count(parameters.at("warmup_operations").count()),
                                           parameters.at("repeats").words()));
  file.conditions.emplace_back(
      "keys", fmt::format("{}, {}, addressed {}, seed {}", kind("key_kind", "key_bytes"),
                          parameters.at("keys").words(), parameters.at("distribution").words(),
                          parameters.at("seed").words()));
  file.conditions.emplace_back("values", kind("value_kind", "value_bytes"));
  if (parameters.has("server")) {
    const Member server = parameters.at("server");
    file.conditions.emplace_back(
        "servers",
        fmt::format(
            "on processors {}, with {} threads where they can; clients on processors {}; {} "
            "connections, {} requests at a time on each; {} arrivals",
            server.at("server_processors").words(), server.at("server_threads").words(),
            server.at("client_processors").words(), server.at("connections").words(),
            server.at("pipeline").words(), server.at("arrivals").words()));
  }
  file.conditions.emplace_back(
      "threads", parameters.at("threads").words() +
                     (parameters.at("pinned").flag() ? ", pinned to processors" : ", not pinned"));
}

void add_conditions(const Member& root, ResultFile& file) {
  file.conditions.emplace_back("started", root.at("started").text());
  file.conditions.emplace_back("perdure", root.at("perdure").words());
  add_machine(root.at("machine"), file);
  if (!root.at("medium").text().empty()) {
    file.conditions.emplace_back(
        "memory",
        fmt::format("{}, domain {}{}, survives: {}", root.at("medium").text(),
                    root.at("domain").text(), root.at("domain_forced").flag() ? " (forced)" : "",
                    root.at("durability").text()));
  }
  if (root.measured("floor_ns") && root.at("floor_ns").number() > 0)
    file.conditions.emplace_back(
        "limits",
        fmt::format("{} for a 64-byte store, {} and fence; {} for a dependent read",
                    with_unit(root, "floor_ns", " ns"), root.at("flush_instruction").text(),
                    with_unit(root, "read_chain_ns", " ns")));
  if (root.measured("emulation")) {
    file.conditions.emplace_back("emulated", root.at("emulation").at("medium").words() +
                                                 ": writes are slowed, reads are not");
  }
  add_workload(root.at("parameters"), file);
  if (root.at("interrupted").flag()) {
    file.remarks.emplace_back("The run was interrupted: the figures are of what ran until then.");
  }
  for (const Member& note : root.at("notes").elements()) file.remarks.push_back(note.text());
}

void read_bench(const Member& root, ResultFile& file) {
  add_conditions(root, file);
  for (const Member& result : root.at("results").elements()) {
    file.bench.push_back(read_row(result));
    const BenchRow& row = file.bench.back();
    if (row.failed == 0) continue;
    file.remarks.push_back(fmt::format("{} operations of {} gave a wrong answer ({}).", row.failed,
                                       row.structure, row.operation));
  }
}

// Files of `amp` and `study` have the same names for the figures that are drawn.
void read_writes(const Member& root, ResultFile& file) {
  file.conditions.emplace_back("perdure", root.at("perdure").words());
  if (root.at("profile").has("name")) {
    file.conditions.emplace_back("modelled memory", root.at("profile").at("name").words());
  }
  const Member parameters = root.at("parameters");
  file.conditions.emplace_back("records", parameters.at("records").words());
  if (root.has("interrupted") && root.at("interrupted").flag()) {
    file.remarks.emplace_back("The run was interrupted: the figures are of what ran until then.");
  }
  for (const Member& result : root.at("results").elements()) {
    for (const char* operation : {"insert", "lookup"}) {
      const double wpq =
          number_or_none(result, fmt::format("wpq_inserts_per_{}", operation).c_str());
      if (std::isnan(wpq)) continue;
      file.writes.push_back(
          {.structure = result.at("structure").text(),
           .workload = result.at("workload").text(),
           .operation = operation,
           .wpq_inserts = wpq,
           .media_writes =
               number_or_none(result, fmt::format("media_writes_per_{}", operation).c_str()),
           .media_per_wpq_insert = number_or_none(result, "media_writes_per_wpq_insert")});
      break;
    }
  }
}

json parse(const std::string& path) {
  try {
    return json::parse(read_text(path));
  } catch (const json::exception& error) {
    refuse(fmt::format("{} is not JSON: {}", path, error.what()));
  }
}

std::string schema_of(const json& root, const std::string& path) {
  if (!root.is_object() || !root.contains("schema") || !root["schema"].is_string()) {
    refuse(
        fmt::format("{} has no \"schema\": it is no result that perdure wrote with --json; an "
                    "example is `perdure bench plush --json > result.json`",
                    path));
  }
  return root["schema"].get<std::string>();
}

}  // namespace

const std::vector<std::string>& percentile_names() {
  static const std::vector<std::string> names(std::begin(kPercentiles), std::end(kPercentiles));
  return names;
}

bool ResultFile::is_measured() const {
  return std::ranges::find(kMeasuredSchemas, schema) != kMeasuredSchemas.end();
}

ResultFile to_result(const json& root, const std::string& path) {
  ResultFile file;
  file.path = path;
  file.label = std::filesystem::path(path).stem();
  file.schema = schema_of(root, path);
  if (file.is_measured()) {
    read_bench(Member(root, path + ": $"), file);
  } else if (file.schema == kAmpSchema || file.schema == kStudySchema) {
    read_writes(Member(root, path + ": $"), file);
  } else if (file.schema == "perdure-bench-1") {
    refuse(fmt::format("{} was written by an older perdure ({}); measure again, this one reads {}",
                       path, file.schema, kBenchSchema));
  } else {
    refuse(fmt::format("{} has schema \"{}\"; a report reads {}, {} and {}", path, file.schema,
                       fmt::join(kMeasuredSchemas, ", "), kAmpSchema, kStudySchema));
  }
  return file;
}

ResultFile read_result(const std::string& path) { return to_result(parse(path), path); }

std::vector<ResultFile> read_results(const std::vector<std::string>& paths) {
  std::vector<ResultFile> files;
  for (const std::string& path : paths) files.push_back(read_result(path));
  // Files of the same name in several folders go by their paths.
  for (ResultFile& file : files) {
    for (const ResultFile& other : files) {
      if (&file != &other &&
          std::filesystem::path(other.path).stem() == std::filesystem::path(file.path).stem()) {
        file.label = file.path;
      }
    }
  }
  return files;
}

}  // namespace perdure::lab::report
