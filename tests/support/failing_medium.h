// A medium that refuses a persist, so that every operation can be seen to meet one.
//
//   FailingMedium medium(path);                        // of pools that are opened from now on
//   medium.refuse([](uint64_t n) { return n == 17; });
//   ...open the pool, write...                         // at persist 17 the process forks
//   if (medium.refused()) medium.report(judge());      // in the child, whose persist 17 was refused
//   EXPECT_EQ(medium.findings(), "");                  // in the parent, which goes on as if nothing was
//
// A persist is what makes stores durable: msync in domain `page`, a fence in `line` and `byte`.
// When a chosen one is due, a child is forked that works on a copy of the pool at the same
// addresses and is told EIO; the parent waits for its report. So one run of a workload serves any
// number of persists.
//
// The medium also keeps what is sure to be durable: nothing of what was flushed or written since
// the last persist that succeeded. What a refused persist was about never counts as durable
// afterwards. For one thread at a time, except in a process that threads() was called in.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "perdure/pool.h"
#include "pm/emulated_media.h"
#include "support/errors.h"
#include "support/random.h"

namespace perdure::test {

class FailingMedium final : public pm::EmulatedMedia {
 public:
  // Of the pool at `path`, which may not exist yet. One at a time.
  FailingMedium(std::string path, Domain domain);
  ~FailingMedium() override;
  FailingMedium(const FailingMedium&) = delete;
  FailingMedium& operator=(const FailingMedium&) = delete;

  // The file as it is now is durable: call it after the pool was made, and whenever it was
  // replaced. The pool is closed or just created.
  void begin();

  // Persists are counted from 0. Those that `chosen` picks are refused, each in a child of its own;
  // in the children for which `for_good` holds, so are all later ones.
  void refuse(std::function<bool(uint64_t)> chosen, std::function<bool(uint64_t)> for_good);
  // Refuses persist `n` in this very process. Again, once the pool is closed: the caches survive a
  // process that died, so its last stores are in the file, and not durable.
  void refuse_here(uint64_t n, bool for_good);
  uint64_t persists() const { return persists_; }

  // Whether a persist was refused in this process.
  bool refused() const { return refused_; }
  uint64_t refused_number() const { return refused_number_; }
  bool is_for_good() const { return for_good_; }

  // From now on all persists succeed, and nothing is counted.
  void mend();

  // What may be on the medium, as files beside the pool's, whose paths are returned.
  enum class Image : uint8_t {
    kAll,    // every store
    kLeast,  // what is sure to be there
    kMixed,  // some lines from the one, some from the other
  };
  std::string make_image(Image image, uint64_t seed);

  // Whether the calling thread has fenced all that it wrote back.
  static bool has_fenced_all();

  // What this process does now, told if it ends or hangs before it reports.
  void at(const std::string& what);

  // In a child: ends the process. Empty text: all is well.
  [[noreturn]] void report(const std::string& text);
  // In the parent: what children reported, and those that ended or hung before they could. The
  // first few in full.
  std::string findings() const;
  uint64_t children() const { return children_; }

  // pm::EmulatedMedia, for domains `line` and `byte`.
  bool serves(Domain domain) const override { return domain == domain_ && domain != Domain::kPage; }
  void written_back(uintptr_t address, size_t bytes) override;
  void fenced() override;
  // For domain `page`. False: refused.
  bool synced(uintptr_t address, size_t bytes);

 private:
  struct Lines {
    uint64_t offset;
    std::vector<char> bytes;
  };

  bool persist();  // counts one; false: it is refused
  bool fork_child();
  void read_report(int in, int child);
  void forget_earlier() const;
  bool find_mapping(uintptr_t address);
  void work_on_copy();
  void make_durable(uint64_t offset, const char* bytes, size_t count);

  std::string path_;
  Domain domain_;
  std::mutex mutex_;
  bool counting_ = false;
  uint64_t begun_ = 0;
  uint64_t persists_ = 0;
  std::function<bool(uint64_t)> chosen_;
  std::function<bool(uint64_t)> chosen_for_good_;
  uint64_t here_ = ~uint64_t{0};

  bool refused_ = false;
  bool for_good_ = false;
  uint64_t refused_number_ = 0;
  int out_ = -1;  // in a child
  std::string at_;

  uintptr_t base_ = 0;  // of the mapping; 0: not looked up
  uintptr_t end_ = 0;
  std::vector<char> durable_;
  uint64_t sequence_ = 0;                                    // of what is written back
  std::unordered_map<uint64_t, uint64_t> durable_sequence_;  // by line

  std::string findings_;
  uint64_t finding_count_ = 0;
  uint64_t children_ = 0;
};

// From now on each msync that covers the address is refused, whatever medium there is; 0: none is.
void refuse_msync_at(uintptr_t address);

// Whether `work`, on the pool at `path`, meets its persist `n` and ends with Error(kIo), when that
// persist and all later ones fail. What the medium has then is the pool from here on, as after a
// power failure.
testing::AssertionResult power_fails(const std::string& path, Domain domain, uint64_t n,
                                     FailingMedium::Image image, uint64_t seed,
                                     const std::function<void(FailingMedium&)>& work);

}  // namespace perdure::test
