// What the controller chose lately, and why: depths, reasons in words, and acceptance by task.

import { $, el, say } from "./dom.js";
import { sums } from "./feed.js";
import { count, fixed, percent, TIERS, tierOf } from "./format.js";

const MOSTLY_OFF = 0.9; // share of the rounds that could have been drafted in
const ENOUGH_ROUNDS = 20;
const NO_CHOICE = ["fixed", "request"]; // reasons for depth 0 where drafting was not to be

// A list in which rows are found again by key, so that nothing is built twice.
function rowsOf(list, entries, make, fill) {
  const known = new Map([...list.children].map((node) => [node.dataset.key, node]));
  const rows = entries.map((entry) => {
    const node = known.get(entry.key) ?? make(entry);
    node.dataset.key = entry.key;
    fill(node, entry);
    return node;
  });
  if (rows.length !== list.children.length || rows.some((node, i) => list.children[i] !== node)) list.replaceChildren(...rows);
}

export class Decisions {
  #feed;

  constructor(feed) {
    this.#feed = feed;
    const stack = el("div", { cls: "stack", role: "img" });
    const keys = el("div", { cls: "keys" });
    TIERS.forEach((name, tier) => {
      const part = el("i");
      part.style.background = `var(--tier-${tier})`;
      stack.append(part);
      const swatch = el("i", { cls: "swatch", "aria-hidden": "true" });
      swatch.style.background = `var(--tier-${tier})`;
      keys.append(swatch, el("span", {}, tier ? `depth ${name}` : "off"), el("span"));
    });
    $("tiers").replaceChildren(stack, keys, el("div", { cls: "note" }));
  }

  draw() {
    const now = this.#feed.now();
    const minute = sums(this.#feed.seconds, now - 60);
    this.#notice(minute);
    this.#tiers(minute);
    this.#reasons(minute);
    this.#tasks(sums(this.#feed.seconds, now - 300));
  }

  // Who runs a server that drafts in hardly any round should not have to find that out. Where a policy or a client wants
  // no drafts at all there is nothing to say.
  #notice({ rows, off }) {
    const told = [this.#unsure(), this.#hardly(rows, off)].filter(Boolean);
    $("notice").hidden = !told.length;
    say($("notice"), told.join(" "));
  }

  #unsure() {
    if (!this.#feed.earnings?.costs_unsure) return "";
    return "Costs are unsure: measuring again. Rounds take other times than were expected.";
  }

  #hardly(rows, off) {
    let could = rows;
    let [share, top] = [0, -1];
    off.forEach((value, code) => {
      if (NO_CHOICE.includes(this.#feed.reasons.get(code)?.name)) could -= value;
      else {
        share += value;
        if (value > (off[top] ?? 0)) top = code;
      }
    });
    if (could < ENOUGH_ROUNDS || share <= MOSTLY_OFF * could) return "";
    const { name, words } = this.#feed.reasons.get(top);
    return `Hardly anything is drafted: ${percent(share / could)} of the last minute's rounds were off. Most frequent reason (${name}): ${words}.`;
  }

  #tiers({ depths, rows, drafters }) {
    const shares = TIERS.map(() => 0);
    depths.forEach((value, depth) => (shares[tierOf(depth)] += value));
    const [stack, keys, note] = $("tiers").children;
    shares.forEach((value, tier) => {
      stack.children[tier].style.width = `${rows ? (100 * value) / rows : 0}%`;
      say(keys.children[3 * tier + 2], rows ? percent(value / rows) : "–");
    });
    stack.setAttribute("aria-label", rows ? shares.map((value, tier) => `${TIERS[tier]}: ${percent(value / rows)}`).join(", ") : "no rounds in the last minute");
    const used = drafters.map(([, , , nodes], i) => [this.#feed.server?.drafters[i] ?? `drafter ${i}`, nodes]).filter(([, nodes]) => nodes);
    const all = used.reduce((sum, [, nodes]) => sum + nodes, 0);
    const none = this.#feed.server?.drafters.length ? "" : "No drafter is loaded: every round is plain decoding.";
    say(note, all ? `Drafted tokens: ${used.map(([name, nodes]) => `${name} ${percent(nodes / all)}`).join(", ")}.` : none || (rows ? "Nothing was drafted." : "No rounds in the last minute."));
  }

  #reasons({ reasons, rows }) {
    const entries = reasons
      .map((value, code) => ({ key: String(code), value, words: this.#feed.reasons.get(code)?.words ?? "", name: this.#feed.reasons.get(code)?.name ?? "" }))
      .filter((one) => one.value)
      .sort((a, b) => b.value - a.value);
    if (!entries.length) {
      $("reasons").replaceChildren(el("li", { cls: "note" }, "No decisions in the last minute."));
      return;
    }
    rowsOf(
      $("reasons"),
      entries,
      () => el("li", {}, el("div", { cls: "label" }, el("b"), el("span")), el("div", { cls: "track" }, el("div", { cls: "fill" })), el("div", { cls: "note" })),
      (node, one) => {
        const [label, track, note] = node.children;
        say(label.firstChild, one.name);
        say(label.lastChild, percent(one.value / rows));
        track.firstChild.style.width = `${(100 * one.value) / rows}%`;
        say(note, one.words);
      },
    );
  }

  #tasks({ tasks }) {
    const entries = [...tasks].map(([key, sum]) => ({ key, sum })).sort((a, b) => b.sum[4] - a.sum[4]);
    const lengths = entries.map(({ sum }) => 1 + (sum[1] ? sum[3] / sum[1] : 0));
    const longest = Math.max(4, ...lengths);
    const body = $("tasks").tBodies[0];
    if (!entries.length) {
      body.replaceChildren(el("tr", {}, el("td", { colspan: 5, cls: "muted" }, "No rounds in the last five minutes.")));
      return;
    }
    rowsOf(
      body,
      entries,
      () => el("tr", {}, el("td"), el("td"), el("td", {}, el("div", { cls: "meter" }, el("div", { cls: "track" }, el("div", { cls: "fill" })), el("span"))), el("td"), el("td")),
      (node, { key, sum: [, drafting, drafted, accepted, emitted, entropy, judged] }) => {
        const [task, tokens, length, share, spread] = node.children;
        say(task, key);
        say(tokens, count(emitted));
        const value = drafting ? 1 + accepted / drafting : null;
        length.firstChild.firstChild.firstChild.style.width = value === null ? "0%" : `${(100 * value) / longest}%`;
        say(length.firstChild.lastChild, value === null ? "–" : fixed(value, 2));
        say(share, drafted ? percent(accepted / drafted) : "–");
        say(spread, judged ? fixed(entropy / judged, 2) : "–");
      },
    );
  }
}
