// SPDX-License-Identifier: Apache-2.0
// Recording, and the walk backwards.
#include "engine/tape.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <string>
#include <type_traits>

#include "engine/audit.h"
#include "engine/error.h"
#include "engine/record.h"

namespace losstape {
namespace {

std::string text(const detail::Layout& layout) {
  return "[" + std::to_string(layout.rows) + ", " + std::to_string(layout.cols) + "] of " + name(layout.dtype);
}

std::string numbered(const char* what, std::uint32_t index) {
  return std::string(what) + " (Var " + std::to_string(index) + ")";
}

std::size_t bytes_of(std::span<const Reserved> pieces) {
  std::size_t bytes = 0;
  for (const Reserved& piece : pieces) bytes += piece.element_size * static_cast<std::size_t>(piece.rows * piece.cols);
  return bytes;
}

void check_device(const View& memory, const char* operation) {
  if (memory.device == Device::cpu) return;
  throw DeviceError({operation, "memory of the tape's device, cpu", std::string("a view of ") + name(memory.device),
                     "this build has no device backend"});
}

// Rethrows the exception in flight: losstape's own as it is, any other nested in a UsageError that names the node.
[[noreturn]] void rethrow_from(const char* node, const char* phase) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(UsageError({node, std::string(phase) + " to return", std::string("an exception: ") + error.what(),
                                       "the exception itself is nested in this one"}));
  } catch (...) {
    std::throw_with_nested(UsageError({node, std::string(phase) + " to return", "an exception that is no std::exception",
                                       "the exception itself is nested in this one"}));
  }
}

}  // namespace

template <class R>
BasicTape<R>::BasicTape(const TapeOptions& options)
    : own_pool_(options.pool == nullptr ? std::make_unique<Pool>(options.threads) : nullptr),
      pool_(options.pool == nullptr ? own_pool_.get() : options.pool),
      non_finite_(options.non_finite),
      audit_(options.audit) {}

template <class R>
BasicTape<R>::BasicTape(const Probe& probe) : BasicTape(TapeOptions{}) {
  around_ = probe.around;
  probing_ = true;
}

template <class R>
BasicTape<R>::~BasicTape() {
  destroy_nodes();
}

template <class R>
void BasicTape<R>::clear() {
  destroy_nodes();
  last_root_ = last_input_ = nullptr;
  vars_.truncate(0);
  ++generation_;
  in_place_spent_ = false;
  met_kink_ = false;
  arena_.clear();
}

template <class R>
void BasicTape<R>::destroy_nodes() {
  for (Record* record = last_; record != nullptr; record = record->previous) {
    if (record->table->destroy != nullptr) record->table->destroy(record->node);
  }
  last_ = nullptr;
}

// ---- Roots ----------------------------------------------------------------------------------------------------------

template <class R>
BasicVar<R> BasicTape<R>::input(const View& value, const MutableView& slice, Grad grad, SliceRounding rounding) {
  check_root(value, true, "input");
  if (slice.dtype != dtype_of<R>) {
    const bool narrow = slice.dtype == DType::bf16 || slice.dtype == DType::f16;
    if (!narrow || rounding == SliceRounding::refused) {
      throw UsageError({"input", std::string("a gradient slice of ") + name(dtype_of<R>),
                        std::string("a slice of ") + name(slice.dtype),
                        narrow ? "a 16-bit slice rounds the gradient: pass SliceRounding::allowed to have that" : ""});
    }
  }
  check_slice(value, slice, "input");
  State state;
  state.value = value;
  state.slice = slice;
  state.kind = detail::VarKind::input;
  state.grad = grad;
  state.wants_grad = true;
  return push_root(state, "input");
}

template <class R>
BasicVar<R> BasicTape<R>::input_in_place(const MutableView& value) {
  check_root(value, true, "input_in_place");
  State state;
  state.value = value;
  state.slice = value;
  state.kind = detail::VarKind::input;
  state.wants_grad = true;
  state.in_place = true;
  return push_root(state, "input_in_place");
}

template <class R>
BasicVar<R> BasicTape<R>::constant(const View& value) {
  check_root(value, false, "constant");
  State state;
  state.value = value;
  return push_root(state, "constant");
}

