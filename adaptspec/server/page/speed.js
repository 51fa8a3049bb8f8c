// Tokens per second: the figure, why it is so, and its curve next to an estimate for plain decoding.

import { $, count, el, fixed, keyed, percent, plural, say, showSpeedup, speed, svg } from "./dom.js";
import { key } from "./feed.js";

const SPAN = 120; // seconds shown
const NARROWEST = 14; // pixels that a stretch of work takes at least
const LEFT = 44; // pixels for the labels of the axis
const FOOT = 20;
const SPEAK_MS = 15_000; // between two changes of the chart's description
const UNSURE = "This machine's speed changed; AdaptSpec is measuring it again. No action is needed.";
const HARDLY = 'Hardly anything is drafted. "adaptspec doctor" measures which drafters pay on this machine.';

// The figures to show: those of the last seconds, or in a quiet minute those since the start.
export function shownFigures({ recent, total }) {
  return recent ? { figures: recent, label: "last 30 seconds" } : { figures: total, label: total ? "since the start" : "" };
}

// A round distance between lines, so that about four of them reach up to `value`.
function spacing(value) {
  const unit = 10 ** Math.floor(Math.log10(value / 4));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => 4 * step >= value);
}

const ago = (seconds) => (seconds < 1 ? "now" : seconds < 180 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`);

export class Speed {
  #feed;
  #hover = null;
  #spoken = -Infinity;

  constructor(feed) {
    this.#feed = feed;
    const chart = $("speed-chart");
    for (const [event, hover] of [["pointermove", true], ["pointerleave", false]]) {
      chart.addEventListener(event, ({ clientX }) => {
        this.#hover = hover ? clientX - chart.getBoundingClientRect().left : null;
        if (this.#feed.seconds.length) this.#chart();
      });
    }
    $("copy").addEventListener("click", async () => {
      await navigator.clipboard.writeText($("curl").textContent);
      say($("copy"), "Copied");
    });
    $("copy").hidden = !navigator.clipboard; // browsers have none on pages without TLS
  }

  open() {
    const bearer = key("api") ? ` -H "Authorization: Bearer $KEY"` : "";
    const body = JSON.stringify({ model: this.#feed.server.model, messages: [{ role: "user", content: "Tell me a story." }] });
    const url = new URL("v1/chat/completions", location.href);
    say($("curl"), `curl ${url}${bearer} -H "Content-Type: application/json" -d '${body}'`);
  }

  draw() {
    const { figures, label } = shownFigures(this.#feed.summary);
    for (const id of ["speed-figure", "figures"]) $(id).hidden = !figures;
    $("first-steps").hidden = Boolean(figures) || this.#feed.requests.size > 0;
    for (const node of document.querySelectorAll("#speed-window, .window")) say(node, label);
    this.#notice(figures);
    if (!figures) {
      say($("speed-now"), this.#feed.load.running ? "reading a prompt" : "Ready");
      showSpeedup($("speed-up"), null, 0);
      say($("speed-why"), "");
      return;
    }
    say($("speed-now"), `${speed(figures.tokens_per_second)} tokens/s`);
    showSpeedup($("speed-up"), figures.speedup, figures.drafted);
    say($("speed-why"), figures.why);
    this.#chart();
    this.#figures(figures);
  }

  #notice(figures) {
    const { server, costsUnsure } = this.#feed;
    const hints = [];
    if (costsUnsure) hints.push(UNSURE);
    if (figures?.rounds > 20 && server.drafters.length && figures.reasons.off > 0.9) hints.push(HARDLY);
    $("notice").hidden = !hints.length;
    say($("notice"), hints.join(" "));
  }

  #figures(figures) {
    const { load } = this.#feed;
    const entries = [
      ["Tokens per pass", fixed(figures.tokens_per_pass, 2), `${count(figures.emitted)} in ${plural(figures.rows, "pass", "passes")}`],
      ["Drafted in", percent(figures.drafted_share), "of the passes"],
      ["Accepted", percent(figures.acceptance_rate), figures.drafted ? `${count(figures.accepted)} of ${count(figures.drafted)} drafted` : "nothing was drafted"],
      ["Requests ended", count(figures.finished), `${count(load.running)} running, ${count(load.waiting)} waiting`],
    ];
    keyed(
      $("figures"),
      entries.map(([title, value, note]) => ({ key: title, title, value, note })),
      ({ title }) => el("div", {}, el("dt", {}, title), el("dd", {}, el("span"), el("small"))),
      (node, { value, note }) => {
        say(node.lastChild.firstChild, value);
        say(node.lastChild.lastChild, note);
      },
    );
  }

  // The last two minutes; where nothing happened in them, the two minutes before the last work ended.
  #chart() {
    const chart = $("speed-chart");
    const { clientWidth: width, clientHeight: height } = chart;
    const { seconds } = this.#feed;
    const now = Math.floor(this.#feed.now());
    const last = seconds.at(-1)?.at ?? 0;
    const end = last > now - SPAN ? now : last + 1;
    const shown = seconds.filter((second) => second.at >= end - SPAN && second.emitted > 0); // others read prompts only
    const most = Math.max(...shown.flatMap((second) => [second.tokens_per_second, second.plain_tokens_per_second ?? 0]), 1);
    const unit = spacing(most);
    const top = unit * Math.ceil(most / unit);
    const bottom = height - FOOT;
    const x = (at) => LEFT + ((width - LEFT - 4) * (at - end + SPAN)) / SPAN;
    const y = (value) => bottom - ((bottom - 8) * value) / top;
    const parts = [];
    for (let value = 0; value <= top; value += unit) {
      parts.push(svg("line", { class: "rule", x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, unit < 1 ? value.toFixed(1) : count(value)));
    }
    for (const back of end < now ? [120, 0] : width < 420 ? [120, 60, 0] : [120, 90, 60, 30, 0]) {
      const anchor = back === 0 ? "end" : back === SPAN ? "start" : "middle";
      parts.push(svg("text", { x: x(end - back), y: height - 4, "text-anchor": anchor }, ago(now - end + back)));
    }
    for (const run of runs(shown, "tokens_per_second", x, y)) {
      parts.push(svg("path", { class: "area", d: `M${run[0][0]} ${bottom}L${run.join("L")}L${run.at(-1)[0]} ${bottom}z` }));
      parts.push(svg("path", { class: "now", d: `M${run.join("L")}` }));
    }
    for (const run of runs(shown, "plain_tokens_per_second", x, y)) parts.push(svg("path", { class: "plain", d: `M${run.join("L")}` }));
    parts.push(this.#tip(shown, now, x, bottom, width));
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.replaceChildren(...parts.filter(Boolean));
    if (performance.now() - this.#spoken < SPEAK_MS || !shown.length) return;
    this.#spoken = performance.now();
    chart.setAttribute("aria-label", `Tokens per second over two minutes; latest ${describe(shown.at(-1), now)}`);
  }

  #tip(shown, now, x, bottom, width) {
    const tip = $("speed-tip");
    const near = (second) => Math.abs(x(second.at) - this.#hover);
    const second = this.#hover === null ? undefined : shown.toSorted((a, b) => near(a) - near(b))[0];
    tip.hidden = second === undefined;
    if (tip.hidden) return null;
    say(tip, describe(second, now));
    tip.style.left = `${Math.max(0, Math.min(x(second.at) + 10, width - tip.offsetWidth))}px`;
    return svg("line", { class: "hover", x1: x(second.at), x2: x(second.at), y1: 8, y2: bottom });
  }
}

function describe({ at, tokens_per_second, plain_tokens_per_second }, now) {
  const plain = plain_tokens_per_second === null ? "" : `, without speculation ${speed(plain_tokens_per_second)}`;
  return `${ago(now - at)}: ${speed(tokens_per_second)} tokens/s${plain}`;
}

// Points of stretches of work without a gap. One of a second or two would be a dot: it is as wide as can be seen.
function runs(seconds, name, x, y) {
  const found = [];
  let previous = null;
  for (const { at, [name]: value } of seconds) {
    if (value === null) continue;
    if (previous === null || at > previous + 1) found.push([]);
    found.at(-1).push([x(at), y(value)]);
    previous = at;
  }
  for (const run of found) {
    const [first, last] = [run[0], run.at(-1)];
    if (last[0] - first[0] < NARROWEST) run.unshift([last[0] - NARROWEST, first[1]]);
  }
  return found;
}
