// A durable table of scores, in the types of the program: names and signed numbers, in order.
//
//   high_scores FILE NAME POINTS   adds points, of which there may be fewer than none, and tells the sum
//   high_scores FILE               lists all names in order
//   high_scores FILE PREFIX        lists those that begin so
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "perdure/perdure.h"

using Scores = perdure::FastFair<std::string, int64_t>;

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) return std::cerr << "usage: high_scores FILE [NAME [POINTS]]\n", 2;
  const bool there = std::filesystem::exists(argv[1]);
  perdure::Pool pool = there ? perdure::Pool::open(argv[1]) : perdure::Pool::create(argv[1]);
  const bool empty = pool.structures().empty();
  Scores scores = empty ? Scores::create(pool, "scores") : Scores::open(pool, "scores");
  if (argc == 4) {
    std::cout << scores.increment(argv[2], std::stoll(argv[3])) << '\n';  // durable
    return 0;
  }
  for (auto&& [name, score] : scores.prefix(argc == 3 ? argv[2] : "")) {
    std::cout << name << ": " << score << '\n';
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
