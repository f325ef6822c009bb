// SPDX-License-Identifier: Apache-2.0
// What a node's contexts give: thin reads of its record.
#include "engine/node.h"

#include <string>

#include "engine/error.h"
#include "engine/record.h"
#include "engine/tape.h"

namespace losstape {

void Outputs::add(const Shape& shape) {
  if (size_ == kMost) {
    throw UsageError({"Outputs", "at most " + std::to_string(kMost) + " outputs of one node", "one more"});
  }
  shapes_.list[size_++] = shape;
}

namespace {

[[noreturn]] void refuse_number(const char* node, const char* kind, std::size_t number, std::size_t count) {
  throw UsageError({node, std::string(kind) + "s 0 to n - 1 of n = " + std::to_string(count),
                    std::string(kind) + " " + std::to_string(number), "record() says how many a node has"});
}

template <class R>
std::uint32_t input_of(const Recorded<R>& record, std::size_t i) {
  if (i >= record.inputs.size()) refuse_number(record.table->name, "input", i, record.inputs.size());
  return record.inputs[i];
}

template <class R>
std::uint32_t output_of(const Recorded<R>& record, std::size_t k) {
  if (k >= record.outputs) refuse_number(record.table->name, "output", k, record.outputs);
  return record.first_output + static_cast<std::uint32_t>(k);
}

}  // namespace

template <class R>
Shape ReserveContext<R>::in(std::size_t i) const {
  return record_.tape->shape(record_.tape->handle(input_of(record_, i)));
}

template <class R>
Shape ReserveContext<R>::out(std::size_t k) const {
  return record_.tape->shape(record_.tape->handle(output_of(record_, k)));
}

template <class R>
bool ReserveContext<R>::wants_grad(std::size_t i) const {
  return record_.tape->vars_[input_of(record_, i)].wants_grad;
}

template <class R>
bool ReserveContext<R>::wants_any_grad() const {
  for (std::size_t i = 0; i < record_.inputs.size(); ++i) {
    if (wants_grad(i)) return true;
  }
  return false;
}

template <class R>
int ReserveContext<R>::threads() const {
  return record_.tape->pool().threads();
}

template <class R>
void ReserveContext<R>::add(std::array<Reserved, kMost>& pieces, std::size_t& count, const Reserved& piece) {
  if (count == kMost) {
    throw UsageError({record_.table->name, "at most " + std::to_string(kMost) + " pieces of memory of a kind",
                      "one more asked for in reserve"});
  }
  pieces[count++] = piece;
}

namespace detail {
namespace {

const Reserved& piece_of(std::span<const Reserved> pieces, std::size_t k, std::size_t element_size, const char* node,
                         const char* kind) {
  if (k >= pieces.size()) {
    throw UsageError({node, std::string(kind) + " " + std::to_string(k) + " asked for in reserve",
                      std::to_string(pieces.size()) + " such pieces", "memory is asked for in reserve(auto& c) const only"});
  }
  if (pieces[k].element_size != element_size) {
    throw UsageError(
        {node, std::string(kind) + " " + std::to_string(k) + " of the type that reserve named",
         "a type of " + std::to_string(element_size) + " bytes instead of " + std::to_string(pieces[k].element_size)});
  }
  return pieces[k];
}

}  // namespace

template <class R>
std::uint32_t NodeContext<R>::input_var(std::size_t i) const {
  return input_of(record_, i);
}

template <class R>
std::uint32_t NodeContext<R>::output_var(std::size_t k) const {
  return output_of(record_, k);
}

template <class R>
Values<R> NodeContext<R>::in(std::size_t i) const {
  return Values<R>(record_.tape->vars_[input_var(i)].value);
}

template <class R>
Values<R> NodeContext<R>::base(std::size_t i) const {
  const BasicTape<R>* around = record_.tape->around_;
  return around == nullptr ? in(i) : Values<R>(around->vars_[input_var(i)].value);
}

template <class R>
std::size_t NodeContext<R>::inputs() const {
  return record_.inputs.size();
}

template <class R>
bool NodeContext<R>::wants_grad(std::size_t i) const {
  return record_.tape->vars_[input_var(i)].wants_grad;
}

template <class R>
Pool& NodeContext<R>::pool() const {
  return record_.tape->pool();
}

template <class R>
NonFinite NodeContext<R>::non_finite() const {
  return record_.tape->non_finite();
}

template <class R>
const char* NodeContext<R>::name() const {
  return record_.table->name;
}

template <class R>
std::string NodeContext<R>::cause_of(std::size_t i, Index r) const {
  return record_.tape->describe_cause(input_var(i), r);
}

template <class R>
const Reserved& NodeContext<R>::workspace_piece(std::size_t k, std::size_t element_size) const {
  return piece_of(record_.workspace, k, element_size, record_.table->name, "workspace");
}

template <class R>
const Reserved& NodeContext<R>::saved_piece(std::size_t k, std::size_t element_size) const {
  return piece_of(record_.saved, k, element_size, record_.table->name, "saved state");
}

template class NodeContext<float>;
template class NodeContext<double>;

}  // namespace detail

template <class R>
Output<R> ForwardContext<R>::out(std::size_t k) const {
  const auto& state = this->record_.tape->vars_[this->output_var(k)];
  return Output<R>({static_cast<R*>(const_cast<void*>(state.value.data())), state.value.rows, state.value.cols});
}

template <class R>
bool ForwardContext<R>::probing() const {
  return this->record_.tape->probing_;
}

template <class R>
void ForwardContext<R>::kink() const {
  this->record_.tape->met_kink_ = true;
}

template <class R>
Values<R> BackwardContext<R>::out(std::size_t k) const {
  return Values<R>(this->record_.tape->vars_[this->output_var(k)].value);
}

template <class R>
Values<R> BackwardContext<R>::dout(std::size_t k) const {
  const auto& state = this->record_.tape->vars_[this->output_var(k)];
  return state.written ? Values<R>(state.slice) : Values<R>();
}

template <class R>
GradSlice<R> BackwardContext<R>::grad(std::size_t i) const {
  (void)this->input_var(i);
  return this->record_.tape->slice_of(this->record_, i);
}

template class ReserveContext<float>;
template class ReserveContext<double>;
template class ForwardContext<float>;
template class ForwardContext<double>;
template class BackwardContext<float>;
template class BackwardContext<double>;

}  // namespace losstape
