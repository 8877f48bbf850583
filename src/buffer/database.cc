// The public face of the database, transactions, and cursors.
#include "perdure/database.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "buffer/btree/tree.h"
#include "buffer/engine.h"

namespace perdure {

namespace buffer {

namespace {

[[noreturn]] void refuse_moved_from(const char* what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("a {} is used that was moved from", what));
}

void require_database(const Lifetime::Ref& database, const char* what) {
  if (!database.is_over()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a {} is used after its database was closed", what));
}

}  // namespace

// Where a cursor finds records, a leaf at a time.
class LeafSource {
 public:
  virtual ~LeafSource() = default;
  // Throws kInvalidArgument if it has ended, or its database.
  virtual void require_open() const = 0;
  virtual void read_forward(uint64_t root, std::string_view from, LeafCopy& leaf) = 0;
  virtual void read_backward(uint64_t root, std::string_view below, bool to_end,
                             LeafCopy& leaf) = 0;
  // What is laid over them, or null.
  virtual const WriteMap* writes_of(uint64_t root) const = 0;
};

class TransactionImpl final : public LeafSource {
 public:
  explicit TransactionImpl(Engine& engine)
      : engine_(&engine), database_(engine.lifetime()), moment_(engine.moment()) {}

  // Its commit comes before those that wait; for who has a HeldCommits.
  void go_first() { first_ = true; }

  uint64_t opening() const { return database_.number(); }
  bool is_open() const { return open_; }
  void require_open() const override {
    if (!open_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a transaction is used after it was committed or aborted; begin another one");
    }
    require_database(database_, "transaction");
  }
  const WriteMap* writes_of(uint64_t root) const override {
    const auto found = writes_.find(root);
    return found == writes_.end() ? nullptr : &found->second;
  }

  void read_forward(uint64_t root, std::string_view from, LeafCopy& leaf) override {
    read([&] {
      tree_read_forward(engine_->buffer(), root, from, leaf);
      return Engine::stamp_of_page(leaf.page);
    });
  }
  void read_backward(uint64_t root, std::string_view below, bool to_end, LeafCopy& leaf) override {
    read([&] {
      tree_read_backward(engine_->buffer(), root, below, to_end, leaf);
      return Engine::stamp_of_page(leaf.page);
    });
  }

  // Reads something whose stamp is at `place`, again until it is of the transaction's moment.
  template <typename Read>
  void read(Read attempt) {
    require_open();
    for (;;) {
      const uint32_t place = attempt();
      if (engine_->stamp(place) <= moment_) {
        if (reads_.empty() || reads_.back() != place) reads_.push_back(place);
        return;
      }
      advance();
    }
  }

  bool get(uint64_t root, std::string_view key, std::string& value) {
    require_open();
    if (const WriteMap* own = writes_of(root)) {
      const auto found = own->find(key);
      if (found != own->end()) {
        if (found->second) value = *found->second;
        return found->second.has_value();
      }
    }
    bool found = false;
    read([&] {
      found = tree_get(engine_->buffer(), root, key, value);
      return Engine::stamp_of(root, key);
    });
    return found;
  }

  void write(uint64_t root, std::string_view key, std::optional<std::string_view> value) {
    require_open();
    WriteMap& writes = writes_[root];
    const auto before = writes.find(key);
    const bool fresh = before == writes.end();
    const uint64_t bytes = bytes_of(key, value ? value->size() : 0);
    const uint64_t others = written_bytes_ - (fresh ? 0 : bytes_of(*before));
    if (key.size() > key_bytes_max(engine_->format()) ||
        others + bytes > engine_->writes_bytes_max()) {
      throw Error(
          ErrorCode::kTooLarge,
          fmt::format("a key of {} bytes with a value of {}: a key may have {} bytes, and all "
                      "writes of a transaction {}",
                      key.size(), value ? value->size() : 0, key_bytes_max(engine_->format()),
                      engine_->writes_bytes_max()));
    }
    // A write that finds no memory has done nothing.
    std::optional<std::string> after(value);
    if (has_savepoints_) {
      undo_.push_back({root, std::string(key), fresh, fresh ? std::nullopt : before->second});
    }
    if (!fresh) {
      before->second = std::move(after);
    } else {
      try {
        writes.try_emplace(std::string(key), std::move(after));
      } catch (...) {
        if (has_savepoints_) undo_.pop_back();
        throw;
      }
    }
    written_bytes_ = others + bytes;
  }

