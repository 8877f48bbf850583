#include "lab/bench/distribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

struct KnownDistribution {
  const char* name;
  Distribution::Kind kind;
  double factor;      // if none is given; 0: takes none
  double factor_max;  // factors are above 0
};

constexpr std::array<KnownDistribution, 5> kKnown = {{
    {"uniform", Distribution::Kind::kUniform, 0, 0},
    {"zipfian", Distribution::Kind::kZipfian, 0.99, 10},
    {"selfsimilar", Distribution::Kind::kSelfSimilar, 0.2, 0.5},
    {"sequential", Distribution::Kind::kSequential, 0, 0},
    {"latest", Distribution::Kind::kLatest, 0.99, 10},
}};

double parse_factor(std::string_view text, const KnownDistribution& known) {
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  const bool read = error == std::errc() && end == text.data() + text.size();
  if (known.factor == 0 || !read || !(factor > 0) || factor > known.factor_max) {
    throw Error(ErrorCode::kInvalidArgument,
                known.factor == 0
                    ? fmt::format("the distribution {} takes no factor", known.name)
                    : fmt::format("\"{}\" is no factor of {}: give a number above 0, up to {}",
                                  text, known.name, known.factor_max));
  }
  return factor;
}

// A share of 2^64, which is the largest word if it is all.
uint64_t share_of_words(double share) {
  return share >= 1 ? ~uint64_t{0} : static_cast<uint64_t>(std::max(share, 0.0) * 0x1p64);
}

}  // namespace

Distribution Distribution::parse(std::string_view text) {
  const size_t equals = text.find('=');
  for (const KnownDistribution& known : kKnown) {
    if (text.substr(0, equals) != known.name) continue;
    if (equals == std::string_view::npos) return {known.kind, known.factor};
    return {known.kind, parse_factor(text.substr(equals + 1), known)};
  }
  std::array<const char*, kKnown.size()> names{};
  std::transform(kKnown.begin(), kKnown.end(), names.begin(), [](const auto& k) { return k.name; });
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is not a distribution: choose from {}; a factor follows an =, as "
                          "in zipfian=0.99",
                          text, fmt::join(names, ", ")));
}

std::string Distribution::name() const {
  const KnownDistribution& known = kKnown[static_cast<size_t>(kind)];
  return known.factor == 0 ? known.name : fmt::format("{}={:.6g}", known.name, factor);
}

RankSampler::RankSampler(const Distribution& distribution, uint64_t count)
    : distribution_(distribution), count_(static_cast<double>(count)) {
  // Self-similar: the first x of all ranks get F(x) = x^exponent, with F(factor) = 1 - factor.
  exponent_ = distribution.kind == Distribution::Kind::kSelfSimilar
                  ? std::log(1 - distribution.factor) / std::log(distribution.factor)
                  : -distribution.factor;
  cut(count);
  make_choices();
}

double RankSampler::weight(uint64_t rank) const {
  const auto place = static_cast<double>(rank);
  if (distribution_.kind != Distribution::Kind::kSelfSimilar) {
    return std::pow(place + 1, exponent_);
  }
  return std::pow((place + 1) / count_, exponent_) - std::pow(place / count_, exponent_);
}

void RankSampler::cut(uint64_t count) {
  constexpr uint64_t kParts = 32;
  for (uint64_t begin = 0; begin < count;) {
    const uint64_t width = std::min(std::max<uint64_t>(begin / kParts, 1), count - begin);
    // A hair less than the ratio, so that rounding never keeps a rank unduly.
    const double ratio = weight(begin + width - 1) / weight(begin);
    segments_.push_back({begin, width, share_of_words(width == 1 ? 1 : ratio * (1 - 0x1p-30))});
    begin += width;
  }
}

// Walker's alias method, in Vose's way of filling the table: every column holds a part of its own
// segment and the rest of one that has more than its due.
void RankSampler::make_choices() {
  const size_t columns = segments_.size();
  std::vector<double> due;
  double sum = 0;
  for (const Segment& segment : segments_) {
    due.push_back(static_cast<double>(segment.width) * weight(segment.begin));
    sum += due.back();
  }
  std::vector<uint32_t> poor;
  std::vector<uint32_t> rich;
  for (uint32_t column = 0; column < columns; ++column) {
    due[column] *= static_cast<double>(columns) / sum;
    (due[column] < 1 ? poor : rich).push_back(column);
    choices_.push_back({~uint64_t{0}, {column, column}});
  }
  while (!poor.empty() && !rich.empty()) {
    const uint32_t taker = poor.back();
    const uint32_t giver = rich.back();
    poor.pop_back();
    choices_[taker].keep_below = share_of_words(due[taker]);
    choices_[taker].segments[1] = giver;
    due[giver] -= 1 - due[taker];
    if (due[giver] >= 1) continue;
    rich.pop_back();
    poor.push_back(giver);
  }
}

bool RankSampler::keeps(const Segment& segment, uint64_t offset, uint64_t level) const {
  const double ratio = weight(segment.begin + offset) / weight(segment.begin);
  return static_cast<double>(level) * 0x1p-64 < ratio;
}

}  // namespace perdure::lab
