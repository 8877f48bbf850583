#include "lab/bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "common/units.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr std::array<const char*, kOperationTypes> kNames = {
    "insert", "lookup", "update", "upsert", "remove", "scan", "rmw", "scan-back"};
constexpr std::array<const char*, 5> kKeyOrders = {"mixed", "sequential", "pibench", "dense",
                                                   "clustered"};
constexpr uint32_t kLongestScan = 100'000'000;

OperationType parse_type(std::string_view text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is not an operation: choose from {}", text, fmt::join(kNames, ", ")));
  }
  return static_cast<OperationType>(found - kNames.begin());
}

double parse_share(std::string_view text) {
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share > 0) || share > 1e9) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not a share: write a number above 0, such as 0.5", text));
  }
  return share;
}

}  // namespace

const char* to_string(OperationType type) noexcept { return kNames[static_cast<size_t>(type)]; }

const char* to_string(KeyOrder order) noexcept { return kKeyOrders[static_cast<size_t>(order)]; }

KeyOrder parse_key_order(std::string_view text) {
  const auto found = std::find(kKeyOrders.begin(), kKeyOrders.end(), text);
  if (found != kKeyOrders.end()) return static_cast<KeyOrder>(found - kKeyOrders.begin());
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is not an order of keys: choose from {}", text,
                          fmt::join(kKeyOrders, ", ")));
}

ScanLength ScanLength::parse(std::string_view text) {
  const size_t dash = text.find('-');
  const uint64_t least = parse_count(text.substr(0, dash));
  const uint64_t most = dash == std::string_view::npos ? least : parse_count(text.substr(dash + 1));
  if (least < 1 || most < least || most > kLongestScan) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is no length of scans: give a number of records from 1 to {}, or "
                    "two with a dash between them, the smaller first",
                    text, format_count(kLongestScan)));
  }
  return {static_cast<uint32_t>(least), static_cast<uint32_t>(most)};
}

Mix Mix::parse(std::string_view text) {
  Mix mix;
  double sum = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t equals = part.find('=');
    const OperationType type = parse_type(part.substr(0, equals));
    const double share =
        equals == std::string_view::npos ? 1.0 : parse_share(part.substr(equals + 1));
    for (const auto& [other, unused] : mix.shares) {
      if (other != type) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the mix \"{}\" names {} twice", text, to_string(type)));
    }
    mix.shares.emplace_back(type, share);
    sum += share;
    begin = end + 1;
  }
  for (auto& [type, share] : mix.shares) share /= sum;
  return mix;
}

std::string Mix::name() const {
  if (shares.size() == 1) return to_string(shares[0].first);
  std::string text;
  for (const auto& [type, share] : shares) {
    text += fmt::format("{}{}={:.4g}", text.empty() ? "" : ",", to_string(type), share);
  }
  return text;
}

double Mix::share_of(OperationType type) const {
  for (const auto& [other, share] : shares) {
    if (other == type) return share;
  }
  return 0;
}

OperationPlan::OperationPlan(const Workload& workload, uint64_t records, uint64_t operations,
                             uint64_t seed, KeyOrder order)
    : records_(records),
      operations_(operations),
      order_(order),
      distribution_(workload.distribution),
      scan_length_(workload.scan_length),
      key_salt_(mix_word(seed)),
      draw_salt_(mix_word(seed ^ 0x71b86d9f24e5ca03ULL)),
      order_of_removal_(records, seed) {
  lay_out_cycle(workload.mix, seed);
  inserts_ = count_of(OperationType::kInsert);
  removed_ = count_of(OperationType::kRemove);
  survivors_ = records_ > removed_ ? records_ - removed_ : 0;
  check_enough_records();
  check_distribution();
  if (distribution_.is_ranked() && survivors_ > 0) {
    const bool grows = distribution_.kind == Distribution::Kind::kLatest;
    ranks_ = RankSampler(distribution_, survivors_ + (grows ? inserts_ : 0));
    scatter_ = Scatter(survivors_, seed);
  }
}

void OperationPlan::lay_out_cycle(const Mix& mix, uint64_t seed) {
  // Every operation of the mix gets a place, whatever its share; the largest takes what rounding
  // leaves.
  uint64_t placed = 0;
  size_t largest = 0;
  double largest_share = 0;
  for (const auto& [type, share] : mix.shares) {
    const auto slots = static_cast<uint64_t>(std::llround(share * double{kCycle}));
    per_cycle_[static_cast<size_t>(type)] = std::max<uint64_t>(slots, 1);
    placed += per_cycle_[static_cast<size_t>(type)];
    if (share > largest_share) largest_share = share, largest = static_cast<size_t>(type);
  }
  per_cycle_[largest] += kCycle - placed;  // modulo 2^64: right also when too many were placed

  const Permutation shuffle(kCycle, seed ^ 0x2f6be80c93d417a5ULL);
  uint64_t place = 0;
  for (size_t type = 0; type < kOperationTypes; ++type) {
    for (uint64_t slot = 0; slot < per_cycle_[type]; ++slot) {
      cycle_[shuffle.at(place++)].type = static_cast<OperationType>(type);
    }
  }
  removes_per_cycle_ = per_cycle_[static_cast<size_t>(OperationType::kRemove)];
  uint16_t inserts = 0;
  uint16_t removes = 0;
  for (Slot& slot : cycle_) {
    slot.inserts = inserts;
    slot.removes = removes;
    if (slot.type == OperationType::kInsert) ++inserts;
    if (slot.type == OperationType::kRemove) ++removes;
  }
}

uint64_t OperationPlan::count_of(OperationType type) const {
  const uint64_t whole_cycles = operations_ / kCycle;
  uint64_t count = whole_cycles * per_cycle_[static_cast<size_t>(type)];
  for (uint64_t place = 0; place < operations_ % kCycle; ++place) {
    count += cycle_[place].type == type ? 1 : 0;
  }
  return count;
}

void OperationPlan::check_enough_records() const {
  const bool removes_all_there_is = removed_ > records_;
  const uint64_t addressing = operations_ - removed_ - count_of(OperationType::kInsert);
  if (!removes_all_there_is && (addressing == 0 || survivors_ > 0)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the mix needs more records than the {} loaded: it removes {}{}; load "
                          "more records or run fewer operations",
                          format_count(records_), format_count(removed_),
                          addressing == 0 ? "" : " and addresses others"));
}

void OperationPlan::check_distribution() const {
  if (distribution_.kind != Distribution::Kind::kLatest || removed_ == 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "the distribution \"latest\" addresses all records by age, so it does not go with a mix "
      "that removes some: choose another distribution");
}

}  // namespace perdure::lab
