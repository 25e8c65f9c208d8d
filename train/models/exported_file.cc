#include "train/models/exported_file.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <torch/version.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "io/hashes.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int known_format = 1;
constexpr const char* description_record = "extra/millrace/model.json";
constexpr const char* weights_record = "extra/millrace/model.safetensors";
// A name and a checksum for each parameter and buffer: a model of a thousand of each takes 0.3 MiB.
constexpr std::size_t most_description_bytes = std::size_t{16} << 20;
constexpr const char* how_to_export = "make it again with export_model.py";

[[noreturn]] void refuse(errc kind, const std::string& file, const std::string& what,
                         const std::string& what_to_do) {
  throw failure(error(kind, what).at(file).hint(what_to_do));
}

// In bytes. Throws `failure` if it cannot be read, or is not a file.
std::size_t size_of(const std::string& file) {
  struct stat about{};
  const int why = host_files().stat(file, about) == 0 ? 0 : errno;
  if (why != 0) {
    throw failure(error(kind_of(why), "--model names a file that cannot be read")
                      .at(file)
                      .cause(why)
                      .hint("give the name of a known model, or a .pt2 file of export_model.py"));
  }
  if (!S_ISREG(about.st_mode)) {
    refuse(errc::usage, file, "--model is not a regular file", how_to_export);
  }
  return static_cast<std::size_t>(about.st_size);
}

// The archive of the file (zip).
class archive {
 public:
  explicit archive(const std::string& file) : file_(file) {
    file_bytes_ = size_of(file);
    reading([&] { records_.emplace(file); });
  }

  // A record that the description has the SHA-256 of. Throws as record() does, also if it differs.
  std::string described_record(const exported_description& model, const std::string& name) {
    std::string content = record(name);
    const auto sum = model.sums.find(name);
    if (sum != model.sums.end() && sum->second == hex(digest_of(hash_algorithm::sha256, content))) {
      return content;
    }
    refuse(errc::bad_state, file_, fmt::format("the model is damaged: {}", printable(name)),
           how_to_export);
  }
  // Throws `failure` (bad_state) if the file is damaged, has none, or one of more bytes than
  // `most_bytes` or the whole file: export_model.py does not compress, so that a small file has no
  // large ones.
  std::string record(const std::string& name,
                     std::size_t most_bytes = std::numeric_limits<std::size_t>::max()) {
    std::optional<std::string> content;
    std::size_t bytes = 0;
    reading([&] {
      if (!records_->hasRecord(name)) return;
      bytes = records_->getRecordSize(name);
      most_bytes = std::min(most_bytes, file_bytes_);
      if (bytes > most_bytes) return;
      const auto [data, size] = records_->getRecord(name);
      content.emplace(static_cast<const char*>(data.get()), size);
    });
    if (content) return *std::move(content);
    if (bytes > most_bytes) {
      refuse(errc::bad_state, file_,
             fmt::format("the model is damaged: its {} has {} bytes, more than {}", printable(name),
                         bytes, most_bytes),
             how_to_export);
    }
    refuse(errc::bad_state, file_, "export_model.py did not make this file, which has no " + name,
           how_to_export);
  }
  std::vector<std::string> names() {
    std::vector<std::string> all;
    reading([&] { all = records_->getAllRecords(); });
    return all;
  }

 private:
  void reading(const std::function<void()>& read) const {
    std::string why;
    try {
      return read();
    } catch (const c10::Error& e) {
      why = e.what_without_backtrace();
    } catch (const std::exception& e) {
      why = e.what();
    }
    refuse(errc::bad_state, file_,
           "the model is damaged, or not a .pt2 file: " + printable(why.substr(0, why.find('\n'))),
           how_to_export);
  }

  std::string file_;
  std::size_t file_bytes_ = 0;
  std::optional<caffe2::serialize::PyTorchStreamReader> records_;
};

exported_description description_in(const json& all) {
  exported_description d;
  all.at("name").get_to(d.name);
  all.at("identity").get_to(d.identity);
  all.at("torch").get_to(d.torch);
  all.at("device").get_to(d.device);
  all.at("cpu").get_to(d.cpu_features);
  all.at("amp").get_to(d.amp);
  all.at("size").get_to(d.size);
  all.at("classes").get_to(d.classes);
  all.at("least_images").get_to(d.least_images);
  all.at("most_images").get_to(d.most_images);
  all.at("gradients").get_to(d.gradients);
  all.at("parameters").get_to(d.parameters);
  all.at("buffers").get_to(d.buffers);
  all.at("counters").get_to(d.counters);
  all.at("sha256").get_to(d.sums);
  return d;
}

