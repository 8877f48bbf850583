// A durable dictionary in twenty lines: what is written is there at the next start.
//
//   dictionary FILE            lists all words
//   dictionary FILE WORD       looks a word up
//   dictionary FILE WORD GLOSS writes it
#include <filesystem>
#include <iostream>
#include <string>

#include "perdure/perdure.h"

using Words = perdure::Plush<std::string, std::string>;

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) return std::cerr << "usage: dictionary FILE [WORD [GLOSS]]\n", 2;
  const bool there = std::filesystem::exists(argv[1]);
  perdure::Pool pool = there ? perdure::Pool::open(argv[1]) : perdure::Pool::create(argv[1]);
  const bool empty = pool.structures().empty();
  Words words = empty ? Words::create(pool, "words") : Words::open(pool, "words");
  if (argc == 4) return words.upsert(argv[2], argv[3]), 0;  // durable when upsert returns
  if (std::string gloss; argc == 3) {
    if (!words.lookup(argv[2], gloss)) return std::cerr << "no such word\n", 1;
    std::cout << gloss << '\n';
    return 0;
  }
  words.for_each([](auto word, auto gloss) { std::cout << word << ": " << gloss << '\n'; });
} catch (const perdure::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
