// The run's graph in onnxruntime-web: token ids in, what the page shows of them out.

import { EOS } from "./text.js";
import { bitsOf, distanceOf, meanOf } from "./numbers.js";

const RUNTIME = "./runtime/ort.wasm.bundle.min.js";
const BINARY = "./runtime/ort-wasm-simd-threaded.wasm";
const FILES = { about: "page.json", graph: "model.onnx", vocabulary: "vocabulary.json" };

/** Bytes of a file beside the page, with `onBytes(count)` called as they come. */
async function fetched(path, onBytes = () => {}) {
  let answer;
  try {
    answer = await fetch(path);
  } catch (error) {
    throw new Error(`${path} cannot be loaded: ${error.message}. Is the server of this page still running?`);
  }
  if (!answer.ok) throw new Error(`${path} is missing (${answer.status} ${answer.statusText}). Copy the whole folder.`);
  const parts = [];
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes(value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

const json = async (path) => JSON.parse(new TextDecoder().decode(await fetched(path)));

/** What `gatedrnn export` wrote about the run. */
export const readAbout = () => json(FILES.about);

/** The run's vocabulary file and, of subwords, its tokenizer. */
export const readVocabulary = async (about) => [
  await json(FILES.vocabulary),
  about.level === "subword" ? await json("tokenizer.json") : null,
];

/** Load runtime and graph. `onShare(share)` is told how much of their bytes has come, from 0 to 1. */
export async function loadModel(about, onShare) {
  let came = 0;
  const count = (bytes) => onShare(Math.min(1, (came += bytes) / about.download_bytes));
  const [wasm, graph] = await Promise.all([fetched(BINARY, count), fetched(FILES.graph, count)]);
  const ort = await import(RUNTIME);
  ort.env.wasm.wasmBinary = wasm;
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  return new Model(ort, session, about);
}

/** What stands between the <eos> in ids; ids without one are one sentence. */
function sentencesOf(ids) {
  const found = [[]];
  for (const id of ids) id === EOS ? found.push([]) : found.at(-1).push(id);
  return found;
}

/** One language model. Its calls run one after the other. */
export class Model {
  constructor(ort, session, about) {
    Object.assign(this, { ort, session, about, last: Promise.resolve() });
  }

  /** States before any text: zeros. */
  start() {
    const zeros = ([name, size]) => [name, new this.ort.Tensor("float32", new Float32Array(size), [1, size])];
    return Object.fromEntries(this.about.states.map(zeros));
  }

  /** Outputs `names` of the graph and the states after ids that are read from `states` on. */
  call(ids, states, names) {
    const tokens = BigInt64Array.from(ids, BigInt);
    const feeds = {
      tokens: new this.ort.Tensor("int64", tokens, [ids.length, 1]),
      lengths: new this.ort.Tensor("int64", BigInt64Array.of(BigInt(ids.length)), [1]),
      ...states,
    };
    const after = Object.keys(states);
    const run = async () => {
      const found = await this.session.run(feeds, [...names, ...after.map((name) => `${name}_out`)]);
      return { ...found, states: Object.fromEntries(after.map((name) => [name, found[`${name}_out`]])) };
    };
    return (this.last = this.last.then(run, run));
  }

  /** Bits of each id and of the <eos> that ends them; each sentence, which an <eos> ends, is read by itself after an <eos>. */
  async surprisals(ids) {
    const bits = [];
    for (const sentence of sentencesOf(ids)) {
      const { logits } = await this.call([EOS, ...sentence], this.start(), ["logits"]);
      bits.push(...[...sentence, EOS].map((id, row) => bitsOf(logits.data, row, this.about.tokens, id)));
    }
    return bits;
  }

  /** Of a cell with master gates, of each id: { forget, input, distances } by layer, from 1; gates are rows of `sizes[layer]`. */
  async gates(ids) {
    const layers = this.about.layers.map((_, k) => k + 1);
    const names = layers.flatMap((k) => [`master_forget_${k}`, `master_input_${k}`]);
    const found = await this.call([EOS, ...ids], this.start(), names);
    const by = {};
    for (const k of layers) {
      const [forget, input] = [found[`master_forget_${k}`], found[`master_input_${k}`]];
      const size = forget.dims.at(-1);
      const rows = { forget: forget.data, input: input.data };
      const distances = ids.map((_, row) => distanceOf(rows, this.about.gate, row + 1, size));
      by[k] = { size, forget: forget.data.slice(size), input: input.data.slice(size), distances };
    }
    if (layers.length > 1) by.mean = { distances: meanOf(layers.map((k) => by[k].distances)) };
    return by;
  }

  /** Of any other cell: the output of each layer after each id, { size, values } by layer. */
  async outputs(ids) {
    let states = (await this.call([EOS], this.start(), [])).states;
    const by = this.about.layers.map((size) => ({ size, values: new Float32Array(size * ids.length) }));
    for (const [row, id] of ids.entries()) {
      states = (await this.call([id], states, [])).states;
      by.forEach(({ size, values }, k) => values.set(states[this.about.outputs[k]].data, row * size));
    }
    return Object.fromEntries(by.map((each, k) => [k + 1, each]));
  }

  /** Logits after an <eos> and ids; go on with `next`. */
  begin(ids) {
    return this.call([EOS, ...ids], this.start(), ["logits"]);
  }

  /** Logits after one more id. */
  next(id, states) {
    return this.call([id], states, ["logits"]);
  }

  /** The last row of logits. */
  lastRow({ logits }) {
    return logits.data.subarray(logits.data.length - this.about.tokens);
  }
}
