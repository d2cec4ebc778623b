# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""How many functions one Write enters, and that docs/data-path.md names them in their order."""

import platform
import re

import pytest

import data_path
import places

MOST_FUNCTIONS = 45


@pytest.fixture(scope="module")
def entered():
    if platform.machine() != "x86_64":
        pytest.skip("steps by the trap flag of x86-64")
    return data_path.data_path(places.BUILD)


def documented(way):
    page = (data_path.ROOT / "docs" / "data-path.md").read_text()
    table = page.split(f"## {way.capitalize()}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", table, flags=re.MULTILINE)


@pytest.mark.parametrize("way", ["down", "up"])
def test_few_functions_are_entered(entered, way):
    names = [f"{each.file} {each.name}" for each in entered[way]]
    assert 20 < len(names) <= MOST_FUNCTIONS, "\n".join(names)


@pytest.mark.parametrize("way", ["down", "up"])
def test_the_page_has_them_in_their_order(entered, way):
    order = [(each.name, str(each.file)) for each in entered[way]]
    named = documented(way)
    assert len(named) > 10
    assert [each for each in named if each not in order] == []
    assert sorted(named, key=order.index) == named


def test_functions_are_found_in_a_source(tmp_path, monkeypatch):
    source = tmp_path / "some.h"
    source.write_text("""namespace a { // {
struct Some {
  template <typename T>
  int one(T x) const {
    return [&] { return x; }();
  }
  Some() : y(1) {
    y = 2;
  }
  int y;
};
int two(int (*call)(), const char* text = "{") {
  if (text != nullptr) {
    call();
  }
  return 1;
}
}
""")
    monkeypatch.setattr(data_path, "ENGINE", tmp_path)
    found = {each.name: (each.first, each.last) for each in data_path.functions_of(source)}
    assert found == {"one": (4, 6), "Some": (7, 9), "two": (12, 17)}
    assert [data_path.is_constructor(each) for each in data_path.functions_of(source)] == [
        False, True, False]
