// SPDX-License-Identifier: Apache-2.0
// The writer of safetensors files: all of the new file, or the old one as it was.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "cli/json.h"
#include "cli/safetensors.h"
#include "cli/safetensors_format.h"
#include "engine/error.h"

namespace losstape {
namespace {

using namespace detail::safetensors;

constexpr const char* kWriter = "write_safetensors";

void check_writable(std::span<const NamedTensor> tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    const std::string where = "tensor " + in_quotes(tensor.name);
    if (tensor.name == kMetadata)
      throw UsageError({kWriter, "the name of a tensor", where, "the format reserves this name"});
    if (!names.insert(tensor.name).second) throw UsageError({kWriter, "every name once", where + " twice"});
    if (tensor.view.device != Device::cpu) throw UsageError({kWriter, "memory on the CPU", "device memory for " + where});
    const std::string found = "shape " + shape_text(tensor.shape) + " for " + where;
    const bool negative = std::any_of(tensor.shape.begin(), tensor.shape.end(), [](Index extent) { return extent < 0; });
    if (negative || tensor.shape.size() > kHighestRank) {
      throw UsageError({kWriter, "at most " + std::to_string(kHighestRank) + " extents of at least 0", found});
    }
    const auto measured = measure(tensor.shape, tensor.view.dtype);
    if (!measured || measured->bytes != tensor.view.size() * static_cast<Index>(size_of(tensor.view.dtype))) {
      throw UsageError({kWriter, "a shape of the view's " + std::to_string(tensor.view.size()) + " elements", found});
    }
  }
}

// The tensors in the order of their data: as given, but larger elements first, so that each begins aligned.
std::vector<const NamedTensor*> data_order(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return size_of(a->view.dtype) > size_of(b->view.dtype);
  });
  return order;
}

std::string header_text(const std::vector<const NamedTensor*>& tensors, const std::map<std::string, std::string>& metadata) {
  // Not ordered_json, which looks for every new key among all others.
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  Index end = 0;
  for (const NamedTensor* tensor : tensors) {
    const Index begin = end;
    if (__builtin_add_overflow(end, tensor->view.size() * static_cast<Index>(size_of(tensor->view.dtype)), &end)) {
      throw UsageError({kWriter, "less than 2^63 bytes of data", "more"});
    }
    const auto* known =
        std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& d) { return d.dtype == tensor->view.dtype; });
    header[tensor->name] = {{"dtype", known->text}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    throw UsageError({kWriter, "names and metadata in UTF-8", "other bytes"});
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kLongestHeader) {
    throw UsageError({kWriter, "a header of at most " + std::to_string(kLongestHeader) + " bytes",
                      std::to_string(text.size()) + " for these names and metadata"});
  }
  return text;
}

// A file that takes the target's name once it is complete, and is removed if that does not happen.
class FileInTheMaking {
 public:
  explicit FileInTheMaking(const std::string& path) : path_(path), target_(resolve(path)) {
    buffer_.reserve(kBufferBytes);  // before there is a file that a failure would leave behind
    static std::atomic<unsigned> made = 0;
    int fd = -1;
    int code = EEXIST;  // another machine may have a process of our number in this folder
    for (int attempt = 0; fd < 0 && code == EEXIST && attempt < 100; ++attempt) {
      // Not the target's name and a suffix: that may be too long.
      temporary_ =
          target_.parent_path() / (".losstape-" + std::to_string(::getpid()) + "-" + std::to_string(made++) + ".tmp");
      fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      code = errno;
    }
    if (fd < 0)
      refuse_system(path_, kExpected, code, "it is made in the same folder first, which must exist and be writable");
    file_.emplace(fd);
  }
  ~FileInTheMaking() {
    if (file_) ::unlink(temporary_.c_str());
  }
  FileInTheMaking(const FileInTheMaking&) = delete;
  FileInTheMaking& operator=(const FileInTheMaking&) = delete;

  void put(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    if (buffer_.size() + bytes > kBufferBytes) flush();
    if (bytes > kBufferBytes) {
      write_out(from, bytes);
    } else {
      buffer_.insert(buffer_.end(), from, from + bytes);
    }
  }

  void take_the_name() {
    flush();
    if (const int code = file_->close(); code != 0) refuse_system(path_, kExpected, code);
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse_system(path_, kExpected, errno);
    file_.reset();
  }

 private:
  static constexpr const char* kExpected = "a file that can be written";
  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

  // Renaming over /dev/null or /dev/stdout would replace the device itself, or the link to it.
  static std::filesystem::path resolve(const std::string& path) {
    std::error_code error;
    std::filesystem::path target = std::filesystem::canonical(path, error);
    std::error_code unknown;
    if (error && std::filesystem::is_symlink(path, unknown)) {
      throw DataError({"safetensors", "a regular file to replace", path + ": a link to no file"});
    }
    if (error) return path;  // there is no such file yet, or opening the temporary will say what is wrong
    if (std::filesystem::is_directory(target, error)) refuse_system(path, kExpected, EISDIR);
    if (!std::filesystem::is_regular_file(target, error)) {
      throw DataError({"safetensors", "a regular file to replace", path + ": a pipe or a device"});
    }
    return target;
  }

  void flush() {
    write_out(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  void write_out(const std::byte* from, std::size_t bytes) {
    while (bytes > 0) {
      const auto written = ::write(file_->get(), from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_system(path_, kExpected, errno);
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  const std::string& path_;  // for messages
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::optional<Descriptor> file_;  // empty before it is open and once it has its name
  std::vector<std::byte> buffer_;
};

void put_rows(FileInTheMaking& file, const View& view) {
  if (view.empty()) return;
  const auto size = static_cast<Index>(size_of(view.dtype));
  const auto* data = static_cast<const std::byte*>(view.data());
  if (view.col_stride == 1 && (view.row_stride == view.cols || view.rows == 1)) {
    file.put(data, static_cast<std::size_t>(view.size() * size));
    return;
  }
  for (Index r = 0; r < view.rows; ++r) {
    const std::byte* row = data + r * view.row_stride * size;
    if (view.col_stride == 1) {
      file.put(row, static_cast<std::size_t>(view.cols * size));
    } else {
      for (Index c = 0; c < view.cols; ++c) file.put(row + c * view.col_stride * size, static_cast<std::size_t>(size));
    }
  }
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_writable(tensors);
  const auto order = data_order(tensors);
  const std::string header = header_text(order, metadata);
  const std::uint64_t length = header.size();
  FileInTheMaking file(path);
  file.put(&length, kLengthBytes);
  file.put(header.data(), header.size());
  for (const NamedTensor* tensor : order) put_rows(file, tensor->view);
  file.take_the_name();
}

}  // namespace losstape
