// Tokens per second now, against an estimate for plain decoding, and the figures of the last minute.

import { $, colour, el, prepare, say } from "./dom.js";
import { count, fixed, percent, seconds as duration, times } from "./format.js";
import { sums } from "./feed.js";

const SPAN = 120; // seconds shown
const SMOOTH = 3; // seconds that each point is the mean of
const NOW = 5; // seconds that the large figure is the mean of
const LEAST_TOP = 10; // tokens per second that the chart reaches up to at least
const NARROWEST = 14; // pixels that a stretch of work takes at least
const SPEAK_MS = 15_000; // between two changes of what screen readers are told

// Tokens per second of work over some seconds: measured, and estimated without speculation (null: not known yet).
// Where nothing was drafted, both are the same.
function rates(parts) {
  let [emitted, busy, drafted, tokens, took, plain] = [0, 0, 0, 0, 0, 0];
  for (const one of parts) {
    emitted += one.emitted;
    busy += one.busy;
    drafted += one.drafted;
    tokens += one.compared?.[0] ?? 0;
    took += one.compared?.[1] ?? 0;
    plain += one.compared?.[2] ?? 0;
  }
  if (!busy || !emitted) return { now: null, off: null, gain: null, drafted };
  const now = emitted / busy;
  if (!drafted) return { now, off: now, gain: 1, drafted };
  // Of rounds that are compared alone: `now` has those of requests that declined speculation, too.
  return took && plain ? { now, off: tokens / plain, gain: plain / took, drafted } : { now, off: null, gain: null, drafted };
}

function series(all, now) {
  const end = Math.floor(now);
  const by = new Map(all.map((one) => [one.at, one]));
  const points = [];
  for (let at = end - SPAN; at <= end; at += 1) {
    const parts = [];
    for (let back = 0; back < SMOOTH; back += 1) if (by.has(at - back)) parts.push(by.get(at - back));
    // A second in which nothing ran is a gap, not what ran before it.
    points.push({ at, ...(by.get(at)?.rounds ? rates(parts) : { now: null, off: null }) });
  }
  return points;
}

// A round distance between lines, so that about four of them reach up to `value`.
function spacing(value) {
  const unit = 10 ** Math.floor(Math.log10(value / 4));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => 4 * step >= value);
}

export class Speed {
  #feed;
  #points = [];
  #spoken = 0;
  #hover = null;

  constructor(feed) {
    this.#feed = feed;
    const canvas = $("speed-chart");
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.#point(null));
  }

  draw() {
    const feed = this.#feed;
    this.#points = series(feed.seconds, feed.now());
    const recent = rates(feed.seconds.filter((one) => one.at > feed.now() - NOW));
    say($("speed-now"), recent.now === null ? "0" : count(recent.now));
    const ratio = $("speed-ratio");
    if (recent.now === null) say(ratio, feed.load.running ? "reading a prompt" : "idle");
    else if (!recent.drafted) say(ratio, "tokens per second, nothing drafted");
    else if (recent.off === null) say(ratio, "tokens per second");
    else {
      const { gain } = recent;
      ratio.replaceChildren(
        el("b", { cls: gain > 1.005 ? "faster" : gain < 0.995 ? "slower" : "" }, times(gain)),
        ` the ${count(recent.off)} of plain decoding`,
      );
    }
    this.#chart();
    this.#stats();
  }

  #chart() {
    const canvas = $("speed-chart");
    const { context: c, width, height } = prepare(canvas);
    const shown = this.#points.flatMap((one) => [one.now, one.off]).filter((value) => value !== null);
    $("speed-empty").hidden = shown.length > 0 || !this.#feed.ready;
    const most = Math.max(...shown, LEAST_TOP) * 1.08;
    const unit = spacing(most);
    const top = unit * Math.ceil(most / unit);
    const [left, bottom, roof] = [44, height - 20, 6];
    const x = (i) => left + ((width - left - 4) * i) / SPAN;
    const y = (value) => bottom - ((bottom - roof) * value) / top;
    c.font = "11px " + getComputedStyle(document.body).fontFamily;
    c.lineWidth = 1;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (let value = 0; value <= top; value += unit) {
      c.strokeStyle = colour(value ? "faint" : "line");
      c.beginPath();
      c.moveTo(left, Math.round(y(value)) + 0.5);
      c.lineTo(width, Math.round(y(value)) + 0.5);
      c.stroke();
      c.fillStyle = colour("muted");
      c.fillText(count(value), left - 8, y(value));
    }
    c.textBaseline = "bottom";
    for (const back of width < 420 ? [120, 60, 0] : [120, 90, 60, 30, 0]) {
      c.textAlign = back === 0 ? "right" : back === 120 ? "left" : "center";
      c.fillText(back ? `${back} s ago` : "now", x(SPAN - back), height);
    }
    this.#line(c, x, y, "now", { fill: colour("accent"), base: bottom, stroke: colour("accent"), size: 2.25 });
    this.#line(c, x, y, "off", { stroke: colour("off"), size: 2, dash: [5, 4] });
    if (this.#hover !== null) this.#mark(c, x, y, bottom, roof, width);
    this.#speak(canvas);
  }

