// The database as a store with transactions over tables.
#pragma once

#include <string>
#include <vector>

#include "lab/study/buffer/transactional_store.h"
#include "perdure/database.h"

namespace perdure::lab::study {

class DatabaseStore final : public TransactionalStore {
 public:
  // In the folder `path`, made if it is not there: the pool and the page file. In memory, it
  // flushes as PM needs it; on other media its commits have this durability. `database.page_file`
  // is chosen here.
  DatabaseStore(const std::string& path, DatabaseOptions database, unsigned tables,
                uint64_t capacity_bytes, Durability durability = Durability::kBest);

  void write(const Work& work) override;
  void read(const Work& work) override;
  void scan(unsigned table,
            const std::function<void(std::string_view, std::string_view)>& visit) override;

  Database& database() { return database_; }
  const Tree& tree(unsigned table) const { return trees_[table]; }

 private:
  class One;
  Pool pool_;
  Database database_;
  std::vector<Tree> trees_;
};

}  // namespace perdure::lab::study
