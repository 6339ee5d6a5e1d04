// Surprisal, distances and sampling, in float64.

/** −log2 softmax(logits)[target], in bits, of the row of `size` logits at `row`. */
export function bitsOf(logits, row, size, target) {
  const from = row * size;
  let most = -Infinity;
  for (let k = 0; k < size; k++) most = Math.max(most, logits[from + k]);
  let sum = 0;
  for (let k = 0; k < size; k++) sum += Math.exp(logits[from + k] - most);
  return (Math.log(sum) - (logits[from + target] - most)) / Math.LN2;
}

/** The mean of a row of `size` values at `row`. */
function rowMean(values, row, size) {
  let sum = 0;
  for (let k = 0; k < size; k++) sum += values[row * size + k];
  return sum / size;
}

/** A distance by rows of `size` values at `row`: 1 − the mean of the forget gate, that of the input gate, or the mean of both. */
export function distanceOf({ forget, input }, gate, row, size) {
  const [erased, written] = [() => 1 - rowMean(forget, row, size), () => rowMean(input, row, size)];
  if (gate === "both") return (erased() + written()) / 2;
  return gate === "master_input" ? written() : erased();
}

/** Means of lists of the same length, place by place. */
export const meanOf = (lists) => lists[0].map((_, k) => lists.reduce((sum, list) => sum + list[k], 0) / lists.length);

/**
 * A token drawn from softmax(logits / temperature); the most probable one at temperature 0.
 * `draw` gives numbers in [0, 1); `banned` is never drawn.
 */
export function sample(logits, temperature, draw, banned = -1) {
  let best = -1;
  for (let k = 0; k < logits.length; k++) if (k !== banned && !(logits[k] <= logits[best])) best = k;
  if (!(temperature > 0)) return best;
  const weights = Float64Array.from(logits, (x, k) => (k === banned ? 0 : Math.exp((x - logits[best]) / temperature)));
  let left = draw() * weights.reduce((sum, weight) => sum + weight, 0);
  for (let k = 0; k < weights.length; k++) {
    left -= weights[k];
    if (left < 0) return k;
  }
  return best; // rounding
}

/** Uniform numbers in [0, 1) of a seed: mulberry32. */
export function numbersOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
