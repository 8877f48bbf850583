// Which records a workload addresses, as people write it, and exact draws from skewed
// distributions.
//
//   Distribution distribution = Distribution::parse("zipfian=0.99");
//   RankSampler ranks(distribution, records);
//   uint64_t rank = ranks.draw(mix_word(place));   // 0: the most frequent
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/permutation.h"

namespace perdure::lab {

struct Distribution {
  enum class Kind : uint8_t {
    kUniform,
    kZipfian,  // the record of rank r (from 1) is addressed in proportion to r^-factor
    // a share `factor` of the records gets 1 - factor of the operations, within these again, and so
    // on: 0.2 is the rule of 80 and 20
    kSelfSimilar,
    kSequential,  // one record after the other, and from the first again
    kLatest,      // zipfian by age: the record inserted last has rank 1
  };

  Kind kind = Kind::kUniform;
  double factor = 0;

  // Reads "uniform", "zipfian" (0.99), "zipfian=1.2", "selfsimilar" (0.2), "selfsimilar=.1",
  // "sequential", "latest" (0.99). Throws Error(kInvalidArgument) on unknown names and on factors
  // out of range: above 0 and up to 10 for zipfian and latest, above 0 and up to 0.5 for
  // self-similar.
  static Distribution parse(std::string_view text);

  std::string name() const;  // what parse() reads
  bool is_ranked() const {
    return kind == Kind::kZipfian || kind == Kind::kSelfSimilar || kind == Kind::kLatest;
  }
};

// Draws ranks 0..count-1 by the definition of a zipfian or self-similar distribution, exactly to
// within the precision of doubles, for any number of ranks.
//
// Ranks are cut into segments: single ones at the head, then a 32nd of the way each, so that the
// probabilities within a segment differ by a few percent. A draw picks a segment by Walker's alias
// method, with the weight it had if all its ranks were as likely as its first, and a rank in it
// uniformly, which it keeps with probability p(rank) / p(first). A bound on that ratio decides
// nearly all draws without computing it. So a draw takes two table look-ups and two mixes of 64-bit
// words and no powers, and the tables have some hundred entries, however many ranks there are.
class RankSampler {
 public:
  RankSampler() = default;
  // `distribution` is ranked; `count` is at least 1.
  RankSampler(const Distribution& distribution, uint64_t count);

  // The rank for a uniformly distributed word. Equal words give equal ranks.
  uint64_t draw(uint64_t word) const {
    for (;;) {
      const Wide column = Wide{word} * choices_.size();
      const Choice& choice = choices_[static_cast<size_t>(column >> 64)];
      // An index, not a branch: half the time it would be guessed wrong.
      const auto other = static_cast<size_t>(static_cast<uint64_t>(column) >= choice.keep_below);
      const Segment& segment = segments_[choice.segments[other]];
      word = mix_word(word + 0x8d3c5f0b7e91a264ULL);
      const Wide place = Wide{word} * segment.width;
      const auto offset = static_cast<uint64_t>(place >> 64);
      const auto level = static_cast<uint64_t>(place);
      if (level < segment.sure_below || keeps(segment, offset, level)) [[likely]] {
        return segment.begin + offset;
      }
      word = mix_word(word + 0x8d3c5f0b7e91a264ULL);
    }
  }

  // The probability of a rank, up to a factor that is the same for all.
  double weight(uint64_t rank) const;

 private:
  __extension__ using Wide = unsigned __int128;

  struct Segment {
    uint64_t begin;
    uint64_t width;
    uint64_t sure_below;  // levels, of 2^64, at which every rank of the segment is kept
  };
  struct Choice {
    uint64_t keep_below;               // of 2^64
    std::array<uint32_t, 2> segments;  // its own; another
  };

  void cut(uint64_t count);
  void make_choices();
  bool keeps(const Segment& segment, uint64_t offset, uint64_t level) const;

  Distribution distribution_;
  double count_ = 1;
  double exponent_ = 0;
  std::vector<Segment> segments_;
  std::vector<Choice> choices_;
};

}  // namespace perdure::lab
