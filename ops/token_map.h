// SPDX-License-Identifier: Apache-2.0
// token_map: the one pointwise node. A functor over columns, written as a value, differentiated by dual numbers.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/error.h"
#include "engine/tape.h"
#include "ops/dual.h"

namespace losstape {

// A functor of N numbers of type T that gives a T, or a std::array of them.
template <class F, class T, std::size_t N>
concept TokenFunctor = []<std::size_t... I>(std::index_sequence<I...>) {
  return std::is_invocable_v<const F&, decltype((void)I, std::declval<T>())...>;
}
(std::make_index_sequence<N>{});

namespace detail {

template <class Result, class T>
struct ResultSize {
  static constexpr std::size_t value = 1;
  static_assert(std::is_convertible_v<Result, T>, "a token_map functor returns a number, or a std::array of numbers");
};
template <class T, std::size_t K>
struct ResultSize<std::array<T, K>, T> {
  static constexpr std::size_t value = K;
};

// F of N numbers made by column(i).
template <std::size_t N, class F, class Column>
auto apply(const F& f, const Column& column) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) { return f(column(I)...); }
  (std::make_index_sequence<N>{});
}

// A result as an array, whether it is one number or several.
template <class T, std::size_t K>
std::array<T, K> as_array(std::array<T, K> result) {
  return result;
}
template <class T, class Result>
std::array<T, 1> as_array(const Result& result) {
  return {T(result)};
}

// The functor runs once, at record: captures by reference are not looked at again. Backward has the saved partials.
template <class F, std::size_t N, std::size_t K>
struct TokenMapNode {
  static constexpr auto name = "token_map";

  F functor;

  void reserve(auto& c) const {
    Index wanted = 0;
    for (std::size_t i = 0; i < N; ++i) wanted += c.wants_grad(i) ? 1 : 0;
    c.save(c.real, c.out(0).rows * c.out(0).cols, wanted);
  }

  void forward(auto& c) const {
    using R = real_of<decltype(c)>;
    if (c.probing()) return probe(c);
    using Number = Dual<double, N>;
    const auto partials = c.saved(c.real, 0);
    const auto x = columns<R>([&](std::size_t i) { return c.in(i); });
    for_elements(c, [&](Index r, Index j, Index at) {
      const auto y = as_array<Number>(apply<N>(functor, [&](std::size_t i) { return Number::variable(x[i](r, j), i); }));
      Index column = 0;
      for (std::size_t i = 0; i < N; ++i) {
        if (c.wants_grad(i)) partials(at, column++) = static_cast<R>(y[0].d[i]);
      }
      return y;
    });
  }

  void backward(auto& c) const {
    const auto dy = c.dout(0);
    const auto partials = c.saved(c.real, 0);
    Index column = 0;
    for (std::size_t i = 0; i < N; ++i) {
      const auto dx = c.grad(i);
      if (!dx) continue;
      for (Index r = 0; r < dy.rows(); ++r) {
        for (Index j = 0; j < dy.cols(); ++j) {
          // An element that nobody uses has no derivative, whatever its partial is.
          const double g = dy(r, j);
          dx.write(r, j, g == 0 ? 0.0 : g * static_cast<double>(partials(r * dy.cols() + j, column)));
        }
      }
      ++column;
    }
  }

 private:
  void probe(auto& c) const {
    using R = real_of<decltype(c)>;
    using Number = Paired<double>;
    const auto x = columns<R>([&](std::size_t i) { return c.in(i); });
    const auto base = columns<R>([&](std::size_t i) { return c.base(i); });
    for_elements(c, [&](Index r, Index j, Index) {
      const auto y =
          as_array<Number>(apply<N>(functor, [&](std::size_t i) { return Number(x[i](r, j), base[i](r, j), false); }));
      if (y[0].kink) c.kink();
      return y;
    });
  }

  template <class R>
  static std::array<Values<R>, N> columns(const auto& column) {
    std::array<Values<R>, N> list;
    for (std::size_t i = 0; i < N; ++i) list[i] = column(i);
    return list;
  }

  // Writes the numbers that f(row, column, place) gives.
  static void for_elements(auto& c, const auto& f) {
    const Index rows = c.out(0).rows();
    const Index cols = c.out(0).cols();
    std::array<real_of<decltype(c)>*, K> out;
    for (std::size_t k = 0; k < K; ++k) out[k] = c.out(k).data();
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < cols; ++j) {
        const Index at = r * cols + j;
        const auto y = f(r, j, at);
        for (std::size_t k = 0; k < K; ++k) out[k][at] = static_cast<real_of<decltype(c)>>(y[k].value);
      }
    }
  }
};

}  // namespace detail