bool is_consistent(const exported_description& d) {
  const auto is_parameter = [&](const std::string& name) {
    return std::ranges::count(d.parameters, name) == 1;
  };
  return !d.gradients.empty() && std::ranges::all_of(d.gradients, is_parameter) &&
         d.least_images >= 1 && d.most_images >= d.least_images;
}

// The features of this host's processor, as Linux names them; empty: unknown.
std::vector<std::string> features_here() {
  std::ifstream about("/proc/cpuinfo");
  for (std::string line; std::getline(about, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

void check_processor(const exported_description& model, const std::string& file) {
  const auto here = features_here();
  std::vector<std::string> missing;
  std::ranges::copy_if(
      model.cpu_features, std::back_inserter(missing),
      [&](const std::string& each) { return std::ranges::find(here, each) == here.end(); });
  if (here.empty() || missing.empty()) return;
  refuse(errc::unsupported, file,
         fmt::format("the model is compiled for a processor with {}, which this one lacks",
                     fmt::join(missing, ", ")),
         "export it on this kind of processor");
}

}  // namespace

bool names_exported_model(const std::string& model) {
  return model.ends_with(".pt2") || model.find('/') != std::string::npos;
}

exported_description read_description(const std::string& file) {
  const std::string text = archive(file).record(description_record, most_description_bytes);
  const json all = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto damaged = [&] {
    refuse(errc::bad_state, file, "the model's description is damaged", how_to_export);
  };
  if (!all.is_object()) damaged();
  if (const auto format = all.find("format"); format == all.end() || *format != known_format) {
    refuse(errc::unsupported, file,
           "the model was exported by another version of millrace's export_model.py",
           "make it again with the export_model.py of this version");
  }
  exported_description d;
  try {
    d = description_in(all);
  } catch (const json::exception&) {
    damaged();
  }
  if (!is_consistent(d)) damaged();
  return d;
}

tensor_dict read_exported_weights(const exported_description& model, const std::string& file) {
  return tensors_in(archive(file).described_record(model, weights_record), file);
}

std::map<std::string, std::string> read_program(const exported_description& model,
                                                const std::string& file, const std::string& name) {
  archive from(file);
  const std::string folder = "data/aotinductor/" + name + "/";
  std::map<std::string, std::string> out;
  for (const std::string& each : from.names()) {
    if (!each.starts_with(folder)) continue;
    const std::string own = each.substr(folder.size());
    const bool is_source = own.ends_with(".cpp") || own.ends_with(".o");
    if (is_source || own.find('/') != std::string::npos) continue;
    out[own] = from.described_record(model, each);
  }
  const bool has_library =
      std::ranges::any_of(out, [](const auto& each) { return each.first.ends_with(".so"); });
  if (!has_library) {
    refuse(errc::bad_state, file, fmt::format("the model has no compiled library '{}'", name),
           how_to_export);
  }
  return out;
}

void check_exported(const exported_description& model, const std::string& file,
                    const std::string& device, int size, int classes, int images) {
  constexpr const char* here = TORCH_VERSION;
  if (model.torch != here) {
    refuse(errc::unsupported, file,
           fmt::format("the model was exported by torch {}, and this millrace-train has torch {}",
                       printable(model.torch), here),
           fmt::format("export it again with torch {}", here));
  }
  const auto differs = [&](const char* option, const auto& exported, const auto& given) {
    refuse(errc::usage, file,
           fmt::format("the model was exported for {} {}, not {}", option, exported, given),
           fmt::format("give {} {}, or export it for {}", option, exported, given));
  };
  if (model.device != device) differs("--device", printable(model.device), device);
  if (model.size != size) differs("--size", model.size, size);
  if (model.classes != classes) differs("--classes", model.classes, classes);
  if (images < model.least_images) {
    refuse(errc::usage, file,
           fmt::format("{} at a time: exported models train on {} or more",
                       counted(static_cast<std::uint64_t>(images), "image"), model.least_images),
           "raise --batch-size, or lower --accumulate");
  }
  check_processor(model, file);
}

}  // namespace millrace
