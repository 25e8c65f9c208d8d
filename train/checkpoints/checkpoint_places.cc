#include "train/checkpoints/checkpoint_places.h"

#include <filesystem>
#include <optional>

#include "io/stores/stored_objects.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/checkpoints/checkpoint_store.h"
#include "train/checkpoints/folder_lock.h"

namespace millrace {
namespace {

// Checkpoints in a folder: checkpoint_folder.h.
class folder_place final : public checkpoint_place {
 public:
  explicit folder_place(std::string folder) : folder_(std::move(folder)) {}

  void lock() override { lock_.emplace(folder_); }
  std::optional<chosen_checkpoint> newest(const checkpoint_check& check,
                                          const choice_note& note) override {
    return choose_checkpoint(folder_, check, note);
  }
  void check(const std::string& resumed, bool may_set_aside) override {
    check_folder(folder_, resumed, may_set_aside);
  }
  std::string set_aside_newer(const std::string& resumed) override {
    const std::string aside = millrace::set_aside_newer(folder_, resumed);
    return aside.empty() ? "" : "checkpoints that were in the way have been moved to " + aside;
  }
  bool holds(const std::string& path, std::int64_t step) override {
    return is_checkpoint_in(folder_, path, step);
  }
  std::string path_of(std::int64_t step) const override {
    return (std::filesystem::path(folder_) / step_name(step)).string();
  }
  std::string write(std::int64_t step, const checkpoint_files& files) override {
    if (lock_) lock_->check_is_there();
    try {
      write_checkpoint(folder_, step_name(step), files);
    } catch (const failure&) {
      if (lock_) lock_->check_is_there();  // else that is the reason
      throw;
    }
    return path_of(step);
  }
  void remove_old(const std::string& run, std::size_t keep, const std::string& resumed) override {
    millrace::remove_old(folder_, run, keep, resumed);
  }
  void add(const std::string& path, const std::string& name, const std::string& text) override {
    add_to_checkpoint(path, name, text);
  }

 private:
  std::string folder_;
  std::optional<folder_lock> lock_;
};

}  // namespace

std::unique_ptr<checkpoint_place> checkpoint_place_at(const std::string& where,
                                                      const engine_options& reach) {
  if (!names_server(where)) return std::make_unique<folder_place>(where);
  check_writable(where).value();
  return std::make_unique<checkpoint_store>(where, reach);
}

checkpoint_files read_checkpoint_at(const std::string& path, const engine_options& reach) {
  return names_server(path) ? read_stored_checkpoint(path, reach) : read_checkpoint(path);
}

}  // namespace millrace
