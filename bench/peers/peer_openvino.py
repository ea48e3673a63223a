#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times OpenVINO GenAI on a GGUF file and prints JSON lines for `kvist bench --peer FILE`.

It needs an environment of its own (the product depends on none of it):
    python3 -m venv build/peers && build/peers/bin/pip install openvino-genai
    build/peers/bin/python bench/peers/peer_openvino.py -m MODEL.gguf -f TEXT > build/openvino.jsonl
    kvist bench -m MODEL.gguf -f TEXT --peer build/openvino.jsonl
"""
import argparse
import json
import statistics
import sys
import time

try:
    import openvino_genai as genai
except ImportError:
    sys.exit("openvino-genai is not installed in this environment; see the head of this file")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True, help="UTF-8 text, longer than the longest prompt")
    parser.add_argument("--prompts", default="2000,7800", help="prompt lengths in tokens")
    parser.add_argument("--together", type=int, default=4000, help="prefix under 8 questions at once; 0 leaves it out")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--new", type=int, default=48, help="tokens decoded")
    return parser.parse_args()


def pipeline(model, prefix_caching):
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = prefix_caching
    scheduler.cache_size = 3
    scheduler.max_num_batched_tokens = 8192
    return genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, KV_CACHE_PRECISION="f16")


def longest_start(text, tokenizer, n_tokens):
    """The longest start of the text that has at most n_tokens tokens."""
    low, high = 0, min(len(text), 8 * n_tokens)
    while low < high:
        middle = (low + high + 1) // 2
        if tokenizer.encode(text[:middle]).input_ids.shape[1] <= n_tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def main():
    given = arguments()
    text = open(given.file, encoding="utf-8", errors="replace").read()
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample = given.new, False
    config.ignore_eos, config.apply_chat_template = True, False

    engine = pipeline(given.model, False)
    tokenizer = engine.get_tokenizer()
    engine.generate([longest_start(text, tokenizer, 64)], config)
    for wanted in map(int, given.prompts.split(",")):
        prompt = longest_start(text, tokenizer, wanted)
        first, rate = [], []
        for _ in range(given.repeat):
            metrics = engine.generate([prompt], config).perf_metrics
            first.append(metrics.get_ttft().mean)
            rate.append(1e3 / metrics.get_tpot().mean)
        print(json.dumps({"peer": "openvino-genai", "n_prompt": int(tokenizer.encode(prompt).input_ids.shape[1]),
                          "ttft_ms": statistics.median(first), "decode_tok_s": statistics.median(rate)}), flush=True)
    if given.together:
        del engine
        engine = pipeline(given.model, True)
        prompt = longest_start(text, tokenizer, given.together)
        engine.generate([prompt], config)  # the prefix is cached from here on
        rates = []
        for repeat in range(given.repeat):
            # Questions differ between repeats, so that only the prefix is found in the cache.
            questions = [f"{prompt} Question {repeat} {i}: " for i in range(8)]
            start = time.perf_counter()
            metrics = engine.generate(questions, config).perf_metrics
            spent = time.perf_counter() - start - metrics.get_ttft().mean / 1e3
            rates.append((given.new - 1) * 8 / spent)
        print(json.dumps({"peer": "openvino-genai", "n_prefix": given.together, "questions": 8,
                          "decode_tok_s_total": statistics.median(rates)}), flush=True)


if __name__ == "__main__":
    main()
