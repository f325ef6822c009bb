// SPDX-License-Identifier: Apache-2.0
// How the losses read their columns: token-aligned data into prediction rows, with the caller's name in every error.
#pragma once

#include <string>

#include "engine/error.h"
#include "engine/tape.h"
#include "ops/packing.h"

namespace losstape::detail {

template <class R>
class ColumnReader {
 public:
  // Errors: UsageError where the log-probs are not a column of the packing's rows.
  ColumnReader(BasicVar<R> logprob, const Packing& packing, const char* loss) : packing_(packing), loss_(loss) {
    const Shape found = logprob.shape();
    tape_ = logprob.tape;
    if (found.rows != packing.rows() || found.cols != 1) {
      throw UsageError({loss, "log-probs of the packing's rows, [" + std::to_string(packing.rows()) + ", 1]",
                        "[" + std::to_string(found.rows) + ", " + std::to_string(found.cols) + "]"});
    }
  }

  // A token-aligned column, moved to the rows that predict its tokens.
  [[nodiscard]] BasicVar<R> tokens(const View& column, const char* name) const {
    if (column.rows < packing_.tokens() || (column.cols != 1 && !column.empty())) refuse(column, name, packing_.tokens());
    return tape_->constant(packing_.to_predictions(column));
  }
  // A column a sequence; an empty Var where it is not given.
  [[nodiscard]] BasicVar<R> samples(const View& column) const {
    if (column.data() == nullptr) return {};
    if (column.rows != packing_.sequences() || column.cols != 1) refuse(column, "sample_mask", packing_.sequences());
    return tape_->constant(column);
  }
  // A metric that is 0 by definition.
  [[nodiscard]] BasicVar<R> zero() const {
    static constexpr R kZero = 0;
    return tape_->constant(View(&kZero, 1, 1));
  }

 private:
  [[noreturn]] void refuse(const View& column, const char* name, Index rows) const {
    throw UsageError({loss_, std::string(name) + " [" + std::to_string(rows) + ", 1]",
                      column.data() == nullptr
                          ? std::string("no ") + name
                          : "[" + std::to_string(column.rows) + ", " + std::to_string(column.cols) + "]",
                      "per-token columns are token-aligned, an element for each row of the pack"});
  }

  BasicTape<R>* tape_ = nullptr;
  const Packing& packing_;
  const char* loss_;
};

}  // namespace losstape::detail
