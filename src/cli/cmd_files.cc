// perdure files ls | cat | get | put | rm | check: the files in a pool.

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/error.h"
#include "perdure/files.h"

namespace perdure::cli {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

struct FilesOptions {
  Target target;
  std::string capacity = "1G";
  std::string path;
  std::string outside;  // a file of the system
  bool recursive = false;
};

// The pool and its files; closed in this order.
struct OpenFiles {
  Pool pool;
  Files files;
};

OpenFiles open_to_read(const FilesOptions& options) {
  Pool pool = Pool::open(options.target.pool, reading_options_for(options.target));
  Files files = Files::open(pool, options.target.name);
  return {std::move(pool), std::move(files)};
}

// Standard output if the path is "-".
struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdout && file != stdin) static_cast<void>(std::fclose(file));
  }
};
using SystemFile = std::unique_ptr<std::FILE, CloseFile>;

SystemFile open_outside(const std::string& path, const char* mode) {
  if (path == "-") return SystemFile(*mode == 'r' ? stdin : stdout);
  SystemFile file(std::fopen(path.c_str(), mode));
  if (!file) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  return file;
}

void copy_out(const FileReader& reader, std::FILE* to, const std::string& name) {
  std::vector<char> scratch(kPieceBytes);
  for (uint64_t at = 0; at < reader.size();) {
    const std::string_view piece = reader.read(at, kPieceBytes, scratch.data());
    if (std::fwrite(piece.data(), 1, piece.size(), to) != piece.size()) {
      throw_cannot_write(name, errno);
    }
    at += piece.size();
  }
  if (std::fflush(to) != 0) throw_cannot_write(name, errno);
}

nlohmann::json file_json(const std::string& path, const FileInfo& info) {
  return {{"path", path},
          {"directory", info.directory},
          {"bytes", info.bytes},
          {"modified_unix_s", info.modified_unix_s}};
}

void list(const Files& files, const FilesOptions& options, const std::string& directory,
          nlohmann::json& all) {
  for (const FileInfo& info : files.list(directory)) {
    const std::string path = directory.empty() ? info.name : directory + "/" + info.name;
    if (options.target.json) {
      all.push_back(file_json(path, info));
    } else {
      fmt::print("{:>15}  {}{}\n", info.directory ? "-" : format_count(info.bytes), path,
                 info.directory ? "/" : "");
    }
    if (info.directory && options.recursive) list(files, options, path, all);
  }
}

int run_ls(const FilesOptions& options) {
  const OpenFiles open = open_to_read(options);
  nlohmann::json all = nlohmann::json::array();
  std::string directory = options.path;
  while (directory.ends_with('/')) directory.pop_back();
  const std::optional<FileInfo> info = open.files.find(directory);
  if (info && !info->directory) {
    if (options.target.json) {
      fmt::print("{}\n", nlohmann::json::array({file_json(directory, *info)}).dump(2));
    } else {
      fmt::print("{:>15}  {}\n", format_count(info->bytes), directory);
    }
    return kExitOk;
  }
  list(open.files, options, directory, all);
  if (options.target.json) fmt::print("{}\n", all.dump(2));
  return kExitOk;
}

void get_file(const Files& files, const std::string& path, const std::string& outside) {
  const FileReader reader = files.open_file(path);
  const SystemFile to = open_outside(outside, "wb");
  copy_out(reader, to.get(), outside);
}

void get_directory(const Files& files, const std::string& path, const std::string& outside) {
  std::error_code error;
  std::filesystem::create_directories(outside, error);
  if (error) throw_cannot_write(outside, error.value());
  for (const FileInfo& child : files.list(path)) {
    const std::string from = path + "/" + child.name;
    const std::string to = outside + "/" + child.name;
    if (child.directory) {
      get_directory(files, from, to);
    } else {
      get_file(files, from, to);
    }
  }
}

int run_get(const FilesOptions& options) {
  const OpenFiles open = open_to_read(options);
  const std::optional<FileInfo> info = open.files.find(options.path);
  if (!info) {
    fmt::print(stderr, "perdure: there is no file \"{}\"\n", options.path);
    return kExitAbsent;
  }
  if (options.recursive && info->directory) {
    get_directory(open.files, options.path, options.outside);
  } else {
    get_file(open.files, options.path, options.outside);
  }
  return kExitOk;
}

