// SPDX-License-Identifier: Apache-2.0
// Eigen's objects as views and back: the same memory, never a copy.
#include "engine/eigen.h"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "engine/tape.h"
#include "engine/view.h"
#include "tests/support/refusal.h"

using namespace losstape;
using losstape::testing::check_says;
using losstape::testing::refusal;

namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Whether a view reads the same elements at the same addresses as an Eigen expression.
template <class M>
bool same_memory(const View& view, const M& m) {
  if (view.rows != m.rows() || view.cols != m.cols()) return false;
  for (Index r = 0; r < view.rows; ++r) {
    for (Index c = 0; c < view.cols; ++c) {
      const auto* at = view.row<typename M::Scalar>(r) + c * view.col_stride;
      if (at != &m.coeffRef(r, c)) return false;
    }
  }
  return true;
}

Order order_of(const Eigen::Ref<const Eigen::MatrixXf>& m) { return View(m).order(); }

}  // namespace

TEST_SUITE("engine/eigen") {
  TEST_CASE("a matrix of either order, its vectors and fixed sizes are views of their own memory") {
    Eigen::MatrixXf columns = Eigen::MatrixXf::Random(3, 5);
    RowMatrix rows = RowMatrix::Random(3, 5);
    Eigen::VectorXd vector = Eigen::VectorXd::Random(4);
    Eigen::RowVectorXf row = Eigen::RowVectorXf::Random(4);
    Eigen::Matrix<double, 2, 2> fixed = Eigen::Matrix<double, 2, 2>::Random();
    Eigen::ArrayXXf array = Eigen::ArrayXXf::Random(2, 3);
    CHECK(same_memory(View(columns), columns));
    CHECK(View(columns).order() == Order::column_major);
    CHECK(same_memory(View(rows), rows));
    CHECK(View(rows).order() == Order::row_major);
    CHECK(same_memory(View(vector), vector));
    CHECK(View(vector).order() == Order::row_major);
    CHECK(same_memory(View(row), row));
    CHECK(same_memory(View(fixed), fixed));
    CHECK(same_memory(View(array), array));
    CHECK(same_memory(MutableView(columns), columns));
  }
  TEST_CASE("a block, a map with strides and a ref are views, as temporaries too: their memory is not") {
    Eigen::MatrixXf columns = Eigen::MatrixXf::Random(6, 5);
    RowMatrix rows = RowMatrix::Random(6, 5);
    auto block = columns.block(1, 2, 3, 2);
    auto row_block = rows.block(1, 2, 3, 2);
    CHECK(same_memory(View(block), block));
    CHECK(same_memory(View(row_block), row_block));
    CHECK(View(row_block).order() == Order::row_major);
    CHECK(same_memory(View(columns.middleRows(2, 2)), columns.middleRows(2, 2)));
    CHECK(same_memory(MutableView(columns.leftCols(2)), columns.leftCols(2)));
    CHECK(same_memory(MutableView(rows.row(3)), rows.row(3)));
    CHECK(same_memory(View(columns.transpose()), columns.transpose()));
    std::vector<float> x(24);
    using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    const Eigen::Map<Eigen::MatrixXf, 0, Strides> map(x.data(), 2, 3, Strides(8, 2));
    CHECK(same_memory(View(map), map));
    CHECK(View(map).order() == Order::strided);
    CHECK(order_of(columns) == Order::column_major);
  }
  TEST_CASE("what cannot be written is no memory to write, and what owns its memory is no view once it is gone") {
    using ConstMap = Eigen::Map<const Eigen::MatrixXf>;
    CHECK(std::is_constructible_v<View, ConstMap>);
    CHECK_FALSE(std::is_constructible_v<MutableView, ConstMap>);
    CHECK_FALSE(std::is_constructible_v<MutableView, ConstMap&>);
    CHECK_FALSE(std::is_constructible_v<MutableView, const Eigen::MatrixXf&>);
    CHECK_FALSE(std::is_constructible_v<MutableView, Eigen::MatrixXf>);
    CHECK_FALSE(std::is_constructible_v<View, Eigen::MatrixXf>);
    CHECK(std::is_constructible_v<View, const Eigen::MatrixXf&>);
    CHECK(std::is_constructible_v<MutableView, Eigen::MatrixXf&>);
    // an expression has no memory at all
    CHECK_FALSE(std::is_constructible_v<View, decltype(Eigen::MatrixXf() + Eigen::MatrixXf())>);
  }
  TEST_CASE("a view is an Eigen map of the same memory, strides standing still or running backwards included") {
    std::vector<double> x{1, 2, 3, 4, 5, 6};
    CHECK(as_eigen<double>(View(x.data(), 2, 3)).sum() == 21);
    CHECK(as_eigen<double>(View(x.data(), 2, 3))(1, 0) == 4);
    CHECK(as_eigen<double>(View(x.data(), 2, 3, 1, 2))(1, 0) == 2);
    CHECK(as_eigen<double>(View(x.data() + 5, 6, 1, -1))(1, 0) == 5);
    CHECK(as_eigen<double>(View(x.data() + 5, 3, 1, 0)).sum() == 18);
    as_eigen<double>(MutableView(x.data(), 2, 3)).row(1) *= 10;
    CHECK(x[3] == 40);
    check_says(refusal([&] { (void)as_eigen<float>(View(x)); }), "as_eigen: expected f32, found f64");
  }
  TEST_CASE("values and slices of two orders are refused, of one order taken") {
    Tape tape;
    Eigen::MatrixXf columns = Eigen::MatrixXf::Random(3, 2);
    Eigen::MatrixXf column_slice(3, 2);
    RowMatrix rows = RowMatrix::Random(3, 2);
    RowMatrix row_slice(3, 2);
    check_says(refusal([&] { (void)tape.input(columns, row_slice); }),
               "input: expected value and slice in one order, column-major, found a row-major slice");
    check_says(refusal([&] { (void)tape.input(rows, column_slice); }), "Eigen's matrices are column-major unless declared");
    CHECK(tape.input(columns, column_slice).rows() == 3);
    CHECK(tape.input(rows, row_slice).cols() == 2);
  }
}
