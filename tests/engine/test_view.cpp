// SPDX-License-Identifier: Apache-2.0
#include "engine/view.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/support/refusal.h"

using namespace losstape;
using losstape::testing::check_says;
using losstape::testing::refusal;

TEST_SUITE("engine/view") {
  TEST_CASE("element (r, c) stands at data[r · row stride + c · column stride]") {
    std::vector<float> x(24);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const View row_major(x.data(), 4, 6);
    CHECK(row_major.get<double>(2, 3) == 15);
    CHECK(row_major.order() == Order::row_major);
    CHECK(row_major.size() == 24);
    const View column_major(x.data(), 4, 6, 1, 4);
    CHECK(column_major.get<double>(2, 3) == 14);
    CHECK(column_major.order() == Order::column_major);
    const View every_other(x.data(), 2, 3, 12, 2);
    CHECK(every_other.get<float>(1, 2) == 16);
    CHECK(every_other.order() == Order::strided);
    CHECK(*row_major.row<float>(3) == 18);
  }
  TEST_CASE("rows may stand still or run backwards where the view is only read") {
    const std::vector<double> x{1, 2, 3};
    const View same(x.data(), 5, 1, 0);
    CHECK(same.get<double>(4) == 1);
    const View back(x.data() + 2, 3, 1, -1);
    CHECK(back.get<double>(0) == 3);
    CHECK(back.get<double>(2) == 1);
    const View mirrored(x.data() + 2, 1, 3, 3, -1);
    CHECK(mirrored.get<double>(0, 2) == 1);
  }
  TEST_CASE("every element type is read as the type that is asked for") {
    const std::vector<std::int64_t> longs{-3};
    const std::vector<int> ints{4};
    const std::vector<std::uint8_t> bytes{255};
    const std::vector<BFloat16> brains{BFloat16(1.5F)};
    const std::vector<Float16> halves{Float16(-0.25F)};
    CHECK(View(longs).get<double>(0) == -3);
    CHECK(View(ints).get<std::int64_t>(0) == 4);
    CHECK(View(bytes).get<float>(0) == 255);
    CHECK(View(brains).get<double>(0) == 1.5);
    CHECK(View(halves).get<float>(0) == -0.25F);
    CHECK(View(std::span<const int>(ints)).dtype == DType::i32);
  }
  TEST_CASE("a part of the rows is a view of the same memory, and rows that are not there are refused") {
    const std::vector<float> x{0, 1, 2, 3, 4, 5};
    const View part = View(x.data(), 3, 2).rows_of(1, 3);
    CHECK(part.rows == 2);
    CHECK(part.get<float>(0, 0) == 2);
    CHECK(View(x.data() + 4, 3, 2, -2).rows_of(1, 2).get<float>(0, 1) == 3);
    CHECK(part.rows_of(2, 2).empty());
    for (const auto& [begin, end] : {std::pair<Index, Index>{-1, 1}, {2, 1}, {0, 3}}) {
      (void)refusal([&, first = begin, last = end] { (void)part.rows_of(first, last); });
    }
  }
  TEST_CASE("a view of nothing needs no memory") {
    CHECK(View(static_cast<const float*>(nullptr), 0, 7).empty());
    CHECK(MutableView(static_cast<double*>(nullptr), 7, 0).empty());
    CHECK(View().empty());
  }
  TEST_CASE("negative sizes, null and misaligned memory are refused in words") {
    const std::vector<double> x(4);
    check_says(refusal([&] { View(x.data(), -1, 2); }), "rows and columns of at least 0, found [-1, 2]");
    check_says(refusal([&] { View(x.data(), 2, -1); }), "found [2, -1]");
    check_says(refusal([] { View(static_cast<const float*>(nullptr), 1, 1); }), "a null pointer");
    const auto* crooked = reinterpret_cast<const char*>(x.data()) + 1;
    check_says(refusal([&] { View(static_cast<const void*>(crooked), View(x)); }), "a multiple of 8 for f64");
  }
  TEST_CASE("sizes that overflow are refused before an address is formed") {
    const std::vector<double> x(1);
    const Index most = std::numeric_limits<Index>::max();
    const Index least = std::numeric_limits<Index>::min();
    (void)refusal([&] { View(x.data(), most, most); });
    (void)refusal([&] { View(x.data(), Index{1} << 60, 1); });
    (void)refusal([&] { View(x.data(), (Index{1} << 60) - 2, 1); });  // fits 63 bits, the last address does not
    (void)refusal([&] { View(x.data(), 2, 1, most); });
    (void)refusal([&] { View(x.data(), 2, 1, least); });
    (void)refusal([&] { View(x.data(), 2, 2, 1, least); });
    (void)refusal([&] { View(x.data(), 2, 2, most / 16, most / 16); });
  }
  TEST_CASE("memory to write has an address for each element: standing, backward and overlapping rows are refused") {
    std::vector<float> x(64);
    (void)refusal([&] { MutableView(x.data(), 4, 1, 0); });
    (void)refusal([&] { MutableView(x.data() + 9, 4, 1, -1); });
    (void)refusal([&] { MutableView(x.data(), 4, 3, 2); });
    (void)refusal([&] { MutableView(x.data(), 4, 4, 2, 2); });
    (void)refusal([&] { MutableView(x.data() + 9, 2, 4, 8, -1); });
    CHECK(MutableView(x.data(), 4, 3, 3).order() == Order::row_major);
    CHECK(MutableView(x.data(), 4, 3, 8, 2).order() == Order::strided);
    CHECK(MutableView(x.data(), 4, 3, 1, 4).order() == Order::column_major);
    CHECK(MutableView(x.data(), 1, 3, 0).rows == 1);  // one row has no next one to meet
  }
  TEST_CASE("memory to write is also memory to read") {
    std::vector<float> x{1, 2, 3, 4};
    const MutableView memory(x.data(), 2, 2);
    const View view = memory;
    CHECK(view.data() == x.data());
    CHECK(view.get<float>(1, 1) == 4);
    *memory.row<float>(1) = 9;
    CHECK(view.get<float>(1, 0) == 9);
  }
}

