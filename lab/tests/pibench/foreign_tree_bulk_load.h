// The interface of bulk_load, declared without our header.
#pragma once

#include "foreign.h"

class tree_api {
 public:
  virtual ~tree_api() {}
  virtual bool bulk_load(const char*, size_t, size_t, size_t) { return false; }
  virtual bool find(const char* key, size_t sz, char* value_out) = 0;
  virtual bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;
  virtual bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;
  virtual bool remove(const char* key, size_t key_sz) = 0;
  virtual int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) = 0;
};
constexpr size_t kSlots = 2 + 6;  // of the table: two destructors, and the members

extern "C" tree_api* create_tree(const tree_options_t& options);
