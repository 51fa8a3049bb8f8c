// Elements, numbers in words, and colours of drafters. Text only ever enters as text: what models and users write is
// never markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Changes a text only where it differs: screen readers and layout then rest.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keeps the children of a list in step with `entries`: {key, ...}. A node is made once per key and filled each time.
export function keyed(list, entries, make, update) {
  const known = new Map([...list.children].map((node) => [node.dataset.key, node]));
  const nodes = entries.map((entry) => {
    const node = known.get(entry.key) ?? make(entry);
    node.dataset.key = entry.key;
    update(node, entry);
    return node;
  });
  if (nodes.length !== list.children.length || nodes.some((node, i) => list.children[i] !== node)) list.replaceChildren(...nodes);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (value) => whole.format(value);
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
export const times = (value) => `${fixed(value, 2)} x`;
export const speed = (value) => (value === null ? "–" : value < 10 ? value.toFixed(1) : count(value)); // tokens per second

export function percent(share) {
  if (share === null || share === undefined) return "–";
  const hundred = 100 * share;
  if (hundred > 0 && hundred < 0.1) return "< 0.1 %";
  return `${hundred > 0 && hundred < 1 ? hundred.toFixed(1) : Math.round(hundred)} %`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// A speed-up with its interval. It is good or bad only where drafts were made and the interval leaves no doubt.
export function showSpeedup(node, speedup, drafted, interval = true) {
  const judged = speedup && drafted > 0;
  node.classList.toggle("good", Boolean(judged && speedup.low > 1));
  node.classList.toggle("bad", Boolean(judged && speedup.high < 1));
  say(node, speedup ? `${times(speedup.value)} plain${interval && judged ? ` (${fixed(speedup.low, 2)} to ${fixed(speedup.high, 2)})` : ""}` : "");
}

// Colours for any number of drafters. Hue and lightness both change from one to the next: the first six also differ for
// readers with any kind of colour blindness, and have a contrast of 3:1 at least on a card. Lines under words help too.
const LIGHT = [0.4, 0.62, 0.5];
const DARK = [0.64, 0.88, 0.76];
const LINES = ["solid", "dotted", "dashed", "double"];
export function tint(node, drafter) {
  const hue = (260 + 163 * drafter) % 360;
  const [light, dark] = [LIGHT[drafter % 3], DARK[drafter % 3]];
  node.style.setProperty("--drafter", `light-dark(oklch(${light} 0.14 ${hue}), oklch(${dark} 0.12 ${hue}))`);
  node.style.setProperty("--underline", LINES[drafter % LINES.length]);
  return node;
}

export const swatch = (drafter) => tint(el("i", { class: "swatch", "aria-hidden": "true" }), drafter);
