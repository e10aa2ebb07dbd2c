"""The engines of other packages, against stand-ins that note how they are called and answer by a script."""

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from test_samples import work

from sequoia_cli.bench.engines import ENGINES, Unavailable
from sequoia_cli.bench.worker import run
from sequoia_cli.core.sampling import Sampling

GREEDY, SAMPLED = Sampling(), Sampling(0.6, 5, 0.9)


@pytest.fixture
def stand_in(monkeypatch):
    """Put modules of these names and contents where imports find them, and load an engine afresh."""

    def make(engine, given, **modules):
        for name, contents in modules.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
        path, _, function = ENGINES[engine].make.partition(":")
        monkeypatch.delitem(sys.modules, path, raising=False)
        try:
            return getattr(importlib.import_module(path), function)(given, engine)
        finally:
            sys.modules.pop(path, None)

    return make


class Called:
    """A class or function that notes its arguments."""

    def __init__(self, result=None):
        self.calls, self.result = [], result

    def __call__(self, *arguments, **options):
        self.calls.append((arguments, options))
        return self.result


# --- vLLM


class FakeVllm:
    """One request at a time, whose tokens come by steps as scripted."""

    def __init__(self, *steps):
        self.steps, self.requests, self.left = steps, [], []
        self.environment = None
        self.LLM = Called(SimpleNamespace(llm_engine=self))
        self.SamplingParams = Called("parameters")

    def add_request(self, name, prompt, parameters):
        self.requests.append((name, prompt, parameters))
        self.left = list(self.steps)

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=self.left.pop(0))])]


@pytest.fixture
def vllm(stand_in, monkeypatch):
    """The engine of that name on a fake vLLM; nothing of the environment is set before."""
    for name in ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def make(name, given, *steps):
        fake = FakeVllm(*(steps or ([4], [4, 5], [4, 5])))
        contents = {"LLM": fake.LLM, "SamplingParams": fake.SamplingParams}
        return stand_in(name, given, vllm=contents), fake

    return make


@pytest.mark.parametrize(
    ("name", "speculation"),
    [
        ("vllm", None),
        ("vllm-ngram", {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}),
        (
            "vllm-suffix",
            # 0: a text that was written in an earlier round must not be proposed in the next.
            {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0},
        ),
    ],
)
def test_vllm_loads_the_folder_with_its_speculation_and_runs_every_prompt_again(
    vllm, stand_in, monkeypatch, name, speculation
):
    arctic = ModuleType("arctic_inference")
    arctic.__spec__ = object()
    monkeypatch.setitem(sys.modules, "arctic_inference", arctic)
    _, fake = vllm(name, work(folder="there", dtype="bfloat16"))
    ((arguments, options),) = fake.LLM.calls
    assert arguments == ("there",)
    assert options["speculative_config"] == speculation
    assert options["enable_prefix_caching"] is False
    assert options["generation_config"] == "vllm"
    assert (options["dtype"], options["max_num_seqs"]) == ("bfloat16", 1)
    assert options["max_model_len"] >= work().longest


