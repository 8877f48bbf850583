// A hash table with chains, as published code often is: raw pointers in a pool at a fixed address,
// a lock in each bucket. The shim and the check are <perdure/lab_shim.h> and <perdure/lab_check.h>;
// only the class at the end is for them.
//
//   perdure-c++ -O2 -std=c++17 main.cc -o crash-check
//   perdure crash --program './crash-check {} run 40' --check './crash-check {} check'
#include <perdure/lab_check.h>

#include <cstdint>

namespace {

using perdure_shim::persist;
using perdure_shim::Pool;
using perdure_shim::RestartLock;

constexpr uint64_t kBuckets = 8;

struct Node {
  uint64_t key;
  uint64_t value;
  Node* next;
};

struct Bucket {
  Node* first;
  RestartLock lock;
};

struct Buckets {
  Bucket of[kBuckets];
};

class Chains {
 public:
  explicit Chains(Pool& pool) : pool_(pool), buckets_(pool.root<Buckets>(0)) {
    if (buckets_ != nullptr) return;
    buckets_ = static_cast<Buckets*>(pool.allocate(sizeof(Buckets)));  // zeros
    pool.set_root(0, buckets_);
  }

  bool insert(uint64_t key, uint64_t value) {
    const Locked bucket(*this, key);
    if (*place_of(bucket.of, key) != nullptr) return false;
    put_first(bucket.of, key, value);
    return true;
  }

  bool update(uint64_t key, uint64_t value) {
    const Locked bucket(*this, key);
    Node* node = *place_of(bucket.of, key);
    if (node == nullptr) return false;
    node->value = value;  // one word: old or new
    persist(&node->value, sizeof node->value);
    return true;
  }

  bool remove(uint64_t key) {
    const Locked bucket(*this, key);
    Node** place = place_of(bucket.of, key);
    if (*place == nullptr) return false;
    unlink(place);
    return true;
  }

  bool lookup(uint64_t key, uint64_t* value) {
    const Locked bucket(*this, key);
    const Node* node = *place_of(bucket.of, key);
    if (node != nullptr) *value = node->value;
    return node != nullptr;
  }

 private:
  struct Locked {
    Locked(Chains& chains, uint64_t key) : of(chains.buckets_->of[key % kBuckets]) {
      of.lock.lock(chains.pool_);
    }
    ~Locked() { of.lock.unlock(); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    Bucket& of;
  };

  // What refers to the key's node, or the end of the chain.
  static Node** place_of(Bucket& bucket, uint64_t key) {
    Node** place = &bucket.first;
    while (*place != nullptr && (*place)->key != key) place = &(*place)->next;
    return place;
  }

  void put_first(Bucket& bucket, uint64_t key, uint64_t value) {
    auto* node = static_cast<Node*>(pool_.allocate(sizeof(Node)));
    *node = {key, value, bucket.first};
    persist(node, sizeof *node);  // before the chain refers to it
    bucket.first = node;
    persist(&bucket.first, sizeof bucket.first);
  }

  void unlink(Node** place) {
    Node* node = *place;
    *place = node->next;
    persist(place, sizeof *place);  // before the node is used for another key
    pool_.release(node, sizeof *node);
  }

  Pool& pool_;
  Buckets* buckets_;
};

}  // namespace

int main(int count, char** arguments) { return perdure_shim::check_main<Chains>(count, arguments); }