  size_t savepoint() {
    require_open();
    has_savepoints_ = true;
    return undo_.size();
  }
  void rollback_to(size_t savepoint) {
    require_open();
    if (!has_savepoints_ || savepoint > undo_.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a transaction cannot go back to a savepoint that it has not");
    }
    while (undo_.size() > savepoint) {
      Undo& undo = undo_.back();
      WriteMap& writes = writes_[undo.root];
      const auto at = writes.find(undo.key);
      written_bytes_ -= bytes_of(*at);
      if (undo.fresh) {
        writes.erase(at);
      } else {
        at->second = std::move(undo.value);
        written_bytes_ += bytes_of(*at);
      }
      undo_.pop_back();
    }
  }

  void commit() {
    require_open();
    const bool wrote = std::any_of(writes_.begin(), writes_.end(),
                                   [](const auto& tree) { return !tree.second.empty(); });
    if (wrote) {
      Engine::Commit request;
      request.writes = &writes_;
      request.reads = &reads_;
      request.moment = moment_;
      request.first = first_;
      engine_->commit(request);
    }
    open_ = false;
  }
  void abort() {
    open_ = false;
    writes_.clear();
  }

 private:
  struct Undo {
    uint64_t root;
    std::string key;
    bool fresh;
    std::optional<std::string> value;
  };

  static uint64_t bytes_of(std::string_view key, uint64_t value_bytes) {
    return key.size() + value_bytes + 64;
  }
  static uint64_t bytes_of(const WriteMap::value_type& write) {
    return bytes_of(write.first, write.second ? write.second->size() : 0);
  }

  // Moves to now, unless what was read has changed since.
  void advance() {
    engine_->require_running();
    const uint64_t now = engine_->moment();
    engine_->validate(reads_, moment_);
    if (now == moment_) std::this_thread::yield();  // a commit is on its way
    moment_ = now;
  }

  Engine* engine_;
  Lifetime::Ref database_;
  uint64_t moment_;
  bool open_ = true;
  bool first_ = false;
  bool has_savepoints_ = false;  // what was written before there is one is never taken back alone
  Writes writes_;
  std::vector<uint32_t> reads_;
  std::vector<Undo> undo_;
  uint64_t written_bytes_ = 0;
};

// Nothing of it ever changes. A tree that was not there at the moment has root 0, and no records.
class SnapshotImpl final : public LeafSource {
 public:
  explicit SnapshotImpl(Engine& engine)
      : engine_(engine), database_(engine.lifetime()), moment_(engine.begin_snapshot()) {}

  Engine& engine() const {
    require_open();
    return engine_;
  }
  uint64_t opening() const { return database_.number(); }
  const Moment& moment() const { return *moment_; }
  void require_open() const override { require_database(database_, "snapshot"); }

  bool get(uint64_t root, std::string_view key, std::string& value) const {
    require_open();
    moment_->require();
    return root != 0 && tree_get(view(), root, key, value);
  }
  void read_forward(uint64_t root, std::string_view from, LeafCopy& leaf) override {
    if (begin(root, leaf)) tree_read_forward(view(), root, from, leaf);
  }
  void read_backward(uint64_t root, std::string_view below, bool to_end, LeafCopy& leaf) override {
    if (begin(root, leaf)) tree_read_backward(view(), root, below, to_end, leaf);
  }
  const WriteMap* writes_of(uint64_t /*root*/) const override { return nullptr; }

 private:
  View view() const { return {engine_.buffer(), moment_.get()}; }
  bool begin(uint64_t root, LeafCopy& leaf) const {
    require_open();
    moment_->require();
    if (root == 0) {
      leaf = {};
      leaf.last = true;
    }
    return root != 0;
  }

  Engine& engine_;
  Lifetime::Ref database_;
  std::shared_ptr<const Moment> moment_;
};

// Copies of one leaf at a time, with the transaction's own writes. A call that throws leaves it
// where it was.
class CursorImpl {
 public:
  CursorImpl(std::shared_ptr<LeafSource> source, uint64_t root)
      : source_(std::move(source)), root_(root) {}

  bool forward(std::string from) {
    for (LeafCopy leaf;; from = leaf.next) {
      source_->read_forward(root_, from, leaf);
      merge(leaf, &from, leaf.last ? nullptr : &leaf.next);
      if (leaf.records.empty() && !leaf.last) continue;
      leaf_ = std::move(leaf);
      at_ = 0;
      return valid();
    }
  }

  bool backward(std::string below, bool to_end) {
    for (LeafCopy leaf;; below = leaf.next, to_end = false) {
      source_->read_backward(root_, below, to_end, leaf);
      merge(leaf, leaf.last ? nullptr : &leaf.next, to_end ? nullptr : &below);
      if (leaf.records.empty() && !leaf.last) continue;
      leaf_ = std::move(leaf);
      at_ = leaf_.records.size() - 1;
      return valid();
    }
  }