  #line(c, x, y, name, { stroke, size, dash = [], fill = null, base = 0 }) {
    const runs = [];
    this.#points.forEach((one, i) => {
      if (one[name] === null) return;
      if (i === 0 || this.#points[i - 1][name] === null) runs.push([]);
      runs.at(-1).push([x(i), y(one[name])]);
    });
    c.strokeStyle = stroke;
    c.lineWidth = size;
    c.lineJoin = "round";
    c.lineCap = "round";
    c.setLineDash(dash);
    for (const run of runs) {
      // What took a second or two would be a dot: it is as wide as can be seen, and ends where it ended.
      const [first, last] = [run[0], run.at(-1)];
      const short = last[0] - first[0] < NARROWEST;
      if (short) run.unshift([last[0] - NARROWEST, first[1]]);
      const path = new Path2D();
      run.forEach(([px, py], i) => (i ? path.lineTo(px, py) : path.moveTo(px, py)));
      c.stroke(path);
      if (fill) {
        path.lineTo(run.at(-1)[0], base);
        path.lineTo(run[0][0], base);
        c.globalAlpha = short ? 0.35 : 0.1;
        c.fillStyle = fill;
        c.fill(path);
        c.globalAlpha = 1;
      }
    }
    c.setLineDash([]);
  }

  #point(offset) {
    this.#hover = offset;
    if (this.#points.length) this.#chart();
  }

  #mark(c, x, y, bottom, roof, width) {
    const i = Math.max(0, Math.min(SPAN, Math.round(((this.#hover - 44) / (width - 48)) * SPAN)));
    const one = this.#points[i];
    const tip = $("speed-tip");
    tip.hidden = !one || one.now === null;
    if (tip.hidden) return;
    c.strokeStyle = colour("strong");
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(x(i), roof);
    c.lineTo(x(i), bottom);
    c.stroke();
    const plain = one.off === null ? "" : `, without speculation ${count(one.off)}`;
    say(tip, `${SPAN - i} s ago: ${count(one.now)}${plain}`);
    tip.style.left = `${Math.min(Math.max(0, x(i) + 10), Math.max(0, width - tip.offsetWidth))}px`;
  }

  #speak(canvas) {
    if (this.#hover === null) $("speed-tip").hidden = true;
    if (performance.now() - this.#spoken < SPEAK_MS) return;
    this.#spoken = performance.now();
    const last = this.#points.filter((one) => one.now !== null).at(-1);
    const plain = last?.off ? `, without speculation ${count(last.off)}` : "";
    canvas.setAttribute("aria-label", last ? `Tokens per second over the last two minutes; latest ${count(last.now)}${plain}` : "Tokens per second: nothing was decoded in the last two minutes");
  }

  #stats() {
    const feed = this.#feed;
    const since = feed.now() - 60;
    const sum = sums(feed.seconds, since);
    const waits = feed.recent.filter((one) => one.finished > since).filter((one) => one.first_token !== null).map((one) => one.first_token - one.arrived).sort((a, b) => a - b);
    const [, took, plain, against, best] = sum.compared ?? [0, 0, 0, 0, 0];
    const sure = feed.earnings?.speedup;
    const spread = sure ? `over plain rounds; since the start ${times(sure.low)} to ${times(sure.high)}` : "too few plain rounds to compare with";
    const wide = sum.nodes > sum.drafted ? `; ${count(sum.nodes)} nodes` : "";
    const name = feed.earnings?.best_static;
    const fixedName = !name ? "" : name.drafter === null ? "off" : `${name.drafter} at ${name.depth}`;
    const idle = !sum.drafted;
    const rows = [
      idle
        ? ["Speed-up", sum.emitted ? times(1) : "–", sum.emitted ? "nothing was drafted" : ""]
        : ["Speed-up", took && plain ? times(plain / took) : "unknown yet", spread],
      idle
        ? ["Against the best fixed depth", "–", "nothing was drafted"]
        : ["Against the best fixed depth", against && best ? times(best / against) : "unknown yet", fixedName || "too few rounds at fixed depths"],
      ["Acceptance length", sum.drafting ? fixed(1 + sum.accepted / sum.drafting, 2) : "–", "tokens per drafting round"],
      ["Accepted", sum.drafted ? percent(sum.accepted / sum.drafted) : "–", `${count(sum.accepted)} of ${count(sum.drafted)} drafted${wide}`],
      ["Passes saved", count(sum.accepted), `${count(sum.nodes - sum.accepted)} drafted in vain`],
      ["Tokens", count(sum.emitted), `in ${count(sum.rows)} rounds of requests`],
      ["Requests ended", count(sum.ended), `${count(feed.load.running)} run, ${count(feed.load.waiting)} wait`],
      ["First token", waits.length ? duration(waits[Math.floor(waits.length / 2)]) : "–", "median from arrival"],
    ];
    const list = $("stats-list");
    if (list.children.length !== rows.length) {
      list.replaceChildren(...rows.map(() => el("div", {}, el("dt"), el("dd", {}, el("span"), el("small")))));
    }
    rows.forEach(([title, value, note], i) => {
      const [term, detail] = list.children[i].children;
      say(term, title);
      say(detail.firstChild, value);
      say(detail.lastChild, note);
    });
  }
}
