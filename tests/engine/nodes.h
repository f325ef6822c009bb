// SPDX-License-Identifier: Apache-2.0
// Small nodes whose derivatives fit on a line, for tests of the tape.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/tape.h"

namespace losstape::testing {

// y = by · x
struct Scale {
  static constexpr auto name = "scale";
  double by = 1;
  void forward(auto& c) const {
    const auto x = c.in(0);
    for (Index r = 0; r < x.rows(); ++r) {
      for (Index j = 0; j < x.cols(); ++j) c.out(0).write(r, j, by * x(r, j));
    }
  }
  void backward(auto& c) const {
    const auto dy = c.dout(0);
    for (Index r = 0; r < dy.rows(); ++r) {
      for (Index j = 0; j < dy.cols(); ++j) c.grad(0).write(r, j, by * dy(r, j));
    }
  }
};

// y = a + b
struct Add {
  static constexpr auto name = "add";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, c.in(0)(r) + c.in(1)(r));
  }
  void backward(auto& c) const {
    for (std::size_t i = 0; i < 2; ++i) {
      for (Index r = 0; r < c.dout(0).rows(); ++r) c.grad(i).write(r, c.dout(0)(r));
    }
  }
};

// y = a · b, its gradients written in one of three orders.
struct Multiply {
  static constexpr auto name = "multiply";
  enum class Order { first_input_first, last_input_first, row_by_row };
  Order order = Order::first_input_first;

  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, static_cast<double>(c.in(0)(r)) * c.in(1)(r));
  }
  void backward(auto& c) const {
    const auto one = [&](std::size_t i, Index r) { c.grad(i).write(r, static_cast<double>(c.in(1 - i)(r)) * c.dout(0)(r)); };
    const Index rows = c.dout(0).rows();
    if (order == Order::row_by_row) {
      for (Index r = rows - 1; r >= 0; --r) {
        one(1, r);
        one(0, r);
      }
      return;
    }
    const std::size_t first = order == Order::first_input_first ? 0 : 1;
    for (const std::size_t i : {first, 1 - first}) {
      for (Index r = 0; r < rows; ++r) one(i, r);
    }
  }
};

// y = a / b
struct Divide {
  static constexpr auto name = "divide";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, static_cast<double>(c.in(0)(r)) / c.in(1)(r));
  }
  void backward(auto& c) const {
    for (Index r = 0; r < c.dout(0).rows(); ++r) {
      const double b = c.in(1)(r);
      c.grad(0).write(r, c.dout(0)(r) / b);
      c.grad(1).write(r, -c.dout(0)(r) * c.in(0)(r) / (b * b));
    }
  }
};

// y = Σ x, [1, 1]
struct Sum {
  static constexpr auto name = "sum";
  void forward(auto& c) const {
    double sum = 0;
    for (Index r = 0; r < c.in(0).rows(); ++r) {
      for (Index j = 0; j < c.in(0).cols(); ++j) sum += c.in(0)(r, j);
    }
    c.out(0).write(0, sum);
  }
  void backward(auto& c) const {
    const auto dx = c.grad(0);
    for (Index r = 0; r < dx.rows(); ++r) {
      for (Index j = 0; j < dx.cols(); ++j) dx.write(r, j, c.dout(0)(0));
    }
  }
};

// What both nodes of a row's softmax need.
template <class Values>
double log_sum_exp(const Values& z, Index r) {
  double most = z(r, 0);
  for (Index j = 1; j < z.cols(); ++j) most = std::max<double>(most, z(r, j));
  double sum = 0;
  for (Index j = 0; j < z.cols(); ++j) sum += std::exp(z(r, j) - most);
  return most + std::log(sum);
}

// y_r = log softmax(z_r)[0]
struct LogProb {
  static constexpr auto name = "log_prob";
  static constexpr bool in_place = true;
  void reserve(auto& c) const { c.save(f64, c.rows()); }
  void forward(auto& c) const {
    const auto z = c.in(0);
    for (Index r = 0; r < z.rows(); ++r) {
      c.saved(f64, 0)(r) = log_sum_exp(z, r);
      c.out(0).write(r, z(r, 0) - c.saved(f64, 0)(r));
    }
  }
  void backward(auto& c) const {
    const auto z = c.in(0);
    const auto dz = c.grad(0);
    for (Index r = 0; r < z.rows(); ++r) {
      const double g = c.dout(0)(r);
      if (g == 0) {
        dz.zero_row(r);
        continue;
      }
      for (Index j = 0; j < z.cols(); ++j) {
        const double p = std::exp(z(r, j) - c.saved(f64, 0)(r));
        dz.write(r, j, g * ((j == 0 ? 1 : 0) - p));
      }
    }
  }
};

// y_r = H(softmax(z_r))
struct Entropy {
  static constexpr auto name = "entropy";
  void forward(auto& c) const {
    for (Index r = 0; r < c.in(0).rows(); ++r) c.out(0).write(r, entropy(c.in(0), r));
  }
  void backward(auto& c) const {
    const auto z = c.in(0);
    for (Index r = 0; r < z.rows(); ++r) {
      const double lse = log_sum_exp(z, r);
      const double h = entropy(z, r);
      for (Index j = 0; j < z.cols(); ++j) {
        const double log_p = z(r, j) - lse;
        c.grad(0).write(r, j, -c.dout(0)(r) * std::exp(log_p) * (log_p + h));
      }
    }
  }

 private:
  static double entropy(const auto& z, Index r) {
    const double lse = log_sum_exp(z, r);
    double h = 0;
    for (Index j = 0; j < z.cols(); ++j) h -= std::exp(z(r, j) - lse) * (z(r, j) - lse);
    return h;
  }
};

// An input over a vector, and its slice.
template <class R>
struct Leaf {
  std::vector<R> value;
  std::vector<R> slice;
  Index cols = 1;

  explicit Leaf(std::vector<R> x, Index width = 1, R before = R(99))
      : value(std::move(x)), slice(value.size(), before), cols(width) {}
  [[nodiscard]] Index rows() const { return static_cast<Index>(value.size()) / cols; }
  [[nodiscard]] BasicVar<R> on(BasicTape<R>& tape, Grad grad = Grad::overwrite) {
    return tape.input(View(value.data(), rows(), cols), MutableView(slice.data(), rows(), cols), grad);
  }
};

}  // namespace losstape::testing