  bool next() {
    source_->require_open();
    if (at_ + 1 < leaf_.records.size()) {
      ++at_;
      return true;
    }
    return forward(std::string(record().key) + '\0');
  }
  bool previous() {
    source_->require_open();
    // First: without a record it is behind the last one, which there is not.
    const std::string& key = record().key;
    if (at_ > 0) {
      --at_;
      return true;
    }
    return backward(key, false);
  }

  bool valid() const { return at_ < leaf_.records.size(); }
  const LeafCopy::Record& record() const {
    if (!valid()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a cursor is used that is not at a record; seek first");
    }
    return leaf_.records[at_];
  }

 private:
  // Lays the transaction's writes of [low, high) over the copy.
  void merge(LeafCopy& leaf, const std::string* low, const std::string* high) const {
    const WriteMap* own = source_->writes_of(root_);
    if (own == nullptr || own->empty()) return;
    auto write = low == nullptr ? own->begin() : own->lower_bound(*low);
    const auto end = high == nullptr ? own->end() : own->lower_bound(*high);
    std::vector<LeafCopy::Record> merged;
    auto record = leaf.records.begin();
    for (; write != end; ++write) {
      while (record != leaf.records.end() && record->key < write->first) {
        merged.push_back(std::move(*record++));
      }
      if (record != leaf.records.end() && record->key == write->first) ++record;
      if (write->second) merged.push_back({write->first, *write->second});
    }
    while (record != leaf.records.end()) merged.push_back(std::move(*record++));
    leaf.records = std::move(merged);
  }

