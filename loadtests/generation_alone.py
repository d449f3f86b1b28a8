"""The other half of `generation.py`: continuous batching as the library has it, with no platform around it.

A line with seconds in, a line with the figures out.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any, cast

from generation_figures import MAX_TOKENS, Counted, prompts

from functions._hardware import native_dtype
from functions._language_model import room_for
from functions._model_cache import folder_of
from functions.generate import model_path
from headrace.sdk import Device


def main() -> None:
    """Load, and run a round for each line."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch  # noqa: PLC0415 - after the setting
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        AutoTokenizer,
        ContinuousBatchingConfig,
        GenerationConfig,
    )
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    disable_progress_bar()

    torch.set_num_threads(int(sys.argv[2]))
    folder = folder_of(model_path())
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(folder)
    network = cast("Any", AutoModelForCausalLM).from_pretrained(folder, dtype=native_dtype(Device()))
    room = room_for(network)
    manager = network.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=tokenizer.eos_token_id),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=room.page_size, num_blocks=room.pages, max_batch_tokens=room.step_tokens
        ),
    )
    manager.start()
    print("ready", flush=True)
    for line in sys.stdin:
        before = time.process_time()
        counted = _run(manager, tokenizer, int(sys.argv[1]), float(line))
        per_cpu_s = counted.all_tokens / (time.process_time() - before)
        print(json.dumps([counted.rate, per_cpu_s, counted.first_s]), flush=True)
    manager.stop(hard_stop=True)


def _run(manager: Any, tokenizer: Any, clients: int, seconds: float) -> Counted:
    counted = Counted.of(seconds)
    numbers = itertools.count()
    asked_at: dict[str, float] = {}
    seen: dict[str, int] = {}

    def ask() -> None:
        turns = [{"role": "user", "content": next(prompts)}]
        tokens = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        name = f"{id(counted)}-{next(numbers)}"
        asked_at[name], seen[name] = time.perf_counter(), 0
        manager.add_request(tokens, request_id=name, max_new_tokens=MAX_TOKENS, streaming=True)

    for _ in range(clients):
        ask()
    while time.perf_counter() < counted.until:
        output = manager.get_result(timeout=1)
        if output is None or output.request_id not in seen:
            continue  # of the round before
        name, so_far = output.request_id, len(output.generated_tokens)
        if not seen[name]:
            counted.add_first(asked_at[name])
        counted.add(so_far - seen[name])
        seen[name] = so_far
        if output.is_finished():
            del seen[name]
            ask()
    for name in seen:
        manager.cancel_request(name)
    return counted


if __name__ == "__main__":
    main()
