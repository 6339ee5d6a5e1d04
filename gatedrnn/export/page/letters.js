// Letters by the classes that Python's strings have.

// What str.isspace() holds for, and what str.isdigit() holds for beyond decimal digits.
export const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const DIGIT = new RegExp(
  "^[\\p{Nd}\\xb2\\xb3\\xb9\\u1369-\\u1371\\u19da\\u2070\\u2074-\\u2079\\u2080-\\u2089\\u2460-\\u2468\\u2474-\\u247c" +
    "\\u2488-\\u2490\\u24ea\\u24f5-\\u24fd\\u24ff\\u2776-\\u277e\\u2780-\\u2788\\u278a-\\u2792" +
    "\\u{10a40}-\\u{10a43}\\u{10e60}-\\u{10e68}\\u{11052}-\\u{1105a}\\u{1f100}-\\u{1f10a}]$",
  "u",
);
const WORD = new RegExp(`[^${SPACE}]+`, "gu");
const INVISIBLE = "\\xad\\u061c\\u180e\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff\\u{e0001}-\\u{e007f}";
const VISIBLE = new RegExp(`<unk>|<eos>|[^${SPACE}${INVISIBLE}][\\p{M}\\u200c\\u200d]*`, "gu");
const BLANK = new RegExp(`^[${SPACE}]*$`, "u");

/** Whether a text is white space alone. */
export const isBlank = (text) => BLANK.test(text);

/** Whether a letter is a digit. */
export const isDigit = (letter) => DIGIT.test(letter);

/** What stands between white space. */
export const split = (line) => line.match(WORD) ?? [];

/** Visible characters, each with the marks and joiners that follow it. */
export const visible = (line) => line.match(VISIBLE) ?? [];
