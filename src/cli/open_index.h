// An open pool and one structure of it, as the subcommands use them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::cli {

class OpenIndex {
 public:
  // Opens pool and structure to read; neither is modified, and other readers may have them open.
  // Throws what Pool::open and open_index throw.
  static std::unique_ptr<OpenIndex> open_to_read(const Target& target);

  // Opens pool and structure to write. Throws what Pool::open and open_index throw.
  static std::unique_ptr<OpenIndex> open_to_write(const Target& target);

  // The same, and makes what is missing. Kinds and structure type given in `creation` must be those
  // of a structure that is there; else throws Error(kWrongType). A pool file made by a call that
  // fails is removed again.
  static std::unique_ptr<OpenIndex> open_or_create(const Target& target, const Creation& creation);

  // Opens the pool, or makes it, and makes a structure, which is called NAME.converting until
  // keep(). One of that name, left by a crash, is dropped first. Throws Error(kNameExists) if NAME
  // is there.
  static std::unique_ptr<OpenIndex> create_converting(const Target& target,
                                                      const Creation& creation);

  OpenIndex(const OpenIndex&) = delete;
  OpenIndex& operator=(const OpenIndex&) = delete;

  Pool& pool() { return *pool_; }
  AnyIndex& index() { return *index_; }
  // The directory entry of the structure.
  StructureInfo structure() const;

  // Closes both; unlike the destructor, reports errors.
  void close();
  // What create_converting() made gets its name, and both are closed.
  void keep();
  // What create_converting() made is dropped, or its pool removed again if it is new, as far as
  // that can be done.
  void discard() noexcept;

 private:
  explicit OpenIndex(std::string name) : name_(std::move(name)) {}
  void open_or_create_pool(const Target& target, const Creation& creation);
  void open_or_create_index(const Creation& creation);

  std::string name_;
  std::string new_pool_;  // the path of a pool that was made
  std::optional<Pool> pool_;
  std::unique_ptr<AnyIndex> index_;  // destroyed before its pool
};

// The pool to read; with `target.live`, if a process has it open to write, a copy that it makes
// now, in memory of this process. Throws what Pool::open() and Pool::backup_live() throw.
Pool open_pool_to_read(const Target& target);

// The structure of this name, if the pool has it.
std::optional<StructureInfo> find_structure(const Pool& pool, const std::string& name);

}  // namespace perdure::cli
