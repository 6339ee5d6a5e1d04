"""A run as a page: what the folder holds, and what the page shows in a browser beside what the commands print."""

import json
import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import Browser, chromium
from quicker import quicken_onnx
from terminal import fails, records, works

from gatedrnn.cli.commands.export import Options, show
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.data.subwords import Subwords
from gatedrnn.export import runtime, web
from gatedrnn.models import generate
from gatedrnn.training.run import load_run

for library in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(library, reason="needs the extra onnx")

pytestmark = pytest.mark.skipif(scan is None, reason=f"needs PyTorch {SCAN_SINCE} or later")

quicken_onnx()
RUNS = ("run", "lstm", "char")
SENTENCES = [
    "the cat that the dogs chase sleeps .",
    "The  Nurse \tsees 42 zebras ( and\\ x",
    "Mary",
    "日本 laughs\u00a0the",
]
READ = "document.body.dataset.state === 'read'"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def _runtime():
    """The real one if it is in the cache, or else none."""
    try:
        return runtime.runtime_files(fetch=False)
    except ArgumentError:
        return None


@pytest.fixture(scope="module")
def pages(levels, tmp_path_factory):
    """A folder with the page of each run, that of the LSTM with weights as int8."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        if _runtime() is None:
            patch.setattr(web, "runtime_files", lambda *_, **__: dict.fromkeys(runtime.FILES, b""))
        for name in RUNS:
            small = ["--int8"] if name == "lstm" else []
            works("export", levels / name, "--to", "web", "--out", folder / name, *small)
    return folder


@pytest.fixture(scope="module")
def address(pages):
    """Of a server of the pages."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(address):
    if chromium() is None:
        pytest.skip("needs Chromium")
    if _runtime() is None:
        pytest.skip("needs onnxruntime-web in the cache: gatedrnn export RUN --to web fetches it")
    with Browser() as opened:
        yield opened


