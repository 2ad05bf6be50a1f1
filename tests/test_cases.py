"""Tests of for_each and of the two tiers."""

import pytest

from .cases import for_each


class Request:
    """A pytest request, with or without --all."""

    def __init__(self, *, everything):
        self.config = self
        self.getoption = {"all": everything}.get


@for_each("a, b", [(1, 1), (2, 3), (4, 5)], fast=lambda: [(1, 1)])
def equal(a, b, sign):
    assert a * sign == b * sign


def test_all_failing_cases_are_raised_with_a_note_of_each():
    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases") as caught:
        equal(Request(everything=True), sign=-1)
    assert [error.__notes__ for error in caught.value.exceptions] == [["case (2, 3)"], ["case (4, 5)"]]


def test_without_the_option_only_the_fast_cases_run():
    equal(Request(everything=False), sign=1)


def test_no_cases_are_a_failure():
    with pytest.raises(AssertionError):
        for_each("a", list)(lambda a: None)(Request(everything=True))