// A file of another name takes the place of what there is, so that nobody ever sees a part.
void put_file(Files& files, std::FILE* from, const std::string& outside, const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash != std::string::npos) files.make_directories(path.substr(0, slash));
  constexpr std::string_view kSuffix = ".perdure-put";
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  const size_t bytes = std::min(path.size(), name + Files::kNameBytesMax - kSuffix.size());
  const std::string temporary = path.substr(0, bytes).append(kSuffix);
  try {
    FileWriter writer = files.create_file(temporary);
    std::vector<char> piece(kPieceBytes);
    for (size_t got = 0; (got = std::fread(piece.data(), 1, piece.size(), from)) > 0;) {
      writer.append({piece.data(), got});
    }
    if (std::ferror(from) != 0) {
      throw Error(ErrorCode::kIo, fmt::format("cannot read {}: {}", outside, std::strerror(errno)));
    }
    writer.close();
    files.rename(temporary, path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo && files.find(temporary)) files.remove(temporary);
    throw;
  }
}

void put_directory(Files& files, const std::filesystem::path& outside, const std::string& path) {
  files.make_directories(path);
  for (const auto& entry : std::filesystem::directory_iterator(outside)) {
    const std::string from = entry.path().string();
    const std::string to = path + "/" + entry.path().filename().string();
    if (entry.is_directory()) {
      put_directory(files, entry.path(), to);
    } else if (entry.is_regular_file()) {
      put_file(files, open_outside(from, "rb").get(), from, to);
    } else {
      throw Error(ErrorCode::kNotAFile, from + " is neither a file nor a directory");
    }
  }
}

int run_put(const FilesOptions& options) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(options.outside, ignored);
  if (directory && !options.recursive) {
    throw Error(ErrorCode::kNotAFile, options.outside + " is a directory; give --recursive");
  }
  SystemFile from;
  if (!directory) from = open_outside(options.outside, "rb");  // before any pool is made for it
  Creation creation;
  creation.capacity = options.capacity;
  Pool pool = std::filesystem::exists(options.target.pool)
                  ? Pool::open(options.target.pool, pool_options_for(options.target, creation))
                  : Pool::create(options.target.pool, pool_options_for(options.target, creation));
  {
    Files files = Files::open_or_create(pool, options.target.name);
    if (directory) {
      put_directory(files, options.outside, options.path);
    } else {
      put_file(files, from.get(), options.outside, options.path);
    }
  }
  pool.close();
  return kExitOk;
}

void remove(Files& files, const std::string& path, bool recursive) {
  const std::optional<FileInfo> info = files.find(path);
  if (recursive && info && info->directory) {
    for (const FileInfo& child : files.list(path)) remove(files, path + "/" + child.name, true);
  }
  files.remove(path);
}

int run_rm(const FilesOptions& options) {
  Pool pool = Pool::open(options.target.pool, pool_options_for(options.target, {}));
  {
    Files files = Files::open(pool, options.target.name);
    if (!files.find(options.path)) {
      fmt::print(stderr, "perdure: there is no file \"{}\"\n", options.path);
      return kExitAbsent;
    }
    remove(files, options.path, options.recursive);
  }
  pool.close();
  return kExitOk;
}

int run_check(const FilesOptions& options) {
  const OpenFiles open = open_to_read(options);
  std::vector<std::string> problems;
  open.files.check([&](const std::string& sentence) { problems.push_back(sentence); });
  nlohmann::json figures = nlohmann::json::object();
  for (const Statistic& one : open.files.statistics()) {
    figures[one.name] = static_cast<uint64_t>(one.value);
  }
  if (options.target.json) {
    const nlohmann::json object = {
        {"sound", problems.empty()}, {"problems", problems}, {"statistics", figures}};
    fmt::print("{}\n", object.dump(2));
  } else {
    const Palette palette(stdout);
    for (const std::string& problem : problems) fmt::print("{} {}\n", palette.bad("*"), problem);
    fmt::print("{}: {} ({} of {} bytes in {} extents)\n", options.target.pool,
               problems.empty() ? palette.good("sound") : palette.bad("damaged"),
               format_counted(figures["files"].get<uint64_t>(), "file"),
               format_count(figures["file_bytes"].get<uint64_t>()),
               format_count(figures["extents"].get<uint64_t>()));
  }
  return problems.empty() ? kExitOk : kExitDamage;
}

