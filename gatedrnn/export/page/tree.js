// Trees off distances, as gatedrnn.trees builds them. A span [i, j) holds words i … j − 1.

import { SPACE } from "./letters.js";

/**
 * Spans of width 2 or more of the tree that distances give: split before the largest distance among words 2 … n, and so on.
 * Ties go to the first. Distances high where a large constituent closed before the word.
 */
export function spansOf(distances) {
  const values = distances.slice(1);
  const start = values.map(() => 0);
  const end = values.map(() => values.length);
  const open = [];
  values.forEach((value, k) => {
    while (open.length && values[open.at(-1)] < value) end[open.pop()] = k;
    start[k] = open.length ? open.at(-1) + 1 : 0;
    open.push(k);
  });
  return values.map((_, k) => [start[k], end[k] + 1]);
}

/** A tree as (X (X the cat) sleeps), which bracket readers take. */
export function brackets(spans, words) {
  const opened = words.map(() => 0);
  const closed = words.map(() => 0);
  for (const [i, j] of withWhole(spans, words.length)) {
    opened[i]++;
    closed[j - 1]++;
  }
  return words.map((word, k) => "(X ".repeat(opened[k]) + escaped(word) + ")".repeat(closed[k])).join(" ");
}

const SPACES = new RegExp(`[${SPACE}]+`, "gu");

function withWhole(spans, n) {
  return spans.some(([i, j]) => i === 0 && j === n) ? spans : [...spans, [0, n]];
}

function escaped(word) {
  const safe = word.replace(SPACES, "_").replaceAll("(", "-LRB-").replaceAll(")", "-RRB-") || "_";
  return safe.endsWith("\\") ? `${safe}_` : safe;
}

/** Nested nodes { i, j, level, children }; a word is a node of level 0 without children. */
export function nodesOf(spans, n) {
  const ordered = withWhole(spans, n).sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  const root = { i: 0, j: n, level: 0, children: [] };
  const path = [root];
  let next = 1;
  const add = (node) => path.at(-1).children.push(node);
  for (let k = 0; k < n; k++) {
    while (path.at(-1).j <= k) path.pop();
    for (; next < ordered.length && ordered[next][0] === k; next++) {
      const node = { i: k, j: ordered[next][1], level: 0, children: [] };
      add(node);
      path.push(node);
    }
    if (n > 1) add({ i: k, j: k + 1, level: 0, children: [] });
  }
  setLevels(root);
  return root;
}

/** Height of each node: one more than the highest below it. A loop, since trees of long sentences are deep. */
function setLevels(root) {
  const order = [root];
  for (let k = 0; k < order.length; k++) order.push(...order[k].children);
  for (const node of order.reverse()) {
    node.level = node.children.reduce((most, child) => Math.max(most, child.level + 1), 0);
  }
}
