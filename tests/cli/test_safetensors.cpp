// SPDX-License-Identifier: Apache-2.0
// Safetensors files: what is written comes back bit for bit, and hostile files are refused.
#include "cli/safetensors.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "tests/support/temp_file.h"

namespace losstape {
namespace {

using testing::read_file;
using testing::TempFolder;

// A file whose first eight bytes claim this length of its header.
std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + rest;
}

// A file of this header and data, whatever they say.
std::string file_bytes(const std::string& header, const std::string& data = {}) {
  return with_length(header.size(), header + data);
}

// A header of one tensor "t"; parts are JSON.
std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::string bytes_of(const View& view) {
  if (view.empty()) return {};
  return {static_cast<const char*>(view.data()), static_cast<std::size_t>(view.size()) * size_of(view.dtype)};
}

// Opens the file and reads all that it offers.
std::size_t read_everything(const std::string& path) {
  const SafetensorsFile file(path);
  std::size_t bytes = 0;
  for (const std::string& name : file.names()) bytes += bytes_of(file.view(name)).size();
  return bytes;
}

void check_refused(const TempFolder& folder, const std::string& bytes, const std::string& message) {
  const std::string path = folder.write("hostile.safetensors", bytes);
  CAPTURE(bytes.substr(std::min<std::size_t>(bytes.size(), 8), 300));
  CHECK_THROWS_WITH_AS(read_everything(path), doctest::Contains(message.c_str()), DataError);
  CHECK_THROWS_WITH_AS(read_everything(path), doctest::Contains(path.c_str()), DataError);
}

std::vector<std::string> files_in(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  return names;
}

// While it lives, no file of this process can grow beyond so many bytes: a stand-in for a full disk.
class LimitedFileSize {
 public:
  explicit LimitedFileSize(std::size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LimitedFileSize() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  LimitedFileSize(const LimitedFileSize&) = delete;
  LimitedFileSize& operator=(const LimitedFileSize&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// Several dtypes, ranks, metadata: about 500 bytes.
std::string small_valid_file(const TempFolder& folder) {
  const std::vector<float> logits{1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> ids{1, 2, 3};
  const std::vector<std::uint8_t> keep{1, 0, 1, 0, 1};
  const std::array<NamedTensor, 4> tensors{{{"keep", keep, {5}},
                                            {"logits", View(logits.data(), 2, 3), {2, 3}},
                                            {"input_ids", ids, {3}},
                                            {"none", View(logits.data(), 0, 3), {0, 3}}}};
  std::string path = folder.file("valid.safetensors");
  write_safetensors(path, tensors, {{"kind", "nll"}, {"config", R"({"top_k": 3})"}});
  return path;
}

}  // namespace

TEST_SUITE("cli/safetensors") {
  TEST_CASE_TEMPLATE("a tensor of every bit pattern comes back bit for bit", T, double, float, BFloat16, Float16,
                     std::int64_t, std::int32_t, std::uint8_t) {
    const TempFolder folder;
    std::vector<T> values(std::size_t{1} << 16);
    for (std::size_t i = 0; i < values.size(); ++i) {
      // The 16 upper bits take every value, among them all NaN payloads of a 16-bit float; the rest varies.
      const std::uint64_t word = (std::uint64_t{i} << 48U) | ((i * 0x9e3779b97f4aU) & 0xffffffffffffU);
      std::memcpy(static_cast<void*>(&values[i]), reinterpret_cast<const char*>(&word) + (8 - sizeof(T)), sizeof(T));
    }
    const std::string path = folder.file("a.safetensors");
    const std::array<NamedTensor, 1> tensors{{{"x", View(values.data(), 1 << 8, 1 << 8), {1 << 8, 1 << 8}}}};
    write_safetensors(path, tensors, {});
    const SafetensorsFile file(path);
    const View view = file.view("x");
    CHECK(view.dtype == dtype_of<T>);
    CHECK(view.rows == 1 << 8);
    CHECK(view.cols == 1 << 8);
    CHECK(bytes_of(view) == bytes_of(values));
  }

  TEST_CASE("shapes come back as written, and views flatten all but the last extent") {
    const TempFolder folder;
    const std::vector<std::int32_t> v{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct Case {
      std::vector<Index> shape;
      Index rows;
      Index cols;
    };
    const std::vector<Case> cases{
        {{}, 1, 1},  {{12}, 12, 1},  {{3, 4}, 3, 4}, {{1, 12}, 1, 12},  {{2, 3, 2}, 6, 2},      {{2, 1, 2, 3}, 4, 3},
        {{0}, 0, 1}, {{0, 7}, 0, 7}, {{7, 0}, 7, 0}, {{2, 0, 5}, 0, 5}, {{0, 1 << 30, 3}, 0, 3}};
    std::vector<NamedTensor> tensors;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const View view(v.data(), cases[i].rows, cases[i].cols);
      tensors.push_back({"t" + std::to_string(i), view, cases[i].shape});
    }
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, tensors, {});
    const SafetensorsFile file(path);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(i);
      const std::string name = "t" + std::to_string(i);
      CHECK(file.shape(name) == cases[i].shape);
      const View view = file.view(name);
      CHECK(view.rows == cases[i].rows);
      CHECK(view.cols == cases[i].cols);
      CHECK(view.order() == Order::row_major);
      CHECK(bytes_of(view) == bytes_of(tensors[i].view));
    }
  }

  TEST_CASE("names, metadata and path are those of the file") {
    const TempFolder folder;
    const std::string path = small_valid_file(folder);
    const SafetensorsFile file(path);
    CHECK(file.names() == std::vector<std::string>{"input_ids", "keep", "logits", "none"});
    CHECK(file.metadata() == std::map<std::string, std::string>{{"kind", "nll"}, {"config", R"({"top_k": 3})"}});
    CHECK(file.path() == path);
    CHECK(file.has("keep"));
    CHECK_FALSE(file.has("Keep"));
    CHECK_FALSE(file.has("__metadata__"));
  }

  TEST_CASE("a file of no tensors and no metadata is valid") {
    const TempFolder folder;
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, {}, {});
    CHECK(read_file(path) == file_bytes("{}      "));
    CHECK(SafetensorsFile(path).names().empty());
    CHECK(SafetensorsFile(path).metadata().empty());
  }