def _open(browser, address, name, sentence, fresh=False):
    """Its brackets and rows of numbers; the page is loaded if it is not there yet, or must be fresh."""
    there = browser.evaluate("location.pathname") == f"/{name}/"
    if there and not fresh:
        browser.evaluate(f"location.hash = {json.dumps('#sentence=' + quote(sentence))}")
    else:
        browser.open("about:blank")
        browser.open(f"{address}/{name}/#sentence={quote(sentence)}")
    browser.wait(f"{READ} && document.getElementById('sentence').value === {json.dumps(sentence)}")
    rows = browser.evaluate(
        "[...document.querySelectorAll('#numbers tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return browser.evaluate("document.getElementById('brackets').textContent"), rows


def _digits(value):
    """Half a unit of the third digit, of the third decimal below 1."""
    return 0.5 * 10.0 ** (len(str(int(value))) - 3) if value >= 1 else 5e-4


class TestInTheBrowser:
    @pytest.mark.parametrize("name", RUNS)
    def test_reads_as_the_commands_do(self, browser, address, levels, tmp_path, name):
        for sentence in SENTENCES:
            (tmp_path / "text").write_text(sentence)
            (expected,) = records("surprisal", levels / name, tmp_path / "text")
            brackets, rows = _open(browser, address, name, sentence)
            assert [row[0] for row in rows] == expected["words"]
            for row, bits in zip(rows, expected["surprisal_bits"], strict=True):
                assert float(row[2]) == pytest.approx(bits, abs=0.1 if name == "lstm" else _digits(bits))
            if name == "run":
                (parsed,) = records("parse", levels / name, tmp_path / "text")
                assert brackets == parsed["tree"]
                far = [float(row[3]) for row in rows[:-1]]
                assert far == pytest.approx(parsed["distances"], abs=2e-3)
        assert browser.errors == []
        assert all(url.startswith((address, "data:", "about:")) for url in browser.asked)

    def test_draws_tree_distances_gates_and_surprisal(self, browser, address):
        _open(browser, address, "run", SENTENCES[0])
        titles = "[...document.querySelectorAll('#bands h3')].map((h) => h.firstChild.textContent)"
        assert browser.evaluate(titles) == ["Tree", "Distance", "Surprisal", "Master forget gate", "Master input gate"]
        assert browser.evaluate("document.querySelectorAll('#bands .branch').length") == 14
        _open(browser, address, "lstm", SENTENCES[0])
        assert browser.evaluate(titles) == ["Surprisal", "Output of each unit"]
        assert "the cell lstm has none" in browser.evaluate("document.getElementById('no-tree').textContent")

    def test_another_layer_gives_that_layers_tree(self, browser, address, levels, tmp_path):
        (tmp_path / "text").write_text(SENTENCES[0])
        _open(browser, address, "run", SENTENCES[0], fresh=True)
        for layer in ("1", "mean"):
            (parsed,) = records("parse", levels / "run", tmp_path / "text", "--layer", layer)
            browser.evaluate(f"layer.value = '{layer}'; layer.dispatchEvent(new Event('change'))")
            browser.wait(READ)
            assert browser.evaluate("document.getElementById('brackets').textContent") == parsed["tree"]

    def test_words_do_not_turn_the_text_around_them(self, browser, address):
        _open(browser, address, "run", "the שלום \u202ecat", fresh=True)
        told = browser.evaluate("[unknown.textContent, totals.textContent]")
        assert told[0].endswith("(dashed): \u2068“שלום”\u2069, \u2068“\u202ecat”\u2069") and "\u2069 (" in told[1]
        browser.evaluate("window.place = (text) => { const r = document.createRange(); const [n] = unknown.childNodes; "
                         "const at = n.data.indexOf(text); r.setStart(n, at); r.setEnd(n, at + 1); "
                         "return r.getBoundingClientRect().left }")  # fmt: skip
        assert browser.evaluate("place('Not in') < place('read as') && place('read as') < place('“שלום”')")

    def test_words_can_be_looked_up_in_lower_case(self, browser, address, levels, tmp_path):
        (tmp_path / "text").write_text(SENTENCES[1])
        _open(browser, address, "run", SENTENCES[1], fresh=True)
        assert "“Nurse”" in browser.evaluate("document.getElementById('unknown').textContent")
        browser.evaluate("document.getElementById('mapped').click()")
        browser.wait(READ)
        (expected,) = records("surprisal", levels / "run", tmp_path / "text", "--mapping", "number")
        found = browser.evaluate(
            "[...document.querySelectorAll('#numbers tr')].map((r) => Number(r.cells[2].textContent))"
        )
        assert found == pytest.approx(expected["surprisal_bits"], rel=2e-3)

    def test_goes_on_greedily_as_python_and_by_its_seed(self, browser, address, levels):
        run = load_run(levels / "run")
        prompt = "the nurse"
        ids = generate(run.model, [1, *run.vocabulary.encode(prompt.split())], top_k=1)
        expected = [*run.vocabulary.encode(prompt.split()), *(next(ids) for _ in range(12))]
        texts = []
        _open(browser, address, "run", prompt, fresh=True)
        for temperature, seed in (("0", 1), ("1", 5), ("1", 5), ("1", 6)):
            browser.evaluate("delete document.body.dataset.written; document.getElementById('no-unk').checked = false")
            browser.evaluate(f"temperature.value = '{temperature}'; seed.value = {seed}; many.value = 12; go.click()")
            browser.wait("document.body.dataset.written === '12' && !go.dataset.busy")
            texts.append(browser.evaluate("document.getElementById('text').textContent"))
        assert texts[0] == run.vocabulary.text(run.vocabulary.decode(expected))
        assert texts[1] == texts[2] != texts[3]

    def test_nothing_and_too_much(self, browser, address):
        _open(browser, address, "run", "  ")
        assert browser.evaluate("getComputedStyle(document.getElementById('reading')).display") == "none"
        _open(browser, address, "run", "the " * 201)
        assert "at most 200 words" in browser.evaluate("problem.textContent")

    def test_a_folder_that_is_not_whole_says_so(self, browser, address, pages):
        shutil.copytree(pages / "lstm", pages / "broken")
        (pages / "broken" / "model.onnx").unlink()
        browser.open(f"{address}/broken/")
        browser.wait("!problem.hidden")
        assert "model.onnx is missing (404" in browser.evaluate("problem.textContent")
        browser.errors.clear()


class TestTheFolder:
    def test_holds_the_page_the_graph_and_nothing_of_the_machine(self, pages, levels):
        for name in RUNS:
            found = {path.relative_to(pages / name).as_posix() for path in (pages / name).rglob("*") if path.is_file()}
            own = {"page.json", "model.onnx", "vocabulary.json", "runtime/LICENSE.txt"}
            assert found == {*web.PAGE, *own, "runtime/ort.wasm.bundle.min.js", "runtime/ort-wasm-simd-threaded.wasm"}
            about = json.loads((pages / name / "page.json").read_text())
            assert about["weights"] in (["int8"] if name == "lstm" else ["float16", "float32"])
            assert about["name"] == (levels.name if name == "run" else name)  # `run` says nothing
            assert about["graph_bytes"] == (pages / name / "model.onnx").stat().st_size
            assert len(about["examples"]) == 4 and str(levels) not in json.dumps(about)
            records_ = (levels / name / "metrics.jsonl").read_text().splitlines()
            assert about["perplexity"] == min(json.loads(line)["valid_perplexity"] for line in records_)

    def test_the_page_loads_nothing_from_elsewhere(self, pages):
        for name in web.PAGE:
            text = (pages / "run" / name).read_text(encoding="utf-8")
            said = set(re.findall(r"https?://[^\s\"'`)]+", text))
            assert said <= {"http://www.w3.org/2000/svg", "http://localhost:8000."}, name

    def test_every_file_is_package_data(self):
        import tomllib

        folder = Path(web.__file__).parent / "page"
        assert {path.name for path in folder.iterdir()} == {*web.PAGE, "runtime-license.txt"}
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
        assert "page/*" in project["tool"]["setuptools"]["package-data"]["gatedrnn.export"]

    def test_says_how_to_open_it(self, capsys):
        show({"out": "page", "bytes": {}}, Options(run="r", to="web", out="page"))
        assert "python -m http.server --bind 127.0.0.1 --directory page" in capsys.readouterr().out
        show({"out": "my page; x", "bytes": {}}, Options(run="r", to="web", out="my page; x"))
        assert "--directory 'my page; x'\n" in capsys.readouterr().out


class TestErrors:
    def test_of_the_runtime(self, levels, tmp_path):
        out = ("--to", "web", "--out", tmp_path / "page", "--runtime")
        assert "nowhere, which does not exist. Unpack" in fails("export", levels / "lstm", *out, tmp_path / "nowhere")
        other = tmp_path / "dist"
        other.mkdir()
        for name in runtime.FILES:
            (other / name).write_text("another version")
        assert "must be the file of onnxruntime-web 1.30.0; got another file" in fails(
            "export", levels / "lstm", *out, tmp_path
        )
        (tmp_path / "a.tgz").write_bytes(b"none")
        assert "got 4 bytes with another SHA-512" in fails("export", levels / "lstm", *out, tmp_path / "a.tgz")
        assert not (tmp_path / "page").exists()

    def test_of_fetching(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
        monkeypatch.setattr(runtime, "URL", (tmp_path / "absent.tgz").as_uri())
        with pytest.raises(
            ArgumentError, match=r"needs onnxruntime-web 1\.30\.0; got none in .*Fetch it: gatedrnn export"
        ):
            runtime.runtime_files(fetch=False)
        with pytest.raises(
            DataError, match=r"must fetch onnxruntime-web 1\.30\.0; got .*absent.*give it with --runtime"
        ):
            runtime.runtime_files()

    def test_of_other_options_and_tasks(self, levels, tmp_path):
        assert "--runtime: needs --to web; got hf" in fails(
            "export", levels / "run", "--to", "hf", "--out", tmp_path / "x", "--runtime", tmp_path
        )
        run = load_run(levels / "lstm")
        other = type(run)(run.folder, type("C", (), {"task": "translation"})(), run.model, run.vocabulary)
        with pytest.raises(
            ArgumentError, match="takes a run of the task language_modelling; got a run of the task translation"
        ):
            web.export_run(other, tmp_path / "x")

    @pytest.mark.parametrize(
        ("change", "got"),
        [
            ({"normalizer": {"type": "NFC"}}, "a normalizer"),
            ({"pre_tokenizer": {"type": "Whitespace"}}, "no byte-level pre-tokenizer"),
            ({"decoder": None}, "a decoder that is not byte-level"),
        ],
    )
    def test_of_subwords(self, levels, change, got):
        splitter = load_run(levels / "subword").vocabulary.splitter
        web._check_subwords(splitter)
        splitter.settings = json.dumps(json.loads(splitter.settings) | change)
        with pytest.raises(ArgumentError, match=f"got a tokenizer with {got}"):
            web._check_subwords(splitter)

    @pytest.mark.parametrize(
        ("unknown", "fused", "fits"), [(None, False, False), ("<unk>", True, False), ("<unk>", False, True)]
    )
    def test_of_subwords_without_some_bytes(self, unknown, fused, fits):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=fused))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=["<unk>", "<eos>"], show_progress=False)
        tokenizer.train_from_iterator(["the cat sleeps"], trainer)
        splitter = Subwords(tokenizer, "t.json", [unknown] if unknown else ())
        if fits:
            web._check_subwords(splitter)
        else:
            with pytest.raises(ArgumentError, match="got a tokenizer with bytes that are no tokens"):
                web._check_subwords(splitter)


def test_the_package_is_kept_and_checked_again(tmp_path, monkeypatch):
    import base64
    import hashlib
    import io
    import tarfile

    files = {name: f"file {name}".encode() for name in runtime.FILES}
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    sha512 = lambda data: base64.b64encode(hashlib.sha512(data).digest()).decode()  # noqa: E731
    (tmp_path / "a.tgz").write_bytes(package.getvalue())
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    monkeypatch.setattr(runtime, "URL", (tmp_path / "a.tgz").as_uri())
    monkeypatch.setattr(runtime, "TARBALL", sha512(package.getvalue()))
    monkeypatch.setattr(runtime, "FILES", {name: sha512(data) for name, data in files.items()})
    assert runtime.runtime_files() == files
    (tmp_path / "a.tgz").unlink()
    assert runtime.runtime_files() == runtime.runtime_files(fetch=False) == files
    place = tmp_path / "cache" / "gatedrnn" / "onnxruntime-web-1.30.0"
    assert runtime.runtime_files(place) == files
    (place / next(iter(files))).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"got another file\. Delete"):
        runtime.runtime_files(fetch=False)
