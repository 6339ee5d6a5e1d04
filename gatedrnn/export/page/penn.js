// Sentences as people write them, cut into words as in the Penn Treebank: gatedrnn/data/penn.py, rule by rule.

import { isDigit, split } from "./letters.js";

const EOS = "<eos>";
const [OPEN, CLOSE, OPEN_SINGLE] = ["``", "''", "`"];
const EITHER = '"'; // a double quotation mark whose direction the line decides
const DOUBLE = "\"“”„‟«»";
const BRACKETS = new Map([
  ["-LRB-", "("], ["-RRB-", ")"], ["-LSB-", "["], ["-RSB-", "]"], ["-LCB-", "{"], ["-RCB-", "}"],
]);
const CLOSERS = new Set([CLOSE, "'", ")", "]", "}", ">"]);
const NO_SPACE_BEFORE = new Set([".", ",", ";", ":", "?", "!", ")", "]", "}", CLOSE, "'", "..."]);
const NO_SPACE_AFTER = new Set(["(", "[", "{", "$", "#", OPEN, OPEN_SINGLE]);
const SHOWN = new Map([[OPEN, '"'], [CLOSE, '"'], [OPEN_SINGLE, "'"]]);
const SECONDS = new Set(["not", "me", "na", "ta", "is", "was"]);
const BEFORE_OPENING = "([{<-‒–—―='`/\"“„«";
const AFTER_CLOSING = ".,;:?!)]}>'";
const ROUNDS = 8;
const LONGEST = 64; // letters of a word that is cut

