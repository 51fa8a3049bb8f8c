// YAML in colours, line by line: keys, words, numbers, comments. Not a parser: the server knows what is right.

import { el } from "./dom.js";

const TOKEN = /(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([A-Za-z_][\w./-]*)(?=\s*:(?:\s|$))|(-?\b\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?\b|\b(?:true|false|null)\b)/g;

function paint(line) {
  const parts = [];
  let done = 0;
  for (const match of line.matchAll(TOKEN)) {
    const [text, comment, quoted, key] = match;
    // A # within a word begins no comment.
    if (comment && match.index && !/\s/.test(line[match.index - 1])) continue;
    parts.push(line.slice(done, match.index));
    parts.push(el("span", { cls: comment ? "c" : quoted ? "s" : key ? "k" : "n" }, text));
    done = match.index + text.length;
  }
  parts.push(line.slice(done));
  return parts;
}

// Nodes of a whole text; `bad` are numbers of lines to be marked, from 1.
export function highlighted(text, bad = new Set()) {
  return text.split("\n").flatMap((line, i) => [el("span", { cls: bad.has(i + 1) ? "l bad" : "l" }, ...paint(line)), "\n"]);
}

export function gutter(text, bad = new Set()) {
  return text.split("\n").flatMap((_, i) => [bad.has(i + 1) ? el("span", { cls: "bad" }, String(i + 1)) : String(i + 1), "\n"]);
}