def test_vllm_uses_all_threads_of_the_work_and_none_is_kept_for_its_scheduler(vllm):
    vllm("vllm", work(threads=2))
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_a_binding_of_vllms_threads_that_the_user_chose_stays(vllm, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3")
    vllm("vllm", work())
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


@pytest.mark.parametrize(
    ("sampling", "shape"),
    [
        (GREEDY, {"temperature": 0.0, "top_p": 1.0, "top_k": -1}),
        (SAMPLED, {"temperature": 0.6, "top_p": 0.9, "top_k": 5}),
    ],
)
def test_vllm_samples_as_the_work_says_with_a_seed_for_each_text(vllm, sampling, shape):
    engine, fake = vllm("vllm", work(sampling=sampling), [4], [4, 5, 6], [4, 5, 6])
    found = [run(engine, work(sampling=sampling), 0, seed) for seed in (11, 12)]
    for text in found:
        assert text["token_ids"] == [4, 5, 6]
        assert [count for _, count in text["arrivals"]] == [1, 2]
    assert [options["seed"] for _, options in fake.SamplingParams.calls] == [11, 12]
    _, options = fake.SamplingParams.calls[0]
    assert shape.items() <= options.items()
    assert (options["min_p"], options["repetition_penalty"]) == (0, 1)
    assert (options["max_tokens"], options["stop_token_ids"], options["ignore_eos"]) == (4, [9], False)
    assert [request[1] for request in fake.requests] == [{"prompt_token_ids": [1, 2]}] * 2


def test_suffixes_without_their_package_are_left_out(vllm, monkeypatch):
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    with pytest.raises(Unavailable, match="arctic-inference, which is not installed"):
        vllm("vllm-suffix", work())


# --- llama.cpp


class FakeLlama:
    """Yields tokens of scripted forwards: `eval` runs before those of each."""

    script = ([4], [5, 6], [7])

    def __init__(self, path, **options):
        self.loaded, self.done, self.evaluated = (path, options), [], 0
        type(self).made = self

    def reset(self):
        self.done.append("reset")

    def set_seed(self, seed):
        self.done.append(seed)

    def eval(self, tokens):
        self.evaluated += 1

    def generate(self, tokens, **options):
        self.asked = tokens, options
        for step in self.script:
            self.eval(tokens)
            yield from step


@pytest.fixture
def llama(stand_in):
    def make(name, given):
        lookups = {"LlamaPromptLookupDecoding": lambda num_pred_tokens: ("lookup", num_pred_tokens)}
        engine = stand_in(name, given, llama_cpp={"Llama": FakeLlama}, llama_cpp__llama_speculative=lookups)
        return engine, FakeLlama.made

    return make


@pytest.mark.parametrize(("name", "draft"), [("llama.cpp", None), ("llama.cpp-lookup", ("lookup", 2))])
def test_llama_cpp_loads_the_file_on_all_threads_with_its_lookup(llama, name, draft):
    _, fake = llama(name, work(gguf="t.gguf", threads=3))
    path, options = fake.loaded
    assert path == "t.gguf"
    assert options.get("draft_model") == draft
    assert (options["n_threads"], options["n_threads_batch"]) == (3, 3)
    assert options["n_ctx"] >= work().longest


@pytest.mark.parametrize(
    ("sampling", "shape"),
    [
        (GREEDY, {"temp": 0.0, "top_k": 0, "top_p": 1.0}),
        (SAMPLED, {"temp": 0.6, "top_k": 5, "top_p": 0.9}),
    ],
)
def test_llama_cpp_samples_by_the_works_rules_and_no_others(llama, sampling, shape):
    engine, fake = llama("llama.cpp", work(gguf="t.gguf", sampling=sampling))
    run(engine, work(), 0, 21)
    tokens, options = fake.asked
    assert tokens == [1, 2]
    # Its defaults would cut improbable tokens, and in some versions punish repetition.
    assert options == {**shape, "min_p": 0.0, "repeat_penalty": 1.0}


def test_llama_cpp_starts_each_text_empty_with_a_seed_of_its_own(llama):
    engine, fake = llama("llama.cpp", work(gguf="t.gguf"))
    for seed in (21, 22):
        run(engine, work(), 0, seed)
    assert fake.done == ["reset", 21, "reset", 22]


def test_tokens_of_one_forward_of_llama_cpp_arrive_together(llama):
    engine, fake = llama("llama.cpp-lookup", work(gguf="t.gguf"))
    for _ in range(2):
        found = run(engine, work(), 0, 1)
        assert found["token_ids"] == [4, 5, 6, 7]
        assert [count for _, count in found["arrivals"]] == [1, 2, 1]
    assert fake.evaluated == 6


def test_a_text_of_llama_cpp_ends_at_its_end(llama, monkeypatch):
    monkeypatch.setattr(FakeLlama, "script", ([4], [9, 6], [7]))
    engine, fake = llama("llama.cpp-lookup", work(gguf="t.gguf"))
    assert run(engine, work(), 0, 1)["token_ids"] == [4, 9]
    assert fake.evaluated == 2


# --- OpenVINO GenAI


class FakePipeline:
    def __init__(self, path, device, **settings):
        self.loaded, self.asked = (path, device, settings), []
        type(self).made = self

    def generate(self, ids, config, streamer):
        self.asked.append((ids.tolist(), config))
        streamer.write(4)
        streamer.write([5, 6])
        streamer.end()


@pytest.fixture
def openvino(stand_in):
    def make(name, given):
        genai = {
            "StreamerBase": object,
            "StreamingStatus": SimpleNamespace(RUNNING="go on"),
            "LLMPipeline": FakePipeline,
            "SchedulerConfig": SimpleNamespace,
            "GenerationConfig": SimpleNamespace,
        }
        engine = stand_in(name, given, openvino={"Tensor": lambda array: array}, openvino_genai=genai)
        return engine, FakePipeline.made

    return make


@pytest.mark.parametrize("name", ["openvino", "openvino-lookup"])
def test_openvino_loads_the_file_on_all_threads_and_runs_every_prompt_again(openvino, name):
    engine, fake = openvino(name, work(gguf="t.gguf", threads=3))
    path, device, settings = fake.loaded
    assert (path, device, settings["INFERENCE_NUM_THREADS"]) == ("t.gguf", "CPU", 3)
    assert settings["scheduler_config"].enable_prefix_caching is False
    assert settings.get("prompt_lookup", False) == (name == "openvino-lookup")
    found = run(engine, work(), 0, 31)
    assert found["token_ids"] == [4, 5, 6]
    assert [count for _, count in found["arrivals"]] == [1, 2]
    ((ids, config),) = fake.asked
    assert ids == [[1, 2]]
    lookup = (getattr(config, "num_assistant_tokens", None), getattr(config, "max_ngram_size", None))
    assert lookup == ((5, 3) if name == "openvino-lookup" else (None, None))


@pytest.mark.parametrize(
    ("sampling", "shape"),
    [
        (GREEDY, {"do_sample": False}),
        (SAMPLED, {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 5}),
    ],
)
def test_openvino_samples_as_the_work_says_with_a_seed_for_each_text(openvino, sampling, shape):
    engine, fake = openvino("openvino", work(gguf="t.gguf", sampling=sampling))
    for seed in (31, 32):
        run(engine, work(), 0, seed)
    for (_, config), seed in zip(fake.asked, (31, 32), strict=True):
        assert vars(config) == {"max_new_tokens": 4, "rng_seed": seed, "stop_token_ids": {9}, **shape}
