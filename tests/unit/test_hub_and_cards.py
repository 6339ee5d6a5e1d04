"""A run for others: what is pushed to the hub, what its card says, and the scores that card and page tell."""

import ast
import re
from types import SimpleNamespace

import pytest
from tiny_runs import tiny

from gatedrnn.cli.commands import compress
from gatedrnn.core.config import to_dict
from gatedrnn.core.files import write_json
from gatedrnn.export import web


@pytest.fixture
def hf():
    pytest.importorskip("transformers", reason="needs transformers, of the extra hf")
    from gatedrnn import hf

    return hf


class Hub:
    """The hub's client, without a network."""

    def __init__(self):
        self.uploaded = []

    def create_repo(self, name, **how):
        return SimpleNamespace(repo_id=name)

    def create_commit(self, *, operations, **how):
        self.uploaded += [operation.path_in_repo for operation in operations]


def test_what_is_pushed_has_the_file_for_trust_remote_code(hf, tmp_path, monkeypatch):
    from transformers import modeling_utils
    from transformers.utils import hub

    fake, run = Hub(), tiny(tmp_path / "run")
    for module in (modeling_utils, hub):
        monkeypatch.setattr(module, "hf_api", lambda: fake, raising=False)
        for name in ("create_repo", "create_commit"):
            monkeypatch.setattr(module, name, getattr(fake, name), raising=False)
    monkeypatch.setattr(modeling_utils, "create_and_tag_model_card", lambda *_, **how: SimpleNamespace(save=str))
    sections = to_dict(run.config)
    model = hf.GatedRNNForCausalLM(hf.GatedRNNConfig(sections["model"], sections["data"], sections["training"]))
    for _ in range(2):  # into a new folder, and again
        fake.uploaded.clear()
        model.save_pretrained(tmp_path / "hf", push_to_hub=True, repo_id="me/model")
        assert {"config.json", "model.safetensors", "modeling_gatedrnn.py"} <= {*fake.uploaded}
    hf.GatedRNNConfig().save_pretrained(tmp_path / "alone")
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["config.json"]


def test_the_card_says_how_to_install(hf, tmp_path):
    from gatedrnn import __version__
    from gatedrnn.hf.card import card

    text = card(tiny(tmp_path / "run"), "name")
    assert f"pip install 'gatedrnn-{__version__}-py3-none-any.whl[hf]'" in text and "pip install '.[hf]'" in text
    assert "pypi" not in text and "pip install 'gatedrnn[" not in text
    for name in ("a", 'my "own" model', "it's"):
        (code,) = re.findall(r"```python\n(.*?)```", card(tiny(tmp_path / name), name), re.DOTALL)
        assert ast.parse(code) and f"from_pretrained({name!r})" in code


def test_card_and_page_tell_what_compress_measured(hf, tmp_path):
    from gatedrnn.hf.card import card

    run = tiny(tmp_path / "run")
    assert "No scores were kept" in card(run, "name") and web._about(run)["perplexity"] is None
    record = {"method": "int8", "perplexity_before": 9.0, "perplexity_after": 9.25}
    texts = (
        ({}, "the validation text or its --data"),
        ({"data": None}, "the validation text"),
        ({"data": "/home/me/a.txt"}, "a.txt"),
        ({"data": "-"}, "standard input"),
    )
    for data, text in texts:  # without a word of it: as earlier versions wrote it
        write_json(run.folder / compress.COMPRESSION_FILE, record | data)
        told = f"as gatedrnn compress measured it on {text}"
        assert f"| perplexity per word, {told} | 9.25 |" in card(run, "name")
        assert (web._about(run)["perplexity"], web._about(run)["perplexity_of"]) == (9.25, told)
    write_json(run.folder / compress.COMPRESSION_FILE, record | {"perplexity_after": None})
    assert "No scores were kept" in card(run, "name") and web._about(run)["perplexity"] is None
    (run.folder / compress.COMPRESSION_FILE).write_text("[]")
    assert "No scores were kept" in card(run, "name")