template <class R>
BasicVar<R> BasicTape<R>::constant_column(Index rows, Element element, const void* recipe) {
  const Arena::Mark mark = arena_.mark();
  try {
    const Block<R> column = arena_.allocate<R>(rows, 1, Purpose::columns);
    for (Index r = 0; r < rows; ++r) column(r) = static_cast<R>(element(recipe, r));
    State state;
    state.value = View(column.data, rows, 1);
    return push_root(state, "constant");
  } catch (...) {
    arena_.rewind(mark);
    throw;
  }
}

template <class R>
void BasicTape<R>::check_root(const View& value, bool differentiated, const char* operation) const {
  check_device(value, operation);
  if (differentiated && !is_float(value.dtype)) {
    throw UsageError({operation, "floating-point values", text(value)});
  }
  // A constant column of f64 is rounded when it is read; logits would lose what a float tape promises.
  if (std::is_same_v<R, float> && differentiated && value.dtype == DType::f64) {
    throw UsageError({operation, "f32, bf16 or f16 values on a float tape", text(value), "record on TapeF64"});
  }
}

// Values may be shared; a slice shares no byte with anything.
template <class R>
void BasicTape<R>::check_apart(const State& state, const char* operation) const {
  const auto refuse = [&](const State* other) {
    std::uint32_t number = 0;
    while (&vars_[number] != other) ++number;
    throw UsageError({operation, "gradient slices that overlap nothing else",
                      "memory that overlaps " + numbered(other->wants_grad ? "the input" : "the constant", number),
                      "give each input a slice apart; Grad::accumulate adds over several steps"});
  };
  for (const State* other = last_input_; other != nullptr; other = other->previous_input) {
    if (overlap(state.value, other->slice)) refuse(other);
  }
  if (!state.wants_grad) return;
  for (const State* other = last_root_; other != nullptr; other = other->previous_root) {
    if (overlap(state.slice, other->value) || (other->wants_grad && overlap(state.slice, other->slice))) refuse(other);
  }
}

template <class R>
BasicVar<R> BasicTape<R>::push_root(State state, const char* operation) {
  check_apart(state, operation);
  state.previous_root = last_root_;
  state.previous_input = last_input_;
  const Arena::Mark mark = arena_.mark();
  try {
    State& kept = vars_.push(state);
    last_root_ = &kept;
    if (kept.wants_grad) last_input_ = &kept;
  } catch (...) {
    arena_.rewind(mark);
    throw;
  }
  return handle(static_cast<std::uint32_t>(vars_.size() - 1));
}

template <class R>
void BasicTape<R>::check_slice(const View& value, const MutableView& slice, const char* operation) const {
  check_device(slice, operation);
  if (slice.rows != value.rows || slice.cols != value.cols) {
    throw UsageError({operation, "a gradient slice of the value's shape, " + text(value), text(slice)});
  }
  if (value.order() != slice.order() && value.cols > 1) {
    throw UsageError({operation, std::string("value and slice in one order, ") + name(value.order()),
                      std::string("a ") + name(slice.order()) + " slice",
                      "Eigen's matrices are column-major unless declared with Eigen::RowMajor"});
  }
  if (overlap(value, slice)) {
    throw UsageError({operation, "a slice apart from its value", "memory that overlaps it",
                      "input_in_place writes the gradient over the value"});
  }
}

// ---- Recording ------------------------------------------------------------------------------------------------------

template <class R>
auto BasicTape<R>::state(const Var& var, const char* operation) const -> State& {
  if (var.tape == nullptr) {
    if (var.option != nullptr) {
      throw UsageError({operation, "a Var that was asked for", std::string("one whose option is off: ") + var.option,
                        std::string("set ") + var.option + " in the node's options"});
    }
    throw UsageError({operation, "a Var of this tape", "an empty Var"});
  }
  if (var.tape != this) throw UsageError({operation, "Vars of one tape", "a Var of another tape"});
  if (var.generation != generation_ || var.index >= vars_.size()) {
    throw UsageError({operation, "a Var of this step", "a Var from before tape.clear()", "record the graph anew each step"});
  }
  return vars_[var.index];
}