// y = f(x_0, …, x_{N−1}), element by element over columns of one shape. The functor is generic: it is called once an
// element, at record, with dual numbers (ops/dual.h), so it writes the value and gets the derivative. Which columns carry
// one follows from the Vars. A functor that returns std::array<T, K> gives K Vars: the first is differentiated, the others
// are metrics.
//
// Cost: saves one real an element and differentiable column. No collective.
// Errors: UsageError for columns of different shapes.
template <class R, class F, class... Rest>
auto token_map(F functor, BasicVar<R> first, const Rest&... rest) {
  static_assert((std::is_same_v<Rest, BasicVar<R>> && ...), "token_map takes Vars of one tape type; make constants of data");
  constexpr std::size_t N = 1 + sizeof...(Rest);
  using Number = Dual<double, N>;
  static_assert(TokenFunctor<F, Number, N>, "the functor takes one argument for each column that token_map is given");
  using Result = decltype(detail::apply<N>(functor, [](std::size_t) { return Number(); }));
  constexpr std::size_t K = detail::ResultSize<Result, Number>::value;
  const Shape shape = first.shape();
  const std::array<BasicVar<R>, N> columns{first, rest...};
  for (std::size_t i = 1; i < N; ++i) {
    const Shape found = columns[i].shape();
    if (found == shape) continue;
    throw UsageError(
        {"token_map", "columns of one shape, [" + std::to_string(shape.rows) + ", " + std::to_string(shape.cols) + "]",
         "[" + std::to_string(found.rows) + ", " + std::to_string(found.cols) + "] as column " + std::to_string(i),
         "token columns and sequence columns meet through spread and the sequence nodes"});
  }
  Outputs outputs{shape};
  for (std::size_t k = 1; k < K; ++k) outputs.add({shape.rows, shape.cols, Adjoint::no});
  const VarList<R> made = first.tape->record(detail::TokenMapNode<F, N, K>{std::move(functor)}, std::span(columns), outputs);
  if constexpr (std::is_same_v<Result, std::array<Number, K>>) {
    std::array<BasicVar<R>, K> list;
    for (std::size_t k = 0; k < K; ++k) list[k] = made[k];
    return list;
  } else {
    return made[0];
  }
}

// ---- Operators on Vars: token_map in its shortest form ----------------------------------------------------------------

template <class R>
BasicVar<R> operator-(BasicVar<R> a) {
  return token_map([](const auto& x) { return -x; }, a);
}
template <class R>
BasicVar<R> operator+(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return x + y; }, a, b);
}
template <class R>
BasicVar<R> operator+(BasicVar<R> a, double b) {
  return token_map([b](const auto& x) { return x + b; }, a);
}
template <class R>
BasicVar<R> operator+(double a, BasicVar<R> b) {
  return b + a;
}
template <class R>
BasicVar<R> operator-(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return x - y; }, a, b);
}
template <class R>
BasicVar<R> operator-(BasicVar<R> a, double b) {
  return a + -b;
}
template <class R>
BasicVar<R> operator-(double a, BasicVar<R> b) {
  return token_map([a](const auto& x) { return a - x; }, b);
}
template <class R>
BasicVar<R> operator*(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return x * y; }, a, b);
}
template <class R>
BasicVar<R> operator*(BasicVar<R> a, double b) {
  return token_map([b](const auto& x) { return x * b; }, a);
}
template <class R>
BasicVar<R> operator*(double a, BasicVar<R> b) {
  return b * a;
}
template <class R>
BasicVar<R> operator/(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return x / y; }, a, b);
}
template <class R>
BasicVar<R> operator/(BasicVar<R> a, double b) {
  return token_map([b](const auto& x) { return x / b; }, a);
}
template <class R>
BasicVar<R> operator/(double a, BasicVar<R> b) {
  return token_map([a](const auto& x) { return a / x; }, b);
}
template <class R>
BasicVar<R> exp(BasicVar<R> a) {
  return token_map([](const auto& x) { return exp(x); }, a);
}
template <class R>
BasicVar<R> log(BasicVar<R> a) {
  return token_map([](const auto& x) { return log(x); }, a);
}
template <class R>
BasicVar<R> log_sigmoid(BasicVar<R> a) {
  return token_map([](const auto& x) { return log_sigmoid(x); }, a);
}
template <class R>
BasicVar<R> max(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return max(x, y); }, a, b);
}
template <class R>
BasicVar<R> min(BasicVar<R> a, BasicVar<R> b) {
  return token_map([](const auto& x, const auto& y) { return min(x, y); }, a, b);
}
template <class R>
BasicVar<R> clamp(BasicVar<R> a, double low, double high) {
  return token_map([low, high](const auto& x) { return clamp(x, low, high); }, a);
}
template <class R>
BasicVar<R> stop_gradient(BasicVar<R> a) {
  return token_map([](const auto& x) { return stop_gradient(x); }, a);
}

}  // namespace losstape
