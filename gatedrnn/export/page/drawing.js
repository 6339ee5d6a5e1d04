// Pictures of a reading. All share the columns of its words: [{ text, from, width }], in pixels.

import { nodesOf } from "./tree.js";

const SVG = "http://www.w3.org/2000/svg";
const TREE = { step: 26, most: 320, top: 8, word: 34 };
const HEAT = 132;
const WIDEST = 16_000; // pixels of a canvas that every browser has
const BARS = { height: 104, top: 22, word: 34 };
const CUTS = { height: 40 };

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function picture(width, height, told) {
  const options = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told };
  return element("svg", options);
}

function label(text, x, y, kind) {
  return element("text", { x, y, class: kind, "text-anchor": "middle" }, text);
}

/** Columns wide enough for their words, stretched to fill `room` pixels, but not to more than twice their width. */
export function columnsOf(words, room, font) {
  const brush = document.createElement("canvas").getContext("2d");
  brush.font = font;
  const natural = words.map((word) => Math.max(50, Math.ceil(brush.measureText(word).width) + 20));
  const total = natural.reduce((sum, width) => sum + width, 0);
  const stretch = Math.min(2, Math.max(1, room / total));
  let from = 0;
  return words.map((text, k) => {
    const width = Math.floor(natural[k] * stretch);
    from += width;
    return { text, from: from - width, width };
  });
}

const middle = ({ from, width }) => from + width / 2;
const widthOf = (columns) => columns.at(-1).from + columns.at(-1).width;

/** The tree of spans, its words below. */
export function drawTree(columns, spans, told, end) {
  const root = nodesOf(spans, columns.length);
  const step = Math.min(TREE.step, TREE.most / Math.max(1, root.level));
  const foot = TREE.top + step * root.level + 12;
  const svg = picture(end, foot + TREE.word, told);
  const y = (node) => (node.level ? foot - 12 - step * node.level : foot);
  const places = placesOf(root, columns);
  for (const [node, x] of places) {
    for (const child of node.children) {
      const branch = element("path", { class: "branch", d: elbow(x, y(node), places.get(child), y(child)) });
      svg.append(branch);
    }
  }
  for (const [node, x] of places) {
    if (!node.children.length) continue;
    const words = columns.slice(node.i, node.j).map(({ text }) => text);
    const tip = element("title", {}, words.join(" "));
    svg.append(element("circle", { class: "node", cx: x, cy: y(node), r: 3.5 }, tip));
  }
  columns.forEach((column) => svg.append(label(column.text, middle(column), foot + 20, word(column))));
  return svg;
}

const word = ({ unknown }) => (unknown ? "word unknown" : "word");

/** Down from a node to its child, with a rounded corner. */
function elbow(x, top, childX, childTop) {
  const away = childX - x;
  const radius = Math.min(7, Math.abs(away), childTop - top);
  const turn = Math.sign(away) * radius;
  return `M${x} ${top}H${childX - turn}Q${childX} ${top} ${childX} ${top + radius}V${childTop}`;
}

/** Where each node stands: a word in its column, a constituent between its first and its last part. A Map in order from the top. */
function placesOf(root, columns) {
  const order = [root];
  for (let k = 0; k < order.length; k++) order.push(...order[k].children);
  const found = new Map();
  for (const node of [...order].reverse()) {
    const { children } = node;
    const x = children.length ? (found.get(children[0]) + found.get(children.at(-1))) / 2 : middle(columns[node.i]);
    found.set(node, x);
  }
  return new Map(order.map((node) => [node, found.get(node)]));
}

/** Distances as bars at the boundaries before the words; the first word's cuts nothing. */
export function drawDistances(columns, distances, told, end) {
  const svg = picture(end, CUTS.height, told);
  const values = distances.slice(1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  values.forEach((value, k) => {
    const height = 4 + (high > low ? (value - low) / (high - low) : 1) * (CUTS.height - 8);
    const tip = element("title", {}, `before “${columns[k + 1].text}”: ${value.toFixed(4)}`);
    const box = { class: "cut", x: columns[k + 1].from - 2.5, y: CUTS.height - height, width: 5, height, rx: 1.5 };
    svg.append(element("rect", box, tip));
  });
  return svg;
}

/** Bits of each word, and those of the end of the sentence. */
export function drawSurprisal(columns, bits, told, end) {
  const svg = picture(end, BARS.top + BARS.height + BARS.word, told);
  const most = Math.max(1, ...bits);
  const foot = BARS.top + BARS.height;
  columns.forEach((column, k) => {
    const height = Math.max(1, (bits[k] / most) * BARS.height);
    const width = Math.min(44, column.width - 12);
    const x = middle(column);
    const kind = column.unknown ? "bar unknown" : "bar";
    svg.append(element("rect", { class: kind, x: x - width / 2, y: foot - height, width, height, rx: 2 }));
    svg.append(label(bits[k].toFixed(2), x, foot - height - 6, "value"));
    svg.append(label(column.text, x, foot + 20, column.ends ? "word ends" : word(column)));
  });
  svg.append(element("line", { class: "ground", x1: 0, x2: end, y1: foot, y2: foot }));
  return svg;
}

/**
 * A heat map: a column a word, low units at the bottom.
 * values: rows of `size`; from, over, under: colours of 0, 1 and −1 as [r, g, b].
 */
export function drawHeat(columns, values, size, { from, over, under }, told) {
  const canvas = document.createElement("canvas");
  const [width, height] = [widthOf(columns), HEAT];
  const scale = Math.min(window.devicePixelRatio || 1, WIDEST / width);
  Object.assign(canvas, { width: width * scale, height: height * scale });
  canvas.style.cssText = `width:${width}px;height:${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", told);
  const brush = canvas.getContext("2d");
  const strip = document.createElement("canvas");
  Object.assign(strip, { width: 1, height: size });
  brush.imageSmoothingEnabled = false;
  columns.forEach((column, k) => {
    strip.getContext("2d").putImageData(stripOf(values, k * size, size, from, over, under), 0, 0);
    brush.drawImage(strip, column.from * scale, 0, (column.width - 1) * scale, canvas.height);
  });
  return canvas;
}

function stripOf(values, at, size, from, over, under) {
  const image = new ImageData(1, size);
  for (let unit = 0; unit < size; unit++) {
    const value = Math.max(-1, Math.min(1, values[at + unit]));
    const to = value < 0 ? under : over;
    const share = Math.abs(value);
    const place = 4 * (size - 1 - unit);
    for (let c = 0; c < 3; c++) image.data[place + c] = Math.round(from[c] + (to[c] - from[c]) * share);
    image.data[place + 3] = 255;
  }
  return image;
}

/** Which column and unit of a heat map lies under a pointer: [k, unit], or null. */
export function underPointer(event, columns, size) {
  const box = event.target.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const k = columns.findIndex(({ from, width }) => x >= from && x < from + width);
  const unit = Math.floor((1 - y / box.height) * size);
  return k < 0 || unit < 0 || unit >= size ? null : [k, unit];
}
