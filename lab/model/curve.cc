#include "lab/model/curve.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/model/model.h"

namespace perdure::lab {
namespace {

struct Published {
  uint64_t kib;
  double write_amplification;
};
// Yang et al., "An Empirical Guide to the Behavior and Use of Scalable Persistent Memory", FAST'20.
constexpr std::array kPublished = {Published{16, 1.04}, Published{20, 1.36}, Published{24, 1.60},
                                   Published{32, 1.80}, Published{128, 2.08}};

constexpr std::array<uint64_t, 21> kWorkingSetsKib = {4,  8,  12, 14, 16, 17, 18, 19,  20,  22, 24,
                                                      26, 28, 32, 40, 48, 64, 96, 128, 256, 512};

// The drawing: a plot area inside margins, working set on a logarithmic axis.
constexpr double kWidth = 720;
constexpr double kHeight = 400;
constexpr double kLeft = 64;
constexpr double kRight = 24;
constexpr double kTop = 56;
constexpr double kBottom = 56;
constexpr double kLowest = 1.0;
constexpr double kHighest = 2.2;

double x_of(uint64_t bytes) {
  const double smallest = std::log2(static_cast<double>(kWorkingSetsKib.front()));
  const double largest = std::log2(static_cast<double>(kWorkingSetsKib.back()));
  const double at = std::log2(static_cast<double>(bytes) / 1024);
  return kLeft + (kWidth - kLeft - kRight) * (at - smallest) / (largest - smallest);
}

double y_of(double amplification) {
  const double share = (amplification - kLowest) / (kHighest - kLowest);
  return kHeight - kBottom - (kHeight - kTop - kBottom) * share;
}

std::string text(double x, double y, const char* anchor, const char* css, const std::string& what) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, css, what);
}

std::string axes() {
  std::string svg;
  for (int tenths = 10; tenths <= 22; tenths += 2) {
    const double y = y_of(tenths / 10.0);
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>\n",
                       kLeft, kWidth - kRight, y, y);
    svg += text(kLeft - 8, y + 4, "end", "tick", fmt::format("{:.1f}", tenths / 10.0));
  }
  for (uint64_t kib = kWorkingSetsKib.front(); kib <= kWorkingSetsKib.back(); kib *= 2) {
    const double x = x_of(kib * 1024);
    svg += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\" class=\"grid\"/>\n",
                       x, x, kTop, kHeight - kBottom);
    svg += text(x, kHeight - kBottom + 18, "middle", "tick", fmt::format("{}", kib));
  }
  svg += text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", "label",
              "working set on one DIMM (KiB)");
  svg += text(kLeft - 40, 24, "start", "title",
              "Media bytes written per byte written, in halves of 256-byte units");
  return svg;
}

std::string legend() {
  const double x = kLeft + 16;
  std::string svg;
  svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" class=\"curve\"/>\n", x, x + 28,
                     kTop + 16, kTop + 16);
  svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" class=\"dot\"/>\n", x + 14, kTop + 16);
  svg += text(x + 38, kTop + 20, "start", "label", "model, profile optane-100");
  svg +=
      fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"6\" class=\"published\"/>\n", x + 14, kTop + 38);
  svg += text(x + 38, kTop + 42, "start", "label", "published (Yang et al., FAST’20)");
  return svg;
}

constexpr const char* kStyle = R"(<style>
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f; }
  .tick { font-size: 12px; fill: #57606a; }
  .title { font-size: 15px; font-weight: 600; }
  .paper { fill: #ffffff; }
  .grid { stroke: #d8dee4; stroke-width: 1; }
  .curve { fill: none; stroke: #0969da; stroke-width: 2.5; stroke-linejoin: round; }
  .dot { fill: #0969da; }
  .published { fill: none; stroke: #cf222e; stroke-width: 2.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .tick { fill: #9aa4af; }
    .paper { fill: #0d1117; }
    .grid { stroke: #30363d; }
    .curve { stroke: #58a6ff; }
    .dot { fill: #58a6ff; }
    .published { stroke: #ff7b72; }
  }
</style>
)";

}  // namespace

double halves_write_amplification(Profile profile, uint64_t units) {
  constexpr uint64_t kHalvesMin = 200'000;
  profile.dimm_count = 1;
  MemoryModel model(profile);
  const uint64_t unit_bytes = profile.media_unit_bytes;
  const auto half_bytes = static_cast<uint32_t>(unit_bytes / 2);
  const uint64_t rounds = std::max<uint64_t>(8, kHalvesMin / (2 * units));
  const auto run = [&](uint64_t count) {
    for (uint64_t round = 0; round < count; ++round) {
      for (uint64_t half = 0; half < 2; ++half) {
        for (uint64_t unit = 0; unit < units; ++unit) {
          model.stream(
              {.address = unit * unit_bytes + half * half_bytes, .bytes = half_bytes, .pm = true});
          model.fence(0, 0, 0);
          model.operation_done(0, half_bytes);
        }
      }
    }
  };
  run(rounds / 4);
  model.reset_counters();
  run(rounds);
  return model.total().write_amplification();
}

std::vector<CurvePoint> write_amplification_curve(const Profile& profile) {
  std::vector<CurvePoint> points;
  for (const uint64_t kib : kWorkingSetsKib) {
    CurvePoint point;
    point.working_set_bytes = kib * 1024;
    point.modelled =
        halves_write_amplification(profile, point.working_set_bytes / profile.media_unit_bytes);
    for (const Published& each : kPublished) {
      if (each.kib == kib) point.published = each.write_amplification;
    }
    points.push_back(point);
  }
  return points;
}

std::string curve_table(const std::vector<CurvePoint>& points) {
  std::string table = "| working set | model | published |\n|---:|---:|---:|\n";
  for (const CurvePoint& point : points) {
    table +=
        fmt::format("| {} KiB | {:.2f} | {} |\n", point.working_set_bytes / 1024, point.modelled,
                    point.published > 0 ? fmt::format("{:.2f}", point.published) : "");
  }
  return table;
}

std::string curve_svg(const std::vector<CurvePoint>& points) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\">\n<title>Write amplification against working set</title>\n",
      kWidth, kHeight);
  svg += kStyle;
  svg += fmt::format("<rect width=\"{}\" height=\"{}\" class=\"paper\"/>\n", kWidth, kHeight);
  svg += axes();
  std::string line;
  std::string dots;
  for (const CurvePoint& point : points) {
    const double x = x_of(point.working_set_bytes);
    const double y = y_of(point.modelled);
    line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x, y);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"dot\"/>\n", x, y);
    if (point.published > 0) {
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\" class=\"published\"/>\n", x,
                          y_of(point.published));
    }
  }
  svg += fmt::format("<polyline points=\"{}\" class=\"curve\"/>\n", line);
  svg += dots + legend() + "</svg>\n";
  return svg;
}

}  // namespace perdure::lab
