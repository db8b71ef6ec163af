#include "files/pt_file.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <exception>
#include <string>

#include "base/posix_file.hpp"

namespace lockstep {

void write_pt(const std::filesystem::path& path, const NamedTensors& tensors) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : tensors) {
    // A storage is written as a whole, whatever part of it the tensor is.
    dict.insert(name, tensor.detach().cpu().resolve_neg().clone(at::MemoryFormat::Contiguous));
  }
  std::string pickle;
  // Python refuses the tags that only Torch's own reader understands.
  constexpr bool tag_aggregates = false;
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { pickle.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, tag_aggregates);
  pickler.protocol();
  pickler.pushIValue(dict);
  pickler.stop();

  OutputFile file(path);
  // Torch's writer reports that something failed, not what.
  std::exception_ptr failure;
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, std::size_t size) -> std::size_t {
    try {
      file.write(data, size);
      return size;
    } catch (...) {
      failure = std::current_exception();
      return 0;
    }
  });
  try {
    constexpr std::string_view order = "little";
    archive.writeRecord("data.pkl", pickle.data(), pickle.size());
    archive.writeRecord("byteorder", order.data(), order.size());
    std::size_t number = 0;
    for (const auto& tensor : pickler.tensorData()) {
      archive.writeRecord("data/" + std::to_string(number++), tensor.const_data_ptr(), tensor.nbytes());
    }
    archive.writeEndOfFile();
  } catch (...) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
  file.finish();
}

}  // namespace lockstep
