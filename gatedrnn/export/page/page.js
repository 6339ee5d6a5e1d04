// The page: what is typed is read, drawn and gone on from.

import { isBlank } from "./letters.js";
import { loadModel, readAbout, readVocabulary } from "./model.js";
import { showReading } from "./reading.js";
import { align, vocabularyOf } from "./text.js";
import { startWriting, stopWriting } from "./writing.js";

const LONGEST = { columns: 200, tokens: 2000 };
const PATIENCE = 200; // milliseconds after the last key
const $ = (id) => document.getElementById(id);

const page = { about: null, vocabulary: null, model: null, asked: 0, line: null, reading: null, timer: 0, drawing: 0 };

async function open() {
  page.about = await readAbout();
  showAbout(page.about);
  page.vocabulary = vocabularyOf(...(await readVocabulary(page.about)));
  page.model = await loadModel(page.about, (share) => ($("progress").value = share));
  $("loading").hidden = true;
  for (const id of ["sentence-part", "reading", "going-on"]) $(id).hidden = false;
  setUp();
  const asked = new URLSearchParams(location.hash.slice(1)).get("sentence");
  $("sentence").value = asked ?? page.about.examples[0] ?? "";
  await read();
}

function fail(error) {
  console.error(error);
  $("problem").textContent = `This page cannot start. ${error.message}`;
  $("problem").hidden = false;
  $("loading").hidden = true;
}

const plural = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;

function showAbout(about) {
  document.title = `${about.name} – ${about.cell} language model`;
  $("name").textContent = about.name;
  const kind = { word: "word", char: "character", subword: "subword" }[about.level];
  const parts = [
    `${about.cell} language model`,
    `${plural(about.layers.length, "layer")} of ${[...new Set(about.layers)].join(", ")} units`,
    `${about.parameters.toLocaleString("en")} parameters`,
    `vocabulary of ${plural(about.tokens, kind)}`,
    about.perplexity && `perplexity ${about.perplexity.toFixed(2)} per ${kind} (${about.perplexity_of})`,
  ];
  $("about").textContent = parts.filter(Boolean).join(" · ");
  const megabytes = (about.graph_bytes / 1e6).toLocaleString("en", { maximumSignificantDigits: 2 });
  $("made").textContent = `Weights in ${about.weights}, ${megabytes} MB. Made with gatedrnn ${about.version}.`;
  $("loading-text").textContent = `Loading the model, ${(about.download_bytes / 1e6).toFixed(0)} MB with its runtime …`;
}

function setUp() {
  const { about } = page;
  $("hint").textContent = about.hint;
  for (const example of about.examples) $("examples").append(exampleButton(example));
  const layers = about.layers.map((_, k) => [String(k + 1), String(k + 1)]);
  if (about.masters && layers.length > 1) layers.push(["mean", "mean of all layers"]);
  fill($("layer"), layers, String(about.default_layer));
  $("layer-part").hidden = layers.length < 2;
  if (about.level !== "word") {
    fill($("columns"), [["words", "words"], ["tokens", about.level === "char" ? "characters" : "subwords"]], "words");
    $("columns-part").hidden = false;
  }
  $("many-label").textContent = { word: "Words", char: "Characters", subword: "Subwords" }[about.level];
  $("sentence").addEventListener("input", soon);
  $("sentence").addEventListener("keydown", enter);
  $("mapped").addEventListener("change", read);
  for (const id of ["layer", "columns"]) $(id).addEventListener("change", draw);
  addEventListener("resize", resized);
  addEventListener("hashchange", fromAddress);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  $("copy").addEventListener("click", copy);
  startWriting(page, () => align(page.vocabulary, line(), page.about.mapping), (error) => say(error));
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

function exampleButton(text) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: text });
  button.addEventListener("click", () => {
    $("sentence").value = text;
    read();
  });
  return button;
}

const line = () => $("sentence").value.replace(/[\r\n]+/g, " ");

function soon() {
  clearTimeout(page.timer);
  page.timer = setTimeout(read, PATIENCE);
}

function resized() {
  clearTimeout(page.drawing);
  page.drawing = setTimeout(() => {
    grow($("sentence"));
    draw();
  }, PATIENCE);
}

function enter(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  read();
}

function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1)).get("sentence");
  if (asked === null || asked === line()) return;
  $("sentence").value = asked;
  read();
}

/** Read the sentence; what was asked for last is shown. What is being written stops where the sentence is another one. */
async function read() {
  clearTimeout(page.timer);
  if (line() !== page.line) stopWriting();
  page.line = line();
  grow($("sentence"));
  const asked = ++page.asked;
  document.body.dataset.state = "reading";
  try {
    const reading = isBlank(line()) ? null : await readLine(line());
    if (asked !== page.asked) return;
    page.reading = reading;
    $("reading").classList.toggle("empty", !reading);
    $("problem").hidden = true;
    draw();
    history.replaceState(null, "", `#${new URLSearchParams({ sentence: line() })}`); // a link to what is shown
  } catch (error) {
    if (asked === page.asked) {
      page.reading = null;
      tell(error);
    }
  }
  if (asked === page.asked) document.body.dataset.state = "read";
}

/** Show the last reading: of the layer, and by the columns, that are asked for. */
function draw() {
  const tokensShown = $("columns").value === "tokens";
  if (page.reading) say(showReading(page.about, { ...page.reading, tokensShown }, $("layer").value));
}

/** What the model makes of a line: { words, ids, ..., bits, layers }; null of one without a token, as of invisible characters. */
async function readLine(text) {
  const { about, model, vocabulary } = page;
  const mapping = $("mapped").checked ? "number" : "exact";
  const written = align(vocabulary, text, mapping);
  if (!written.ids.length) return null;
  const mapped = about.level === "word" ? align(vocabulary, text, about.mapping) : written;
  const exact = align(vocabulary, text, "exact");
  const widest = align(vocabulary, text, "number");
  if (written.words.length > LONGEST.columns || written.ids.length > LONGEST.tokens) {
    const most = `this page reads at most ${LONGEST.columns} words and ${LONGEST.tokens} tokens`;
    throw new Error(`The text is too long: ${most}. “gatedrnn parse” and “gatedrnn surprisal” read text of any length.`);
  }
  $("mapping-part").hidden = exact.ids.every((id, k) => id === widest.ids[k]);
  const bits = await model.surprisals(written.ids);
  const layers = about.masters ? await model.gates(mapped.ids) : await model.outputs(mapped.ids);
  return { ...written, read: mapped.tokens, bits, layers };
}

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("brackets").textContent);
    say("Copied.");
  } catch {
    getSelection().selectAllChildren($("brackets"));
    say("Selected: copy it with the keyboard.");
  }
}

function say(text) {
  $("status").textContent = text;
}

function tell(error) {
  console.error(error);
  $("problem").textContent = error.message;
  $("problem").hidden = false;
}

if (location.protocol !== "file:") open().catch(fail);
