// SPDX-License-Identifier: Apache-2.0
// A recorded batch or golden case: a safetensors file whose tensors and metadata have agreed names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/safetensors.h"
#include "ops/losses/loss_result.h"
#include "ops/masked_reduce.h"
#include "ops/packing.h"

namespace losstape::cli {

// A file and what its metadata says. Every error is a DataError that names the tensor or the entry, and the file.
class CaseFile {
 public:
  explicit CaseFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] bool has(const std::string& tensor) const { return file_.has(tensor); }
  [[nodiscard]] const std::vector<Index>& shape(const std::string& tensor) const { return file_.shape(tensor); }

  // A tensor that must have this shape, and hold floats (or integers). −1 is any extent.
  [[nodiscard]] View floats(const std::string& tensor, const std::vector<Index>& shape) const;
  [[nodiscard]] View ids(const std::string& tensor, const std::vector<Index>& shape) const;
  // Masks and counts may be of any type. An empty view where the file has no such tensor.
  [[nodiscard]] View any(const std::string& tensor, const std::vector<Index>& shape) const;
  [[nodiscard]] View any_if_there(const std::string& tensor, const std::vector<Index>& shape) const;

  [[nodiscard]] bool has_entry(const std::string& entry) const { return file_.metadata().contains(entry); }
  // An entry of the metadata; empty where there is none.
  [[nodiscard]] std::string text(const std::string& entry) const;
  [[nodiscard]] std::optional<double> number(const std::string& entry) const;
  [[nodiscard]] Json json(const std::string& entry) const;
  // How messages name an entry.
  [[nodiscard]] std::string source(const std::string& entry) const;

 private:
  [[noreturn]] void refuse(const std::string& tensor, const std::string& expected, const std::string& found) const;
  View checked(const std::string& tensor, const std::vector<Index>& shape) const;

  SafetensorsFile file_;
};

// A batch as the losses take it. Views are into the file, which outlives this.
// Counts that the metadata does not have are left to the loss: they are then the batch's own.
struct RecordedBatch {
  // A pack: logits [T, V] and per-token vectors [T], rows following cu_seqlens_padded (cu_seqlens without it).
  [[nodiscard]] static RecordedBatch packed(const CaseFile& file);
  // [B, S] arrays with log-probs [B, S − 1] in place of logits: column t is the log-prob of token t + 1.
  [[nodiscard]] static RecordedBatch padded(const CaseFile& file);

  // The packing of a pack. Errors: UsageError for offsets that are no offsets.
  void lay_out(Packing& packing) const;

  View logits;             // [T, V]; of a pack
  View input_ids;          // [T]; of a pack
  View cu_seqlens;         // [B + 1]; of a pack
  View cu_seqlens_padded;  // [B + 1], or empty
  View logprobs;           // [B, S − 1]; of a padded batch
  Index sequences = 0;
  Index padded_length = 0;  // S
  LossColumns columns{};
  Counts counts{};
};

}  // namespace losstape::cli
