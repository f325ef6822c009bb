// SPDX-License-Identifier: Apache-2.0
// The tape: an append-only list of nodes, walked backwards once; gradients go to slices that the caller owns.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/arena.h"
#include "engine/node.h"
#include "engine/parallel.h"
#include "engine/var.h"
#include "engine/view.h"

namespace losstape {

// Checks for tests: before a node writes an output, or a slice for the first time, it is filled with a marked NaN, and a
// mark that is left is an error naming node, output or input, and row. Reads and writes every slice once more.
enum class Audit : unsigned char { off, unwritten_rows };

struct TapeOptions {
  int threads = 1;       // of a pool of the tape's own, the caller's thread among them; 0: one per hardware thread
  Pool* pool = nullptr;  // or the caller's pool, which may serve several tapes
  NonFinite non_finite = NonFinite::error;
  Audit audit = Audit::off;
};

// A column that is computed into the tape when it is recorded: packing.to_predictions(advantages). It names itself by the
// member type IsColumnRecipe, has rows(), and gives element r by operator().
template <class C>
concept ColumnRecipe = requires(const C& recipe, Index r) {
  typename C::IsColumnRecipe;
  { recipe.rows() } -> std::convertible_to<Index>;
  { recipe(r) } -> std::convertible_to<double>;
};

// Bytes of the tape's arena, each piece a multiple of 64.
struct TapeMemory {
  std::size_t saved = 0;      // state from forward to backward
  std::size_t columns = 0;    // values and adjoints of outputs, and constants made from recipes
  std::size_t nodes = 0;      // records, Vars and the nodes themselves
  std::size_t workspace = 0;  // the most that one node's scratch took
};

// One record, for printing and tests.
struct RecordSummary {
  std::string name;
  std::vector<std::uint32_t> inputs;  // Var numbers
  std::uint32_t first_output = 0;
  std::vector<Shape> outputs;
  std::size_t saved_bytes = 0;
  std::size_t workspace_bytes = 0;
  bool differentiable = false;
};

// One root, for printing and tests: an input or a constant.
struct RootSummary {
  std::uint32_t index = 0;
  Shape shape;
  DType dtype = DType::f32;
  std::optional<Grad> slice;
  bool in_place = false;
};

namespace detail {
template <class R>
struct VarState;
}

// A reverse-mode tape of real type R: fp32 in production (Tape), fp64 for checks (TapeF64).
//
// record() runs a node's forward at once and appends it; record order is topological, since a node can only name Vars that
// exist. backward() walks the list once from its end. The tape owns values of [tokens, 1] size, saved state and records, all
// in one arena, which clear() keeps: from the second step on nothing is allocated. It never owns or allocates a V-sized
// gradient: those are the slices given to input().
//
// A throw in record() leaves the tape as it was. A throw in backward() leaves slices that no node had asked for as they
// were, fills the others with NaN, marks all incomplete and leaves the tape usable. One tape belongs to one thread at a
// time.
template <class R>
class BasicTape {
 public:
  using Real = R;
  using Var = BasicVar<R>;

  explicit BasicTape(const TapeOptions& options = {});
  // A tape of probes for gradcheck: `around` is a tape on which the same graph was recorded at the point that is probed;
  // null for plain difference quotients, in which nothing is frozen.
  struct Probe {
    const BasicTape* around = nullptr;
  };
  explicit BasicTape(const Probe& probe);
  BasicTape(const BasicTape&) = delete;
  BasicTape& operator=(const BasicTape&) = delete;
  BasicTape(BasicTape&&) = delete;
  BasicTape& operator=(BasicTape&&) = delete;
  ~BasicTape();

  // A value that is differentiated, and the slice for its gradient: same shape and order, R wide unless `rounding` allows
  // less. The caller owns both and keeps them until the tape is cleared.
  // Errors: UsageError for shapes, dtypes or orders that differ, a slice that overlaps its value or another slice, f64
  // values on a float tape.
  [[nodiscard]] Var input(const View& value, const MutableView& slice, Grad grad = Grad::overwrite,
                          SliceRounding rounding = SliceRounding::refused);
  // A value whose gradient is written over it, in its own dtype. One node may read it, and one backward run.
  [[nodiscard]] Var input_in_place(const MutableView& value);
  // A value that is never differentiated. The caller keeps the memory until the tape is cleared.
  [[nodiscard]] Var constant(const View& value);
  // The same, computed from a recipe into the tape's arena.
  template <ColumnRecipe C>
  [[nodiscard]] Var constant(const C& recipe) {
    return constant_column(
        recipe.rows(), [](const void* column, Index r) { return static_cast<double>((*static_cast<const C*>(column))(r)); },
        &recipe);
  }

  // Runs node.forward and appends the node. Errors: whatever forward throws (an exception that is not losstape's is nested
  // in a UsageError that names the node); UsageError for Vars of another tape or of an earlier step.
  template <class N>
  [[nodiscard]] VarList<R> record(N node, std::span<const Var> inputs, const Outputs& outputs) {
    return append_node(node, inputs, outputs.shapes());
  }
  template <class N>
  [[nodiscard]] VarList<R> record(N node, std::initializer_list<Var> inputs, const Outputs& outputs) {
    return append_node(node, std::span<const Var>(inputs.begin(), inputs.size()), outputs.shapes());
  }
  template <class N>
  [[nodiscard]] Var record(N node, std::initializer_list<Var> inputs, const Shape& shape) {
    return append_node(node, std::span<const Var>(inputs.begin(), inputs.size()), std::span<const Shape>(&shape, 1))[0];
  }

