// SPDX-License-Identifier: Apache-2.0
// The reader of safetensors files: 8 bytes of header length, a JSON header, and the tensors' bytes, all little-endian.
#include "cli/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/json.h"
#include "cli/safetensors_format.h"
#include "engine/error.h"

namespace losstape {
namespace {

using namespace detail::safetensors;

[[noreturn]] void refuse(const std::string& path, std::string expected, const std::string& found, std::string hint = {}) {
  throw DataError({"safetensors", std::move(expected), found + " in " + path, std::move(hint)});
}

struct Tensor {
  std::optional<DType> dtype;
  std::optional<std::vector<Index>> shape;
  std::optional<std::vector<Index>> offsets;  // [begin, end) in bytes from the start of the data
  Measure measure{};
};

using Tensors = std::map<std::string, Tensor, std::less<>>;
using Metadata = std::map<std::string, std::string>;

// Takes the header's values as the parser meets them. No tree is built: whatever the text, it is refused at the first
// value that has no place, and nesting and duplicate keys cost nothing. (A tree with a parse callback takes quadratic
// time in the number of tensors with nlohmann 3.11.)
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, Tensors& tensors, Metadata& metadata)
      : path_(path), tensors_(tensors), metadata_(metadata) {}

  bool null() override { misplaced("null"); }
  bool boolean(bool value) override { misplaced(value ? "true" : "false"); }
  // The parser calls this for negative numbers and -0 only.
  bool number_integer(number_integer_t value) override { misplaced(value == 0 ? "-0" : std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { misplaced(text.substr(0, 40)); }
  bool binary(binary_t& /*value*/) override { misplaced("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) misplaced(std::to_string(value));
    if (value > static_cast<std::uint64_t>(INT64_MAX)) misplaced(std::to_string(value));
    std::vector<Index>& numbers = place_ == Place::shape ? *tensor_->shape : *tensor_->offsets;
    if (numbers.size() == (place_ == Place::shape ? kHighestRank : 2)) misplaced("more");
    numbers.push_back(static_cast<Index>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata_[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") misplaced(in_quotes(value));
    const auto* known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NamedDType& d) { return value == d.text; });
    if (known == kDTypes.end()) misplaced(in_quotes(value));
    tensor_->dtype = known->dtype;
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::outside) {
      place_ = Place::names;
    } else if (place_ == Place::names) {
      place_ = tensor_ == nullptr ? Place::metadata : Place::tensor;
    } else {
      misplaced("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    bool fresh = true;
    switch (place_) {
      case Place::names:
        name_ = value;
        tensor_ = nullptr;
        if (value == kMetadata) {
          fresh = !std::exchange(met_metadata_, true);
        } else {
          const auto [entry, added] = tensors_.try_emplace(value);
          tensor_ = &entry->second;
          fresh = added;
        }
        break;
      case Place::metadata: fresh = metadata_.try_emplace(value).second; break;
      default:  // an unknown key may change what the others mean
        if (value == "dtype") {
          fresh = !tensor_->dtype;
        } else if (value == "shape") {
          fresh = !tensor_->shape;
        } else if (value == "data_offsets") {
          fresh = !tensor_->offsets;
        } else {
          refuse(path_, "the keys dtype, shape and data_offsets", in_quotes(value) + " for " + where());
        }
    }
    if (!fresh) {
      refuse(path_, "every key once",
             in_quotes(value) + " twice" + (place_ == Place::names ? " in the header" : " for " + where()));
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor &&
        !(tensor_->dtype && tensor_->shape && tensor_->offsets && tensor_->offsets->size() == 2)) {
      const char* lacking = !tensor_->dtype ? "no dtype" : !tensor_->shape ? "no shape" : "no two data_offsets";
      refuse(path_, "a dtype, a shape and two data_offsets for every tensor", std::string(lacking) + " for " + where());
    }
    place_ = place_ == Place::names ? Place::outside : Place::names;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::tensor || key_ == "dtype") misplaced("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    (place_ == Place::shape ? tensor_->shape : tensor_->offsets).emplace();
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    refuse(path_, "a header in JSON", "a syntax error at byte " + std::to_string(position) + " of the header");
  }

 private:
  enum class Place : unsigned char { outside, names, metadata, tensor, shape, offsets };

  [[nodiscard]] std::string where() const { return tensor_ == nullptr ? kMetadata : "tensor " + in_quotes(name_); }

  [[nodiscard]] std::string expected() const {
    switch (place_) {
      case Place::outside: return "a header that is one object";
      case Place::names: return "an object";
      case Place::metadata: return "a string under " + in_quotes(key_);
      case Place::tensor:
        return key_ == "dtype" ? "a dtype of F64, F32, BF16, F16, I64, I32 or U8"
                               : "an array of whole numbers under " + key_;
      case Place::shape: return "a shape of at most " + std::to_string(kHighestRank) + " whole numbers from 0 to 2^63 - 1";
      case Place::offsets: return "two data_offsets, whole numbers from 0 to 2^63 - 1";
    }
    return {};
  }

  [[noreturn]] void misplaced(const std::string& found) const { refuse(path_, expected(), found + " for " + where()); }

  const std::string& path_;
  Tensors& tensors_;
  Metadata& metadata_;
  Place place_ = Place::outside;
  std::string name_;          // the last key of the header
  std::string key_;           // the last key of any object
  Tensor* tensor_ = nullptr;  // under name_; null for __metadata__
  bool met_metadata_ = false;
};

// Fills in every tensor's measure; refuses tensors that do not lie in the file one after the other.
void check_tensors(const std::string& path, Tensors& tensors, Index data_bytes) {
  std::vector<const Tensors::value_type*> in_order;
  for (auto& entry : tensors) {
    Tensor& tensor = entry.second;
    const Index begin = tensor.offsets->at(0);
    const Index end = tensor.offsets->at(1);
    const std::string where = " for tensor " + in_quotes(entry.first);
    const std::string offsets_text = "data_offsets " + shape_text(*tensor.offsets) + where;
    const auto measured = measure(*tensor.shape, *tensor.dtype);
    if (!measured) refuse(path, "a tensor below 2^62 bytes", "shape " + shape_text(*tensor.shape) + where);
    if (begin > end) refuse(path, "data_offsets that do not decrease", offsets_text);
    if (end > data_bytes) {
      refuse(path, "data_offsets within the " + std::to_string(data_bytes) + " bytes of data", offsets_text,
             "the file may have been cut short");
    }
    if (end - begin != measured->bytes) {
      refuse(
          path,
          std::to_string(measured->bytes) + " bytes for shape " + shape_text(*tensor.shape) + " of " + name(*tensor.dtype),
          offsets_text);
    }
    tensor.measure = *measured;
    in_order.push_back(&entry);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return *a->second.offsets < *b->second.offsets; });
  Index filled = 0;
  for (const auto* entry : in_order) {
    const Index begin = entry->second.offsets->at(0);
    if (begin != filled) {
      refuse(path, "tensors that follow each other without overlap or hole, the next at " + std::to_string(filled),
             "tensor " + in_quotes(entry->first) + " at " + std::to_string(begin));
    }
    filled = entry->second.offsets->at(1);
  }
  if (filled != data_bytes) {
    refuse(path, "the file to end with its last tensor, after " + std::to_string(filled) + " bytes of data",
           std::to_string(data_bytes) + " bytes");
  }
}

// The number of letters to insert, remove or replace to get from one name to the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

[[noreturn]] void refuse_missing(const std::string& path, const Tensors& tensors, std::string_view wanted) {
  constexpr std::size_t most_listed = 24;
  constexpr std::size_t most_compared = 1000;  // a file may have a million
  constexpr std::size_t longest_compared = 80;
  std::string found;
  std::string nearest;
  std::size_t nearest_distance = std::max<std::size_t>(wanted.size() / 2, 1) + 1;
  std::size_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    if (count < most_listed) found += (count > 0 ? ", " : "") + in_quotes(name);
    if (count++ == most_compared) break;
    if (name.size() > longest_compared || wanted.size() > longest_compared) continue;
    const std::size_t away = distance(name, wanted);
    if (away < nearest_distance) {
      nearest_distance = away;
      nearest = name;
    }
  }
  if (tensors.empty()) found = "no tensors";
  if (tensors.size() > most_listed) found += " and " + std::to_string(tensors.size() - most_listed) + " more";
  refuse(path, "a tensor " + in_quotes(wanted), found, nearest.empty() ? "" : "did you mean " + in_quotes(nearest) + "?");
}

// A whole file in memory, read-only.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    // Without O_NONBLOCK the open of a named pipe waits for a writer.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) refuse_system(path, "a file that can be read", errno);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) refuse_system(path, "a file that can be read", errno);
    if (S_ISDIR(status.st_mode)) refuse_system(path, "a file", EISDIR);
    if (!S_ISREG(status.st_mode)) throw DataError({"safetensors", "a regular file", path + ": a pipe or a device"});
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ < kLengthBytes) {
      refuse(path, "at least " + std::to_string(kLengthBytes) + " bytes", std::to_string(size_));
    }
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address == MAP_FAILED) refuse_system(path, "a file that can be mapped", errno);
    address_ = static_cast<const std::byte*>(address);
  }
  ~Mapping() {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): munmap takes what mmap gave
    ::munmap(const_cast<std::byte*>(address_), size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] const std::byte* data() const { return address_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  const std::byte* address_ = nullptr;
  std::size_t size_ = 0;
};