template <class R>
VarList<R> BasicTape<R>::append(const detail::NodeTable<R>& table, const Arrival& arrival, std::span<const Var> inputs,
                                std::span<const Shape> outputs) {
  check_inputs(table, inputs);
  const Arena::Mark mark = arena_.mark();
  const std::size_t vars = vars_.size();
  Record* record = nullptr;
  bool arrived = false;
  try {
    record = &begin_record(table, arrival, inputs);
    add_outputs(*record, outputs);
    arrival.move(arrival.from, record->node);
    arrived = true;
    prepare(*record);
    const Arena::Mark scratch = arena_.mark();
    lend(record->workspace, Purpose::workspace);
    ForwardContext<R> context(*record);
    if (audit_ == Audit::unwritten_rows) mark_outputs(*record);
    table.forward(record->node, context);
    if (audit_ == Audit::unwritten_rows) check_outputs(*record);
    arena_.rewind(scratch);
  } catch (...) {
    if (arrived && table.destroy != nullptr) table.destroy(record->node);
    vars_.truncate(vars);
    arena_.rewind(mark);
    rethrow_from(table.name, "forward");
  }
  for (const std::uint32_t input : record->inputs) vars_[input].consumed = true;
  record->previous = last_;
  last_ = record;
  return {handle(record->first_output), record->outputs};
}

template <class R>
void BasicTape<R>::check_inputs(const detail::NodeTable<R>& table, std::span<const Var> inputs) const {
  if (inputs.size() > Record::kMostInputs) {
    throw UsageError(
        {table.name, "at most " + std::to_string(Record::kMostInputs) + " inputs", std::to_string(inputs.size())});
  }
  for (const Var& input : inputs) {
    const State& in = state(input, table.name);
    if (!in.in_place) continue;
    if (in.consumed) {
      throw UsageError({table.name, "an in-place input that no other node reads",
                        "a second reader of " + numbered("the input", input.index),
                        "its gradient will be written over it: use input() with a slice of its own"});
    }
    if (!table.in_place) {
      throw UsageError({table.name, "a node that can write its gradient over its input", "an in-place input",
                        "use input() with a slice of its own, or declare in_place in the node"});
    }
    if (std::count_if(inputs.begin(), inputs.end(), [&](const Var& v) { return v.index == input.index; }) > 1) {
      throw UsageError({table.name, "an in-place input named once", numbered("the input", input.index) + " named twice"});
    }
  }
}

// The record, the numbers of its inputs and the node, in one piece.
template <class R>
auto BasicTape<R>::begin_record(const detail::NodeTable<R>& table, const Arrival& arrival, std::span<const Var> inputs)
    -> Record& {
  static_assert(alignof(Record) >= alignof(std::uint32_t));
  const std::size_t numbers = sizeof(Record);
  const std::size_t node =
      (numbers + inputs.size() * sizeof(std::uint32_t) + arrival.alignment - 1) / arrival.alignment * arrival.alignment;
  auto* const place = static_cast<std::byte*>(arena_.allocate(node + arrival.size, 1, Purpose::nodes));
  Record& record = *std::construct_at(static_cast<Record*>(static_cast<void*>(place)));
  auto* const input = static_cast<std::uint32_t*>(static_cast<void*>(place + numbers));
  for (std::size_t i = 0; i < inputs.size(); ++i) input[i] = inputs[i].index;
  record.tape = this;
  record.table = &table;
  record.node = place + node;
  record.inputs = {input, inputs.size()};
  return record;
}

template <class R>
void BasicTape<R>::add_outputs(Record& record, std::span<const Shape> outputs) {
  bool differentiable = false;
  for (const std::uint32_t input : record.inputs) differentiable = vars_[input].wants_grad || differentiable;
  record.first_output = static_cast<std::uint32_t>(vars_.size());
  record.outputs = static_cast<std::uint32_t>(outputs.size());
  for (const Shape& shape : outputs) {
    const detail::Layout layout{shape.rows, shape.cols, shape.cols, 1, dtype_of<R>, Device::cpu};
    void* const value = arena_.allocate<R>(shape.rows, shape.cols, Purpose::columns).data;
    const bool wanted = differentiable && shape.adjoint == Adjoint::yes;
    void* const adjoint = wanted ? arena_.allocate<R>(shape.rows, shape.cols, Purpose::columns).data : nullptr;
    State& out = vars_.push({});
    out.value = detail::Trusted::view(value, layout);
    if (wanted) out.slice = detail::Trusted::mutable_view(adjoint, layout);
    out.kind = detail::VarKind::output;
    out.producer = &record;
    out.wants_grad = wanted;
  }
}

