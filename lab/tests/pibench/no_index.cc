// A shared library that is not for PiBench.
extern "C" int answer() { return 42; }