// The header's text, its length checked against the file's.
std::string_view header_of(const std::string& path, const Mapping& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const char* hint = "is it a safetensors file?";
  if (length > kLongestHeader) {
    refuse(path, "a header of at most " + std::to_string(kLongestHeader) + " bytes", std::to_string(length), hint);
  }
  const std::size_t rest = file.size() - kLengthBytes;
  if (length > rest) {
    refuse(path, "the header's " + std::to_string(length) + " bytes", std::to_string(rest),
           "the file may have been cut short");
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data() + kLengthBytes), length);
  // The format asks for the brace first: no space, no byte order mark (which nlohmann's lexer would skip).
  if (header.empty() || header.front() != '{') {
    refuse(path, "a header that begins with {", header.empty() ? "an empty one" : in_quotes(header.substr(0, 1)), hint);
  }
  // nlohmann's lexer takes a zero byte for the end of the text, and would ignore the rest.
  if (const auto zero = header.find('\0'); zero != std::string_view::npos) {
    refuse(path, "a header in JSON", "a zero byte at offset " + std::to_string(zero) + " of the header");
  }
  return header;
}

}  // namespace

struct SafetensorsFile::Contents {
  explicit Contents(const std::string& file_path) : path(file_path), file(path) {
    const std::string_view header = header_of(path, file);
    HeaderReader reader(path, tensors, metadata);
    nlohmann::json::sax_parse(header, &reader);
    data = file.data() + kLengthBytes + header.size();
    check_tensors(path, tensors, static_cast<Index>(file.size() - kLengthBytes - header.size()));
  }

