// "Continue the text": tokens sampled one after the other, shown as they come.

import { numbersOf, sample } from "./numbers.js";
import { UNK, textOf } from "./text.js";

const $ = (id) => document.getElementById(id);
let turn = 0;

/** Make the form work. prompt(): what to go on from, as `align` gives it. */
export function startWriting(page, prompt, failed) {
  $("temperature").addEventListener("input", showTemperature);
  showTemperature();
  $("write").addEventListener("submit", async (event) => {
    event.preventDefault();
    if ($("go").dataset.busy) return stopWriting();
    try {
      await write(page, prompt());
    } catch (error) {
      console.error(error);
      failed(error.message);
      $("text").textContent = error.message;
    }
    setBusy(false);
  });
}

/** End what is being written. */
export function stopWriting() {
  turn++;
}

function showTemperature() {
  const value = Number($("temperature").value);
  $("temperature-value").textContent = value ? value.toFixed(2) : "0, greedy";
}

function setBusy(busy) {
  $("go").textContent = busy ? "Stop" : "Continue";
  if (busy) $("go").dataset.busy = "yes";
  else delete $("go").dataset.busy;
}

async function write({ model, vocabulary }, prompt) {
  const mine = ++turn;
  setBusy(true);
  const [temperature, many] = [Number($("temperature").value), Number($("many").value)];
  const draw = numbersOf(Number($("seed").value));
  const banned = $("no-unk").checked ? UNK : -1;
  const ids = [];
  const isLast = () => ids.length >= many || mine !== turn;
  let found = await model.begin(prompt.ids);
  while (!isLast()) {
    ids.push(sample(model.lastRow(found), temperature, draw, banned));
    show(vocabulary, prompt.written, ids);
    if (ids.length % 4 === 0) await new Promise((go) => setTimeout(go));
    if (!isLast()) found = await model.next(ids.at(-1), found.states);
  }
  if (mine === turn) $("written").textContent = $("text").textContent;
  document.body.dataset.written = String(ids.length);
}

/** The prompt, soft, and what follows it, a new line at each end of a sentence. */
function show(vocabulary, written, ids) {
  const before = textOf(vocabulary, written);
  const whole = textOf(vocabulary, [...written, ...ids.map((id) => vocabulary.words[id])]);
  const soft = document.createElement("span");
  soft.className = "soft";
  const same = whole.startsWith(before) ? before : "";
  soft.textContent = same;
  $("text").replaceChildren(soft, whole.slice(same.length));
}

