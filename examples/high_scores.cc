// A durable table of scores, in the types of the program: names and signed numbers, in order.
//
//   high_scores FILE NAME POINTS   adds points, which may be negative, and tells the sum
//   high_scores FILE               lists all names in order
//   high_scores FILE PREFIX        lists those that begin so
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>

#include "perdure/perdure.h"

using Scores = perdure::FastFair<std::string, int64_t>;

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) return std::cerr << "usage: high_scores FILE [NAME [POINTS]]\n", 2;
  const bool there = std::filesystem::exists(argv[1]);
  perdure::Pool pool = there ? perdure::Pool::open(argv[1]) : perdure::Pool::create(argv[1]);
  const bool empty = pool.structures().empty();
  Scores scores = empty ? Scores::create(pool, "scores") : Scores::open(pool, "scores");
  if (argc == 4) {
    const std::string_view text = argv[3];
    int64_t points = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), points);
    if (code != std::errc() || end != text.data() + text.size()) {
      return std::cerr << "POINTS is a whole number, such as -3\n", 2;
    }
    std::cout << scores.increment(argv[2], points) << '\n';  // durable when increment returns
    return 0;
  }
  for (auto&& [name, score] : scores.prefix(argc == 3 ? argv[2] : "")) {
    std::cout << name << ": " << score << '\n';
  }
} catch (const perdure::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
