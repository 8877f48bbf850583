#include <cstdint>

#include "seam/observed/accesses.h"

namespace seam_test {
namespace {

__extension__ typedef unsigned __int128 Word16;
template <typename T>
struct [[gnu::packed]] Unaligned {
  T value;
};

// Keeps a value that nobody uses.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

template <typename T, uint64_t kOffset>
bool load(unsigned char* base) {
  const T value = *reinterpret_cast<const T*>(base + kOffset);
  keep(value);
  return true;
}
template <typename T, uint64_t kOffset>
bool store(unsigned char* base) {
  *reinterpret_cast<T*>(base + kOffset) = T(5);
  return true;
}
template <typename T, uint64_t kOffset>
bool load_volatile(unsigned char* base) {
  const T value = *reinterpret_cast<const volatile T*>(base + kOffset);
  keep(value);
  return true;
}
template <typename T, uint64_t kOffset>
bool store_volatile(unsigned char* base) {
  *reinterpret_cast<volatile T*>(base + kOffset) = T(6);
  return true;
}
template <typename T, uint64_t kOffset>
bool load_unaligned(unsigned char* base) {
  const T value = reinterpret_cast<const Unaligned<T>*>(base + kOffset)->value;
  keep(value);
  return true;
}
template <typename T, uint64_t kOffset>
bool store_unaligned(unsigned char* base) {
  reinterpret_cast<Unaligned<T>*>(base + kOffset)->value = T(7);
  return true;
}
template <typename T, uint64_t kOffset>
bool increment(unsigned char* base) {
  T& word = *reinterpret_cast<T*>(base + kOffset);
  const T before = word;
  asm volatile("" : : : "memory");
  word = static_cast<T>(before + 1);
  return true;
}

template <typename T>
void add(std::vector<Case>& cases, const std::string& type) {
  constexpr uint64_t kSize = sizeof(T);
  cases.push_back({"load " + type, load<T, 64>, {{EventKind::kLoad, 64, kSize}}});
  cases.push_back({"store " + type, store<T, 128>, {{EventKind::kStore, 128, kSize}}});
  cases.push_back({"load volatile " + type, load_volatile<T, 32>, {{EventKind::kLoad, 32, kSize}}});
  cases.push_back(
      {"store volatile " + type, store_volatile<T, 48>, {{EventKind::kStore, 48, kSize}}});
  cases.push_back({"increment " + type,
                   increment<T, 192>,
                   {{EventKind::kLoad, 192, kSize}, {EventKind::kStore, 192, kSize}}});
  cases.push_back(
      {"load unaligned " + type, load_unaligned<T, 61>, {{EventKind::kLoad, 61, kSize}}});
  cases.push_back(
      {"store unaligned " + type, store_unaligned<T, 251>, {{EventKind::kStore, 251, kSize}}});
}

// Neighbours that the compiler may join.
bool store_fields(unsigned char* base) {
  struct Fields {
    uint8_t a;
    uint8_t b;
    uint16_t c;
    uint32_t d;
    uint64_t e;
  };
  auto& fields = *reinterpret_cast<Fields*>(base + 320);
  fields.a = 1;
  fields.b = 2;
  fields.c = 3;
  fields.d = 4;
  fields.e = 5;
  return true;
}

bool store_in_a_loop(unsigned char* base) {
  auto* words = reinterpret_cast<uint64_t*>(base + 512);
  for (uint64_t i = 0; i < 24; ++i) words[i] = i;
  return true;
}

bool sum_in_a_loop(unsigned char* base) {
  const auto* words = reinterpret_cast<const uint32_t*>(base + 512);
  uint32_t sum = 0;
  for (uint64_t i = 0; i < 100; ++i) sum += words[i];
  keep(sum);
  return true;
}

}  // namespace

std::vector<Case> plain_cases() {
  std::vector<Case> cases;
  add<uint8_t>(cases, "1 byte");
  add<uint16_t>(cases, "2 bytes");
  add<uint32_t>(cases, "4 bytes");
  add<uint64_t>(cases, "8 bytes");
  add<Word16>(cases, "16 bytes");
  add<float>(cases, "float");
  add<double>(cases, "double");
  cases.push_back({"fields", store_fields, {{EventKind::kStore, 320, 16}}, true});
  cases.push_back({"a loop of stores", store_in_a_loop, {{EventKind::kStore, 512, 192}}, true});
  cases.push_back({"a loop of loads", sum_in_a_loop, {{EventKind::kLoad, 512, 400}}, true});
  return cases;
}

void store_words(uint64_t* words, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) words[i] = i;
}

}  // namespace seam_test
