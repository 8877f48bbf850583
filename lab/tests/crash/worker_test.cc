// Whatever recovery does to its process comes back as an answer.
#include "lab/crash/worker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "lab/crash/image_file.h"

namespace perdure::lab::crash {
namespace {

constexpr WorkerLimits kLimits{.seconds = 10, .memory_bytes = uint64_t{256} << 20, .images = 4};

Observation ask(const Worker::Task& task, const WorkerLimits& limits = kLimits) {
  return Worker(task, limits).ask(false);
}

void expect_words(const Observation& seen, const char* words) {
  EXPECT_NE(seen.problem.find(words), std::string::npos) << seen.problem;
}

TEST(Worker, GivesWhatTheTaskGives) {
  Worker worker(
      [](bool with_contents) {
        return Observation{.digest = 42, .problem = "p", .contents = with_contents ? "all" : ""};
      },
      kLimits);
  const Observation brief = worker.ask(false);
  EXPECT_EQ(brief.digest, 42U);
  EXPECT_EQ(brief.problem, "p");
  EXPECT_EQ(brief.contents, "");
  EXPECT_EQ(worker.ask(true).contents, "all");
}

TEST(Worker, GivesLongContents) {
  const std::string text(3'000'000, 'x');
  Worker worker([&](bool) { return Observation{.contents = text}; }, kLimits);
  EXPECT_EQ(worker.ask(true).contents, text);
}

TEST(Worker, ReportsExceptions) {
  expect_words(ask([](bool) -> Observation { throw std::runtime_error("bad magic"); }),
               "bad magic");
  expect_words(ask([](bool) -> Observation { throw 5; }), "no exception");
}

TEST(Worker, ReportsASegmentationFault) {
  expect_words(ask([](bool) -> Observation {
                 volatile int* nowhere = nullptr;
                 *nowhere = 1;
                 return {};
               }),
               "Segmentation fault");
}

TEST(Worker, ReportsAnAbortWithItsLastWords) {
  const Observation seen = ask([](bool) -> Observation {
    std::fputs("assertion `next != 0' failed\n", stderr);
    std::abort();
  });
  expect_words(seen, "Aborted");
  expect_words(seen, "assertion `next != 0' failed");
}

TEST(Worker, ReportsAnExit) {
  expect_words(ask([](bool) -> Observation { _exit(3); }), "exits with 3");
}

TEST(Worker, ReportsAHang) {
  const Observation seen = ask(
      [](bool) -> Observation {
        for (;;) pause();
      },
      {.seconds = 1, .memory_bytes = kLimits.memory_bytes, .images = 4});
  expect_words(seen, "hangs");
}

TEST(Worker, ReportsRunawayMemory) {
  expect_words(ask([](bool) -> Observation {
                 for (;;) {
                   auto* more = new char[16 << 20];
                   // So that the compiler cannot leave the allocation out.
                   asm volatile("" : : "r"(more) : "memory");
                 }
               }),
               "memory");
}

TEST(Worker, GoesOnAfterADeath) {
  int calls = 0;
  Worker worker(
      [&](bool) -> Observation {
        // Each process has its own count, from the one that it was forked with.
        if (++calls == 2) std::abort();
        return {.digest = static_cast<uint64_t>(calls)};
      },
      kLimits);
  EXPECT_EQ(worker.ask(false).digest, 1U);
  EXPECT_FALSE(worker.ask(false).problem.empty());
  EXPECT_EQ(worker.ask(false).digest, 1U);
}

TEST(Worker, IsReplacedAfterAWhile) {
  Worker worker([](bool) { return Observation{.digest = static_cast<uint64_t>(getpid())}; },
                kLimits);
  const uint64_t first = worker.ask(false).digest;
  for (unsigned i = 1; i < kLimits.images; ++i) EXPECT_EQ(worker.ask(false).digest, first);
  EXPECT_NE(worker.ask(false).digest, first);
}

TEST(Worker, SeesTheImageAsItIsAndLeavesItSo) {
  ImageFile image(4096);
  Worker worker(
      [&](bool) {
        std::FILE* file = std::fopen(image.path().c_str(), "r+");
        auto* bytes = static_cast<unsigned char*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0));
        std::fclose(file);
        const Observation seen{.digest = bytes[7]};
        bytes[7] = 99;
        munmap(bytes, 4096);
        return seen;
      },
      kLimits);
  image.bytes()[7] = 1;
  EXPECT_EQ(worker.ask(false).digest, 1U);
  EXPECT_EQ(image.bytes()[7], 1);
  image.bytes()[7] = 2;
  EXPECT_EQ(worker.ask(false).digest, 2U);
  EXPECT_EQ(image.bytes()[7], 2);
}

// As a pool is closed and opened again.
TEST(Worker, FindsWhatItWroteWhenItMapsAFileAgain) {
  ImageFile image(4096);
  Worker worker(
      [&](bool) {
        const int file = open(image.path().c_str(), O_RDWR);
        void* region = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const auto map = [&] {
          return static_cast<unsigned char*>(
              mmap(region, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
        };
        Observation seen{.digest = map()[7]};
        static_cast<unsigned char*>(region)[7] = 99;
        munmap(region, 8192);
        unsigned char read = 0;
        if (pread(file, &read, 1, 7) != 1 || read != 99) seen.problem = "not read";
        region = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map()[7] != 99) seen.problem = "not mapped";
        munmap(region, 8192);
        close(file);
        return seen;
      },
      kLimits);
  for (const unsigned char byte : std::array<unsigned char, 2>{1, 2}) {
    image.bytes()[7] = byte;
    const Observation seen = worker.ask(false);
    EXPECT_EQ(seen.problem, "");
    EXPECT_EQ(seen.digest, byte);
    EXPECT_EQ(image.bytes()[7], byte);
  }
}

}  // namespace
}  // namespace perdure::lab::crash