  TEST_CASE("any text is a name or a metadata value") {
    const TempFolder folder;
    const std::vector<std::uint8_t> v{1};
    const std::string odd("\0 \"\\\n/é☃", 11);
    const std::array<NamedTensor, 2> tensors{{{odd, v, {1}}, {"", v, {1}}}};
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, tensors, {{odd, odd}});
    const SafetensorsFile file(path);
    CHECK(file.has(odd));
    CHECK(file.has(""));
    CHECK(file.metadata().at(odd) == odd);
  }

  TEST_CASE("strided views are written row by row") {
    const TempFolder folder;
    const std::vector<float> v{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const std::array<NamedTensor, 5> tensors{{{"left half", View(v.data(), 3, 2, 4), {3, 2}},
                                              {"transposed", View(v.data(), 4, 3, 1, 4), {4, 3}},
                                              {"backwards", View(v.data() + 8, 3, 4, -4), {3, 4}},
                                              {"one row thrice", View(v.data(), 3, 2, 0), {3, 2}},
                                              {"every other", View(v.data(), 2, 2, 4, 2), {4}}}};
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, tensors, {});
    const SafetensorsFile file(path);
    for (const NamedTensor& tensor : tensors) {
      CAPTURE(tensor.name);
      const View got = file.view(tensor.name);
      REQUIRE(got.size() == tensor.view.size());
      for (Index i = 0; i < got.size(); ++i) {
        CHECK(got.get<float>(i / got.cols, i % got.cols) ==
              tensor.view.get<float>(i / tensor.view.cols, i % tensor.view.cols));
      }
    }
  }

  TEST_CASE("tensors larger than the write buffer come back") {
    const TempFolder folder;
    std::vector<std::int32_t> v(std::size_t{1} << 20);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::int32_t>(i * 2654435761U);
    const std::string path = folder.file("a.safetensors");
    const std::array<NamedTensor, 2> tensors{
        {{"dense", v, {1 << 20}}, {"transposed", View(v.data(), 1024, 1024, 1, 1024), {1024, 1024}}}};
    write_safetensors(path, tensors, {});
    const SafetensorsFile file(path);
    CHECK(bytes_of(file.view("dense")) == bytes_of(v));
    CHECK(file.view("transposed").get<std::int32_t>(3, 1000) == v[1000 * 1024 + 3]);
  }

