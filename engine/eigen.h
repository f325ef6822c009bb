// SPDX-License-Identifier: Apache-2.0
// Views as Eigen maps, without a copy. (Eigen objects become views by themselves.)
#pragma once

#include <Eigen/Core>

#include <string>

#include "engine/error.h"
#include "engine/view.h"

namespace losstape {

template <class T>
using EigenMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>, Eigen::Unaligned,
                            Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
template <class T>
using ConstEigenMap = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>, Eigen::Unaligned,
                                 Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

namespace detail {
template <class T>
void expect_dtype(const Layout& layout) {
  constexpr DType wanted = losstape::dtype_of<T>;
  if (layout.dtype != wanted) throw UsageError({"as_eigen", name(wanted), name(layout.dtype)});
}
}  // namespace detail

// The memory of a view of T. Errors: UsageError for another dtype.
template <Element T>
[[nodiscard]] ConstEigenMap<T> as_eigen(const View& view) {
  detail::expect_dtype<T>(view);
  return ConstEigenMap<T>(static_cast<const T*>(view.data()), view.rows, view.cols, {view.col_stride, view.row_stride});
}
template <Element T>
[[nodiscard]] EigenMap<T> as_eigen(const MutableView& view) {
  detail::expect_dtype<T>(view);
  return EigenMap<T>(static_cast<T*>(view.data()), view.rows, view.cols, {view.col_stride, view.row_stride});
}

}  // namespace losstape
