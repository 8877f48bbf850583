// A crash image: an anonymous file of the region's size, mapped here, opened by workers by path.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::lab::crash {

class ImageFile {
 public:
  explicit ImageFile(uint64_t bytes);  // all zero
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  unsigned char* bytes() const { return bytes_; }
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }  // valid in this process and its children

 private:
  int descriptor_;
  uint64_t size_;
  unsigned char* bytes_;
  std::string path_;
};

}  // namespace perdure::lab::crash