  TEST_CASE("the writer aligns every tensor, in whatever order they are given") {
    const TempFolder folder;
    const std::vector<std::uint8_t> bytes{1, 2, 3};
    const std::vector<BFloat16> halves{BFloat16(1.0F)};
    const std::vector<float> floats{1};
    const std::vector<double> doubles{1};
    const std::array<NamedTensor, 4> tensors{
        {{"a", bytes, {3}}, {"b", halves, {1}}, {"c", floats, {1}}, {"d", doubles, {1}}}};
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, tensors, {{"odd", "length"}});
    const SafetensorsFile file(path);
    const auto* last = static_cast<const std::byte*>(file.view("a").data());
    CHECK(last - static_cast<const std::byte*>(file.view("d").data()) == 8 + 4 + 2);  // no copies: one piece of memory
    CHECK(file.view("c").get<double>(0) == 1);
  }

  TEST_CASE("a tensor that is not aligned in the file is read from an aligned copy, by all threads the same") {
    const TempFolder folder;
    const std::array<double, 2> values{0.1, -3};
    std::string data(1, '\x07');
    data.append(reinterpret_cast<const char*>(values.data()), sizeof values);
    std::string header = R"({"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("x":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
    for (int pad = 0; pad < 8; ++pad, header += ' ') {
      CAPTURE(pad);
      const SafetensorsFile file(folder.write("a.safetensors", file_bytes(header, data)));
      std::vector<const void*> seen(4);
      std::vector<std::thread> threads;
      threads.reserve(seen.size());
      for (const void*& at : seen) threads.emplace_back([&file, &at] { at = file.view("x").data(); });
      for (std::thread& thread : threads) thread.join();
      const View view = file.view("x");
      CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % 8 == 0);
      CHECK(view.get<double>(0) == 0.1);
      CHECK(view.get<double>(1) == -3);
      for (const void* at : seen) CHECK(at == view.data());
      CHECK(file.view("byte").get<int>(0) == 7);
    }
  }

  TEST_CASE("views stay valid when the file is moved") {
    const TempFolder folder;
    SafetensorsFile first(small_valid_file(folder));
    const View view = first.view("logits");
    SafetensorsFile second(std::move(first));
    CHECK(view.get<float>(1, 2) == 6);
    CHECK(second.view("logits").data() == view.data());
    second = SafetensorsFile(second.path());
    CHECK(second.view("logits").get<float>(1, 2) == 6);
    static_assert(!std::is_copy_constructible_v<SafetensorsFile> && !std::is_copy_assignable_v<SafetensorsFile>);
  }

  TEST_CASE("views stay valid when the file is replaced by the writer") {
    const TempFolder folder;
    const std::string path = small_valid_file(folder);
    const SafetensorsFile file(path);
    write_safetensors(path, {}, {});
    CHECK(file.view("logits").get<float>(1, 2) == 6);
    CHECK(SafetensorsFile(path).names().empty());
  }

  TEST_CASE("asking for a tensor that is not there says what is, and what may have been meant") {
    const TempFolder folder;
    const SafetensorsFile file(small_valid_file(folder));
    CHECK_THROWS_WITH_AS(static_cast<void>(file.view("logit")),
                         doctest::Contains(R"(expected a tensor "logit", found "input_ids", "keep", "logits", "none" in )"),
                         DataError);
    CHECK_THROWS_WITH_AS(static_cast<void>(file.view("logit")), doctest::Contains(R"(did you mean "logits"?)"), DataError);
    CHECK_THROWS_WITH_AS(static_cast<void>(file.shape("input_id")), doctest::Contains(R"(did you mean "input_ids"?)"),
                         DataError);
    try {
      static_cast<void>(file.view("advantages"));
      FAIL("not refused");
    } catch (const DataError& error) {
      CHECK(error.operation() == "safetensors");
      CHECK(error.hint().empty());
    }
  }

  TEST_CASE("the list of a file's many tensors is cut short") {
    const TempFolder folder;
    const std::vector<std::uint8_t> v{1};
    std::vector<NamedTensor> tensors;
    tensors.reserve(3000);
    for (int i = 0; i < 3000; ++i) tensors.push_back({"tensor " + std::to_string(i), v, {1}});
    const std::string path = folder.file("a.safetensors");
    write_safetensors(path, tensors, {});
    const SafetensorsFile file(path);
    CHECK_THROWS_WITH_AS(static_cast<void>(file.view(std::string(1000, 'x'))), doctest::Contains(" and 2976 more in "),
                         DataError);
  }

  TEST_CASE("what is not a readable regular file is refused") {
    const TempFolder folder;
    CHECK_THROWS_WITH_AS(SafetensorsFile(folder.file("missing")), doctest::Contains("No such file"), DataError);
    CHECK_THROWS_WITH_AS(SafetensorsFile(folder.path().string()), doctest::Contains("directory"), DataError);
    CHECK_THROWS_AS(SafetensorsFile(""), DataError);
    const std::string pipe = folder.file("pipe");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(SafetensorsFile{pipe}, doctest::Contains("pipe"), DataError);
    CHECK_THROWS_WITH_AS(SafetensorsFile("/dev/zero"), doctest::Contains("device"), DataError);
    const std::string secret = folder.write("secret", file_bytes("{}"));
    std::filesystem::permissions(secret, std::filesystem::perms::none);
    if (::access(secret.c_str(), R_OK) != 0) {  // the superuser may read everything
      CHECK_THROWS_WITH_AS(SafetensorsFile{secret}, doctest::Contains("Permission denied"), DataError);
    }
  }

  TEST_CASE("a file shorter than a header's length is refused") {
    const TempFolder folder;
    for (std::size_t length = 0; length < 8; ++length) check_refused(folder, std::string(length, '\1'), "at least 8 bytes");
  }

  TEST_CASE("a header that claims more bytes than the file holds is refused") {
    const TempFolder folder;
    check_refused(folder, with_length(3, "{}"), "the header's 3 bytes, found 2");
    check_refused(folder, with_length(100'000'000, "{}"), "the header's 100000000 bytes, found 2");
    check_refused(folder, with_length(100'000'001, "{}"), "at most 100000000 bytes");
    check_refused(folder, with_length(UINT64_MAX, "{}"), "at most 100000000 bytes");
    check_refused(folder, with_length(UINT64_MAX - 7, "{}"), "at most 100000000 bytes");
    check_refused(folder, with_length(std::uint64_t{1} << 63U, "{}"), "at most 100000000 bytes");
  }

  TEST_CASE("a header that is not one JSON object is refused") {
    const TempFolder folder;
    check_refused(folder, file_bytes(""), "begins with {");
    for (const char* header : {"[]", "1", "null", "\"t\"", " {}", "\xef\xbb\xbf{}", "\n{}"}) {
      check_refused(folder, file_bytes(header), "begins with {");
    }
    for (const char* header : {"{", "{}{}", "{},", "{}x", "{\"t\"}", "{\"t\":}", "{'t':1}", "{/**/}", "{\"\xff\":{}}",
                               "{\"t\":{}", "{\"t\":{},}", "{\"__metadata__\":{\"a\":\"\x01\"}}"}) {
      check_refused(folder, file_bytes(header), "");
    }
    check_refused(folder, file_bytes(std::string("{}\0 ", 4)), "a zero byte");
    check_refused(folder, file_bytes(std::string("{}\0{\"t\":1}", 10)), "a zero byte");
  }

  TEST_CASE("spaces after the header are allowed") {
    const TempFolder folder;
    CHECK(read_everything(folder.write("a", file_bytes("{} \n\t  "))) == 0);
  }

  TEST_CASE("nesting is refused at the first level that has no meaning, however deep it goes") {
    const TempFolder folder;
    const std::string arrays(1'000'000, '[');
    std::string objects;
    for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
    check_refused(folder, file_bytes(objects), "the keys dtype, shape and data_offsets");
    check_refused(folder, file_bytes(R"({"t":{"shape":)" + objects), "found an object");
    check_refused(folder, file_bytes(R"({"a":)" + arrays), "found an array");
    check_refused(folder, file_bytes(one_tensor(R"("U8")", arrays, "[0,1]")), "found an array");
    check_refused(folder, file_bytes(one_tensor(R"("U8")", "[1]", "[[0],1]")), "found an array");
    check_refused(folder, file_bytes(R"({"__metadata__":{"a":)" + arrays), "found an array");
    check_refused(folder, file_bytes(R"({"__metadata__":{"a":)" + objects), "found an object");
  }

  TEST_CASE("a key that appears twice is refused") {
    const TempFolder folder;
    const std::string empty = R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    check_refused(folder, file_bytes("{" + empty + "," + empty + "}"), R"("t" twice in the header)");
    check_refused(folder, file_bytes(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                  R"("dtype" twice)");
    check_refused(folder, file_bytes(R"({"t":{"shape":[0],"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                  R"("shape" twice)");
    check_refused(folder, file_bytes(R"({"t":{"data_offsets":[0,0],"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                  R"("data_offsets" twice for tensor "t")");
    check_refused(folder, file_bytes(R"({"__metadata__":{"a":"1","a":"1"}})"), R"("a" twice for __metadata__)");
    check_refused(folder, file_bytes(R"({"__metadata__":{},"__metadata__":{}})"), R"("__metadata__" twice)");
  }

  TEST_CASE("metadata that is not an object of strings is refused") {
    const TempFolder folder;
    for (const char* metadata : {"1", "null", "[]", "\"a\"", R"({"a":1})", R"({"a":null})", R"({"a":true})", R"({"a":1.5})",
                                 R"({"a":{}})", R"({"a":["b"]})", R"({"a":-1})"}) {
      check_refused(folder, file_bytes(std::string(R"({"__metadata__":)") + metadata + "}"), "__metadata__");
    }
  }

  TEST_CASE("a tensor needs exactly a dtype, a shape and data_offsets") {
    const TempFolder folder;
    check_refused(folder, file_bytes(R"({"t":{}})"), R"(no dtype for tensor "t")");
    check_refused(folder, file_bytes(R"({"t":{"dtype":"U8","data_offsets":[0,0]}})"), "no shape");
    check_refused(folder, file_bytes(R"({"t":{"dtype":"U8","shape":[0]}})"), "no two data_offsets");
    check_refused(folder, file_bytes(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"scale":"2"}})"), R"("scale")");
    for (const char* value : {"1", "null", "[]", "\"a\"", "false", "1.5"}) {
      check_refused(folder, file_bytes(std::string(R"({"t":)") + value + "}"), "for tensor \"t\"");
    }
  }

  TEST_CASE("dtypes that losstape does not have are refused") {
    const TempFolder folder;
    for (const char* dtype :
         {R"("F8_E4M3")", R"("BOOL")", R"("U64")", R"("f32")", R"("F32 ")", R"("")", "1", "null", "[]", "{}"}) {
      check_refused(folder, file_bytes(one_tensor(dtype, "[0]", "[0,0]")), "F64, F32, BF16, F16, I64, I32 or U8");
    }
  }

  TEST_CASE("shapes that are not lists of whole numbers are refused") {
    const TempFolder folder;
    for (const char* shape : {"[-1]", "[1.0]", "[1e0]", "[-0]", "[\"1\"]", "[null]", "[true]", "[9223372036854775808]",
                              "[18446744073709551616]", "[1e999]", "[{}]", "1", "null", "\"[1]\"", "{}"}) {
      check_refused(folder, file_bytes(one_tensor(R"("U8")", shape, "[0,1]"), "x"), "");
    }
    std::string ones = "[1";
    for (int i = 1; i < 64; ++i) ones += ",1";
    CHECK(read_everything(folder.write("a", file_bytes(one_tensor(R"("U8")", ones + "]", "[0,1]"), "x"))) == 1);
    check_refused(folder, file_bytes(one_tensor(R"("U8")", ones + ",1]", "[0,1]"), "x"), "at most 64 whole numbers");
  }

  TEST_CASE("shapes whose size overflows are refused, even where an extent is zero") {
    const TempFolder folder;
    for (const char* shape :
         {"[4294967296,4294967296]", "[9223372036854775807]", "[9223372036854775807,2]", "[3,6148914691236517206]",
          "[2305843009213693952]", "[0,9223372036854775807]", "[9223372036854775807,9223372036854775807,0]"}) {
      check_refused(folder, file_bytes(one_tensor(R"("F64")", shape, "[0,0]")), "below 2^62 bytes");
      check_refused(folder, file_bytes(one_tensor(R"("F64")", shape, "[0,8]"), "12345678"), "below 2^62 bytes");
    }
  }

  TEST_CASE("data_offsets that do not fit the shape, the dtype or the file are refused") {
    const TempFolder folder;
    const auto refused = [&](const char* shape, const char* offsets, const char* message) {
      check_refused(folder, file_bytes(one_tensor(R"("F32")", shape, offsets), "12345678"), message);
    };
    refused("[2]", "[0,4]", "8 bytes for shape [2] of f32");
    refused("[1]", "[0,8]", "4 bytes for shape [1] of f32");
    refused("[]", "[0,8]", "4 bytes for shape [] of f32");
    refused("[2]", "[8,0]", "do not decrease");
    refused("[2]", "[8,16]", "within the 8 bytes");
    refused("[2]", "[0,9223372036854775807]", "within the 8 bytes");
    refused("[2]", "[0,9223372036854775808]", "two data_offsets");
    refused("[2]", "[-8,0]", "two data_offsets");
    refused("[2]", "[0,8.0]", "two data_offsets");
    refused("[2]", "[0]", "no two data_offsets");
    refused("[2]", "[]", "no two data_offsets");
    refused("[2]", "[0,8,8]", "found more");
    refused("[2]", "{}", "data_offsets");
    refused("[2]", "\"0,8\"", "data_offsets");
    refused("[2]", "8", "data_offsets");
  }

  TEST_CASE("tensors that overlap or leave a hole are refused") {
    const TempFolder folder;
    const auto two = [](const char* a, const char* b) {
      return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(a) +
             R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
    };
    CHECK(read_everything(folder.write("a", file_bytes(two("[0,4]", "[4,8]"), "12345678"))) == 8);
    CHECK(read_everything(folder.write("a", file_bytes(two("[4,8]", "[0,4]"), "12345678"))) == 8);
    check_refused(folder, file_bytes(two("[0,4]", "[3,7]"), "1234567"), "without overlap or hole");
    check_refused(folder, file_bytes(two("[0,4]", "[0,4]"), "1234"), "without overlap or hole");
    check_refused(folder, file_bytes(two("[0,4]", "[5,9]"), "123456789"), "without overlap or hole");
    check_refused(folder, file_bytes(two("[1,5]", "[5,9]"), "123456789"), "without overlap or hole");
    check_refused(folder, file_bytes(two("[0,4]", "[4,8]"), "123456789"), "to end with its last tensor");
    check_refused(folder, file_bytes("{}", "1"), "to end with its last tensor");
    const std::string empty_within = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                     R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})";
    check_refused(folder, file_bytes(empty_within, "1234"), "without overlap or hole");
  }

  TEST_CASE("a file cut at any length is refused") {
    const TempFolder folder;
    const std::string valid = read_file(small_valid_file(folder));
    for (std::size_t length = 0; length < valid.size(); ++length) {
      CAPTURE(length);
      const std::string path = folder.write("cut.safetensors", valid.substr(0, length));
      REQUIRE_THROWS_AS(read_everything(path), DataError);
    }
  }

  TEST_CASE("whatever a byte of the header becomes, the file is read within its bounds or refused") {
    const TempFolder folder;
    const std::string valid = read_file(small_valid_file(folder));
    std::uint64_t header = 0;
    std::memcpy(&header, valid.data(), sizeof header);
    int loaded = 0;
    for (std::size_t at = 0; at < 8 + header; ++at) {
      for (const char value :
           {'\0', ' ', '"', '0', '9', '-', '{', '}', '[', ']', ',', ':', '\\', 'F', '\x7f', '\x80', '\xff'}) {
        CAPTURE(at);
        CAPTURE(static_cast<int>(value));
        std::string bytes = valid;
        bytes[at] = value;
        const std::string path = folder.write("flipped.safetensors", bytes);
        try {
          const std::size_t bytes_read = read_everything(path);
          REQUIRE(bytes_read == valid.size() - 8 - header);
          ++loaded;
        } catch (const DataError&) {
          continue;
        }
      }
    }
    CHECK(loaded > 100);  // names, metadata and the values that were there already
  }

  TEST_CASE("a long hostile header is refused with a short message") {
    const TempFolder folder;
    const std::string path = folder.write("a", file_bytes("{\"" + std::string(1'000'000, 'n') + "\":1}"));
    try {
      read_everything(path);
      FAIL("not refused");
    } catch (const DataError& error) {
      CHECK(std::string(error.what()).size() < 500);
    }
  }

  TEST_CASE("a header of very many tensors takes time in proportion") {
    const TempFolder folder;
    std::string header = "{";
    for (int i = 0; i < 200'000; ++i) {
      header += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
    }
    header.back() = '}';
    CHECK(SafetensorsFile(folder.write("a", file_bytes(header))).names().size() == 200'000);
  }

  TEST_CASE("the writer refuses what the reader would, before there is a file") {
    const TempFolder folder;
    const std::vector<float> v{1, 2, 3, 4};
    const std::string path = folder.file("a.safetensors");
    const auto refused = [&](std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& metadata = {}) {
      CHECK_THROWS_AS(write_safetensors(path, tensors, metadata), UsageError);
    };
    refused({{"a", v, {4}}, {"a", v, {4}}});
    refused({{"__metadata__", v, {4}}});
    refused({{"\xff", v, {4}}});
    refused({{"a", v, {4}}}, {{"k", "\xc3"}});
    refused({{"a", v, {5}}});
    refused({{"a", v, {}}});
    refused({{"a", v, {-2, -2}}});
    refused({{"a", v, {0}}});
    refused({{"a", v, {Index{1} << 32, Index{1} << 32}}});
    refused({{"a", v, std::vector<Index>(65, 1)}});
    refused({{"a", View(v.data(), Index{1} << 59, 1, 0), {Index{1} << 59}},
             {"b", View(v.data(), Index{1} << 59, 1, 0), {Index{1} << 59}},
             {"c", View(v.data(), Index{1} << 59, 1, 0), {Index{1} << 59}},
             {"d", View(v.data(), Index{1} << 59, 1, 0), {Index{1} << 59}}});
    View elsewhere = v;
    elsewhere.device = Device::cuda;
    refused({{"a", elsewhere, {4}}});
    CHECK(files_in(folder).empty());
  }

  TEST_CASE("a write that fails leaves the old file and nothing else") {
    const TempFolder folder;
    const std::vector<float> v{1};
    const std::array<NamedTensor, 1> tensors{{{"a", v, {1}}}};
    CHECK_THROWS_WITH_AS(write_safetensors(folder.file("no/such/folder"), tensors, {}), doctest::Contains("No such file"),
                         DataError);
    CHECK_THROWS_WITH_AS(write_safetensors(folder.path().string(), tensors, {}), doctest::Contains("directory"), DataError);
    CHECK_THROWS_AS(write_safetensors(folder.path().string() + "/", tensors, {}), DataError);
    CHECK_THROWS_AS(write_safetensors("", tensors, {}), DataError);
    CHECK_THROWS_AS(write_safetensors(folder.file(std::string(300, 'n')), tensors, {}), DataError);
    CHECK(files_in(folder).empty());
  }

  TEST_CASE("a full disk is an error, and leaves the old file and nothing else") {
    const TempFolder folder;
    const std::string path = folder.write("a.safetensors", "old");
    const std::vector<float> v(std::size_t{1} << 20);
    const std::array<NamedTensor, 1> tensors{{{"a", v, {1 << 20}}}};
    const LimitedFileSize limit(std::size_t{1} << 20);
    CHECK_THROWS_WITH_AS(write_safetensors(path, tensors, {}), doctest::Contains("File too large"), DataError);
    CHECK(files_in(folder) == std::vector<std::string>{"a.safetensors"});
    CHECK(read_file(path) == "old");
  }

  TEST_CASE("a device or a pipe is not replaced by a file") {
    const TempFolder folder;
    const std::string pipe = folder.file("pipe");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_THROWS_AS(write_safetensors(pipe, {}, {}), DataError);
    CHECK(std::filesystem::is_fifo(pipe));
    CHECK_THROWS_AS(write_safetensors("/dev/null", {}, {}), DataError);
  }

  TEST_CASE("a link to no file is refused, and stays a link") {
    const TempFolder folder;
    const std::string link = folder.file("link");
    std::filesystem::create_symlink(folder.file("gone") + "/file", link);
    CHECK_THROWS_AS(write_safetensors(link, {}, {{"k", "v"}}), DataError);
    CHECK(std::filesystem::is_symlink(link));
  }

  TEST_CASE("a link to a file stays a link, and its file is replaced") {
    const TempFolder folder;
    const std::string path = folder.write("a.safetensors", "old");
    const std::string link = folder.file("link");
    std::filesystem::create_symlink(path, link);
    write_safetensors(link, {}, {{"k", "v"}});
    CHECK(std::filesystem::is_symlink(link));
    CHECK(SafetensorsFile(path).metadata().at("k") == "v");
  }

  TEST_CASE("a name without a folder is written in the current one") {
    const TempFolder folder;
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    CHECK_NOTHROW(write_safetensors("a.safetensors", {}, {}));
    std::filesystem::current_path(before);
    CHECK(files_in(folder) == std::vector<std::string>{"a.safetensors"});
  }
}

}  // namespace losstape
