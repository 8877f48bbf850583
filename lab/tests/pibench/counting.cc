// A library whose scans tell how many records there are and give none, and which prints.
#include <cstdio>

#include "foreign_tree_2019.h"
#include "foreign_words.h"

class counting_wrapper final : public words_wrapper {
 public:
  counting_wrapper() { std::printf("counting: made\n"); }
  ~counting_wrapper() override { std::printf("counting: gone\n"); }
  int scan(const char* key, size_t key_size, int scan_sz, char*& values_out) override {
    char* ignored = nullptr;
    (void)values_out;
    return words_wrapper::scan(key, key_size, scan_sz, ignored);
  }
};

extern "C" tree_api* create_tree(const tree_options_t&) { return new counting_wrapper; }