template <class R>
void BasicTape<R>::prepare(Record& record) {
  if (record.table->reserve == nullptr) return;
  ReserveContext<R> wishes(record);
  record.table->reserve(record.node, wishes);
  const std::span<const Reserved> saved = wishes.saved_pieces();
  const std::span<const Reserved> workspace = wishes.workspace_pieces();
  const auto pieces = static_cast<Index>(saved.size() + workspace.size());
  if (pieces == 0) return;
  const std::span<Reserved> kept = arena_.allocate<Reserved>(pieces, 1, Purpose::nodes).span();
  std::copy(workspace.begin(), workspace.end(), std::copy(saved.begin(), saved.end(), kept.begin()));
  record.saved = kept.first(saved.size());
  record.workspace = kept.subspan(saved.size());
  lend(record.saved, Purpose::saved);
}

template <class R>
void BasicTape<R>::lend(std::span<Reserved> pieces, Purpose purpose) {
  for (Reserved& piece : pieces) {
    piece.data = arena_.allocate<std::byte>(piece.rows, piece.cols * static_cast<Index>(piece.element_size), purpose).data;
  }
}

template <class R>
void BasicTape<R>::mark_outputs(const Record& record) {
  for (std::uint32_t k = 0; k < record.outputs; ++k) {
    const View& value = vars_[record.first_output + k].value;
    detail::fill_with_marks(MutableView(const_cast<void*>(value.data()), value));
  }
}

