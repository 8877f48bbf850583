// One line for each structure of the catalogue.
#pragma once

#include "perdure/catalog.h"

namespace perdure::index {

CatalogEntry plush_entry();
CatalogEntry cceh_entry();

}  // namespace perdure::index