  [[nodiscard]] const Tensor& find(std::string_view name) const {
    const auto entry = tensors.find(name);
    if (entry == tensors.end()) refuse_missing(path, tensors, name);
    return entry->second;
  }

  // Where the tensor's elements stand at an address that its dtype can have.
  [[nodiscard]] const std::byte* aligned(const Tensor& tensor) {
    const auto bytes = static_cast<std::size_t>(tensor.measure.bytes);
    if (bytes == 0) return file.data();
    const std::byte* in_file = data + tensor.offsets->at(0);
    if (reinterpret_cast<std::uintptr_t>(in_file) % size_of(*tensor.dtype) == 0) return in_file;
    const std::lock_guard lock(copying);
    std::unique_ptr<std::byte[]>& copy = copies[&tensor];
    if (copy == nullptr) {
      copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
      std::memcpy(copy.get(), in_file, bytes);
    }
    return copy.get();
  }

  std::string path;
  Mapping file;
  Tensors tensors;
  Metadata metadata;
  const std::byte* data = nullptr;  // where data_offsets count from
  std::mutex copying;
  std::map<const Tensor*, std::unique_ptr<std::byte[]>> copies;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : contents_(std::make_unique<Contents>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept = default;

bool SafetensorsFile::has(std::string_view name) const { return contents_->tensors.contains(name); }

View SafetensorsFile::view(std::string_view name) const {
  const Tensor& tensor = contents_->find(name);
  const Measure& m = tensor.measure;
  return View(contents_->aligned(tensor), {m.rows, m.cols, m.cols, 1, *tensor.dtype, Device::cpu});
}

const std::vector<Index>& SafetensorsFile::shape(std::string_view name) const { return *contents_->find(name).shape; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return contents_->metadata; }

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> all;
  all.reserve(contents_->tensors.size());
  for (const auto& [name, tensor] : contents_->tensors) all.push_back(name);
  return all;
}

const std::string& SafetensorsFile::path() const { return contents_->path; }

}  // namespace losstape
