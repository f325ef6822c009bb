// SPDX-License-Identifier: Apache-2.0
// A recorded file in memory, to be changed and written again.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/safetensors.h"

namespace losstape::testing {

class CaseCopy {
 public:
  explicit CaseCopy(const std::string& path) {
    const SafetensorsFile file(path);
    metadata = file.metadata();
    for (const std::string& name : file.names()) {
      const View view = file.view(name);
      Tensor tensor{file.shape(name), view.dtype, {}};
      tensor.bytes.resize((static_cast<std::size_t>(view.size()) * size_of(view.dtype) + 7) / 8);
      if (!view.empty())
        std::memcpy(tensor.bytes.data(), view.data(), static_cast<std::size_t>(view.size()) * size_of(view.dtype));
      tensors_.emplace(name, std::move(tensor));
    }
  }

  // Element `at` of a tensor of T's dtype.
  template <class T>
  T& element(const std::string& name, std::size_t at) {
    return reinterpret_cast<T*>(tensors_.at(name).bytes.data())[at];
  }
  void erase(const std::string& name) { tensors_.erase(name); }
  void rename(const std::string& from, const std::string& to) {
    tensors_[to] = tensors_.at(from);
    tensors_.erase(from);
  }
  // Keeps the elements and gives them another shape of as many, or of fewer.
  void reshape(const std::string& name, std::vector<Index> shape) { tensors_.at(name).shape = std::move(shape); }

  // Writes it to `path`, and returns that.
  std::string write(const std::string& path) const {
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors_) {
      Index size = 1;
      for (const Index extent : tensor.shape) size *= extent;
      const View view(tensor.bytes.data(), detail::Layout{size, 1, 1, 1, tensor.dtype, Device::cpu});
      named.push_back({name, view, tensor.shape});
    }
    write_safetensors(path, named, metadata);
    return path;
  }

  std::map<std::string, std::string> metadata;

 private:
  struct Tensor {
    std::vector<Index> shape;
    DType dtype = DType::f64;
    std::vector<double> bytes;  // aligned for every dtype
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace losstape::testing