template <class R>
void BasicTape<R>::check_outputs(const Record& record) const {
  for (std::uint32_t k = 0; k < record.outputs; ++k) {
    const Index row = detail::first_marked_row(vars_[record.first_output + k].value);
    if (row < 0) continue;
    throw UsageError({record.table->name, "forward to write every element of output " + std::to_string(k),
                      "an element left unwritten", "", row});
  }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

template <class R>
void BasicTape<R>::backward(const Var& loss) {
  const State& target = state(loss, "backward");
  if (target.value.rows != 1 || target.value.cols != 1) {
    throw UsageError(
        {"backward", "a [1, 1] loss", text(target.value), "reduce it (masked_mean), or pass its adjoint as seed"});
  }
  backward_from(loss, nullptr);
}

template <class R>
void BasicTape<R>::backward(const Var& loss, const View& seed) {
  const State& target = state(loss, "backward");
  if (seed.rows != target.value.rows || seed.cols != target.value.cols || !is_float(seed.dtype)) {
    throw UsageError({"backward", "a seed of the loss's shape, " + text(target.value), text(seed)});
  }
  check_device(seed, "backward");
  backward_from(loss, &seed);
}

template <class R>
void BasicTape<R>::backward_from(const Var& loss, const View* seed) {
  State& target = state(loss, "backward");
  if (!target.wants_grad) {
    throw UsageError({"backward", "a loss that depends on an input", "a value without an adjoint",
                      "inputs are differentiated, constants and metrics are not"});
  }
  if (in_place_spent_) {
    throw UsageError({"backward", "logits that are still there",
                      "an in-place input whose gradient an earlier backward wrote over it",
                      "use input() with a slice of its own to run backward again"});
  }
  for (std::size_t i = 0; i < vars_.size(); ++i) {
    vars_[i].asked = false;
    vars_[i].written = false;
    vars_[i].complete = false;
  }
  for (Record* record = last_; record != nullptr; record = record->previous) record->asked = 0;
  const Arena::Mark mark = arena_.mark();
  try {
    const GradSlice<R> own(target.slice, target.beta());
    for (Index r = 0; r < own.rows(); ++r) {
      for (Index c = 0; c < own.cols(); ++c) own.write(r, c, seed == nullptr ? 1.0 : seed->get<double>(r, c));
    }
    target.written = true;
    walk(target);
    finish_slices();
  } catch (...) {
    arena_.rewind(mark);
    poison_slices();
    throw;
  }
}

template <class R>
void BasicTape<R>::walk(State& loss) {
  for (Record* record = loss.producer; record != nullptr; record = record->previous) {
    bool used = false;
    for (std::uint32_t k = 0; k < record->outputs; ++k) used = used || vars_[record->first_output + k].written;
    if (!used) continue;
    const Arena::Mark scratch = arena_.mark();
    lend(record->workspace, Purpose::workspace);
    try {
      run_backward(*record);
    } catch (...) {
      rethrow_from(record->table->name, "backward");
    }
    arena_.rewind(scratch);
  }
}

template <class R>
void BasicTape<R>::run_backward(Record& record) {
  BackwardContext<R> context(record);
  record.table->backward(record.node, context);
  for (std::size_t i = 0; i < record.inputs.size(); ++i) {
    State& in = vars_[record.inputs[i]];
    if (!in.wants_grad || in.slice.empty()) continue;  // a loop over no rows asks for nothing
    if ((record.asked >> i & 1U) == 0) {
      throw UsageError({record.table->name, "backward to ask for every wanted gradient",
                        "c.grad(" + std::to_string(i) + ") never asked for", "write zeros if the derivative is 0"});
    }
    if (audit_ == Audit::unwritten_rows && !in.written && !in.in_place && in.beta() == Beta::store) {
      const Index row = detail::first_marked_row(in.slice);
      if (row >= 0) {
        throw UsageError({record.table->name, "every row of the gradient of input " + std::to_string(i) + " written",
                          "a row left unwritten", "rows without gradient need zero_row(r)", row});
      }
    }
  }
  for (const std::uint32_t input : record.inputs) {
    if (vars_[input].wants_grad) vars_[input].written = true;
  }
}

template <class R>
GradSlice<R> BasicTape<R>::slice_of(Record& record, std::size_t i) {
  const std::uint32_t number = record.inputs[i];  // i was checked by grad()
  State& in = vars_[number];
  if (!in.wants_grad) return {};
  const bool first_time = (record.asked >> i & 1U) == 0;
  record.asked |= std::uint64_t{1} << i;
  in.asked = true;
  const auto times = std::count(record.inputs.begin(), record.inputs.end(), number);
  if (times > 1 && !in.written) {
    // Two inputs of this node share the slice, in whatever order it writes them: define it once, then both add.
    (void)GradSlice<R>(in.slice, in.beta()).scatter();
    in.written = true;
  }
  const GradSlice<R> slice(in.slice, in.beta());
  if (first_time && audit_ == Audit::unwritten_rows && !in.in_place && in.beta() == Beta::store) {
    detail::fill_with_marks(in.slice);
  }
  return slice;
}

template <class R>
void BasicTape<R>::finish_slices() {
  for (State* input = last_input_; input != nullptr; input = input->previous_input) {
    if (!input->written && input->beta() == Beta::store) detail::fill_with_zeros(input->slice);
    input->complete = true;
    input->poisoned = false;
    ++input->backwards;
    in_place_spent_ = in_place_spent_ || input->in_place;
  }
}

template <class R>
void BasicTape<R>::poison_slices() {
  // A slice that a node asked for may hold a part of its gradient.
  for (State* input = last_input_; input != nullptr; input = input->previous_input) {
    if (!input->asked) continue;
    detail::fill_with_nan(input->slice);
    input->poisoned = true;
    in_place_spent_ = in_place_spent_ || input->in_place;
  }
}

// ---- Reading --------------------------------------------------------------------------------------------------------

template <class R>
View BasicTape<R>::value(const Var& var) const {
  return state(var, "value").value;
}

template <class R>
Shape BasicTape<R>::shape(const Var& var) const {
  const View& view = state(var, "shape").value;
  return {view.rows, view.cols};
}

template <class R>
bool BasicTape<R>::wants_grad(const Var& var) const {
  return state(var, "wants_grad").wants_grad;
}

template <class R>
bool BasicTape<R>::gradient_complete(const Var& input) const {
  const State& var = state(input, "gradient_complete");
  if (var.kind != detail::VarKind::input) {
    throw UsageError(
        {"gradient_complete", "an input", "a constant or an output", "only inputs have slices of the caller's"});
  }
  return var.complete;
}

template <class R>
TapeMemory BasicTape<R>::memory() const {
  return {arena_.held(Purpose::saved), arena_.held(Purpose::columns), arena_.held(Purpose::nodes),
          arena_.peak(Purpose::workspace)};
}

template <class R>
std::string BasicTape<R>::describe_cause(std::uint32_t number, Index row) {
  for (;;) {
    const State& var = vars_[number];
    Record* record = var.producer;
    if (record == nullptr)
      return numbered(var.kind == detail::VarKind::input ? "the input" : "the constant", number) + " holds it";
    bool inherited = false;
    for (const std::uint32_t input : record->inputs) {
      const View& in = vars_[input].value;
      if (in.cols != 1 || in.rows != var.value.rows || std::isfinite(in.template get<double>(row))) continue;
      number = input;
      inherited = true;
      break;
    }
    if (inherited) continue;
    std::string cause = std::string(record->table->name) + " made it";
    if (record->table->explain != nullptr) {
      const BackwardContext<R> context(*record);
      if (const char* reason = record->table->explain(record->node, row, context)) cause += std::string(": ") + reason;
    }
    return cause;
  }
}

template <class R>
std::vector<RecordSummary> BasicTape<R>::records() const {
  std::vector<RecordSummary> list;
  for (const Record* record = last_; record != nullptr; record = record->previous) {
    RecordSummary entry;
    entry.name = record->table->name;
    entry.inputs.assign(record->inputs.begin(), record->inputs.end());
    entry.first_output = record->first_output;
    for (std::uint32_t k = 0; k < record->outputs; ++k) {
      const State& out = vars_[record->first_output + k];
      entry.outputs.push_back({out.value.rows, out.value.cols, out.wants_grad ? Adjoint::yes : Adjoint::no});
      entry.differentiable = entry.differentiable || out.wants_grad;
    }
    entry.saved_bytes = bytes_of(record->saved);
    entry.workspace_bytes = bytes_of(record->workspace);
    list.push_back(std::move(entry));
  }
  std::reverse(list.begin(), list.end());
  return list;
}

template <class R>
std::vector<RootSummary> BasicTape<R>::roots() const {
  std::vector<RootSummary> list;
  for (std::size_t i = 0; i < vars_.size(); ++i) {
    const State& var = vars_[i];
    if (var.kind == detail::VarKind::output) continue;
    RootSummary root{static_cast<std::uint32_t>(i), {var.value.rows, var.value.cols}, var.value.dtype, {}, var.in_place};
    if (var.wants_grad) root.slice = var.grad;
    list.push_back(root);
  }
  return list;
}

// ---- Var ------------------------------------------------------------------------------------------------------------

template <class R>
Shape BasicVar<R>::shape() const {
  // The tape's own check names an empty Var's option; it needs no tape of its own to do so.
  if (tape == nullptr) {
    throw UsageError({"Var", "a Var of a tape",
                      option == nullptr ? "an empty Var" : std::string("one whose option is off: ") + option,
                      option == nullptr ? "" : std::string("set ") + option + " in the node's options"});
  }
  return tape->shape(*this);
}

template <class R>
R BasicVar<R>::item() const {
  const Shape found = shape();
  if (found.rows != 1 || found.cols != 1) {
    throw UsageError({"item", "a [1, 1] Var", "[" + std::to_string(found.rows) + ", " + std::to_string(found.cols) + "]",
                      "read columns through tape.value(var)"});
  }
  return tape->value(*this).template get<R>(0);
}

template <class R>
BasicVar<R> VarList<R>::operator[](std::size_t k) const {
  if (k >= count_) {
    throw UsageError({"record", "an output below " + std::to_string(count_), "output " + std::to_string(k)});
  }
  BasicVar<R> var = first_;
  var.index += static_cast<std::uint32_t>(k);
  return var;
}

template class BasicTape<float>;
template class BasicTape<double>;
template class BasicVar<float>;
template class BasicVar<double>;
template class VarList<float>;
template class VarList<double>;

}  // namespace losstape
