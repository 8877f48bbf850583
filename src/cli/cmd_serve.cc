// perdure serve: the store on the network.

#include <fmt/core.h>

#include <map>
#include <memory>

#include "cli/command.h"
#include "perdure/error.h"
#include "server/address.h"
#include "server/config.h"
#include "server/server.h"

namespace perdure::cli {
namespace {

struct ServeOptions {
  std::string pool;
  std::string config_file;
  std::string port;
  bool check = false;
  std::map<std::string, std::vector<std::string>> values;  // of settings, as given
  std::map<std::string, bool> flags;
};

// What the file says, and over it what the command line does.
server::Config make_config(const ServeOptions& options) {
  server::Config config;
  if (!options.config_file.empty()) server::read_config_file(options.config_file, config);
  if (!options.pool.empty()) config.pool = options.pool;
  if (!options.port.empty()) config.resp = {"127.0.0.1:" + options.port};
  for (const server::Setting& setting : server::settings()) {
    if (const auto flag = options.flags.find(setting.name);
        flag != options.flags.end() && flag->second) {
      setting.set(config, "yes");
    }
    const auto given = options.values.find(setting.name);
    if (given == options.values.end() || given->second.empty()) continue;
    if (setting.is_list && options.port.empty()) server::clear_list(config, setting);
    for (const std::string& value : given->second) setting.set(config, value);
  }
  server::require_sound(config);
  return config;
}

int run_serve(const ServeOptions& options) {
  const server::Config config = make_config(options);
  if (options.check) {
    for (const server::Setting& setting : server::settings()) {
      const bool secret = setting.name.ends_with("password") && !setting.get(config).empty();
      fmt::print("{} = {}\n", setting.name, secret ? "(set)" : setting.get(config));
    }
    return kExitOk;
  }
  const std::function<server::Config()> reread = [options] { return make_config(options); };
  server::run_server(config, options.config_file.empty() ? nullptr : reread);
  return kExitOk;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = add_command(
      app, "serve", "Serve a store to Redis and memcached clients; every answered write is durable",
      "  perdure serve words.pool --create --capacity 10G\n"
      "  perdure serve words.pool --memcached 127.0.0.1:11211 --metrics 127.0.0.1:9121\n"
      "  perdure serve words.pool --port 0            # any free port; it is printed\n"
      "  perdure serve words.pool --resp '' --unix /run/perdure.sock\n"
      "  perdure serve --config /etc/perdure.conf     # lines `name = value`, names as the flags\n"
      "  perdure serve --config /etc/perdure.conf --check-config\n"
      "\nSIGTERM and SIGINT stop it in order; SIGHUP reads the file again (passwords, limits, "
      "log).\n"
      "One line for each address, then `ready`, go to standard output; the log to standard "
      "error.\n");
  command->add_option("POOL", options->pool, "The pool file");
  command->add_option("--config", options->config_file, "Read settings from this file");
  command->add_flag("--check-config", options->check, "Print the settings and end");
  command->add_option("--port", options->port, "Short for --resp 127.0.0.1:PORT");
  for (const server::Setting& setting : server::settings()) {
    if (setting.metavar.empty()) {
      command->add_flag("--" + setting.name, options->flags[setting.name], setting.help);
      continue;
    }
    CLI::Option* option =
        command->add_option("--" + setting.name, options->values[setting.name], setting.help);
    option->type_name(setting.metavar)->allow_extra_args(false);
    option->multi_option_policy(setting.is_list ? CLI::MultiOptionPolicy::TakeAll
                                                : CLI::MultiOptionPolicy::TakeLast);
    const std::string standard = setting.get(server::Config());
    if (!standard.empty()) option->default_str(standard);
  }
  command->callback([options, &action] { action = [options] { return run_serve(*options); }; });
}

}  // namespace perdure::cli
