// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads the golden vectors of tests/vectors: hex bytes with # comments. A comment that starts
// with "#!" is a note, "#! key: value", that tells a test what to expect.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace uwarp::test {

struct VectorFile {
  std::string name;  // relative to tests/vectors
  std::vector<std::byte> bytes;
  std::map<std::string, std::string> notes;

  friend std::ostream& operator<<(std::ostream& out, const VectorFile& file) {
    return out << file.name;
  }
};

/// Bytes as the text they are.
inline std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::filesystem::path vector_folder() {
  return std::filesystem::path(UWARP_TESTS_DIR) / "vectors";
}

/// Reads one vector, for instance "rdmap/x08_write.hex". Throws if it is missing or malformed.
inline VectorFile load_vector(const std::string& name) {
  VectorFile file{.name = name, .bytes = {}, .notes = {}};
  std::ifstream in(vector_folder() / name);
  if (!in) throw std::runtime_error("no vector " + name);
  for (std::string line; std::getline(in, line);) {
    const size_t hash = line.find('#');
    if (hash != std::string::npos && line.compare(hash, 3, "#! ") == 0) {
      const size_t colon = line.find(": ", hash);
      if (colon == std::string::npos) throw std::runtime_error("bad note in " + name);
      file.notes[line.substr(hash + 3, colon - hash - 3)] = line.substr(colon + 2);
    }
    std::istringstream bytes(line.substr(0, hash));
    for (std::string byte; bytes >> byte;)
      file.bytes.push_back(std::byte{static_cast<unsigned char>(std::stoi(byte, nullptr, 16))});
  }
  if (file.bytes.empty()) throw std::runtime_error("empty vector " + name);
  return file;
}

/// All vectors directly in one folder of tests/vectors, by name.
inline std::vector<VectorFile> load_vectors(const std::string& folder) {
  std::vector<VectorFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(vector_folder() / folder)) {
    if (entry.path().extension() == ".hex")
      files.push_back(load_vector(folder + "/" + entry.path().filename().string()));
  }
  std::sort(files.begin(), files.end(), [](auto& a, auto& b) { return a.name < b.name; });
  if (files.empty()) throw std::runtime_error("no vectors in " + folder);
  return files;
}

}  // namespace uwarp::test
