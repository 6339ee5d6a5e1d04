// Text as Python's gatedrnn reads it: lines to tokens, tokens to ids, tokens to the words that hold them.

import { isBlank, isDigit, split, visible } from "./letters.js";
import { pennText, pennWords } from "./penn.js";

export const UNK = 0;
export const EOS = 1;
const END = "<eos>";
const CUT = { none: split, penn: pennWords, characters: visible };

/**
 * Words and tokens of a line.
 * Returns { words, written, tokens, ids, owners }: tokens as written and as the vocabulary has them, and owners[k], the word,
 * from 0, that token k belongs to.
 */
export function align(vocabulary, line, mapping = "exact") {
  if (vocabulary.level === "word") {
    const words = CUT[vocabulary.tokenize](line);
    const ids = words.map((word) => lookUp(vocabulary, word, mapping));
    const owners = words.map((_, k) => k);
    return { words, written: words, tokens: ids.map((id) => vocabulary.words[id]), ids, owners };
  }
  const characters = Array.from(line);
  const pieces = vocabulary.level === "char" ? charactersOf(characters) : vocabulary.subwords.pieces(line);
  const ids = pieces.map(({ token }) => vocabulary.ids.get(token) ?? UNK);
  const written = pieces.map(({ token }) => token);
  return { ...owned(characters, pieces), written, tokens: ids.map((id) => vocabulary.words[id]), ids };
}

/** The id of a word: as written, then in lower case, then, if it holds a digit, as N. */
export function lookUp(vocabulary, word, mapping) {
  const found = vocabulary.ids.get(word);
  if (found !== undefined || mapping === "exact") return found ?? UNK;
  const lower = vocabulary.ids.get(word.toLowerCase());
  if (lower !== undefined || mapping === "lower") return lower ?? UNK;
  const number = vocabulary.tokenize !== "characters" && Array.from(word).some(isDigit);
  return (number ? vocabulary.ids.get("N") : undefined) ?? UNK;
}

/** Readable text of tokens, a new line at each <eos>. */
export function textOf(vocabulary, tokens) {
  const lines = [[]];
  for (const token of tokens) token === END ? lines.push([]) : lines.at(-1).push(token);
  return lines.map((line) => (line.length ? join(vocabulary, line) : "")).join("\n");
}

function join(vocabulary, tokens) {
  if (vocabulary.level === "subword") return vocabulary.subwords.join(tokens);
  if (vocabulary.tokenize === "penn") return pennText(tokens);
  return tokens.join(vocabulary.level === "word" && vocabulary.tokenize === "none" ? " " : "");
}

const charactersOf = (characters) => characters.map((token, k) => ({ token, start: k, end: k + 1 }));

/** A token belongs to the word that holds its last visible character; white space alone to the word after it. */
function owned(characters, pieces) {
  const blank = characters.map(isBlank);
  const words = [];
  characters.forEach((_, k) => {
    if (blank[k]) return;
    if (k === 0 || blank[k - 1]) words.push([k, k]);
    words.at(-1)[1] = k + 1;
  });
  let word = 0;
  const owners = pieces.map(({ start, end }) => {
    let visible = Math.max(start, end - 1);
    for (let k = end - 1; k >= start; k--) {
      if (blank[k]) continue;
      visible = k;
      break;
    }
    while (word + 1 < words.length && words[word][1] <= visible) word++;
    return word;
  });
  return { words: words.map(([a, b]) => characters.slice(a, b).join("")), owners };
}

/** A vocabulary of the files that a run holds. */
export function vocabularyOf(saved, tokenizer) {
  const ids = new Map(saved.words.map((word, id) => [word, id]));
  const subwords = tokenizer ? new Subwords(tokenizer) : null;
  return { level: saved.level, words: saved.words, ids, subwords, tokenize: saved.tokenize ?? "none" };
}

// Unicode's White_Space, which the regular expressions of tokenizers call \s.
const WHITE = "\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const GPT2 = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${WHITE}\\p{L}\\p{N}]+|[${WHITE}]+(?![^${WHITE}])|[${WHITE}]+`,
  "gu",
);

/** Byte-level BPE of a tokenizer.json: GPT-2's, and what gatedrnn learns. */
export class Subwords {
  constructor(tokenizer) {
    const { merges } = tokenizer.model;
    this.ranks = new Map(merges.map((pair, rank) => [Array.isArray(pair) ? pair.join(" ") : pair, rank]));
    const escaped = tokenizer.added_tokens
      .map(({ content }) => content)
      .sort((a, b) => b.length - a.length)
      .map((content) => content.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.added = escaped.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
    this.letters = lettersOfBytes();
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.known = new Map();
  }

  /** Tokens of a line with the characters [start, end) that each stands for. */
  pieces(line) {
    const found = [];
    let at = 0;
    (this.added ? line.split(this.added) : [line]).forEach((part, k) => {
      if (k % 2) {
        found.push({ token: part, start: at, end: at + Array.from(part).length });
        at = found.at(-1).end;
        return;
      }
      for (const piece of part.match(GPT2) ?? []) {
        found.push(...this.cut(piece).map(([token, a, b]) => ({ token, start: at + a, end: at + b })));
        at += Array.from(piece).length;
      }
    });
    return found;
  }

  /** [token, start, end] of a piece, characters counted from its beginning. */
  cut(piece) {
    if (!this.known.has(piece)) {
      const letters = [];
      const owners = [];
      Array.from(piece).forEach((character, k) => {
        for (const byte of new TextEncoder().encode(character)) {
          letters.push(this.letters[byte]);
          owners.push(k);
        }
      });
      let at = 0;
      const cut = merged(letters, this.ranks).map((token) => {
        const size = Array.from(token).length;
        at += size;
        return [token, owners[at - size], owners[at - 1] + 1];
      });
      this.known.set(piece, cut);
    }
    return this.known.get(piece);
  }

  /** The text that tokens make. */
  join(tokens) {
    const bytes = tokens.flatMap((token) => {
      const letters = Array.from(token);
      if (letters.every((letter) => this.bytes.has(letter))) return letters.map((letter) => this.bytes.get(letter));
      return [...new TextEncoder().encode(token)];
    });
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
  }
}

/** Letters joined by the merge of the lowest rank, again and again. */
function merged(letters, ranks) {
  const parts = [...letters];
  const rank = (k) => (k + 1 < parts.length ? (ranks.get(`${parts[k]} ${parts[k + 1]}`) ?? Infinity) : Infinity);
  const found = parts.map((_, k) => rank(k));
  for (;;) {
    let at = 0;
    for (let k = 1; k < found.length; k++) if (found[k] < found[at]) at = k;
    if (!(found[at] < Infinity)) return parts;
    parts.splice(at, 2, parts[at] + parts[at + 1]);
    found.splice(at, 2, rank(at));
    if (at) found[at - 1] = rank(at - 1);
  }
}

/** GPT-2's visible letter of every byte. */
function lettersOfBytes() {
  let next = 256;
  const visible = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(visible(byte) ? byte : next++));
}
