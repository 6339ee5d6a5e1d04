"""The page as a browser runs it, under node with just enough of a browser: what is read again, what is written, what is empty."""

import json
import shutil
import subprocess

import pytest
from pages import copy_page

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the page's JavaScript")

WORDS = ["<unk>", "<eos>", "the", "cat", "sleeps", "a"]
ABOUT = {
    "name": "run", "cell": "lstm", "layers": [4], "parameters": 1, "tokens": len(WORDS), "level": "word", "hint": "",
    "mapping": "number", "perplexity": None, "masters": False, "default_layer": 1, "gate": "master_forget",
    "states": [["h_1", 4]], "outputs": ["h_1"], "version": "0", "examples": [], "weights": "float32", "graph_bytes": 9,
    "download_bytes": 9,
}  # fmt: skip
RUNTIME = """// A recurrence of one number instead of a graph.
const [UNITS, TOKENS] = [4, 6];
export const env = { wasm: {} };
export const [calls, settings] = [[], { delay: 0 }];
export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims });
  }
}
export async function run(feeds) {
  const ids = Array.from(feeds.tokens.data, Number);
  calls.push(ids);
  await new Promise((go) => setTimeout(go, settings.delay));
  let state = feeds.h_1.data[0];
  const logits = new Float32Array(ids.length * TOKENS);
  ids.forEach((id, row) => {
    state = (3 * state + id + 1) % 7;
    for (let k = 0; k < TOKENS; k++) logits[row * TOKENS + k] = ((state + 1) * (k + 2)) % 5;
  });
  const after = new Float32Array(UNITS).fill(state);
  const dims = [ids.length, 1, TOKENS];
  return { logits: new Tensor("float32", logits, dims), h_1_out: new Tensor("float32", after, [1, UNITS]) };
}
export const InferenceSession = { create: async () => ({ run }) };
"""
BROWSER = """import { readFileSync } from "node:fs";
import * as ort from "./runtime/ort.wasm.bundle.min.js";

class Element {
  constructor() {
    Object.assign(this, { value: "", checked: false, hidden: false, textContent: "", style: {}, dataset: {}, on: {} });
    Object.assign(this, { children: [], drawn: 0, scrollHeight: 10, parentElement: { clientWidth: 800 } });
    this.classList = { toggle: (name, on) => (this.className = on ? name : "") };
  }
  append(...more) {
    this.children.push(...more);
  }
  replaceChildren(...more) {
    this.children = more;
    this.drawn++;
    this.value = more.find(({ selected }) => selected)?.value ?? this.value;
  }
  setAttribute() {}
  addEventListener(name, called) {
    this.on[name] = called;
  }
  getContext() {
    return { measureText: () => ({ width: 30 }), putImageData() {}, drawImage() {} };
  }
}
const given = JSON.parse(readFileSync(0, "utf8"));
const [elements, on] = [{}, {}];
const $ = (id) => (elements[id] ??= new Element());
const made = () => new Element();
const texts = { "page.json": JSON.stringify(given.about), "vocabulary.json": JSON.stringify(given.vocabulary) };
Object.assign(globalThis, {
  window: globalThis,
  document: {
    body: made(), getElementById: $, createElement: made, createElementNS: made, querySelectorAll: () => [],
  },
  location: { protocol: "http:", hash: `#${new URLSearchParams({ sentence: given.sentence })}` },
  history: { replaceState() {} },
  addEventListener: (name, called) => (on[name] = called),
  matchMedia: () => made(),
  getComputedStyle: () => ({ fontFamily: "x", getPropertyValue: () => "0 0 0" }),
  fetch: async (path) => new Response(texts[path] ?? "bytes"),
  Option: class {
    constructor(text, value, _, selected) {
      Object.assign(this, { text, value, selected });
    }
  },
  ImageData: class {
    constructor(width, height) {
      this.data = new Uint8ClampedArray(4 * width * height);
    }
  },
});
async function until(holds) {
  for (let k = 0; k < 4000 && !holds(); k++) await new Promise((go) => setTimeout(go, 5));
  if (!holds()) throw new Error(`never: ${holds} ${$("problem").textContent}`);
}
function write(many) {
  Object.assign($("many"), { value: String(many) });
  $("temperature").value = "0";
  $("seed").value = "1";
  ort.calls.length = 0;
  $("write").on.submit({ preventDefault() {} });
}
const written = async () => {
  await until(() => !$("go").dataset.busy);
  return Number(document.body.dataset.written);
};
await import("./page.js");
await until(() => document.body.dataset.state === "read");
console.log(JSON.stringify(await (async () => {%s})()));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """`page(script, sentence, tokenize, **about)`: what a script returns of the page of a run, opened at a sentence."""
    folder = copy_page(tmp_path_factory.mktemp("page"))
    (folder / "runtime").mkdir()
    (folder / "runtime" / "ort.wasm.bundle.min.js").write_text(RUNTIME)

    def run(script, sentence="the cat sleeps", tokenize="none", **about):
        (folder / "browser.js").write_text(BROWSER % script)
        vocabulary = {"level": "word", "tokenize": tokenize, "words": WORDS}
        given = json.dumps({"about": ABOUT | about, "vocabulary": vocabulary, "sentence": sentence})
        ran = subprocess.run(["node", folder / "browser.js"], input=given, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def test_a_resized_window_is_drawn_again_and_the_text_goes_on(page):
    many, drawn, read = page(
        """
  ort.settings.delay = 5;
  const before = $("bands").drawn;
  write(100);
  on.resize();
  const many = await written();
  return [many, $("bands").drawn - before, ort.calls.filter((ids) => ids.length > 1).length];"""
    )
    assert (many, drawn) == (100, 1)
    assert read == 1  # the prompt; the sentence is not read again


@pytest.mark.parametrize("id", ["layer", "columns"])
def test_another_layer_or_other_columns_are_drawn_at_once(page, id):
    found = page(f"const before = $('bands').drawn; $('{id}').on.change(); return $('bands').drawn - before;")
    assert found == 1


def test_another_sentence_ends_the_text(page):
    many = page(
        """
  ort.settings.delay = 5;
  write(200);
  $("sentence").value = "cat";
  $("sentence").on.input();
  const many = await written();
  await until(() => $("numbers").children.length === 2); // cat, and the end
  return many;"""
    )
    assert 0 < many < 200


@pytest.mark.parametrize(("mapping", "ids"), [("exact", [1, 0, 3]), ("number", [1, 2, 3])])
def test_a_text_goes_on_from_words_as_the_run_looks_them_up(page, mapping, ids):
    assert page("write(2); await written(); return ort.calls[0];", "The cat", mapping=mapping) == ids


def test_a_sentence_of_invisible_characters_is_empty(page):
    script = "return [$('problem').hidden, $('reading').className, ort.calls.length];"
    assert page(script, "\u200b \u2060", "characters") == [True, "empty", 0]
    assert page(script, "a", "characters")[:2] == [True, ""]


def test_each_sentence_in_a_line_is_read_from_the_start(page):
    whole, parts = page(
        """
  const { Model } = await import("./model.js");
  const model = new Model(ort, { run: ort.run }, given.about);
  return [await model.surprisals([2, 3, 1, 1, 4]), [
    ...(await model.surprisals([2, 3])), ...(await model.surprisals([])), ...(await model.surprisals([4])),
  ]];"""
    )
    assert whole == parts and len(whole) == 6
