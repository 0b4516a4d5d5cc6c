"""docs/examples/mark_and_find.py, with a model of random weights."""

from tests.fixed import fix_secrets
from tests.support.examples import example


def test_text_that_is_marked_for_alice_names_alice(tiny_folder, tmp_path, capsys):
    fix_secrets(tmp_path / "registry", "first")
    example("mark_and_find").main(tiny_folder, tmp_path / "registry", "w3 w4 w5 w6 w7 w8")
    assert capsys.readouterr().out == "flagged: True\nmarked for: ['alice']\n"