using Run = int (*)(const FilesOptions&);

CLI::App* add(CLI::App& files, const std::shared_ptr<FilesOptions>& options, Action& action,
              const char* name, const char* description, const char* examples, Run run) {
  CLI::App* command = add_command(files, name, description, examples);
  command->add_option("POOL", options->target.pool, "The pool file")->required();
  command->add_option("--name", options->target.name, "Name of the files in the pool")
      ->default_val("files");
  command->callback([options, &action, run] { action = [options, run] { return run(*options); }; });
  return command;
}

void add_path(CLI::App& command, const std::shared_ptr<FilesOptions>& options) {
  command.add_option("PATH", options->path, "A path in the pool")->required();
}

}  // namespace

void add_files(CLI::App& app, Action& action) {
  auto options = std::make_shared<FilesOptions>();
  options->target.name = "files";
  CLI::App* files = add_command(app, "files", "List, read, store and remove files in a pool",
                                "  perdure files put stores.pool notes.txt docs/notes.txt\n"
                                "  perdure files ls --recursive stores.pool\n"
                                "  perdure files cat stores.pool docs/notes.txt\n");
  files->require_subcommand(1);

  CLI::App* ls = add(*files, options, action, "ls", "List a directory",
                     "  perdure files ls stores.pool\n"
                     "  perdure files ls --recursive --json stores.pool db\n",
                     run_ls);
  ls->add_option("PATH", options->path, "A path in the pool (default: the root directory)");
  ls->add_flag("--recursive", options->recursive, "Also what is in its directories");
  add_json_flag(*ls, options->target.json);

  CLI::App* cat = add(*files, options, action, "cat", "Print a file",
                      "  perdure files cat stores.pool db/LOG\n", [](const FilesOptions& given) {
                        FilesOptions printing = given;
                        printing.outside = "-";
                        return run_get(printing);
                      });
  add_path(*cat, options);

  CLI::App* get = add(*files, options, action, "get", "Copy a file out of the pool",
                      "  perdure files get stores.pool db/LOG LOG\n"
                      "  perdure files get --recursive stores.pool db ./db\n",
                      run_get);
  add_path(*get, options);
  get->add_option("FILE", options->outside, "A file of the system, or - for standard output")
      ->required();
  get->add_flag("--recursive", options->recursive, "A directory, with what is in it");

  CLI::App* put =
      add(*files, options, action, "put",
          "Copy a file into the pool, whole or not at all; makes pool and directories if missing",
          "  perdure files put stores.pool LOG db/LOG\n"
          "  date | perdure files put stores.pool - now\n"
          "  perdure files put --recursive stores.pool ./db db\n",
          run_put);
  put->add_option("FILE", options->outside, "A file of the system, or - for standard input")
      ->required();
  add_path(*put, options);
  put->add_flag("--recursive", options->recursive,
                "A directory, with what is in it; each file whole or not at all");
  put->add_option("--capacity", options->capacity, "Size that a new pool may grow to")
      ->capture_default_str();

  CLI::App* rm = add(*files, options, action, "rm", "Remove a file or an empty directory",
                     "  perdure files rm stores.pool db/LOG\n"
                     "  perdure files rm --recursive stores.pool db\n",
                     run_rm);
  add_path(*rm, options);
  rm->add_flag("--recursive", options->recursive, "Also what is in a directory");

  CLI::App* check =
      add(*files, options, action, "check", "Verify all metadata, and name what is wrong",
          "  perdure files check stores.pool\n"
          "\nExit code 3 when damage is found. `perdure pool check` also verifies the "
          "heap.\n",
          run_check);
  add_json_flag(*check, options->target.json);
}

}  // namespace perdure::cli
