#include "lab/wrap/assembler.h"

#include <fmt/core.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <utility>

extern char** environ;

namespace perdure::lab::wrap {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file)
    throw std::runtime_error(fmt::format("cannot read '{}': {}", name, std::strerror(errno)));
  return text;
}

// The words of an `@file`: separated by blanks, quoted by either quotation mark or a backslash.
std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
      continue;
    }
    in_word = true;
    if (c == '\\' && i + 1 < text.size()) {
      word += text[++i];
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      word += c;
    }
  }
  if (in_word) words.push_back(word);
  return words;
}

void expand_files(const std::vector<std::string>& arguments, std::vector<std::string>& expanded,
                  int depth) {
  for (const std::string& argument : arguments) {
    // A name that is no file is an ordinary argument, as for the assembler itself.
    if (argument.size() < 2 || argument[0] != '@' || access(argument.c_str() + 1, R_OK) != 0) {
      expanded.push_back(argument);
    } else if (depth == 0) {
      throw std::runtime_error(fmt::format("'{}' is nested too deeply", argument));
    } else {
      expand_files(split_words(read_file(argument.substr(1))), expanded, depth - 1);
    }
  }
}

// Options whose value may stand in the next argument.
bool takes_value(std::string_view option) {
  static constexpr std::array<std::string_view, 16> kOptions = {"-o",
                                                                "-I",
                                                                "-t",
                                                                "-defsym",
                                                                "--defsym",
                                                                "--MD",
                                                                "--debug-prefix-map",
                                                                "--hash-size",
                                                                "--listing-lhs-width",
                                                                "--listing-lhs-width2",
                                                                "--listing-rhs-width",
                                                                "--listing-cont-lines",
                                                                "--num-reserved",
                                                                "--multibyte-handling",
                                                                "--march",
                                                                "--itbl"};
  for (const std::string_view known : kOptions) {
    if (option == known) return true;
  }
  return false;
}

bool only_informs(std::string_view option) {
  return option == "--help" || option == "--target-help" || option == "--version" ||
         option == "-version" || option == "--dump-config";
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// Writes all of the text; an assembler that has given up early reports that by its exit status.
void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

AssemblerCommand read_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  expand_files(arguments, words, 8);
  AssemblerCommand command;
  bool only_files = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (only_files || word == "-" || word.empty() || word[0] != '-') {
      command.inputs.push_back(word);
      continue;
    }
    if (word == "--") {
      only_files = true;
      continue;
    }
    command.only_information = command.only_information || only_informs(word);
    if (word == "--32" || word == "--x32") command.is_64_bit = false;
    command.options.push_back(word);
    if (takes_value(word) && i + 1 < words.size()) command.options.push_back(words[++i]);
  }
  return command;
}

std::string read_inputs(const std::vector<std::string>& inputs) {
  std::string text;
  const auto add = [&](const std::string& name, std::string content) {
    text += "# 1 \"";
    for (const char c : name)
      text += (c == '"' || c == '\\') ? std::string{'\\', c} : std::string{c};
    text += "\"\n" + std::move(content);
    if (text.back() != '\n') text += '\n';
  };
  const auto standard_input = [] {
    return std::string{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  };
  if (inputs.empty()) return standard_input();
  for (const std::string& input : inputs) {
    if (input == "-") {
      text += standard_input();
    } else {
      add(input, read_file(input));
    }
  }
  return text;
}

std::string find_assembler() {
  if (const char* chosen = std::getenv("PERDURE_AS"); chosen != nullptr && *chosen != 0) {
    return chosen;
  }
  struct stat self{};
  const bool know_self = stat("/proc/self/exe", &self) == 0;
  const char* variable = std::getenv("PATH");
  std::string path = variable == nullptr ? "" : variable;
  path += ":/usr/bin:/bin";
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find(':', start), path.size());
    const std::string candidate = path.substr(start, end - start) + "/as";
    start = end + 1;
    struct stat file{};
    if (access(candidate.c_str(), X_OK) != 0 || stat(candidate.c_str(), &file) != 0) continue;
    const bool is_self = know_self && file.st_ino == self.st_ino && file.st_dev == self.st_dev;
    if (!is_self && S_ISREG(file.st_mode)) return candidate;
  }
  throw std::runtime_error(
      "there is no assembler 'as' on PATH; install binutils or set PERDURE_AS");
}

int exec_assembler(const std::string& path, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), path);
  execv(path.c_str(), pointers(words).data());
  return errno;
}

int run_assembler(const std::string& path, const std::vector<std::string>& options,
                  const std::string& text) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("cannot make a pipe to the assembler");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<std::string> words = options;
  words.insert(words.begin(), path);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, path.c_str(), &actions, nullptr, pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[0]);
  if (error != 0) {
    close(ends[1]);
    throw std::runtime_error(
        fmt::format("cannot run the assembler '{}': {}", path, std::strerror(error)));
  }
  signal(SIGPIPE, SIG_IGN);
  write_all(ends[1], text);
  close(ends[1]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace perdure::lab::wrap