  std::shared_ptr<LeafSource> source_;
  uint64_t root_;
  LeafCopy leaf_;
  size_t at_ = 0;
};

}  // namespace buffer

Cursor::Cursor(std::unique_ptr<buffer::CursorImpl> impl) : impl_(std::move(impl)) {}
Cursor::Cursor(Cursor&&) noexcept = default;
Cursor& Cursor::operator=(Cursor&&) noexcept = default;
Cursor::~Cursor() = default;

buffer::CursorImpl& Cursor::impl() const {
  if (!impl_) buffer::refuse_moved_from("cursor");
  return *impl_;
}

bool Cursor::seek(std::string_view key) { return impl().forward(std::string(key)); }
bool Cursor::seek_last() { return impl().backward({}, true); }
bool Cursor::seek_below(std::string_view key) { return impl().backward(std::string(key), false); }
bool Cursor::next() { return impl().next(); }
bool Cursor::previous() { return impl().previous(); }
bool Cursor::valid() const { return impl().valid(); }
std::string_view Cursor::key() const { return impl().record().key; }
std::string_view Cursor::value() const { return impl().record().value; }

Transaction::Transaction(std::shared_ptr<buffer::TransactionImpl> impl) : impl_(std::move(impl)) {}
Transaction::Transaction(Transaction&&) noexcept = default;
Transaction& Transaction::operator=(Transaction&& other) noexcept {
  if (this == &other) return *this;
  if (impl_) impl_->abort();  // cursors may have it
  impl_ = std::move(other.impl_);
  return *this;
}
Transaction::~Transaction() {
  if (impl_) impl_->abort();
}

buffer::TransactionImpl& Transaction::impl() const {
  if (!impl_) buffer::refuse_moved_from("transaction");
  return *impl_;
}

namespace {

void require_own_tree(const std::string& name, uint64_t of, uint64_t opening) {
  if (of == opening) return;
  if (of == 0) buffer::refuse_moved_from("tree");
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the tree '{}' belongs to another database, or to one that was closed", name));
}

}  // namespace

uint64_t Transaction::root_of(const Tree& tree) const {
  require_own_tree(tree.name_, tree.opening_, impl().opening());
  return tree.root_;
}

std::optional<std::string> Transaction::get(const Tree& tree, std::string_view key) {
  std::string value;
  if (!impl().get(root_of(tree), key, value)) return std::nullopt;
  return value;
}

Cursor Transaction::cursor(const Tree& tree) {
  impl().require_open();
  return Cursor(std::make_unique<buffer::CursorImpl>(impl_, root_of(tree)));
}

void Transaction::put(const Tree& tree, std::string_view key, std::string_view value) {
  impl().write(root_of(tree), key, value);
}

bool Transaction::insert(const Tree& tree, std::string_view key, std::string_view value) {
  std::string there;
  if (impl().get(root_of(tree), key, there)) return false;
  impl().write(root_of(tree), key, value);
  return true;
}

bool Transaction::erase(const Tree& tree, std::string_view key) {
  std::string there;
  if (!impl().get(root_of(tree), key, there)) return false;
  impl().write(root_of(tree), key, std::nullopt);
  return true;
}

Transaction::Savepoint Transaction::savepoint() const { return impl().savepoint(); }
void Transaction::rollback_to(Savepoint savepoint) { impl().rollback_to(savepoint); }
void Transaction::commit() { impl().commit(); }
void Transaction::abort() { impl().abort(); }

buffer::SnapshotImpl& Snapshot::impl() const {
  if (!impl_) buffer::refuse_moved_from("snapshot");
  return *impl_;
}

uint64_t Snapshot::root_of(const Tree& tree) const {
  require_own_tree(tree.name_, tree.opening_, impl().opening());
  return tree.made_at_ <= impl().moment().lsn() ? tree.root_ : 0;
}

std::optional<std::string> Snapshot::get(const Tree& tree, std::string_view key) const {
  std::string value;
  if (!impl().get(root_of(tree), key, value)) return std::nullopt;
  return value;
}

Cursor Snapshot::cursor(const Tree& tree) const {
  impl().require_open();
  return Cursor(std::make_unique<buffer::CursorImpl>(impl_, root_of(tree)));
}

std::optional<Tree> Snapshot::find_tree(std::string_view name) const {
  buffer::Engine& engine = impl().engine();
  impl().moment().require();
  const uint64_t root = engine.find_tree(name, &impl().moment());
  if (root == 0) return std::nullopt;
  return Tree(std::string(name), root, engine.made_at(root), engine.lifetime().number());
}

std::vector<std::string> Snapshot::trees() const {
  buffer::Engine& engine = impl().engine();
  impl().moment().require();
  return engine.trees(&impl().moment());
}

Database::Database(std::unique_ptr<buffer::Engine> engine) : engine_(std::move(engine)) {}
Database::Database(Database&&) noexcept = default;
Database& Database::operator=(Database&&) noexcept = default;
Database::~Database() = default;

buffer::Engine& Database::engine() const {
  if (!engine_) buffer::refuse_moved_from("database");
  return *engine_;
}

Database Database::create(Pool& pool, const std::string& name, const DatabaseOptions& options) {
  return Database(buffer::Engine::create(pm::impl_of(pool), name, options));
}

Database Database::open(Pool& pool, const std::string& name, const DatabaseOptions& options) {
  return Database(buffer::Engine::open(pm::impl_of(pool), name, options));
}

Database Database::open_or_create(Pool& pool, const std::string& name,
                                  const DatabaseOptions& options) {
  return pm::impl_of(pool).find(name) == nullptr ? create(pool, name, options)
                                                 : open(pool, name, options);
}

Tree Database::tree(std::string_view name) {
  const uint64_t root = engine().make_tree(name);
  return {std::string(name), root, engine().made_at(root), engine().lifetime().number()};
}

std::optional<Tree> Database::find_tree(std::string_view name) const {
  const uint64_t root = engine().find_tree(name);
  if (root == 0) return std::nullopt;
  return Tree(std::string(name), root, engine().made_at(root), engine().lifetime().number());
}

std::vector<std::string> Database::trees() const { return engine().trees(); }

Transaction Database::begin() {
  return Transaction(std::make_shared<buffer::TransactionImpl>(engine()));
}

void Database::transact(const std::function<void(Transaction&)>& work) {
  constexpr int kAttempts = 8;
  for (int attempt = 0;; ++attempt) {
    std::optional<buffer::Engine::HeldCommits> alone;
    if (attempt >= kAttempts) alone.emplace(engine());
    Transaction transaction = begin();
    // Else those that came to wait meanwhile could be a conflict once more.
    if (alone) transaction.impl_->go_first();
    try {
      work(transaction);
      // It may also have taken it away.
      if (transaction.impl_ && transaction.impl_->is_open()) transaction.commit();
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConflict || alone) throw;
    }
  }
}

Snapshot Database::snapshot() const {
  return Snapshot(std::make_shared<buffer::SnapshotImpl>(engine()));
}

void Database::checkpoint() { engine().checkpoint(); }
void Database::recover(const std::function<void(const RecoveryProgress&)>& told) {
  engine().recover(told);
}
RecoveryProgress Database::recovery() const { return engine().recovery(); }
uint64_t Database::check(const std::function<void(const std::string&)>& report) const {
  return engine().check(report);
}
std::vector<Statistic> Database::statistics() const { return engine().statistics(); }

}  // namespace perdure
