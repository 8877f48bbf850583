#include "lab/bench/ycsb.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

struct CoreWorkload {
  char letter;
  const char* mix;
  const char* distribution;
};
constexpr std::array<CoreWorkload, 6> kCore = {{
    {'a', "lookup=.5,update=.5", "zipfian"},
    {'b', "lookup=.95,update=.05", "zipfian"},
    {'c', "lookup", "zipfian"},
    {'d', "lookup=.95,insert=.05", "latest"},
    {'e', "scan=.95,insert=.05", "zipfian"},
    {'f', "lookup=.5,rmw=.5", "zipfian"},
}};

std::string_view trim(std::string_view text) {
  constexpr const char* kBlank = " \t\r\f";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// The lines of a file of properties.
class Properties {
 public:
  Properties(std::string_view text, std::string origin) : origin_(std::move(origin)) {
    unsigned number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      read_line(trim(text.substr(begin, end - begin)), ++number);
      begin = end + 1;
    }
  }

  // The value of a property, which counts as known from then on.
  std::optional<std::string> take(const std::string& name) {
    const auto found = lines_.find(name);
    if (found == lines_.end()) return std::nullopt;
    last_ = found->second;
    last_name_ = name;
    lines_.erase(found);
    return last_.value;
  }

  std::optional<double> take_number(const std::string& name, double least, double most) {
    const std::optional<std::string> text = take(name);
    if (!text) return std::nullopt;
    double number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || end != text->data() + text->size() || !(number >= least) ||
        number > most) {
      fail(fmt::format("give a number from {} to {}", least, most));
    }
    return number;
  }

  std::optional<uint64_t> take_count(const std::string& name) {
    const std::optional<double> number = take_number(name, 0, 1e15);
    if (!number) return std::nullopt;
    return static_cast<uint64_t>(*number);
  }

  // About the property taken last.
  [[noreturn]] void fail(const std::string& what_to_do) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}={}: {}", origin_, last_.number,
                                                         last_name_, last_.value, what_to_do));
  }

  std::vector<std::string> left() const {
    std::vector<std::string> sentences;
    for (const auto& [name, line] : lines_) {
      sentences.push_back(
          fmt::format("{}:{}: the property {}={} has no meaning here and is not used", origin_,
                      line.number, name, line.value));
    }
    return sentences;
  }

 private:
  struct Line {
    std::string value;
    unsigned number = 0;
  };

  void read_line(std::string_view line, unsigned number) {
    if (line.empty() || line.front() == '#' || line.front() == '!') return;
    const size_t sign = line.find_first_of("=:");
    if (sign == std::string_view::npos) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}:{}: \"{}\" is no property: write name=value", origin_, number, line));
    }
    lines_[std::string(trim(line.substr(0, sign)))] = {std::string(trim(line.substr(sign + 1))),
                                                       number};
  }

  std::string origin_;
  std::map<std::string, Line> lines_;
  Line last_;
  std::string last_name_;
};

struct Proportion {
  const char* property;
  OperationType type;
  double otherwise;  // YCSB's own defaults
};
constexpr std::array<Proportion, 5> kProportions = {{
    {"readproportion", OperationType::kLookup, 0.95},
    {"updateproportion", OperationType::kUpdate, 0.05},
    {"insertproportion", OperationType::kInsert, 0},
    {"scanproportion", OperationType::kScan, 0},
    {"readmodifywriteproportion", OperationType::kReadModifyWrite, 0},
}};

Mix take_mix(Properties& properties, const std::string& origin) {
  Mix mix;
  double sum = 0;
  for (const Proportion& known : kProportions) {
    const double share = properties.take_number(known.property, 0, 1e9).value_or(known.otherwise);
    if (share > 0) mix.shares.emplace_back(known.type, share);
    sum += share;
  }
  if (!(sum > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: all proportions of operations are 0", origin));
  }
  for (auto& [type, share] : mix.shares) share /= sum;
  return mix;
}

Distribution take_distribution(Properties& properties) {
  const std::optional<std::string> name = properties.take("requestdistribution");
  if (!name) return Distribution::parse("uniform");
  for (const char* known : {"uniform", "zipfian", "latest", "sequential"}) {
    if (*name == known) return Distribution::parse(known);
  }
  properties.fail("choose from uniform, zipfian, latest, sequential");
}

ScanLength take_scan_length(Properties& properties) {
  constexpr double kLongest = 1e8;
  ScanLength length;
  length.most =
      static_cast<uint32_t>(properties.take_number("maxscanlength", 1, kLongest).value_or(1000));
  length.least =
      static_cast<uint32_t>(properties.take_number("minscanlength", 1, length.most).value_or(1));
  if (const auto name = properties.take("scanlengthdistribution"); name && *name != "uniform") {
    properties.fail("lengths of scans are uniform between minscanlength and maxscanlength");
  }
  return length;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::optional<Workload> ycsb_workload(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.rfind("ycsb-", 0) == 0) lower.erase(0, 5);
  for (const CoreWorkload& core : kCore) {
    if (lower != std::string(1, core.letter)) continue;
    return Workload{.name = "ycsb-" + lower,
                    .mix = Mix::parse(core.mix),
                    .distribution = Distribution::parse(core.distribution),
                    .scan_length = {1, 100}};
  }
  return std::nullopt;
}

YcsbFile parse_ycsb(std::string_view text, const std::string& origin) {
  Properties properties(text, origin);
  YcsbFile file;
  file.workload.name = base_name(origin);
  file.workload.mix = take_mix(properties, origin);
  file.workload.distribution = take_distribution(properties);
  file.workload.scan_length = take_scan_length(properties);
  file.records = properties.take_count("recordcount");
  file.operations = properties.take_count("operationcount");
  const std::optional<uint64_t> fields = properties.take_count("fieldcount");
  const std::optional<uint64_t> length = properties.take_count("fieldlength");
  if (fields || length) file.value_bytes = fields.value_or(10) * length.value_or(100);
  if (const auto threads = properties.take_number("threadcount", 1, 1024)) {
    file.threads = static_cast<unsigned>(*threads);
  }
  file.time_limit_s = properties.take_number("maxexecutiontime", 0, 1e9);
  if (const auto order = properties.take("insertorder")) {
    if (*order != "hashed" && *order != "ordered") properties.fail("choose hashed or ordered");
    file.sequential_keys = *order == "ordered";
  }
  properties.take("workload");  // the class of YCSB's own client
  file.unknown = properties.left();
  return file;
}

YcsbFile read_ycsb_file(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream || path.empty()) {
    throw Error(
        ErrorCode::kNotFound,
        fmt::format("{}: cannot read this workload; name a file of YCSB's, or a letter from "
                    "a to f",
                    path));
  }
  return parse_ycsb(text.str(), path);
}

}  // namespace perdure::lab
