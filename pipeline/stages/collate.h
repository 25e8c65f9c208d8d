#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "pipeline/fields.h"
#include "pipeline/stages/batched.h"

namespace millrace {

// One place of the tuples of a batch: where all are integers, a tensor i8 of shape [n]; where all
// are tensors of one type and shape, a tensor of shape [n, ...]; else the values as they are.
using column = std::variant<tensor, std::vector<value>>;

struct collated_batch {
  std::vector<column> columns;
  std::vector<std::string> keys;  // of the n samples
  std::vector<origin> origins;

  std::size_t size() const { return keys.size(); }
};

// Turns a batch of tuples into columns, for map(), after batched(). Any thread. Fails with
// bad_field, naming both samples, where the tensors of one place differ in type or shape, or the
// tuples in length: the plan has to change, so the run ends.
//
//   plan | map(decode_fields) | map(to_tuple({"npy", "cls"})) | batched(32) | map(collated)
result<collated_batch> collated(const group_of<tuple_of_values>& batch);

}  // namespace millrace
