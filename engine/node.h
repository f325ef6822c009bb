// SPDX-License-Identifier: Apache-2.0
// What a node is: a plain struct with a name, a forward and a const backward, and what those two may ask of the tape.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "engine/arena.h"
#include "engine/grad_slice.h"
#include "engine/parallel.h"
#include "engine/var.h"
#include "engine/view.h"

namespace losstape {

// What happens where a value that the loss needs is NaN or infinite.
enum class NonFinite : unsigned char {
  error,      // a UsageError that names the row and the cause, before any gradient is written
  propagate,  // it flows into the loss and into its own rows of the gradient
};

template <class R>
struct Recorded;

// A value to read. Elements come as R, whatever the memory holds.
template <class R>
class Values {
 public:
  Values() = default;
  explicit Values(const View& view)
      : view_(view), direct_(view.dtype == dtype_of<R> ? static_cast<const R*>(view.data()) : nullptr), there_(true) {}

  // Empty where an output had no use: c.dout(k).
  [[nodiscard]] explicit operator bool() const { return there_; }
  [[nodiscard]] Index rows() const { return view_.rows; }
  [[nodiscard]] Index cols() const { return view_.cols; }
  [[nodiscard]] const View& view() const { return view_; }
  [[nodiscard]] R operator()(Index r, Index c = 0) const {
    return direct_ != nullptr ? direct_[r * view_.row_stride + c * view_.col_stride] : view_.get<R>(r, c);
  }

 private:
  View view_;
  const R* direct_ = nullptr;
  bool there_ = false;
};

// An output to fill: contiguous memory of the tape, [rows, cols] of R.
template <class R>
class Output {
 public:
  explicit Output(Block<R> block) : block_(block) {}

  [[nodiscard]] Index rows() const { return block_.rows; }
  [[nodiscard]] Index cols() const { return block_.cols; }
  [[nodiscard]] R* data() const { return block_.data; }
  [[nodiscard]] R operator()(Index r, Index c = 0) const { return block_(r, c); }
  void write(Index r, Index c, double value) const { block_(r, c) = static_cast<R>(value); }
  void write(Index r, double value) const { block_(r, 0) = static_cast<R>(value); }

 private:
  Block<R> block_;
};

// The shapes of a node's outputs.
class Outputs {
 public:
  static constexpr std::size_t kMost = 40;

  Outputs(std::initializer_list<Shape> shapes) {
    for (const Shape& shape : shapes) add(shape);
  }
  // Errors: UsageError past kMost.
  void add(const Shape& shape);
  [[nodiscard]] std::span<const Shape> shapes() const { return {shapes_.list.data(), size_}; }

 private:
  // A node has few outputs: the rest is left as it is, for a record costs less than setting it.
  union Storage {
    Storage() {}  // NOLINT(modernize-use-equals-default): = default would be deleted
    std::array<Shape, kMost> list;
  };

  Storage shapes_;
  std::size_t size_ = 0;
};

// A loan of memory that a node asked for in reserve.
struct Reserved {
  std::size_t element_size;
  Index rows;
  Index cols;
  void* data;
};

// What reserve sees: shapes, and which gradients are wanted; never a value. The only place to ask for memory.
template <class R>
class ReserveContext {
 public:
  static constexpr std::size_t kMost = 8;  // pieces of each kind a node

  using Real = R;
  static constexpr Type<R> real{};

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): pieces past their counts are never read
  explicit ReserveContext(const Recorded<R>& record) : record_(record) {}

  [[nodiscard]] Shape in(std::size_t i) const;
  [[nodiscard]] Shape out(std::size_t k) const;
  [[nodiscard]] Index rows() const { return in(0).rows; }
  [[nodiscard]] bool wants_grad(std::size_t i) const;
  [[nodiscard]] bool wants_any_grad() const;
  [[nodiscard]] int threads() const;

  // State from forward to backward, [rows, cols], found again as c.saved(type, k) in the order of these calls.
  template <class T>
  void save(Of<T> /*type*/, Index rows, Index cols = 1) {
    add(saved_, saved_count_, {sizeof(T), rows, cols, nullptr});
  }
  // Scratch of one forward, and again of one backward: c.workspace(type, k).
  template <class T>
  void workspace(Of<T> /*type*/, Index rows, Index cols = 1) {
    add(workspace_, workspace_count_, {sizeof(T), rows, cols, nullptr});
  }
  // The collectives of a step and the bytes that this rank gives to them: plain numbers, for plans.
  void collective(int forward, int backward, std::size_t bytes) {
    collectives_forward_ += forward;
    collectives_backward_ += backward;
    collective_bytes_ += bytes;
  }

  [[nodiscard]] std::span<const Reserved> saved_pieces() const { return {saved_.data(), saved_count_}; }
  [[nodiscard]] std::span<const Reserved> workspace_pieces() const { return {workspace_.data(), workspace_count_}; }
  [[nodiscard]] int collectives_forward() const { return collectives_forward_; }
  [[nodiscard]] int collectives_backward() const { return collectives_backward_; }
  [[nodiscard]] std::size_t collective_bytes() const { return collective_bytes_; }

 private:
  void add(std::array<Reserved, kMost>& pieces, std::size_t& count, const Reserved& piece);

  const Recorded<R>& record_;
  std::array<Reserved, kMost> saved_;
  std::array<Reserved, kMost> workspace_;
  std::size_t saved_count_ = 0;
  std::size_t workspace_count_ = 0;
  int collectives_forward_ = 0;
  int collectives_backward_ = 0;
  std::size_t collective_bytes_ = 0;
};