const W = "\\p{L}\\p{N}_"; // Python's \w
const MARK = `</?[A-Za-z][${W}\\-]*>`;
const APART = `${MARK}|-[LR][RSC]B-|''|\\.\\.|--|[:,](?!\\p{Nd})`;
const LETTERS = "(?=(?<letters>[A-Za-z]+))\\k<letters>"; // as many as there are
const SCAN = new RegExp(
  `${MARK}|-[LR][RSC]B-|''|\`\`|\`|[${DOUBLE}]|[A-Za-z]{1,3}\\$|[()\\[\\]{}<>;?!@#$%&]|\\*+|\\.{2,}|-{2,}|[‒–—―…]` +
    `|[:,](?!\\p{Nd})|(?:${LETTERS}|(?<=[${W}])&(?=[${W}])|(?!${APART})[^\`${DOUBLE}()\\[\\]{}<>;?!@#$%&*‒–—―…])+`,
  "gu",
);
// Where case does not count, i is also ı and İ in Python.
const SPLIT_WORDS = /^(?:(can)(not)|(g[iıİ]m|lem)(me)|(gon|wan)(na)|(got)(ta)|(more)('n)|(d)('ye)|('t)([iıİ]s|was))$/iu;
const CONTRACTION = /^(.*[^'])('s|'m|'d|'ll|'re|'ve|n't|')$/isu;
const OPENING_APOSTROPHE = new RegExp(
  `^'(?!(?:re|ve|ll|m|t|s|d|n|em|ye|t[iıİ]s|twas)(?![${W}])|\\p{Nd}\\p{Nd}s?(?![${W}]))(?=[${W}])`,
  "iu",
);
const FOREIGN_MARK = /^[\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}\p{Sc}]$/u;

const isForeign = (letter) => letter > "\x7f" && FOREIGN_MARK.test(letter);
const single = (text) => text.replace(/[‘’‚‛]/g, "'");

/** Words of a line, which should be one sentence. What is cut already stays as it is. */
export const pennWords = (line) => grouped(split(line)).flat();

/** The line that these words make. */
export function pennText(words) {
  let text = joined(words);
  for (let round = 0; round < ROUNDS; round++) {
    const before = text;
    text = joined(pennWords(text));
    if (text === before) break;
  }
  return text;
}

/** The words of each piece of a line. */
function grouped(pieces) {
  let groups = pieces.map(cut);
  if (groups.some((group) => group.includes(EITHER))) groups = directed(groups);
  const ends = groups.flatMap((group, k) => group.flatMap((word, i) => (word === EOS ? [[k, i]] : [])));
  for (const [k, i] of [[groups.length, 0], ...ends.reverse()]) endSentence(groups, k, i);
  return groups;
}

/** Make the full stop of the sentence that ends before word `i` of group `k` a word. */
function endSentence(groups, k, i) {
  while (i || k) {
    if (!i) i = groups[--k].length;
    i--;
    const [group, word] = [groups[k], groups[k][i]];
    if (CLOSERS.has(word)) continue;
    if (word.length > 1 && word.at(-1) === "." && word.at(-2) !== ".") {
      groups[k] = [...group.slice(0, i), ...cut(word.slice(0, -1)), ".", ...group.slice(i + 1)];
    }
    return;
  }
}

/** With a direction for every quotation mark: closing where one is open. */
function directed(groups) {
  let open = false;
  return groups.map((group) =>
    group.map((word) => {
      const made = word === EITHER ? (open ? CLOSE : OPEN) : word;
      open = made === OPEN || (open && made !== CLOSE);
      return made;
    }),
  );
}

/** Words of what stands between white space. */
function cut(given) {
  const piece = single(given);
  return [...piece.matchAll(SCAN)].flatMap((match) => {
    const [token, start] = [match[0], match.index];
    if (token.length === 1 && DOUBLE.includes(token)) {
      return [quotation(token, piece.slice(0, start).slice(-1), piece.slice(start + 1, start + 2))];
    }
    if (BRACKETS.has(token)) return [BRACKETS.get(token)];
    return token[0] === "<" ? [token] : cutWord(token);
  });
}

/** The direction of a double quotation mark between two characters, each empty at an end of the piece. */
function quotation(mark, before, after) {
  if (before && !BEFORE_OPENING.includes(before)) return CLOSE;
  return after && !AFTER_CLOSING.includes(after) ? OPEN : alone(mark);
}

const alone = (mark) => (mark === '"' ? EITHER : "“„«".includes(mark) ? OPEN : CLOSE);

/** Words of what holds no other separator: punctuation of other scripts at its ends, apostrophes, contractions. */
function cutWord(word) {
  const found = [];
  for (const left = [word]; left.length; ) {
    const parts = halved(left.pop());
    if (parts.length === 1) found.push(parts[0]);
    else left.push(...parts.reverse());
  }
  return found;
}

/** A word in two, or as it is. */
function halved(word) {
  const letters = Array.from(word);
  if (letters.length === 1 || letters.length > LONGEST) return [word];
  if (isForeign(letters[0])) return [letters[0], letters.slice(1).join("")];
  if (isForeign(letters.at(-1)) || letters.at(-1) === "&") return [letters.slice(0, -1).join(""), letters.at(-1)];
  if (OPENING_APOSTROPHE.test(word)) return [OPEN_SINGLE, word.slice(1)];
  const found = word.match(SPLIT_WORDS) ?? word.match(CONTRACTION);
  return found ? found.slice(1).filter(Boolean) : [word];
}

const shown = (word) => SHOWN.get(word) ?? word;

function joined(words) {
  return words.reduce((text, word, k) => {
    const space = k && !isClose(words[k - 1], word) ? " " : "";
    return text + space + shown(word);
  }, "");
}

/** Whether no space stands between two words: not where they would read as others. */
function isClose(before, word) {
  const last = Array.from(before).at(-1);
  const becomes = (text) => {
    const found = cut(text);
    return found.length === 2 && found[0] === before && found[1] === word;
  };
  if (NO_SPACE_BEFORE.has(word) || (word === "%" && isDigit(last)) || isMark(word, /^[\p{Pe}\p{Pf}\p{Po}]$/u)) {
    if (word === ".") return last !== "." && before !== OPEN && before !== OPEN_SINGLE;
    const plain = /[\p{L}\p{N}]/u.test(before);
    return plain ? becomes(before + shown(word)) : last !== word[0];
  }
  if (NO_SPACE_AFTER.has(before) || isMark(before, /^[\p{Ps}\p{Pi}\p{Sc}]$/u) || before === "¿" || before === "¡") {
    return becomes(shown(before) + word);
  }
  const second = SECONDS.has(word.toLowerCase()) && /\p{L}$/u.test(before);
  return (word.includes("'") || second) && becomes(before + word);
}

const isMark = (word, kinds) => word > "\x7f" && word !== "¿" && word !== "¡" && kinds.test(word);
