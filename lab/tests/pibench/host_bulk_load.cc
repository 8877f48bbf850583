#include "foreign_tree_bulk_load.h"
#include "host.h"

int main(int argc, char** argv) { return run_host(argc, argv); }
