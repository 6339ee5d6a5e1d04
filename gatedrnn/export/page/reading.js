// A reading on the page: pictures, totals and the table of numbers.

import { columnsOf, drawDistances, drawHeat, drawSurprisal, drawTree, underPointer } from "./drawing.js";
import { UNK } from "./text.js";
import { brackets, spansOf } from "./tree.js";

const $ = (id) => document.getElementById(id);
const END = "<eos>";

/** A text that does not change the direction of what stands around it, whatever its script. */
const isolated = (text) => `\u2068${text}\u2069`;

/** Show it; returns one sentence that says what is shown. layer: "1", "2", … or "mean". */
export function showReading(about, reading, layer) {
  const columns = about.level === "word" || !reading.tokensShown ? ofWords(reading) : ofTokens(reading);
  const shown = { about, layer, ...columns, distances: distancesOf(about, reading, layer, columns) };
  const tree = about.masters && about.level === "word" ? spansOf(shown.distances) : null;
  shown.brackets = tree ? brackets(tree, columns.words) : "";
  showWhyNoTree(about);
  $("pointed").textContent = "";
  $("bands").replaceChildren(...bandsOf(shown, reading, tree));
  showTotals(columns);
  showNumbers(shown);
  showUnknown(about, columns);
  return `Read ${columns.words.length} ${columns.words.length === 1 ? "column" : "columns"}.`;
}

/** A column a word: bits of its tokens are summed, gates and distance are its first token's. */
function ofWords({ words, ids, tokens, owners, bits, read }) {
  const texts = words.length ? words : [" "];
  const first = texts.map(() => -1);
  const sums = texts.map(() => 0);
  const unknown = texts.map(() => false);
  const as = texts.map(() => []);
  owners.forEach((owner, k) => {
    if (first[owner] < 0) first[owner] = k;
    sums[owner] += bits[k];
    unknown[owner] ||= ids[k] === UNK;
    as[owner].push(read[k] === tokens[k] ? read[k] : `${read[k]}, surprisal as ${tokens[k]}`);
  });
  const heard = texts.map((_, k) => k).filter((k) => first[k] >= 0);
  const of = (list) => heard.map((k) => list[k]);
  return { words: of(texts), rows: of(first), bits: [...of(sums), bits.at(-1)], unknown: of(unknown), as: of(as) };
}

/** A column a token; a blank is shown as a mark. */
function ofTokens({ ids, tokens, bits }) {
  const words = tokens.map((token) => token.replace(/[ Ġ]/g, "␣").replace(/\t/g, "⇥"));
  return { words, rows: ids.map((_, k) => k), bits, unknown: ids.map((id) => id === UNK), as: tokens.map((t) => [t]) };
}

function distancesOf(about, { layers }, layer, { rows }) {
  return about.masters ? rows.map((row) => layers[layer].distances[row]) : null;
}

function showWhyNoTree({ masters, level, cell }) {
  const note = $("no-tree");
  note.hidden = masters && level === "word";
  const of = { char: "characters", subword: "subwords" }[level];
  note.textContent = masters
    ? `No tree: trees are made from the distances of words, but this model reads ${of}. Distances and master gates are shown below.`
    : `No tree: trees are read from master gates, and the cell ${cell} has none (onlstm has them). ` +
      "Surprisal and the output of each layer after each word are shown below.";
}

function bandsOf(shown, reading, tree) {
  const { about, words, rows, bits, distances } = shown;
  const style = getComputedStyle($("bands"));
  const font = `15px ${style.fontFamily}`;
  const room = $("bands").parentElement.clientWidth - 4;
  const all = columnsOf([...words, END], room, font);
  const columns = all.slice(0, -1).map((column, k) => ({ ...column, unknown: shown.unknown[k] }));
  const end = all.at(-1).from + all.at(-1).width;
  const found = [];
  const add = (title, told, picture) => found.push(band(title, told, picture, end));
  if (tree) add("Tree", layerTold(about, shown.layer), drawTree(columns, tree, shown.brackets, end));
  if (distances && distances.length > 1) {
    const told = `high where large constituents end before the word${tree ? "; the tree splits at the highest bar first" : ""}`;
    add("Distance", told, drawDistances(columns, distances, `Distances ${distances.map((d) => d.toFixed(3))}`, end));
  }
  const heard = words.map((word, k) => `${word} ${bits[k].toFixed(2)}`).join(", ");
  const ended = [...columns, { ...all.at(-1), ends: true }];
  add("Surprisal", "in bits: −log₂ of the probability of the word given all words before it", drawSurprisal(ended, bits, `Bits: ${heard}`, end));
  for (const heat of heatsOf(about, reading, shown.layer)) {
    const values = picked(heat, rows);
    const told = `${heat.title} of ${words.length} words`;
    const canvas = drawHeat(columns, values, heat.size, coloursOf(style), told);
    canvas.addEventListener("pointermove", (event) => point(event, columns, values, heat));
    canvas.addEventListener("pointerleave", () => ($("pointed").textContent = ""));
    add(heat.title, heat.told, canvas);
  }
  return found;
}

