// How the templates of a structure are compiled: its sources define members of its Core between
// them, and each instantiates those that it defines. Where the sources of a folder are compiled as
// one unit (PERDURE_UNITED, see PerdureCompile.cmake), the last of them, write.cc, does it for all.
#pragma once

// `instantiate` is the macro of the structure's core.h that lists its instances.
#ifdef PERDURE_UNITED
#define PERDURE_INSTANTIATE_PART(instantiate)
#else
#define PERDURE_INSTANTIATE_PART(instantiate) instantiate()
#endif
