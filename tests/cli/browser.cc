#include <regex>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

// Appended to a page: says what the browser made of its drawings.
constexpr char kProbe[] = R"(<script>
addEventListener('load', () => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  const figures = [...document.querySelectorAll('figure')];
  let empty = 0, paths = 0;
  for (const figure of figures) {
    const drawn = [...figure.querySelectorAll(':scope > svg path, :scope > svg .dot')];
    paths += drawn.length;
    if (!drawn.some(p => p.getBBox().width + p.getBBox().height > 0)) empty++;
  }
  const wide = document.documentElement.scrollWidth > innerWidth ? 1 : 0;
  document.title = `probe figures=${figures.length} empty=${empty} paths=${paths} wide=${wide}`;
});
</script>)";

}  // namespace

bool CommandTest::has_browser() const { return shell("command -v chromium").code == 0; }

Drawn CommandTest::draw_in_browser(const std::string& page) const {
  write_file("probe.html", read_file(page) + kProbe);
  const Result result = shell(
      "timeout 120 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--enable-logging=stderr --virtual-time-budget=5000 --user-data-dir=" +
      path("profile") + " --dump-dom file://" + path("probe.html"));
  std::smatch found;
  const std::regex title(
      "<title>probe figures=(\\d+) empty=(\\d+) paths=(\\d+) wide=(\\d+)</title>");
  if (!std::regex_search(result.out, found, title)) {
    ADD_FAILURE() << "the page was not drawn: " << result.err;
    return {};
  }
  EXPECT_EQ(found[2], "0") << "figures without anything drawn";
  EXPECT_EQ(found[4], "0") << "the page is wider than the window";
  EXPECT_EQ(result.err.find("CONSOLE"), std::string::npos) << result.err;
  return {.figures = std::stoi(found[1]), .paths = std::stoi(found[3])};
}

}  // namespace perdure::cli_test