TEST_SUITE("engine/view overlap") {
  TEST_CASE("views of one byte overlap, neighbours and empty views do not") {
    const std::vector<float> x(12);
    CHECK(overlap(View(x.data(), 3, 2), View(x.data() + 5, 1, 1)));
    CHECK_FALSE(overlap(View(x.data(), 3, 2), View(x.data() + 6, 3, 2)));
    CHECK_FALSE(overlap(View(x.data(), 3, 2), View(x.data() + 2, 0, 2)));
    CHECK_FALSE(overlap(View(), View(x)));
    CHECK(overlap(View(x.data() + 11, 12, 1, -1), View(x.data(), 1)));
    CHECK(overlap(View(x.data() + 3, 9, 1, 0), View(x.data() + 3, 1)));
    CHECK_FALSE(overlap(View(x.data() + 3, 9, 1, 0), View(x.data() + 4, 1)));
  }
  TEST_CASE("column ranges of one row-major buffer interleave without overlap") {
    const std::vector<float> x(40);
    const auto columns = [&](Index first, Index last) { return View(x.data() + first, 4, last - first, 10); };
    // every pair of ranges within a row of 10
    for (Index a = 0; a < 10; ++a) {
      for (Index b = a + 1; b <= 10; ++b) {
        for (Index c = 0; c < 10; ++c) {
          for (Index d = c + 1; d <= 10; ++d) {
            const bool expected = a < d && c < b;
            CAPTURE(a);
            CAPTURE(b);
            CAPTURE(c);
            CAPTURE(d);
            REQUIRE(overlap(columns(a, b), columns(c, d)) == expected);
          }
        }
      }
    }
  }
  TEST_CASE("a range that begins in a later row wraps around a row's end like any other") {
    const std::vector<float> x(50);
    const View first(x.data(), 4, 4, 10);
    CHECK_FALSE(overlap(first, View(x.data() + 14, 3, 6, 10)));  // columns 4 to 9 from row 1 on
    CHECK(overlap(first, View(x.data() + 16, 2, 5, 10)));        // columns 6 to 10: the next row's first
    CHECK(overlap(View(x.data() + 16, 2, 5, 10), first));
  }
  TEST_CASE("ranges of two pitches that interleave count as overlapping") {
    const std::vector<float> x(50);
    CHECK(overlap(View(x.data(), 4, 2, 10), View(x.data() + 5, 8, 2, 5)));  // both hold element 10
    CHECK(overlap(View(x.data() + 5, 8, 2, 5), View(x.data(), 4, 2, 10)));
  }
  TEST_CASE("ranges of two dtypes are compared in bytes") {
    const std::vector<double> x(40);
    const auto* floats = reinterpret_cast<const float*>(x.data());
    const View doubles(x.data(), 4, 3, 10);
    CHECK_FALSE(overlap(doubles, View(floats + 6, 4, 14, 20)));
    CHECK(overlap(doubles, View(floats + 5, 4, 14, 20)));
  }
}
