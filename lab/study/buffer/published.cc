#include "lab/study/buffer/published.h"

#include <array>

namespace perdure::lab::study::buffer_pool {

std::span<const PublishedUpdate> published_updates() {
  static constexpr std::array<PublishedUpdate, 12> kUpdates = {{{4096, 8, 2.7, 4.0, 1.3},
                                                                {4096, 64, 2.5, 3.7, 1.3},
                                                                {4096, 512, 2.0, 4.0, 1.6},
                                                                {8192, 8, 4.5, 6.5, 2.0},
                                                                {8192, 64, 4.2, 5.7, 1.9},
                                                                {8192, 512, 3.3, 5.5, 1.7},
                                                                {16384, 8, 8.3, 10.9, 2.6},
                                                                {16384, 64, 7.8, 9.5, 2.4},
                                                                {16384, 512, 6.0, 8.4, 2.0},
                                                                {65536, 8, 31.3, 36.8, 4.9},
                                                                {65536, 64, 28.4, 33.4, 4.1},
                                                                {65536, 512, 21.8, 26.6, 4.4}}};
  return kUpdates;
}

}  // namespace perdure::lab::study::buffer_pool
