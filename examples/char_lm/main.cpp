// A language model over characters. Lines have different lengths, so batches are padded, and the loss is a
// mean over the characters that are real: their number, a tensor, is the denominator. The data are a range
// without an end, so max_steps alone ends the run.
//
//     char_lm text.txt
//
// Prints:
//   update   1     725 characters read  loss 4.53  accuracy 0.20
//   update  40   33770 characters read  loss 1.62  accuracy 0.50
//   update 120  101378 characters read  loss 0.48  accuracy 0.88
//   He ...
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = torch::nn;

constexpr std::int64_t padding = -100;  // what cross_entropy ignores
constexpr std::int64_t characters = 128;

// data: [lines, longest] characters; target: those that follow them, `padding` behind the end of a line.
ls::Example padded(const std::vector<std::string>& lines) {
  std::int64_t longest = 0;
  for (const auto& line : lines) longest = std::max<std::int64_t>(longest, std::ssize(line));
  ls::Example batch{torch::zeros({std::ssize(lines), longest}, torch::kLong),
                    torch::full({std::ssize(lines), longest}, padding, torch::kLong)};
  auto data = batch.data.accessor<std::int64_t, 2>();
  auto target = batch.target.accessor<std::int64_t, 2>();
  for (std::size_t row = 0; row < lines.size(); ++row) {
    for (std::size_t i = 0; i < lines[row].size(); ++i) {
      data[row][i] = i == 0 ? '\n' : lines[row][i - 1];
      target[row][i] = lines[row][i];
    }
  }
  return batch;
}

// Batches of eight lines of a text, drawn anew without end: a range without a size, in one endless epoch.
// Each begin() yields the same batches, so a later train() call finds its place by dropping what was read
// before.
class Lines {
 public:
  explicit Lines(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines_.push_back(line + '\n');
  }

  [[nodiscard]] const std::vector<std::string>& all() const { return lines_; }

  class Iterator {
   public:
    explicit Iterator(const std::vector<std::string>& lines) : lines_(&lines) { ++*this; }
    const ls::Example& operator*() const { return batch_; }
    void operator++() {
      std::vector<std::string> drawn;
      for (int i = 0; i < 8; ++i) drawn.push_back(lines_->at(random_.uniform_int(0, std::ssize(*lines_))));
      batch_ = padded(drawn);
    }
    bool operator==(std::default_sentinel_t) const { return false; }

   private:
    const std::vector<std::string>* lines_;
    ls::SampleRandom random_{9};
    ls::Example batch_;
  };

  [[nodiscard]] Iterator begin() const { return Iterator(lines_); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

 private:
  std::vector<std::string> lines_;
};

struct CharLm : nn::Module {
  nn::Embedding embedding = register_module("embedding", nn::Embedding(characters, 32));
  nn::GRU gru = register_module("gru", nn::GRU(nn::GRUOptions(32, 96).batch_first(true)));
  nn::Linear output = register_module("output", nn::Linear(96, characters));

  // [lines, length] in, [lines, length, characters] out.
  torch::Tensor forward(const torch::Tensor& text) {
    return output->forward(std::get<0>(gru->forward(embedding->forward(text))));
  }
};

// Goes on from `start`, always with the most likely character.
std::string likeliest_line(CharLm& model, std::string start) {
  const torch::NoGradGuard no_grad;
  while (start.back() != '\n' && start.size() < 100) {
    const auto next = model.forward(padded({start + ' '}).data)[0][-1].argmax().item<std::int64_t>();
    start += static_cast<char>(next);
  }
  return start;
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s text.txt\n", argv[0]), 2;
  ls::Accelerator accelerator({.gradient_accumulation_steps = 2, .seed = 9, .device = torch::kCPU});
  const Lines lines(argv[1]);
  const std::vector<ls::Example> whole_text{padded(lines.all())};

  auto step = [](CharLm& model, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = model.forward(batch.data);
    const auto count = batch.target.ne(padding).sum();
    const auto correct = logits.argmax(2).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten()),
            .num_samples = count,
            .metrics = {{"accuracy", ls::MeanMetric(correct, count)}}};
  };

  auto model = std::make_shared<CharLm>();
  ls::AdamW optimizer(ls::weight_decay_groups(*model, 0.01), {.lr = 0.01});
  ls::Evaluator evaluator(accelerator, {{"text", whole_text}}, step);
  ls::Trainer trainer(accelerator, model, optimizer, lines, step, {.evaluator = &evaluator});
  for (const std::int64_t updates : {1, 40, 120}) {
    const ls::TrainState state = trainer.train(
        {.max_steps = updates, .evaluate_every = {}, .checkpoint_every = {}, .max_grad_norm = 1.0});
    const auto text = trainer.evaluate().at("text");
    std::printf("update %3ld  %6ld characters read  loss %.2f  accuracy %.2f\n", state.step, state.samples,
                text.at("loss"), text.at("accuracy"));
  }
  std::printf("%s", likeliest_line(*model, "He").c_str());
}
