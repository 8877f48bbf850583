// Everything that Perdure offers to programs that embed it.
#pragma once

#include "perdure/block_cache.h"  // IWYU pragma: export
#include "perdure/catalog.h"      // IWYU pragma: export
#include "perdure/database.h"     // IWYU pragma: export
#include "perdure/error.h"        // IWYU pragma: export
#include "perdure/files.h"        // IWYU pragma: export
#include "perdure/index.h"        // IWYU pragma: export
#include "perdure/plush.h"        // IWYU pragma: export
#include "perdure/pool.h"         // IWYU pragma: export
#include "perdure/store.h"        // IWYU pragma: export
#include "perdure/transaction.h"  // IWYU pragma: export
#include "perdure/typed.h"        // IWYU pragma: export
#include "perdure/version.h"      // IWYU pragma: export