namespace detail {

// What forward and backward share. Types are tags (c.saved(f64, 0)), so generic node code needs no `template`. A number past
// the node's inputs, outputs or pieces is a UsageError.
template <class R>
class NodeContext {
 public:
  using Real = R;
  static constexpr Type<R> real{};

  explicit NodeContext(Recorded<R>& record) : record_(record) {}

  // Input i.
  [[nodiscard]] Values<R> in(std::size_t i) const;
  // Input i at the point around which a gradcheck probes; elsewhere the same as in(i). What a node stops or selects, it
  // computes from this.
  [[nodiscard]] Values<R> base(std::size_t i) const;
  [[nodiscard]] std::size_t inputs() const;
  [[nodiscard]] bool wants_grad(std::size_t i) const;
  [[nodiscard]] Pool& pool() const;
  [[nodiscard]] NonFinite non_finite() const;
  [[nodiscard]] const char* name() const;
  // The Error message's "who made this value": walks from input i back to the first node that made row r non-finite.
  [[nodiscard]] std::string cause_of(std::size_t i, Index r) const;

  template <class T>
  [[nodiscard]] Block<T> workspace(Of<T> /*type*/, std::size_t k) const {
    const Reserved& piece = workspace_piece(k, sizeof(T));
    return {static_cast<T*>(piece.data), piece.rows, piece.cols};
  }

 protected:
  [[nodiscard]] std::uint32_t input_var(std::size_t i) const;
  [[nodiscard]] std::uint32_t output_var(std::size_t k) const;
  [[nodiscard]] const Reserved& workspace_piece(std::size_t k, std::size_t element_size) const;
  [[nodiscard]] const Reserved& saved_piece(std::size_t k, std::size_t element_size) const;

  Recorded<R>& record_;
};

}  // namespace detail

template <class R>
class ForwardContext : public detail::NodeContext<R> {
 public:
  using detail::NodeContext<R>::NodeContext;

  [[nodiscard]] Output<R> out(std::size_t k) const;
  template <class T>
  [[nodiscard]] Block<T> saved(Of<T> /*type*/, std::size_t k) const {
    const Reserved& piece = this->saved_piece(k, sizeof(T));
    return {static_cast<T*>(piece.data), piece.rows, piece.cols};
  }
  // True on the tape on which a gradcheck evaluates probes: values are read in pairs, in(i) and base(i).
  [[nodiscard]] bool probing() const;
  // Says that this probe and its base stand on two sides of a kink: the difference quotient means nothing there.
  void kink() const;
};

template <class R>
class BackwardContext : public detail::NodeContext<R> {
 public:
  using detail::NodeContext<R>::NodeContext;

  // Output k's value, and its adjoint: empty where nobody used it.
  [[nodiscard]] Values<R> out(std::size_t k) const;
  [[nodiscard]] Values<R> dout(std::size_t k) const;
  // The slice of input i: empty where nobody wants it; the same one however often it is asked for.
  [[nodiscard]] GradSlice<R> grad(std::size_t i) const;
  template <class T>
  [[nodiscard]] Block<const T> saved(Of<T> /*type*/, std::size_t k) const {
    const Reserved& piece = this->saved_piece(k, sizeof(T));
    return {static_cast<const T*>(piece.data), piece.rows, piece.cols};
  }
};

// The real type of a context, for generic code: using R = real_of<decltype(c)>.
template <class Context>
using real_of = typename std::remove_cvref_t<Context>::Real;

// A node on a tape of R. `reserve(auto& c) const` is needed where it saves state, needs scratch or joins ranks;
// `explain(row, c)` (optional) says why an output's row is not finite; `in_place` (optional, true) says that backward reads
// nothing of a row's input after it wrote that row's gradient.
template <class N, class R>
concept Node = requires(N& node, const N& recorded, ForwardContext<R>& forward, BackwardContext<R>& backward) {
  { N::name } -> std::convertible_to<const char*>;
  node.forward(forward);
  recorded.backward(backward);
};

namespace detail {

// A node's type, erased: one table a type, one indirect call a fused node.
template <class R>
struct NodeTable {
  const char* name;
  bool in_place;
  void (*reserve)(const void* node, ReserveContext<R>& context);
  void (*forward)(void* node, ForwardContext<R>& context);
  void (*backward)(const void* node, BackwardContext<R>& context);
  const char* (*explain)(const void* node, Index row, const BackwardContext<R>& context);
  void (*destroy)(void* node);
};

template <class N, class R>
constexpr NodeTable<R> make_table() {
  NodeTable<R> table{N::name, false, nullptr, nullptr, nullptr, nullptr, nullptr};
  if constexpr (requires { N::in_place; }) table.in_place = N::in_place;
  if constexpr (requires(const N& n, ReserveContext<R>& c) { n.reserve(c); }) {
    table.reserve = [](const void* node, ReserveContext<R>& c) { static_cast<const N*>(node)->reserve(c); };
  }
  table.forward = [](void* node, ForwardContext<R>& c) { static_cast<N*>(node)->forward(c); };
  table.backward = [](const void* node, BackwardContext<R>& c) { static_cast<const N*>(node)->backward(c); };
  if constexpr (requires(const N& n, const BackwardContext<R>& c) { n.explain(Index{}, c); }) {
    table.explain = [](const void* node, Index row, const BackwardContext<R>& c) {
      return static_cast<const N*>(node)->explain(row, c);
    };
  }
  if constexpr (!std::is_trivially_destructible_v<N>) {
    table.destroy = [](void* node) { static_cast<N*>(node)->~N(); };
  }
  return table;
}

template <class N, class R>
inline constexpr NodeTable<R> node_table = make_table<N, R>();

}  // namespace detail

}  // namespace losstape