  // Writes d loss / d input into every input's slice; slices that nothing reaches are filled with zeros. `seed` is the
  // loss's own adjoint, 1 for a [1, 1] loss. May be called again: the same bits, or once more added (Grad::accumulate).
  // Errors: UsageError for a loss that is not [1, 1] without a seed, a second backward over an in-place input, a node that
  // leaves a wanted gradient unasked for; whatever a node's backward throws.
  void backward(const Var& loss);
  void backward(const Var& loss, const View& seed);

  // Forgets every Var and record, keeps the memory.
  void clear();

  [[nodiscard]] View value(const Var& var) const;
  [[nodiscard]] Shape shape(const Var& var) const;
  [[nodiscard]] bool wants_grad(const Var& var) const;
  // Whether the last backward wrote all of this input's slice.
  [[nodiscard]] bool gradient_complete(const Var& input) const;

  [[nodiscard]] Pool& pool() const { return *pool_; }
  [[nodiscard]] NonFinite non_finite() const { return non_finite_; }
  [[nodiscard]] TapeMemory memory() const;
  [[nodiscard]] const Arena& arena() const { return arena_; }
  // True where a probe straddled a kink since the last clear().
  [[nodiscard]] bool met_kink() const { return met_kink_; }

  [[nodiscard]] std::vector<RecordSummary> records() const;
  [[nodiscard]] std::vector<RootSummary> roots() const;

 private:
  friend class ReserveContext<R>;
  friend class detail::NodeContext<R>;
  friend class ForwardContext<R>;
  friend class BackwardContext<R>;
  using State = detail::VarState<R>;
  using Record = Recorded<R>;
  using Element = double (*)(const void* recipe, Index r);

  // A node that is to be moved into the tape.
  struct Arrival {
    void* from;
    std::size_t size;
    std::size_t alignment;
    void (*move)(void* from, void* to);
  };

  template <class N>
  VarList<R> append_node(N& node, std::span<const Var> inputs, std::span<const Shape> outputs) {
    static_assert(
        Node<N, R>,
        "a node has a static name, forward(auto& c) and a const backward(auto& c) const; see docs/custom_nodes.md");
    static_assert(alignof(N) <= Arena::kPiece);
    const auto move = [](void* from, void* to) {
      std::construct_at(static_cast<N*>(to), std::move(*static_cast<N*>(from)));
    };
    return append(detail::node_table<N, R>, {&node, sizeof(N), alignof(N), move}, inputs, outputs);
  }
  Var constant_column(Index rows, Element element, const void* recipe);
  VarList<R> append(const detail::NodeTable<R>& table, const Arrival& arrival, std::span<const Var> inputs,
                    std::span<const Shape> outputs);
  void check_inputs(const detail::NodeTable<R>& table, std::span<const Var> inputs) const;
  Record& begin_record(const detail::NodeTable<R>& table, const Arrival& arrival, std::span<const Var> inputs);
  void add_outputs(Record& record, std::span<const Shape> outputs);
  void prepare(Record& record);
  void lend(std::span<Reserved> pieces, Purpose purpose);
  void mark_outputs(const Record& record);
  void check_outputs(const Record& record) const;
  State& state(const Var& var, const char* operation) const;
  Var handle(std::uint32_t index) { return {this, index, generation_}; }
  Var push_root(State state, const char* operation);
  void check_root(const View& value, bool differentiated, const char* operation) const;
  void check_apart(const State& state, const char* operation) const;
  void destroy_nodes();
  void check_slice(const View& value, const MutableView& slice, const char* operation) const;

  void backward_from(const Var& loss, const View* seed);
  void walk(State& loss);
  void run_backward(Record& record);
  GradSlice<R> slice_of(Record& record, std::size_t i);
  void finish_slices();
  void poison_slices();
  std::string describe_cause(std::uint32_t var, Index row);

  Arena arena_;
  ArenaList<State> vars_{arena_};
  Record* last_ = nullptr;
  State* last_root_ = nullptr;
  State* last_input_ = nullptr;
  std::uint32_t generation_ = 1;
  bool in_place_spent_ = false;
  bool met_kink_ = false;
  const BasicTape* around_ = nullptr;
  bool probing_ = false;
  std::unique_ptr<Pool> own_pool_;
  Pool* pool_;
  NonFinite non_finite_;
  Audit audit_;
};

using Tape = BasicTape<float>;
using TapeF64 = BasicTape<double>;

extern template class BasicTape<float>;
extern template class BasicTape<double>;

template <class R>
Index BasicVar<R>::rows() const {
  return shape().rows;
}
template <class R>
Index BasicVar<R>::cols() const {
  return shape().cols;
}

extern template class BasicVar<float>;
extern template class BasicVar<double>;
extern template class VarList<float>;
extern template class VarList<double>;
extern template class ReserveContext<float>;
extern template class ReserveContext<double>;
extern template class detail::NodeContext<float>;
extern template class detail::NodeContext<double>;
extern template class ForwardContext<float>;
extern template class ForwardContext<double>;
extern template class BackwardContext<float>;
extern template class BackwardContext<double>;

}  // namespace losstape
