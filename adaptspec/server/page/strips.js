// A strip for each request: a bar per round, so that one sees the controller move.

import { $, colour, el, prepare, say } from "./dom.js";
import { count, percent, shortId, TIERS, tierOf } from "./format.js";

const SHOWN = 64;
const AT_LEAST = 10; // requests: those that ended last fill the places of those that do not run
const MANY = 12;
const LOWEST = 7; // the depth that a strip has room for at least

export function tierLegend(list) {
  list.replaceChildren(...TIERS.map((name, tier) => {
    const swatch = el("i", { cls: "swatch", "aria-hidden": "true" });
    swatch.style.background = `var(--tier-${tier})`;
    return el("li", {}, swatch, tier ? `depth ${name}` : name);
  }));
}

export class Strips {
  #feed;
  #rows = new Map();

  constructor(feed) {
    this.#feed = feed;
    tierLegend($("tier-legend"));
  }

  draw() {
    const feed = this.#feed;
    const running = [...feed.running.values()].slice(0, SHOWN);
    const ended = feed.recent.filter((one) => one.rounds.length).slice(0, Math.max(0, AT_LEAST - running.length));
    const shown = [...running, ...ended];
    const list = $("strips");
    list.classList.toggle("many", shown.length > MANY);
    $("strips-empty").hidden = shown.length > 0 || !feed.ready;
    const wanted = new Set(shown.map((one) => one.id));
    for (const [id, row] of this.#rows) {
      if (wanted.has(id)) continue;
      row.item.remove();
      this.#rows.delete(id);
    }
    const deepest = Math.max(LOWEST, ...shown.map((one) => one.rounds.reduce((most, round) => Math.max(most, round[1]), 0)));
    shown.forEach((one, place) => {
      const row = this.#rows.get(one.id) ?? this.#add(one.id);
      if (list.children[place] !== row.item) list.insertBefore(row.item, list.children[place] ?? null);
      this.#fill(row, one, feed.running.has(one.id), deepest);
    });
  }

  #add(id) {
    const canvas = el("canvas", { role: "img" });
    const row = { id, canvas, name: el("b"), note: el("span"), one: null, width: 0, spoken: "" };
    row.item = el("li", {}, el("div", { cls: "who" }, row.name, " ", row.note), canvas);
    canvas.addEventListener("pointermove", (event) => {
      canvas.title = this.#explain(row, event.offsetX);
    });
    this.#rows.set(id, row);
    return row;
  }

  #fill(row, one, runs, deepest) {
    row.one = one;
    row.item.classList.toggle("done", !runs);
    say(row.name, one.task ?? "task unknown");
    row.name.title = `${one.id}, policy ${one.policy}${one.task_detected ? ", task read off the prompt" : ""}`;
    const state = !runs ? "ended" : one.rounds.length ? "" : "reading the prompt";
    say(row.note, state && runs ? state : `${one.tokens === 1 ? "1 token" : `${count(one.tokens)} tokens`}${state ? ", ended" : ""}`);
    row.width = drawStrip(row.canvas, one.rounds, deepest);
    const drafted = one.rounds.reduce((sum, round) => sum + round[1], 0);
    const accepted = one.rounds.reduce((sum, round) => sum + round[2], 0);
    const said = `${shortId(one.id)}: ${one.rounds.length} rounds, ${drafted ? percent(accepted / drafted) : "none"} of the drafts accepted`;
    // Once it has ended the figures rest; until then they would change four times a second.
    if (!runs || !row.spoken) row.canvas.setAttribute("aria-label", (row.spoken = said));
  }

  #explain(row, offset) {
    const { rounds } = row.one;
    const visible = Math.floor(row.canvas.clientWidth / row.width);
    const first = Math.max(0, rounds.length - visible);
    const round = rounds[first + Math.floor(offset / row.width)];
    if (!round) return "";
    const [depth, drafted, accepted, , drafter, reason, entropy] = round;
    const why = this.#feed.reasons.get(reason);
    const by = drafted ? ` by ${this.#feed.server.drafters[drafter]}` : "";
    const unsure = entropy === null ? "" : `; entropy ${entropy.toFixed(2)} nats`;
    return `depth ${depth}: ${drafted} drafted${by}, ${accepted} accepted${unsure}${tree(round)}\n${why?.name}: ${why?.words}`;
  }
}

// What a round that branched tried beside its main chain, in words.
function tree([, , accepted, , , , , nodes, straight, others, levels]) {
  if (!levels) return "";
  const more = others ? `, ${others} of them by another drafter` : "";
  const left = straight < accepted ? `; after ${straight} accepted, a branch was right where the main chain was not` : "";
  return `\n${nodes} nodes, by depth ${levels.join(", ")}${more}${left}`;
}

// Draws the newest rounds that find room, and returns how many pixels each takes. Where rounds have room enough, a tree
// stands in two columns: its main chain, and beside it what branches off, the darker the more. The path is solid.
export function drawStrip(canvas, rounds, deepest) {
  const { context: c, width, height } = prepare(canvas);
  const widest = rounds.some((round) => round[10]) ? 12 : 9;
  const step = Math.max(2, Math.min(widest, Math.floor(width / Math.max(rounds.length, 1))));
  const gap = step >= 4 ? 1.5 : step === 3 ? 1 : 0.5;
  const shown = rounds.slice(-Math.floor(width / step));
  const base = height - 3;
  const unit = (base - 1) / deepest;
  shown.forEach(([depth, drafted, accepted, , , , , , straight, , levels], i) => {
    const x = i * step;
    const room = step - gap;
    const beside = levels && room >= 4;
    const wide = beside ? Math.ceil(0.55 * room) : room;
    c.fillStyle = colour(`tier-${tierOf(depth)}`);
    if (!drafted) {
      c.globalAlpha = depth ? 1 : 0.75;
      c.fillRect(x, base - 1, wide, 2);
      c.globalAlpha = 1;
      return;
    }
    const [tall, kept] = [drafted * unit, (beside ? straight : accepted) * unit];
    if (room >= 4) {
      c.globalAlpha = 0.14;
      c.fillRect(x, base - tall, wide, tall);
      c.globalAlpha = 1;
      c.strokeStyle = c.fillStyle;
      c.lineWidth = 1;
      c.strokeRect(x + 0.5, base - tall + 0.5, wide - 1, tall - 1);
    } else {
      c.globalAlpha = 0.38; // too narrow for an outline
      c.fillRect(x, base - tall, wide, tall);
      c.globalAlpha = 1;
    }
    c.fillRect(x, base - kept, wide, kept);
    if (!beside) return;
    levels.forEach((nodes, level) => {
      const onPath = straight <= level && level < accepted;
      c.globalAlpha = onPath ? 1 : Math.min(0.75, 0.15 * (nodes - 1));
      c.fillRect(x + wide, base - (level + 1) * unit, room - wide, unit);
    });
    c.globalAlpha = 1;
  });
  c.fillStyle = colour("line");
  c.fillRect(0, base + 1.5, Math.max(shown.length * step, 0), 1);
  return step;
}
