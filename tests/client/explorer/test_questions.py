"""Questions of the page, read from URLs."""

import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.quotas import Quota
from divgrpc_client.explorer.questions import read_question


def test_a_question_has_a_query_and_options() -> None:
    values = {"like": "7", "k": "5", "diversity": "0.4", "selector": "mmr", "keep_duplicates": "1"}
    question = read_question(values, "int64", 0)
    assert (question.like, question.k) == (7, 5)
    assert question.options == {"diversity": 0.4, "selector": "mmr", "keep_duplicates": True}
    question = read_question({"row": "2", "diversity": "auto"}, "string", 3)
    assert (question.like, question.row, question.k) == (None, 2, 10)
    assert question.options == {"diversity": "auto"}
    assert read_question({"like": "../x"}, "string", 0).like == "../x"
    assert question.quotas == ()


@pytest.mark.parametrize("names", [["brand"], ["brand", "source", "_2"]])
def test_a_question_may_have_quotas(names: list[str]) -> None:
    text = ",".join(f"{name}={number}" for number, name in enumerate(names, 2))
    question = read_question({"row": "0", "max_each": text}, "int64", 1)
    quotas = tuple(Quota(name, max_each=number) for number, name in enumerate(names, 2))
    assert question.options == {"quotas": quotas, "on_infeasible": "relax"}
    assert question.quotas == quotas


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "like"),
        ({"like": "1", "row": "1"}, "like"),
        ({"like": "one"}, "like"),
        ({"like": "1.0"}, "like"),
        ({"like": "٣"}, "like"),
        ({"like": "9" * 30}, "like"),
        ({"row": "3"}, "row"),
        ({"row": "-1"}, "row"),
        ({"like": "1", "k": "0"}, "k"),
        ({"like": "1", "k": "101"}, "k"),
        ({"like": "1", "k": "9" * 5_000}, "k"),
        ({"like": "1", "diversity": "much"}, "diversity"),
        ({"like": "1", "keep_duplicates": "yes"}, "keep_duplicates"),
        ({"like": "1", "hash_limit": "0"}, "hash_limit"),
        ({"like": "1", "max_each": "2"}, "max_each"),
        ({"like": "1", "max_each": "=2"}, "max_each"),
        ({"like": "1", "max_each": ""}, "max_each"),
        ({"like": "1", "max_each": "brand=2,"}, "max_each"),
        ({"like": "1", "max_each": "brand="}, "max_each"),
        ({"like": "1", "max_each": "brand=0"}, "max_each"),
        ({"like": "1", "max_each": "brand=101"}, "max_each"),
        ({"like": "1", "max_each": "x" * 5_000}, "max_each"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        read_question(values, "int64", 3)
    assert error.value.field == field
    assert len(str(error.value)) < 200


def test_rows_need_a_file() -> None:
    with pytest.raises(InvalidArgumentError, match="row"):
        read_question({"row": "0"}, "int64", 0)
