// Work that the process which has a pool open to write does for others: backups, which nobody else
// can make.
//
//   writer                                     asker
//   bind, listen                               connect
//   accept: who is it? (SO_PEERCRED)           who is it?
//                              <- one packet:  what is wanted, in words, with descriptors of the files
//   "wait" | "progress D T" ... ->
//   "done N ..." | "error CODE WORDS" ->
//
// The socket is of the kind SOCK_SEQPACKET, which keeps packets apart, in Linux' abstract name
// space, named after the device and inode of the pool's file: nothing lies in a folder, nothing is
// left behind by a process that was killed, and no link leads astray. Whoever is there first has
// such a name, in one network name space. So both sides ask the kernel who the other is: a writer
// answers its own user and root, an asker hands its file to its own user, to root, and, if it is
// root itself, to the owner of the pool's file. Where user ids are mapped, users that have no
// number of their own look like one. So the asker also passes the pool's file, open to read, which
// shows that it may read what it asks for.
//
// The writer opens no path: the asker passes a descriptor of an empty file of its own, and of the
// backup that the new one goes on from. The asker makes the file durable and gives it its name; if
// it dies the file has none, and the writer gives up with the next part. Nothing that the writer
// sends waits for the asker: progress that finds no room is left out, and the answer always has
// some. So a stopped asker holds up nobody. What can is a write to the asker's file: it is a
// regular one, so that the wait is that of the medium.
//
// One asker is served at a time; others wait their turn, up to a number. The thread has all signals
// blocked but those of faults, so that a handler of the program runs on threads that the program
// knows, and a limit of file sizes (SIGXFSZ) is an error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace perdure::pm {

class PoolImpl;

// What is asked for. Texts have no zero bytes.
struct LiveRequest {
  std::string what;            // kLivePool, or what a structure answers
  std::string structure = {};  // its name; empty: the pool
  std::string option = {};
  int file = -1;               // regular, open to write, and empty unless it is to be read
  std::string file_name = {};  // for messages, as of the next
  int base = -1;               // regular, open to read; -1: none
  std::string base_name = {};
};

// A copy of the pool (Pool::backup): `option` is the file name of the base. Numbers: those of a
// BackupReport.
inline constexpr const char* kLivePool = "pool";
// A backup of a store, which `base` precedes; `option`: a consumer, which is made if it is not
// there. Numbers: entries, bytes.
inline constexpr const char* kLiveStore = "store";
// The consumer `option` has all that the backup `file` has: it is whole, and durable. No numbers.
inline constexpr const char* kLiveKeep = "keep";

using LiveProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Asks the process that has the pool file `pool` open. Throws what it has thrown there; kLocked
// (nobody answers, or has not within ten seconds), kPermission (it is another user's), kInUse (too
// many ask), kNotFound, kInvalidArgument, kIo (it has ended before it was done).
struct LiveAnswer {
  std::vector<uint64_t> numbers;
  bool of_own_user = false;  // else who has answered can still write to what was passed
};
LiveAnswer ask_live(const std::string& pool, const LiveRequest& request,
                    const LiveProgress& progress);

class LiveService {
 public:
  // Carries out what is asked of a structure, on the thread of the service, and returns the numbers
  // of the answer. `progress` throws when the work is to be given up: call it often.
  using Answer = std::function<std::vector<uint64_t>(const LiveRequest& request,
                                                     const LiveProgress& progress)>;

  // Begins to answer for this pool, whose file is open as `file`. If the name is taken, or the
  // system refuses, is_answering() is false.
  LiveService(const PoolImpl& pool, int file);
  ~LiveService();
  LiveService(const LiveService&) = delete;
  LiveService& operator=(const LiveService&) = delete;

  bool is_answering() const { return listener_ >= 0 && !stopped_; }

  // A structure answers for itself; `answer` is not called any more when remove() returns.
  void add(const std::string& structure, Answer answer);
  void remove(const std::string& structure);

  // Gives up what is being done, and answers nobody any more. Any thread but that of the service.
  void stop();

 private:
  class Connection;
  struct Abandoned {};

  void run();
  void serve_next();
  void serve(Connection& asker);
  std::vector<uint64_t> carry_out(const LiveRequest& request, const LiveProgress& progress);
  void look_up(Connection& asker, uint64_t done, uint64_t total);
  void accept_others();
  std::optional<size_t> next_asker();

  const PoolImpl& pool_;
  int listener_ = -1;
  int stop_fd_ = -1;
  int process_ = 0;      // a child that was forked has no thread
  uint64_t device_ = 0;  // of the pool's file, and its inode
  uint64_t inode_ = 0;
  std::atomic<bool> stopped_{false};
  std::vector<Connection> waiting_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::map<std::string, Answer, std::less<>> answers_;
  std::string busy_;                  // the structure that is answering
  uint64_t answered_ = 0;             // how often one has
  std::atomic<bool> give_up_{false};  // the one that is busy is about to go
  std::thread thread_;
};

}  // namespace perdure::pm