const GATES = { master_forget: "master forget gate", master_input: "master input gate", both: "master gates" };

const layerTold = ({ gate }, layer) =>
  layer === "mean" ? `from the mean distance of all layers by their ${GATES[gate]}` : `from layer ${layer}’s ${GATES[gate]}`;

function band(title, told, picture, width) {
  const [box, head, small] = ["section", "h3", "small"].map((name) => document.createElement(name));
  box.style.width = `${width}px`;
  head.textContent = title;
  small.textContent = told;
  head.append(" ", small);
  box.append(head, picture);
  return box;
}

/** The heat maps of the layer, or of every layer where the mean of all is asked for. */
function heatsOf(about, { layers }, layer) {
  const chosen = layer === "mean" ? about.layers.map((_, k) => String(k + 1)) : [layer];
  return chosen.flatMap((k) => {
    const { size } = layers[k];
    const low = `layer ${k}, ${size} units, low units at the bottom`;
    if (!about.masters) {
      const told = `${low}; teal above 0, orange below`;
      return [{ title: "Output of each unit", told, size, values: layers[k].values, k }];
    }
    return [
      { title: "Master forget gate", told: `${low}; full colour (1) keeps the old state`, size, values: layers[k].forget, k },
      { title: "Master input gate", told: `${low}; full colour (1) writes the new word`, size, values: layers[k].input, k },
    ];
  });
}

/** Rows of a heat map for the columns. */
function picked({ values, size }, rows) {
  const found = new Float32Array(rows.length * size);
  rows.forEach((row, k) => found.set(values.subarray(row * size, (row + 1) * size), k * size));
  return found;
}

function point(event, columns, values, { title, size }) {
  const place = underPointer(event, columns, size);
  if (!place) return;
  const [k, unit] = place;
  const value = values[k * size + unit].toFixed(3);
  $("pointed").textContent = `${title}: ${isolated(`“${columns[k].text}”`)}, unit ${unit + 1} of ${size}: ${value}`;
}

function coloursOf(style) {
  const colour = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { from: colour("--heat-none"), over: colour("--heat-full"), under: colour("--heat-below") };
}

function showTotals({ bits, words }) {
  const total = bits.reduce((sum, value) => sum + value, 0);
  const mean = total / bits.length;
  const parts = [["bits in total", total.toFixed(2)], ["mean bits, end included", mean.toFixed(2)]];
  const [word] = words.map((text, k) => [bits[k], text]).sort((a, b) => b[0] - a[0]);
  if (word) parts.push(["most surprising", `${isolated(word[1])} (${word[0].toFixed(2)})`]);
  $("totals").replaceChildren(
    ...parts.map(([name, value]) => {
      const [box, strong] = ["span", "b"].map((kind) => document.createElement(kind));
      strong.textContent = value;
      box.append(strong, ` ${name}`);
      return box;
    }),
  );
}

function showNumbers({ about, words, bits, as, distances, brackets }) {
  $("brackets").textContent = brackets;
  $("brackets-part").hidden = !brackets;
  for (const cell of document.querySelectorAll("th.far")) cell.hidden = !about.masters;
  const rows = [...words, END].map((word, k) => {
    const cells = [word, k < words.length ? as[k].join(" ") : END, bits[k].toFixed(6)];
    if (about.masters) cells.push(k < words.length ? distances[k].toFixed(6) : "");
    const row = document.createElement("tr");
    row.append(
      ...cells.map((text, place) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (place > 1) cell.className = "number";
        return cell;
      }),
    );
    return row;
  });
  $("numbers").replaceChildren(...rows);
}

function showUnknown({ level }, { words, unknown }) {
  const found = words.filter((_, k) => unknown[k]);
  $("unknown").hidden = !found.length;
  const what = level === "word" ? "Not in the vocabulary, read as <unk> (dashed)" : "With tokens that are read as <unk> (dashed)";
  $("unknown").textContent = `${what}: ${found.map((word) => isolated(`“${word}”`)).join(", ")}`;
}
