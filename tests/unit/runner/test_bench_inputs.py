"""The inputs that `headrace bench` measures with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from gpu_runner.bench.inputs import grows, inputs_of, sized
from headrace.domain import Cost
from headrace.errors import SetupError
from headrace.sdk import Function, function


class Wanted(BaseModel):
    texts: Annotated[list[str], Field(max_length=8)] = []
    prompt: str = ""
    steps: Annotated[int, Field(le=100)] = 1


def priced(cost: Cost, example: dict[str, Any] | None = None) -> Function[Any, Any]:
    @function(name="priced", cost=cost, examples=[example] if example else [])
    def priced(input: Wanted) -> int:
        return 0

    return priced


@pytest.mark.parametrize(
    ("cost", "example", "wanted", "grown"),
    [
        (Cost.items("texts"), {"texts": ["a", "b"]}, 5.0, {"texts": ["a", "b", "a", "b", "a"]}),
        (Cost.chars("texts"), {"texts": ["ab", "cd"]}, 8.0, {"texts": ["ab", "cd", "ab", "cd"]}),
        (Cost.chars("texts"), {"texts": ["ab"]}, 40.0, {"texts": ["ab" * 20]}),  # a list of 20 isn't taken
        (Cost.chars("prompt"), {"prompt": "abc"}, 7.0, {"prompt": "abcabca"}),
        (Cost.value("steps"), {"steps": 3}, 30.0, {"steps": 30}),
        (Cost() + Cost.value("steps"), {"steps": 2}, 11.0, {"steps": 10}),
    ],
)
def test_an_input_grows_as_its_cost_counts(
    cost: Cost, example: dict[str, Any], wanted: float, grown: dict[str, Any]
) -> None:
    made = priced(cost, example)
    (first,) = inputs_of(made, None)
    assert grows(made, first)
    found = sized(made, first, wanted)
    assert json.loads(found.data) == grown
    assert found.cost == wanted


def test_an_input_that_is_taken_no_larger_says_why() -> None:
    made = priced(Cost.value("steps"), {"steps": 3})
    with pytest.raises(SetupError, match=r"^at /steps: Input should be less than or equal to 100$"):
        sized(made, inputs_of(made, None)[0], 300.0)


def test_what_nothing_counts_in_does_not_grow() -> None:
    made = priced(Cost(), {"texts": ["a"]})
    assert not grows(made, inputs_of(made, None)[0])


@pytest.mark.parametrize("text", ['{"steps": 2}', '{"steps": 2}\n\n{"steps": 3}\n', '{\n "steps": 2\n}'])
def test_a_file_has_one_input_or_one_a_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "inputs"
    file.write_text(text)
    found = inputs_of(priced(Cost.value("steps")), file)
    assert [one.cost for one in found] == ([2.0, 3.0] if text.count("{") == 2 else [2.0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"steps": 2}\n{"steps": 200}', "input 2 at /steps: "),
        ("not JSON", "is neither JSON nor JSON in each line"),
        ("\n", "has no input"),
        (None, "can't be read"),
        (json.dumps({"prompt": "x" * 2**20}), "priced takes 1048576 at most"),
    ],
)
def test_a_file_that_is_none_is_an_error(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "inputs"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SetupError, match=why.replace("(", r"\(")):
        inputs_of(priced(Cost()), file)


def test_no_example_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SetupError, match="priced has no examples: give it some"):
        inputs_of(priced(Cost()), None)
