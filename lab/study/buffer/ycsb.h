// YCSB's records and its workloads A, B and C on the database.
#pragma once

#include <string>

#include "lab/study/buffer/run.h"

namespace perdure::lab::study::buffer_pool {

// Of the operations of a mix, the reads, in percent. Throws Error if it is none of a, b, c.
uint32_t read_percent_of(const std::string& mix);

// A closed database with the records, in the folder "loaded" of the study's folder, and its pages.
uint64_t load_records(const Course& course);

// Frames for so much of the memory in DRAM, the rest in PM.
struct MemoryShare {
  uint64_t dram_bytes;
  uint64_t pm_bytes;
};
MemoryShare share_of(const BufferStudyOptions& options, uint64_t pages, double dram_percent);

// A copy of that database, to be run with this memory. Earlier ones are gone.
RunSetup copy_of_loaded(const Course& course, const MemoryShare& share);

// Reads and updates records, as gauge.read_percent says; with `fill` it first reads all pages once.
DatabaseRun::Work ycsb(const BufferStudyOptions& options, uint64_t seed, bool fill);
// Begins such a run, before a crash, and returns when the pool is full and hot pages had time to
// become known.
std::unique_ptr<DatabaseRun> warm_run(const Course& course, const RunSetup& setup, uint64_t seed,
                                      const std::string& mix);

// When a run that was begun after a crash was how fast.
json return_of(const BufferStudyOptions& options, const DatabaseRun& run,
               const std::vector<Window>& after, double peak_per_s);
size_t stretch_of(const BufferStudyOptions& options);

}  // namespace perdure::lab::study::buffer_pool
