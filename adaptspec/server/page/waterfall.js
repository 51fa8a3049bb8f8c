// Requests that ended lately: how long each waited, was read, and was answered.

import { $, el, say } from "./dom.js";
import { count, fixed, seconds as duration, shortId } from "./format.js";

const SHOWN = 14;

export class Waterfall {
  #feed;
  #drawn = "";

  constructor(feed) {
    this.#feed = feed;
    for (const radio of document.getElementsByName("align")) radio.addEventListener("change", () => this.draw());
  }

  draw() {
    const shown = this.#feed.recent.slice(0, SHOWN);
    const clock = document.querySelector("input[name=align]:checked").value === "clock";
    const state = `${clock} ${shown[0]?.id} ${shown.length}`;
    if (state === this.#drawn) return; // what has ended does not change
    this.#drawn = state;
    $("recent-empty").hidden = shown.length > 0 || !this.#feed.ready;
    $("waterfall").hidden = !shown.length;
    const first = Math.min(...shown.map((one) => one.arrived));
    const start = (one) => (clock ? one.arrived - first : 0);
    const span = Math.max(...shown.map((one) => start(one) + one.finished - one.arrived), 1e-6);
    this.#axis(span, clock);
    $("waterfall").tBodies[0].replaceChildren(...shown.map((one) => row(one, start(one), span)));
  }

  #axis(span, clock) {
    const marks = [0, 0.5, 1].map((part) => el("span", {}, `${clock && part ? "+" : ""}${part ? duration(part * span) : "0"}`));
    $("axis").replaceChildren(...marks);
  }
}

function row(one, start, span) {
  const began = one.admitted ?? one.finished;
  const first = one.first_token ?? one.finished;
  const phases = [
    ["queue", began - one.arrived],
    ["prefill", first - began],
    ["decode", one.finished - first],
  ];
  let at = start;
  const parts = phases.map(([name, took]) => {
    const part = el("i", { cls: "swatch " + name });
    part.style.cssText = `left:${(100 * at) / span}%;width:${(100 * took) / span}%;border-radius:0`;
    part.hidden = took <= 0;
    at += took;
    return part;
  });
  const times = phases.map(([name, took]) => `${name} ${duration(took)}`).join(", ");
  const cached = one.cached_tokens ? `; cached ${count(one.cached_tokens)} of ${count(one.prompt_tokens)} prompt tokens` : "";
  const words = times + cached;
  const decode = one.finished - first;
  const failed = one.finish === "error" || one.finish === "abort";
  return el(
    "tr",
    {},
    el("td", { title: `${one.id}, policy ${one.policy}` }, shortId(one.id)),
    el("td", {}, one.task ?? "–"),
    el("td", { cls: "num" }, count(one.tokens)),
    el("td", { cls: "num extra" }, one.tokens > 1 && decode > 0 ? count((one.tokens - 1) / decode) : "–"),
    el("td", { cls: "num extra" }, one.draft_rounds ? fixed(1 + one.accepted / one.draft_rounds, 2) : "–"),
    el("td", { cls: "bar" }, el("div", { cls: "lane", role: "img", "aria-label": words, title: words }, ...parts)),
    el("td", { cls: failed ? "num error" : "num" }, failed ? one.finish : duration(one.finished - one.arrived)),
  );
}
