// Reads LMDB, opened for reading only, in one read transaction: as of one moment, while others may
// write.

#include <fmt/core.h>
#include <lmdb.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/readers/reader.h"
#include "cli/text.h"

namespace {

using namespace perdure::readers;

// A record that stands for a database with a name has a value of this size.
constexpr size_t kDescriptorBytes = 48;

void require(int code, const std::string& what) {
  if (code == MDB_SUCCESS) return;
  const char* hint =
      code == EACCES ? " (readers, too, register in its lock file, which lies beside it)" : "";
  throw Failure(fmt::format("{}: {}{}", what, mdb_strerror(code), hint));
}

std::string_view view_of(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

class Reader {
 public:
  Reader(const Request& request, Output& output) : request_(request), output_(output) {}
  ~Reader() {
    if (transaction_ != nullptr) mdb_txn_abort(transaction_);
    if (environment_ != nullptr) mdb_env_close(environment_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read() {
    open();
    MDB_dbi table = 0;
    const std::string& name = request_.database;
    const int code = mdb_dbi_open(transaction_, name.empty() ? nullptr : name.c_str(), 0, &table);
    if (code == MDB_NOTFOUND || code == MDB_INCOMPATIBLE) {
      const std::string names = names_there();
      throw Failure(fmt::format(
          "{}: there is no database \"{}\"; {}", request_.path, name,
          names.empty() ? "there are none with names" : "those with names are: " + names));
    }
    require(code, request_.path);
    write_all(table);
  }

 private:
  void open() {
    std::error_code ignored;
    const std::string& path = request_.path;
    const bool is_file = std::filesystem::is_regular_file(path, ignored);
    if (!is_file && !std::filesystem::exists(path + "/data.mdb", ignored)) {
      throw Failure(path + ": no database, for there is no file data.mdb");
    }
    require(mdb_env_create(&environment_), path);
    require(mdb_env_set_maxdbs(environment_, 2), path);
    require(mdb_env_open(environment_, path.c_str(),
                         MDB_RDONLY | MDB_NOTLS | (is_file ? unsigned{MDB_NOSUBDIR} : 0U), 0600),
            path);
    require(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &transaction_), path);
  }

  // Calls `visit` with each record, until that returns false.
  template <typename Visit>
  void for_each(MDB_dbi table, Visit visit) {
    MDB_cursor* opened = nullptr;
    require(mdb_cursor_open(transaction_, table, &opened), request_.path);
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> cursor(opened, mdb_cursor_close);
    MDB_val key;
    MDB_val value;
    int code = mdb_cursor_get(cursor.get(), &key, &value, MDB_FIRST);
    for (; code == MDB_SUCCESS; code = mdb_cursor_get(cursor.get(), &key, &value, MDB_NEXT)) {
      if (!visit(view_of(key), view_of(value))) return;
    }
    if (code != MDB_NOTFOUND) require(code, request_.path);
  }

  // Whether a record of the database without a name stands for one with a name.
  bool is_database(std::string_view key, std::string_view value) {
    if (value.size() != kDescriptorBytes || key.find('\0') != std::string_view::npos) return false;
    MDB_dbi table = 0;
    if (mdb_dbi_open(transaction_, std::string(key).c_str(), 0, &table) != MDB_SUCCESS) {
      return false;
    }
    mdb_dbi_close(environment_, table);
    return true;
  }

  void write_all(MDB_dbi table) {
    unsigned flags = 0;
    require(mdb_dbi_flags(transaction_, table, &flags), request_.path);
    std::optional<std::string> last;
    std::string left_out;
    for_each(table, [&](std::string_view key, std::string_view value) {
      if (request_.database.empty() && is_database(key, value)) {
        append_name(key, left_out);
        return true;
      }
      if ((flags & MDB_DUPSORT) != 0) {
        if (last && *last == key) {
          std::string shown;
          perdure::cli::append_tsv_escaped(key, shown);
          throw Failure(
              fmt::format("{}: the key '{}' has several values (MDB_DUPSORT), and here "
                          "a key has one",
                          request_.path, shown));
        }
        last = key;
      }
      output_.record(key, value);
      return true;
    });
    if (left_out.empty()) return;
    if (output_.records() == 0) {
      throw Failure(
          fmt::format("{}: all records are in databases with names; choose one with "
                      "--database: {}",
                      request_.path, left_out));
    }
    fmt::print(stderr, "left out: the databases with names, {}\n", left_out);
  }

  std::string names_there() {
    MDB_dbi table = 0;
    require(mdb_dbi_open(transaction_, nullptr, 0, &table), request_.path);
    std::string names;
    for_each(table, [&](std::string_view key, std::string_view value) {
      if (is_database(key, value)) append_name(key, names);
      return true;
    });
    return names;
  }

  static void append_name(std::string_view name, std::string& names) {
    if (!names.empty()) names += ", ";
    perdure::cli::append_tsv_escaped(name, names);
  }

  const Request& request_;
  Output& output_;
  MDB_env* environment_ = nullptr;
  MDB_txn* transaction_ = nullptr;
};

void read(const Request& request, Output& output) { Reader(request, output).read(); }

}  // namespace

int main(int argc, char** argv) {
  return run_reader(argc, argv, "LMDB", "The database of this name (default: the one without)",
                    read);
}
