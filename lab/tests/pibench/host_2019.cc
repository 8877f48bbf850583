#include "foreign_tree_2019.h"
#include "host.h"

int main(int argc, char** argv) { return run_host(argc, argv); }
